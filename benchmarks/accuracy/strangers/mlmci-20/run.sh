#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=32
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_NVLS_ENABLE=0
export PYTHONWARNINGS=ignore
export NCCL_DEBUG=VERSION

GPUS_PER_NODE=8
NUM_NODES=1

ft_launcher \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NUM_NODES \
    --max-restarts=3 \
    pretrain_gpt.py \
    --distributed-timeout-minutes 60 \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 \
    --expert-model-parallel-size 4 \
    --context-parallel-size 1 \
    --expert-tensor-parallel-size 1 \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --attention-backend unfused \
    --use-mcore-models \
    --sequence-parallel \
    --disable-bias-linear \
    --micro-batch-size 4 \
    --global-batch-size 32 \
    --train-iters 50 \
    --exit-duration-in-mins 230 \
    --no-check-for-nan-in-loss-and-grad \
    --no-rope-fusion \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl native \
    --manual-gc \
    --manual-gc-interval 100 \
    --recompute-granularity selective \
    --recompute-modules "[layernorm mla_up_proj mlp moe_act]" \
    --transformer-impl transformer_engine \
    --seq-length 4096 \
    --data-cache-path ${DATA_CACHE_PATH} \
    --data-path ${DATA_PATH}/text/common_pile/v01_filtered_data/my-gpt3_00_text_document \
    --vocab-file ${DATA_PATH}/text/common_pile/v01_filtered_data/bpe/vocab.json \
    --merge-file ${DATA_PATH}/text/common_pile/v01_filtered_data/bpe/merges.txt \
    --split 949,50,1 \
    --num-layers 16 \
    --moe-layer-freq "([0]*3+[1]*13)" \
    --pipeline-model-parallel-layout "Et*3|(tt|)*6tmL" \
    --hidden-size 1024 \
    --ffn-hidden-size 4096 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --rotary-base 10000 \
    --make-vocab-size-divisible-by 3232 \
    --normalization RMSNorm \
    --norm-epsilon 1e-6 \
    --swiglu \
    --untie-embeddings-and-output-weights \
    --multi-latent-attention \
    --mtp-num-layers 1 \
    --mtp-loss-scaling-factor 0.1 \
    --attention-dropout 0.0 \
    --hidden-dropout 0.0 \
    --clip-grad 1.0 \
    --weight-decay 0.1 \
    --qk-layernorm \
    --lr-warmup-fraction 0.01 \
    --lr 0.00015 \
    --min-lr 1e-05 \
    --lr-decay-style cosine \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --num-experts 32 \
    --moe-ffn-hidden-size 1024 \
    --moe-shared-expert-intermediate-size 1024 \
    --moe-router-load-balancing-type seq_aux_loss \
    --moe-router-topk 4 \
    --moe-token-dispatcher-type alltoall \
    --moe-router-pre-softmax \
    --moe-grouped-gemm \
    --moe-aux-loss-coeff 1e-4 \
    --moe-router-group-topk 2 \
    --moe-router-num-groups 4 \
    --moe-router-topk-scaling-factor 2.0 \
    --moe-router-score-function sigmoid \
    --moe-router-enable-expert-bias \
    --moe-router-bias-update-rate 1e-3 \
    --moe-router-dtype fp32 \
    --moe-permute-fusion \
    --q-lora-rank 1536 \
    --kv-lora-rank 512 \
    --qk-head-dim 128 \
    --qk-pos-emb-head-dim 64 \
    --v-head-dim 128 \
    --rotary-scaling-factor 40 \
    --mscale 1.0 \
    --mscale-all-dim 1.0 \
    --eval-iters 32 \
    --eval-interval 200 \
    --save ${CHECKPOINT_SAVE_PATH} \
    --load ${CHECKPOINT_LOAD_PATH} \
    --save-interval 25 \
    --init-method-std 0.02 \
    --log-timers-to-tensorboard \
    --log-memory-to-tensorboard \
    --log-num-zeros-in-grad \
    --log-params-norm \
    --log-validation-ppl-to-tensorboard \
    --log-throughput \
    --log-interval 1 \
    --logging-level 40 \
    --tensorboard-dir ${TENSORBOARD_PATH} \
    --bf16 \
    --exit-interval 50 \
    --overlap-moe-expert-parallel-comm \
    --async-save \
    --use-persistent-ckpt-worker
