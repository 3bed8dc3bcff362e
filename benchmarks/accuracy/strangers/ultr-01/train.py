from ultralytics import YOLO

model = YOLO("yolo12s.yaml")
results = model.train(data="./data/coco.yaml", epochs=300, imgsz=2048, batch=1, device=3, workers=8, patience=100)
