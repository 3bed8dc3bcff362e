model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="C3D",
        pretrained="https://download.openmmlab.com/mmaction/recognition/c3d/c3d_sports1m_pretrain_20201016-dcc47ddc.pth",
        style="pytorch",
        conv_cfg=dict(type="Conv3d"),
        norm_cfg=None,
        act_cfg=dict(type="ReLU"),
        dropout_ratio=0.5,
        init_std=0.005,
    ),
    cls_head=dict(
        type="I3DHead",
        num_classes=101,
        in_channels=4096,
        spatial_type=None,
        dropout_ratio=0.5,
        init_std=0.01,
        average_clips="prob",
    ),
    data_preprocessor=dict(type="ActionDataPreprocessor", mean=[104, 117, 128], std=[1, 1, 1], format_shape="NCTHW"),
    train_cfg=None,
)
train_pipeline = [
    dict(type="DecordInit"),
    dict(type="SampleFrames", clip_len=16, frame_interval=1, num_clips=1),
    dict(type="DecordDecode"),
    dict(type="Resize", scale=(-1, 128)),
    dict(type="RandomCrop", size=112),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="FormatShape", input_format="NCTHW"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=30,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="VideoDataset",
        ann_file="data/ucf101/ucf101_train_split_1_videos.txt",
        data_prefix=dict(video="data/ucf101/videos"),
        pipeline=[
            dict(type="DecordInit"),
            dict(type="SampleFrames", clip_len=16, frame_interval=1, num_clips=1),
            dict(type="DecordDecode"),
            dict(type="Resize", scale=(-1, 128)),
            dict(type="RandomCrop", size=112),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="FormatShape", input_format="NCTHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=45, val_begin=1, val_interval=5)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.001, momentum=0.9, weight_decay=0.0005), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
dataset_type = "VideoDataset"
