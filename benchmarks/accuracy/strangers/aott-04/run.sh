tune run full_finetune_single_device --config config.yaml
