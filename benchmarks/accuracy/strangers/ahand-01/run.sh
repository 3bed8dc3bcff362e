accelerate launch --config_file ddp.yaml --num_processes=1 scripts/sft.py --config config_qlora.yaml
