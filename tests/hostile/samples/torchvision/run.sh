#!/bin/sh
torchrun --nproc_per_node 2 references/classification/train.py --data-path data --model resnet50 -b 64 --amp \
  --lr-scheduler cosineannealinglr --lr-warmup-epochs 5 --model-ema --train-crop-size 176
