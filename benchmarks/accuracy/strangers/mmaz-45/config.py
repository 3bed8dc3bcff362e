model = dict(
    type="Recognizer2D",
    backbone=dict(type="ResNet", pretrained="torchvision://resnet50", depth=50, norm_eval=False, partial_bn=True),
    cls_head=dict(
        type="TRNHead",
        num_classes=174,
        in_channels=2048,
        num_segments=8,
        spatial_type="avg",
        relation_type="TRNMultiScale",
        hidden_dim=256,
        dropout_ratio=0.8,
        init_std=0.001,
        average_clips="prob",
    ),
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], format_shape="NCHW"
    ),
)
train_pipeline = [
    dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=8),
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
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="RawframeDataset",
        ann_file="data/sthv1/sthv1_train_list_rawframes.txt",
        data_prefix=dict(video="data/sthv2/videos", img="data/sthv1/rawframes"),
        pipeline=[
            dict(type="SampleFrames", clip_len=1, frame_interval=1, num_clips=8),
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
        filename_tmpl="{:05}.jpg",
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=50, val_begin=1, val_interval=1)
optim_wrapper = dict(
    constructor="TSMOptimWrapperConstructor",
    paramwise_cfg=dict(fc_lr5=False),
    optimizer=dict(type="SGD", lr=0.002, momentum=0.9, weight_decay=0.0005),
    clip_grad=dict(max_norm=20, norm_type=2),
)
default_scope = "mmaction"
dataset_type = "RawframeDataset"
