model = dict(
    type="Recognizer2D",
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.5], std=[58.395, 57.12, 57.375], format_shape="NCHW"
    ),
    backbone=dict(type="TANet", pretrained="torchvision://resnet50", depth=50, num_segments=16, tam_cfg=None),
    cls_head=dict(
        type="TSMHead",
        num_classes=174,
        in_channels=2048,
        spatial_type="avg",
        consensus=dict(type="AvgConsensus", dim=1),
        dropout_ratio=0.6,
        init_std=0.001,
        average_clips="prob",
        num_segments=16,
    ),
)
train_pipeline = [
    dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=16),
    dict(type="RawFrameDecode"),
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
    dict(type="Flip", flip_ratio=0.5, flip_label_map={2: 4, 4: 2, 30: 41, 41: 30, 52: 66, 66: 52}),
    dict(type="FormatShape", input_format="NCHW"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=6,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="RawframeDataset",
        ann_file="data/sthv1/sthv1_train_list_rawframes.txt",
        data_prefix=dict(img="data/sthv1/rawframes"),
        filename_tmpl="{:05}.jpg",
        pipeline=[
            dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=16),
            dict(type="RawFrameDecode"),
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
            dict(type="Flip", flip_ratio=0.5, flip_label_map={2: 4, 4: 2, 30: 41, 41: 30, 52: 66, 66: 52}),
            dict(type="FormatShape", input_format="NCHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=50, val_begin=1, val_interval=1)
optim_wrapper = dict(
    constructor="TSMOptimWrapperConstructor",
    paramwise_cfg=dict(fc_lr5=True),
    optimizer=dict(type="SGD", lr=0.0075, momentum=0.9, weight_decay=0.001),
    clip_grad=dict(max_norm=20, norm_type=2),
)
default_scope = "mmaction"
dataset_type = "RawframeDataset"
