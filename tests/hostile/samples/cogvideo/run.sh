accelerate launch train.py --model_path THUDM/CogVideoX-2b --model_name cogvideox-t2v --model_type t2v \
  --training_type lora --data_root videos --caption_column prompts.txt --video_column videos.txt \
  --train_resolution 49x480x720 --rank 64 --batch_size 1 --gradient_accumulation_steps 2 --mixed_precision fp16
