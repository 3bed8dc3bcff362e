python tools/train_net.py --config-file config.yaml --num-gpus 8
