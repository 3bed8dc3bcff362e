torchrun --nproc_per_node 2 -m training.main \
    --save-frequency 1 --zeroshot-frequency 1 --log-every-n-steps 2 \
    --train-data "/data/cc12m/{00000..01242}.tar" --train-num-samples 10030127 --dataset-type webdataset \
    --imagenet-val "/data/imagenet/val/" --warmup 2000 --batch-size 2048 --wd 0.2 --epochs 32 --workers 4 \
    --accum-freq 8 --model ViT-B-32 --name "ViT-B-32-Baseline" --save-most-recent --precision amp_bfloat16 --seed 0 \
    --grad-checkpointing --local-loss --gather-with-grad
