#!/bin/bash
# The smallest lag-mode run we could think of, meant for the shared host with eight accelerators.
# Caution: main_jax.py gives every device the same share of the batch and refuses to start when it cannot.

export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
DATA_DIR=${DATA_DIR:-data/cifar100_sets}

python main_jax.py \
  --model vfsddpm_jax \
  --dataset cifar100 \
  --data_dir "$DATA_DIR" \
  --batch_size 4 \
  --sample_size 3 \
  --image_size 32 \
  --patch_size 2 \
  --encoder_mode vit_set \
  --encoder_tokenize_mode stack \
  --encoder_depth 6 \
  --encoder_heads 12 \
  --encoder_dim_head 64 \
  --encoder_mlp_ratio 1.0 \
  --hdim 256 \
  --hidden_size 468 \
  --depth 6 \
  --num_heads 9 \
  --mlp_ratio 3.0 \
  --mode_conditioning lag \
  --context_channels 256 \
  --diffusion_steps 250 \
  --lr 1e-4 \
  --max_steps 300000 \
  --log_interval 300 \
  --save_interval 20000
