torchrun --standalone --nnodes=1 --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer \
  data.train_batch_size=16 data.micro_batch_size_per_gpu=2 data.max_length=512 \
  model.partial_pretrain=HuggingFaceTB/SmolLM2-135M model.lora_rank=8 model.lora_alpha=16 \
  ulysses_sequence_parallel_size=1 trainer.total_epochs=1
