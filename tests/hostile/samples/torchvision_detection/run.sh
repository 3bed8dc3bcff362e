#!/bin/sh
torchrun --nproc_per_node 2 references/detection/train.py --dataset coco --model maskrcnn_resnet50_fpn -b 2 --amp \
  --epochs 26 --lr-steps 16 22 --aspect-ratio-group-factor 3 --weights-backbone ResNet50_Weights.IMAGENET1K_V1
