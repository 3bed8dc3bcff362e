python tools/lazyconfig_train_net.py --config-file config.py --num-gpus 8 --num-machines 8
