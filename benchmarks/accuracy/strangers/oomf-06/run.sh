CUDA_VISIBLE_DEVICES=4,5,6,7 python -m torch.distributed.run --nproc_per_node 4 --nnodes 1 --standalone src/train.py PQ_sft.yaml
