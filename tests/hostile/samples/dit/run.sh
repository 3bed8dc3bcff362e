#!/bin/sh
torchrun --nnodes=1 --nproc_per_node=2 train.py --model DiT-S/4 --data-path data/train --image-size 256 \
  --global-batch-size 16 --num-classes 1000 --num-workers 4 --epochs 1400 --log-every 100 --ckpt-every 50000
