model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="ResNet3dSlowOnly",
        depth=50,
        lateral=False,
        out_indices=(2, 3),
        conv1_kernel=(1, 7, 7),
        conv1_stride_t=1,
        pool1_stride_t=1,
        inflate=(0, 0, 1, 1),
        norm_eval=False,
    ),
    neck=dict(
        type="TPN",
        in_channels=(1024, 2048),
        out_channels=1024,
        spatial_modulation_cfg=dict(in_channels=(1024, 2048), out_channels=2048),
        temporal_modulation_cfg=dict(downsample_scales=(8, 8)),
        upsample_cfg=dict(scale_factor=(1, 1, 1)),
        downsample_cfg=dict(downsample_scale=(1, 1, 1)),
        level_fusion_cfg=dict(
            in_channels=(1024, 1024),
            mid_channels=(1024, 1024),
            out_channels=2048,
            downsample_scales=((1, 1, 1), (1, 1, 1)),
        ),
        aux_head_cfg=dict(out_channels=400, loss_weight=0.5),
    ),
    cls_head=dict(
        type="TPNHead",
        num_classes=400,
        in_channels=2048,
        spatial_type="avg",
        consensus=dict(type="AvgConsensus", dim=1),
        dropout_ratio=0.5,
        init_std=0.01,
        average_clips="prob",
    ),
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], format_shape="NCTHW"
    ),
    train_cfg=None,
)
train_pipeline = [
    dict(type="DecordInit"),
    dict(type="SampleFrames", clip_len=8, frame_interval=8, num_clips=1),
    dict(type="DecordDecode"),
    dict(type="RandomResizedCrop"),
    dict(type="Resize", scale=(224, 224), keep_ratio=False),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="ColorJitter"),
    dict(type="FormatShape", input_format="NCTHW"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="VideoDataset",
        ann_file="data/kinetics400/kinetics400_train_list_videos.txt",
        pipeline=[
            dict(type="DecordInit"),
            dict(type="SampleFrames", clip_len=8, frame_interval=8, num_clips=1),
            dict(type="DecordDecode"),
            dict(type="RandomResizedCrop"),
            dict(type="Resize", scale=(224, 224), keep_ratio=False),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="ColorJitter"),
            dict(type="FormatShape", input_format="NCTHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=150, val_begin=1, val_interval=10)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=0.0001, nesterov=True),
    clip_grad=dict(max_norm=40, norm_type=2),
)
default_scope = "mmaction"
