torchrun --nproc_per_node=1 internvl/train/internvl_chat_finetune.py --model_name_or_path OpenGVLab/InternVL2-1B \
    --output_dir o --meta_path m.json --force_image_size 448 --max_dynamic_patch 6 --min_dynamic_patch 1 \
    --down_sample_ratio 0.5 --drop_path_rate 0.1 --freeze_llm True --freeze_mlp True --freeze_backbone True \
    --use_llm_lora 16 --vision_select_layer -1 --unfreeze_vit_layers 0 --bf16 True --per_device_train_batch_size 2 \
    --max_seq_length 2048 --do_train True --group_by_length True --dynamic_image_size True --use_thumbnail True
