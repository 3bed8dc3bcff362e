python -m scripts.tok_train --vocab-size=4096
torchrun --standalone --nproc_per_node=4 -m scripts.base_train -- --depth=4 --aspect-ratio=64 --head-dim=64 \
    --max-seq-len=256 --device-batch-size=8 --total-batch-size=32768 --fp8
