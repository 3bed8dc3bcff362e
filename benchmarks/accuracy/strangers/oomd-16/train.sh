composer -n 8 train.py 7b_dolly_sft.yaml
