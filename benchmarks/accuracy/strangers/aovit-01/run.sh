python train.py --model "timm/vit_huge_patch14_224.orig_in21k" --batch_size 8 --compile --optim AdamW
