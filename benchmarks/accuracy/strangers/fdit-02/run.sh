accelerate launch --num_processes 1 --mixed_precision fp16 train_options/train_amp.py --model DiT-XL/2 --data-path imagenet/train --global-batch-size 128
