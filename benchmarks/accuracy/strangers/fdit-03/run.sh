accelerate launch --num_processes 1 --mixed_precision fp16 train.py --model DiT-XL/2 --feature-path features --global-batch-size 128
