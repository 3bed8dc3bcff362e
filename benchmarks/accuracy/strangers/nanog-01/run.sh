python train.py --batch_size=32 --compile=False
