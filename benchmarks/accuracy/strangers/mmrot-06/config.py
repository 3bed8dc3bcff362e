model = dict(
    type="RotatedRetinaNet",
    backbone=dict(
        type="ResNet",
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        frozen_stages=1,
        norm_cfg=dict(type="BN", requires_grad=True),
        norm_eval=True,
        style="pytorch",
    ),
    neck=dict(
        type="FPN",
        in_channels=[256, 512, 1024, 2048],
        out_channels=256,
        start_level=1,
        add_extra_convs="on_input",
        num_outs=5,
    ),
    bbox_head=dict(
        type="RotatedATSSHead",
        num_classes=15,
        in_channels=256,
        stacked_convs=4,
        feat_channels=256,
        assign_by_circumhbbox=None,
        anchor_generator=dict(
            type="RotatedAnchorGenerator",
            octave_base_scale=4,
            scales_per_octave=1,
            ratios=[1.0],
            strides=[8, 16, 32, 64, 128],
        ),
        bbox_coder=dict(type="DeltaXYWHAOBBoxCoder", angle_range="le90", edge_swap=True, proj_xy=True),
        loss_cls=dict(type="FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25),
        loss_bbox=dict(type="L1Loss"),
    ),
    train_cfg=dict(
        assigner=dict(
            type="ATSSObbAssigner", topk=9, angle_version="le90", iou_calculator=dict(type="RBboxOverlaps2D")
        ),
        allowed_border=-1,
        pos_weight=-1,
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RResize", img_scale=(1024, 1024)),
    dict(type="RRandomFlip", flip_ratio=[0.25, 0.25, 0.25], direction=["horizontal", "vertical", "diagonal"]),
    dict(type="Pad", size_divisor=32),
]
data = dict(samples_per_gpu=2, workers_per_gpu=2, train=dict(type="DOTADataset", pipeline=train_pipeline))
optimizer = dict(type="SGD", lr=0.0025, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
runner = dict(type="EpochBasedRunner", max_epochs=12)
