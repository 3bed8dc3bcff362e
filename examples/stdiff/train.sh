#!/usr/bin/env bash
# Train STDiff on range images: bash train.sh
set -euo pipefail

CONFIG=kitti_range_train_config.yaml
GPUS=1
export PYTORCH_ALLOC_CONF=expandable_segments:True

accelerate launch \
    --config_file accelerate_config.yaml \
    --num_processes $GPUS \
    --main_process_port 29580 \
    train_stdiff.py \
    --train_config $CONFIG
