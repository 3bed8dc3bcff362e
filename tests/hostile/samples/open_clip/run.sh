#!/bin/sh
torchrun --nproc_per_node 2 -m open_clip_train.main --train-data "data/{000..099}.tar" --train-num-samples 100000 \
  --model ViT-B-32 --batch-size 256 --precision amp_bf16 --local-loss --gather-with-grad --workers 4
