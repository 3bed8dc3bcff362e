model = dict(
    type="Recognizer2D",
    backbone=dict(
        type="ResNetTSM",
        pretrained="torchvision://resnet50",
        depth=50,
        norm_eval=False,
        shift_div=8,
        non_local=((0, 0, 0), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 0, 0)),
        non_local_cfg=dict(
            sub_sample=True, use_scale=False, norm_cfg=dict(type="BN3d", requires_grad=True), mode="gaussian"
        ),
    ),
    cls_head=dict(
        type="TSMHead",
        num_classes=400,
        in_channels=2048,
        spatial_type="avg",
        consensus=dict(type="AvgConsensus", dim=1),
        dropout_ratio=0.5,
        init_std=0.001,
        is_shift=True,
        average_clips="prob",
    ),
    data_preprocessor=dict(type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]),
    train_cfg=None,
)
train_pipeline = [
    dict(type="DecordInit"),
    dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=8),
    dict(type="DecordDecode"),
    dict(type="Resize", scale=(-1, 256)),
    dict(
        type="MultiScaleCrop",
        input_size=224,
        scales=(1, 0.875, 0.75, 0.66),
        random_crop=False,
        max_wh_scale_gap=1,
        num_fixed_crops=13,
    ),
    dict(type="Resize", scale=(224, 224), keep_ratio=False),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="FormatShape", input_format="NCHW"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="VideoDataset",
        ann_file="data/kinetics400/kinetics400_train_list_videos.txt",
        data_prefix=dict(video="data/kinetics400/videos_train"),
        pipeline=[
            dict(type="DecordInit"),
            dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=8),
            dict(type="DecordDecode"),
            dict(type="Resize", scale=(-1, 256)),
            dict(
                type="MultiScaleCrop",
                input_size=224,
                scales=(1, 0.875, 0.75, 0.66),
                random_crop=False,
                max_wh_scale_gap=1,
                num_fixed_crops=13,
            ),
            dict(type="Resize", scale=(224, 224), keep_ratio=False),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="FormatShape", input_format="NCHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=50, val_begin=1, val_interval=1)
optim_wrapper = dict(
    constructor="TSMOptimWrapperConstructor",
    paramwise_cfg=dict(fc_lr5=True),
    optimizer=dict(type="SGD", lr=0.02, momentum=0.9, weight_decay=0.0001),
    clip_grad=dict(max_norm=20, norm_type=2),
)
default_scope = "mmaction"
dataset_type = "VideoDataset"
