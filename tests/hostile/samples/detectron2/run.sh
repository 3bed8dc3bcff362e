#!/bin/sh
python tools/train_net.py --config-file config.yaml --num-gpus 2 SOLVER.IMS_PER_BATCH 8
