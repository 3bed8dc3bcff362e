python train_gpt2.py
