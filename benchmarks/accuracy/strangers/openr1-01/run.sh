accelerate launch --config_file zero3.yaml src/open_r1/sft.py --config config_distill.yaml
