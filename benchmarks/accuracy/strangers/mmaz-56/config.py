model = dict(
    type="Recognizer2D",
    backbone=dict(
        type="ResNet", pretrained="https://download.pytorch.org/models/resnet50-11ad3fa6.pth", depth=50, norm_eval=False
    ),
    cls_head=dict(
        type="TSNHead",
        num_classes=400,
        in_channels=2048,
        spatial_type="avg",
        consensus=dict(type="AvgConsensus", dim=1),
        dropout_ratio=0.5,
        init_std=0.001,
        average_clips=None,
    ),
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], format_shape="NCHW"
    ),
    train_cfg=None,
)
train_pipeline = [
    dict(type="DecordInit"),
    dict(type="DenseSampleFrames", clip_len=1, frame_interval=1, num_clips=5),
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
    batch_size=32,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="VideoDataset",
        ann_file="data/kinetics400/kinetics400_train_list_videos.txt",
        data_prefix=dict(video="data/kinetics400/videos_train"),
        pipeline=[
            dict(type="DecordInit"),
            dict(type="DenseSampleFrames", clip_len=1, frame_interval=1, num_clips=5),
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
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=100, val_begin=1, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.06, momentum=0.9, weight_decay=0.0001), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
dataset_type = "VideoDataset"
