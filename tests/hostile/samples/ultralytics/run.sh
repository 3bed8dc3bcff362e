#!/bin/sh
yolo segment train model=yolo11n-seg.pt data=coco8-seg.yaml imgsz=320 batch=16 epochs=3 freeze=2 device=0,1
