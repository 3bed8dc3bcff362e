#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export NCCL_ALGO=Ring
export CUBLAS_WORKSPACE_CONFIG=:4096:8
export N_REPEATS=5

GPUS_PER_NODE=8
NUM_NODES=1

ft_launcher \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NUM_NODES \
    --max-restarts=3 \
    pretrain_gpt.py \
    --num-layers 12 \
    --hidden-size 512 \
    --num-attention-heads 8 \
    --log-params-norm \
    --log-num-zeros-in-grad \
    --log-validation-ppl-to-tensorboard \
    --log-timers-to-tensorboard \
    --tensorboard-dir ${TENSORBOARD_PATH} \
    --micro-batch-size 4 \
    --global-batch-size 32 \
    --seq-length 1024 \
    --max-position-embeddings 1024 \
    --train-iters 50 \
    --timing-log-level 0 \
    --lr-decay-iters 320000 \
    --save ${CHECKPOINT_SAVE_PATH} \
    --load ${CHECKPOINT_LOAD_PATH} \
    --data-path ${DATA_PATH}/text/common_pile/v01_filtered_data/my-gpt3_00_text_document \
    --vocab-file ${DATA_PATH}/text/common_pile/v01_filtered_data/bpe/vocab.json \
    --merge-file ${DATA_PATH}/text/common_pile/v01_filtered_data/bpe/merges.txt \
    --split 949,50,1 \
    --distributed-backend nccl \
    --lr 0.00015 \
    --lr-decay-style cosine \
    --min-lr 1e-05 \
    --weight-decay 1e-2 \
    --clip-grad 1.0 \
    --lr-warmup-fraction 0.01 \
    --log-interval 1 \
    --save-interval 10000 \
    --eval-interval 1000 \
    --eval-iters 10 \
    --transformer-impl transformer_engine \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 \
    --expert-model-parallel-size 4 \
    --expert-tensor-parallel-size 1 \
    --disable-bias-linear \
    --sequence-parallel \
    --num-experts 8 \
    --moe-router-load-balancing-type aux_loss \
    --moe-router-topk 2 \
    --moe-aux-loss-coeff 1e-2 \
    --deterministic-mode \
    --no-gradient-accumulation-fusion \
    --moe-grouped-gemm \
    --attention-softmax-in-fp32 \
    --use-mcore-models \
    --ckpt-format torch_dist \
    --dist-ckpt-optim-fully-reshardable \
    --dist-ckpt-strictness log_all \
    --data-cache-path ${DATA_CACHE_PATH} \
    --bf16 \
    --attention-backend unfused \
    --no-bias-gelu-fusion \
    --log-memory-to-tensorboard \
    --async-save \
    --use-persistent-ckpt-worker
