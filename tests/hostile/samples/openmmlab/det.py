model = dict(
    type="RetinaNet",
    backbone=dict(type="SwinTransformer", embed_dims=32, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=7),
    neck=dict(
        type="FPN",
        in_channels=[32, 64, 128, 256],
        out_channels=64,
        start_level=1,
        num_outs=5,
        add_extra_convs="on_input",
    ),
    bbox_head=dict(
        type="RetinaHead",
        num_classes=20,
        in_channels=64,
        stacked_convs=2,
        feat_channels=64,
        anchor_generator=dict(
            type="AnchorGenerator",
            octave_base_scale=4,
            scales_per_octave=3,
            ratios=[0.5, 1.0, 2.0],
            strides=[8, 16, 32, 64, 128],
        ),
        loss_cls=dict(type="FocalLoss", use_sigmoid=True),
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", img_scale=(320, 256), keep_ratio=True),
    dict(type="Pad", size_divisor=32),
]
data = dict(samples_per_gpu=2, workers_per_gpu=2, train=dict(type="CocoDataset", pipeline=train_pipeline))
optimizer = dict(type="SGD", lr=0.02, momentum=0.9)
