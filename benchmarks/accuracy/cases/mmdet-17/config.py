model = dict(
    type="RetinaNet",
    backbone=dict(
        type="ResNet", depth=50, frozen_stages=1, norm_eval=True, norm_cfg=dict(type="BN", requires_grad=True)
    ),
    neck=dict(
        type="FPN",
        in_channels=[256, 512, 1024, 2048],
        out_channels=256,
        num_outs=5,
        start_level=1,
        add_extra_convs="on_input",
    ),
    bbox_head=dict(
        type="RetinaHead",
        num_classes=80,
        in_channels=256,
        stacked_convs=4,
        feat_channels=256,
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
    dict(type="Resize", img_scale=(1333, 800), keep_ratio=True),
    dict(type="Pad", size_divisor=32),
]
data = dict(samples_per_gpu=2, train=dict(type="CocoDataset", pipeline=train_pipeline))
optimizer = dict(type="SGD", lr=0.02, momentum=0.9, weight_decay=0.0001)
fp16 = dict(loss_scale=512.0)
runner = dict(type="EpochBasedRunner", max_epochs=12)
