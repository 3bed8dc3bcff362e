BSZ=4
python train.py --my_testing x070 --ctx_len 512 --micro_bsz $BSZ --n_layer 4 --n_embd 256 --vocab_size 1024 \
    --precision bf16 --strategy deepspeed_stage_2 --devices 4 --grad_cp 1
