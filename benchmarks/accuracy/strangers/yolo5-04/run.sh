python3 train.py --img 512 --batch-size 16 --epochs 50 --data coco_custom.yaml --cfg yolov5l.yaml --weights yolov5l.pt --cache --nosave --hyp hyp.finetune.yaml --device 0
