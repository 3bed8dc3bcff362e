accelerate launch --mixed_precision fp16 train_text_to_image_lora.py \
  --pretrained_model_name_or_path stable-diffusion-v1-5/stable-diffusion-v1-5 \
  --train_data_dir images \
  --resolution 512 \
  --train_batch_size 2 \
  --gradient_accumulation_steps 2 \
  --gradient_checkpointing \
  --rank 8 \
  --mixed_precision fp16
