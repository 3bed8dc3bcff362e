python run_qa.py \
    --model_name_or_path xlm-roberta-base \
    --dataset_name squad \
    --do_train \
    --do_eval \
    --per_device_train_batch_size 16 \
    --num_train_epochs 3.0 \
    --max_seq_length 384 \
    --doc_stride 128 \
    --output_dir out
