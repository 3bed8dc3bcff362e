torchrun --nproc_per_node 8 \
-m FlagEmbedding.reranker.run \
--output_dir /ssd7/exec/songge02/reranker/FlagEmbedding/model \
--model_name_or_path bge-m3 \
--train_data rerank.jsonl \
--learning_rate 6e-5 \
# --deepspeed /ssd7/exec/songge02/reranker/FlagEmbedding/examples/finetune/ds_config.json
# --gradient_checkpointing
--fp16 \
--num_train_epochs 5 \
--per_device_train_batch_size 1 \
--gradient_accumulation_steps 8 \
--dataloader_drop_last True \
--train_group_size 2 \
--max_len 1024 \
--weight_decay 0.01 \
--logging_steps 10
