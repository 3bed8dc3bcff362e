model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="ResNet3dSlowOnly",
        depth=50,
        in_channels=17,
        base_channels=32,
        num_stages=3,
        out_indices=(2,),
        stage_blocks=(4, 6, 3),
        conv1_stride_s=1,
        pool1_stride_s=1,
        inflate=(0, 1, 1),
        spatial_strides=(2, 2, 2),
        temporal_strides=(1, 1, 2),
        dilations=(1, 1, 1),
    ),
    cls_head=dict(type="I3DHead", in_channels=512, num_classes=60, dropout_ratio=0.5, average_clips="prob"),
)
train_pipeline = [
    dict(type="UniformSampleFrames", clip_len=48),
    dict(type="PoseDecode"),
    dict(type="PoseCompact", hw_ratio=1.0, allow_imgpad=True),
    dict(type="Resize", scale=(-1, 64)),
    dict(type="RandomResizedCrop", area_range=(0.56, 1.0)),
    dict(type="Resize", scale=(56, 56), keep_ratio=False),
    dict(type="Flip", flip_ratio=0.5, left_kp=[1, 3, 5, 7, 9, 11, 13, 15], right_kp=[2, 4, 6, 8, 10, 12, 14, 16]),
    dict(type="GeneratePoseTarget", sigma=0.6, use_score=True, with_kp=True, with_limb=False),
    dict(type="FormatShape", input_format="NCTHW_Heatmap"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="RepeatDataset",
        times=10,
        dataset=dict(
            type="PoseDataset",
            ann_file="data/skeleton/ntu60_2d.pkl",
            split="xsub_train",
            pipeline=[
                dict(type="UniformSampleFrames", clip_len=48),
                dict(type="PoseDecode"),
                dict(type="PoseCompact", hw_ratio=1.0, allow_imgpad=True),
                dict(type="Resize", scale=(-1, 64)),
                dict(type="RandomResizedCrop", area_range=(0.56, 1.0)),
                dict(type="Resize", scale=(56, 56), keep_ratio=False),
                dict(
                    type="Flip",
                    flip_ratio=0.5,
                    left_kp=[1, 3, 5, 7, 9, 11, 13, 15],
                    right_kp=[2, 4, 6, 8, 10, 12, 14, 16],
                ),
                dict(type="GeneratePoseTarget", sigma=0.6, use_score=True, with_kp=True, with_limb=False),
                dict(type="FormatShape", input_format="NCTHW_Heatmap"),
                dict(type="PackActionInputs"),
            ],
        ),
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=24, val_begin=1, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.2, momentum=0.9, weight_decay=0.0003), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
