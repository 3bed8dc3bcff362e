accelerate launch training/cogvideox/cogvideox_text_to_video_lora.py \
  --pretrained_model_name_or_path THUDM/CogVideoX-2b \
  --data_root videos --load_tensors --mixed_precision fp16 \
  --height_buckets 480 --width_buckets 720 --frame_buckets 49 --max_num_frames 49 \
  --rank 256 --lora_alpha 256 \
  --train_batch_size 1 --gradient_accumulation_steps 1 \
  --optimizer adamw --use_8bit
