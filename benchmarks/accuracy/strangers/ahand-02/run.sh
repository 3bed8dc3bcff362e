accelerate launch --config_file zero3.yaml scripts/sft.py --config config_full.yaml
