accelerate launch -m axolotl.cli.train config.yaml --deepspeed deepspeed_configs/zero2.json
