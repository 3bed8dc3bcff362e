#!/bin/bash
GPUS=8
TP=2
BATCH=$((GPUS * 4))
MODEL_ARGS="--num-layers 4 --hidden-size 512 --ffn-hidden-size 1536 --num-attention-heads 8 --seq-length 512
 --max-position-embeddings 512 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
torchrun --nproc_per_node $GPUS pretrain_gpt.py $MODEL_ARGS \
    --vocab-size 1000 --make-vocab-size-divisible-by 128 \
    --group-query-attention --num-query-groups 4 \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size 2 --global-batch-size $BATCH --bf16 --use-distributed-optimizer \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --sequence-parallel \
    --num-experts 4 --moe-router-topk 2 --expert-model-parallel-size 2
