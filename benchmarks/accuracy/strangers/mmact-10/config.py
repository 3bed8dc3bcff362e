model = dict(
    type="BMN",
    temporal_dim=100,
    boundary_ratio=0.5,
    num_samples=32,
    num_samples_per_bin=3,
    feat_dim=400,
    soft_nms_alpha=0.4,
    soft_nms_low_threshold=0.5,
    soft_nms_high_threshold=0.9,
    post_process_top_k=100,
)
train_pipeline = [
    dict(type="LoadLocalizationFeature"),
    dict(type="GenerateLocalizationLabels"),
    dict(type="PackLocalizationInputs", keys=("gt_bbox",), meta_keys=("video_name",)),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    drop_last=True,
    dataset=dict(
        type="ActivityNetDataset",
        ann_file="data/ActivityNet/anet_anno_train.json",
        pipeline=[
            dict(type="LoadLocalizationFeature"),
            dict(type="GenerateLocalizationLabels"),
            dict(type="PackLocalizationInputs", keys=("gt_bbox",), meta_keys=("video_name",)),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=9, val_begin=1, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="Adam", lr=0.001, weight_decay=0.0001), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
