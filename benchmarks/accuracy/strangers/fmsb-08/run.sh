accelerate launch --config_file accelerate.yaml --num_processes 2 train.py
