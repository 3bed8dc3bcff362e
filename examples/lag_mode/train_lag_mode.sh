#!/bin/bash
# Few-shot diffusion on CIFAR-100 sets, "lag" conditioning: the DiT cross-attends to the encoder's patch
# tokens instead of one pooled vector per set. First full run, nothing tuned for memory yet.
#
# A set has SAMPLE_SIZE images, and conditioning is leave-one-out: the set encoder runs SAMPLE_SIZE times,
# and the DiT sees BATCH_SIZE * SAMPLE_SIZE images of 16 x 16 = 256 tokens each.

DATA_DIR=${DATA_DIR:-data/cifar100_sets}
BATCH_SIZE=32        # sets per step, over all devices together
SAMPLE_SIZE=6        # images per set

ENCODER_FLAGS="--encoder_mode vit_set --encoder_tokenize_mode stack --encoder_depth 6 --encoder_heads 12 \
  --encoder_dim_head 64 --encoder_mlp_ratio 1.0 --hdim 256"

python main_jax.py \
  --model vfsddpm_jax \
  --dataset cifar100 \
  --data_dir "$DATA_DIR" \
  --batch_size $BATCH_SIZE \
  --sample_size $SAMPLE_SIZE \
  --image_size 32 \
  --patch_size 2 \
  $ENCODER_FLAGS \
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
  --save_interval 20000 \
  --compute_fid True \
  --fid_num_samples 1024 \
  --use_wandb True \
  --wandb_project fsdm-jax
