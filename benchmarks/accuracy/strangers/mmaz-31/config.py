model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="ResNet3dSlowOnly",
        depth=50,
        pretrained="https://download.pytorch.org/models/resnet50-11ad3fa6.pth",
        lateral=False,
        conv1_kernel=(1, 7, 7),
        conv1_stride_t=1,
        pool1_stride_t=1,
        inflate=(0, 0, 1, 1),
        norm_eval=False,
    ),
    cls_head=dict(
        type="I3DHead", in_channels=2048, num_classes=400, spatial_type="avg", dropout_ratio=0.5, average_clips="prob"
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
    dict(type="Resize", scale=(-1, 256)),
    dict(type="RandomResizedCrop"),
    dict(type="Resize", scale=(224, 224), keep_ratio=False),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="FormatShape", input_format="NCTHW"),
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
            dict(type="SampleFrames", clip_len=8, frame_interval=8, num_clips=1),
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
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=150, val_begin=1, val_interval=5)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.02, momentum=0.9, weight_decay=0.0001), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
dataset_type = "VideoDataset"
