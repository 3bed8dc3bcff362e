#!/bin/sh
python -m torch.distributed.launch --nproc_per_node=2 --use_env main.py --model deit_tiny_patch16_224 --batch-size 16 \
  --input-size 224 --nb-classes 1000 --mixup 0.8 --cutmix 1.0 --smoothing 0.1 --data-path data --output_dir out
