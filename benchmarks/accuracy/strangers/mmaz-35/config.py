model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="SwinTransformer3D",
        arch="small",
        pretrained="https://download.openmmlab.com/mmaction/v1.0/recognition/swin/swin_small_patch4_window7_224.pth",
        pretrained2d=True,
        patch_size=(2, 4, 4),
        window_size=(8, 7, 7),
        mlp_ratio=4.0,
        qkv_bias=True,
        qk_scale=None,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.2,
        patch_norm=True,
    ),
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], format_shape="NCTHW"
    ),
    cls_head=dict(
        type="I3DHead", in_channels=768, num_classes=400, spatial_type="avg", dropout_ratio=0.5, average_clips="prob"
    ),
)
train_pipeline = [
    dict(type="DecordInit", io_backend="disk"),
    dict(type="SampleFrames", clip_len=32, frame_interval=2, num_clips=1),
    dict(type="DecordDecode"),
    dict(type="Resize", scale=(-1, 256)),
    dict(type="RandomResizedCrop"),
    dict(type="Resize", scale=(224, 224), keep_ratio=False),
    dict(type="Flip", flip_ratio=0.5),
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
        data_prefix=dict(video="data/kinetics400/videos_train"),
        pipeline=[
            dict(type="DecordInit", io_backend="disk"),
            dict(type="SampleFrames", clip_len=32, frame_interval=2, num_clips=1),
            dict(type="DecordDecode"),
            dict(type="Resize", scale=(-1, 256)),
            dict(type="RandomResizedCrop"),
            dict(type="Resize", scale=(224, 224), keep_ratio=False),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="FormatShape", input_format="NCTHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=30, val_begin=1, val_interval=3)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    optimizer=dict(type="AdamW", lr=0.001, betas=(0.9, 0.999), weight_decay=0.02),
    constructor="SwinOptimWrapperConstructor",
    paramwise_cfg=dict(
        absolute_pos_embed=dict(decay_mult=0.0),
        relative_position_bias_table=dict(decay_mult=0.0),
        norm=dict(decay_mult=0.0),
        backbone=dict(lr_mult=0.1),
    ),
)
auto_scale_lr = dict(enable=False, base_batch_size=64)
default_scope = "mmaction"
dataset_type = "VideoDataset"
