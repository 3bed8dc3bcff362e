python classify/train.py --model yolov5s-cls.pt --data imagenette160 --epochs 5 --img 224 --cache
