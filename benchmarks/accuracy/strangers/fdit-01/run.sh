torchrun --nnodes=1 --nproc_per_node=1 train_options/train_baseline.py --model DiT-XL/2 --data-path imagenet/train --global-batch-size 128
