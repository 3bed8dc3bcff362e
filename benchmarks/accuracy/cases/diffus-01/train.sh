accelerate launch train_controlnet.py \
  --pretrained_model_name_or_path runwayml/stable-diffusion-v1-5 \
  --output_dir out --dataset_name fusing/fill50k \
  --resolution 512 \
  --train_batch_size 4 --gradient_accumulation_steps 1
