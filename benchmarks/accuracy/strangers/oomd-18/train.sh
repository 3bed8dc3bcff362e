python train.py --train_args_file train_args/sft/qlora/baichuan-7b-sft-qlora.json
