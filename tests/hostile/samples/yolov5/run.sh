#!/bin/sh
python train.py --img 320 --batch-size 16 --epochs 3 --data coco128.yaml --weights yolov5n.pt --optimizer AdamW --freeze 4
