accelerate launch sdxl_train_network.py --config_file config.toml
