accelerate launch --config_file accelerate_configs/uncompiled_1.yaml training/cogvideox/cogvideox_text_to_video_lora.py \
  --pretrained_model_name_or_path THUDM/CogVideoX-5b \
  --data_root /data/videos --caption_column prompts.txt --video_column videos.txt --load_tensors \
  --height_buckets 480 --width_buckets 720 --frame_buckets 49 \
  --seed 42 --rank 256 --lora_alpha 256 --mixed_precision bf16 --output_dir out --max_num_frames 49 --train_batch_size 1 --max_train_steps 100 \
  --checkpointing_steps 1000 --gradient_accumulation_steps 1 --learning_rate 1e-4 --lr_scheduler constant --enable_slicing --enable_tiling --optimizer adamw --allow_tf32
