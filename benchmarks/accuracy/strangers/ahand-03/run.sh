accelerate launch --config_file zero3.yaml scripts/dpo.py --config config_full.yaml
