#!/bin/sh
torchrun --nproc_per_node 2 train.py --data-dir data/images --model resnet50 -b 64 --amp --opt sgd \
  --model-ema --sched cosine --smoothing 0.1
