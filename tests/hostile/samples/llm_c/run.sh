torchrun --standalone --nproc_per_node=4 train_gpt2.py --input_bin "data/*.bin" --model d12 \
    --batch_size 4 --sequence_length 256 --total_batch_size 8192 --dtype bfloat16 --compile 1 --flash 1
