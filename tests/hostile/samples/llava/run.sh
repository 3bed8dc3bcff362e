torchrun --nproc_per_node=1 llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --version v1 \
    --data_path a.json --vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu \
    --mm_vision_select_layer -2 --mm_use_im_patch_token False --bf16 True --output_dir o \
    --tune_mm_mlp_adapter True --per_device_train_batch_size 2 --model_max_length 512 --gradient_checkpointing True
