accelerate launch train_amused.py \
  --pretrained_model_name_or_path amused/amused-512 \
  --output_dir out --instance_data_dataset images --image_key image --prompt_key text \
  --resolution 512 --mixed_precision fp16 \
  --train_batch_size 1 --gradient_accumulation_steps 8 \
  --gradient_checkpointing \
  --use_lora
