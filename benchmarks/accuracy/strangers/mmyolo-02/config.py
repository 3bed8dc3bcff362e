img_scale = (640, 640)
norm_cfg = dict(type="BN", momentum=0.03, eps=0.001)
model = dict(
    type="YOLODetector",
    data_preprocessor=dict(
        type="YOLOv5DetDataPreprocessor", mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0], bgr_to_rgb=True
    ),
    backbone=dict(
        type="YOLOv5CSPDarknet",
        deepen_factor=0.67,
        widen_factor=0.75,
        norm_cfg=norm_cfg,
        act_cfg=dict(type="SiLU", inplace=True),
    ),
    neck=dict(
        type="YOLOv5PAFPN",
        deepen_factor=0.67,
        widen_factor=0.75,
        in_channels=[256, 512, 1024],
        out_channels=[256, 512, 1024],
        num_csp_blocks=3,
        norm_cfg=norm_cfg,
        act_cfg=dict(type="SiLU", inplace=True),
    ),
    bbox_head=dict(
        type="YOLOv5Head",
        head_module=dict(
            type="YOLOv5HeadModule",
            num_classes=80,
            in_channels=[256, 512, 1024],
            widen_factor=0.75,
            featmap_strides=[8, 16, 32],
            num_base_priors=3,
        ),
        prior_generator=dict(
            type="mmdet.YOLOAnchorGenerator",
            base_sizes=[
                [(10, 13), (16, 30), (33, 23)],
                [(30, 61), (62, 45), (59, 119)],
                [(116, 90), (156, 198), (373, 326)],
            ],
            strides=[8, 16, 32],
        ),
        prior_match_thr=4.0,
        obj_level_weights=[4.0, 1.0, 0.4],
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="Mosaic",
        img_scale=img_scale,
        pad_val=114.0,
        pre_transform=[dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", with_bbox=True)],
    ),
    dict(
        type="YOLOv5RandomAffine",
        max_rotate_degree=0.0,
        max_shear_degree=0.0,
        scaling_ratio_range=(0.5, 1.5),
        border=(-320, -320),
        border_val=(114, 114, 114),
    ),
    dict(type="YOLOv5HSVRandomAug"),
    dict(type="mmdet.RandomFlip", prob=0.5),
    dict(type="mmdet.PackDetInputs"),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="yolov5_collate"),
    dataset=dict(type="YOLOv5CocoDataset", pipeline=train_pipeline),
)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    loss_scale="dynamic",
    optimizer=dict(type="SGD", lr=0.01, momentum=0.937, weight_decay=0.0005, nesterov=True, batch_size_per_gpu=16),
    constructor="YOLOv5OptimizerConstructor",
)
custom_hooks = [
    dict(
        type="EMAHook", ema_type="ExpMomentumEMA", momentum=0.0001, update_buffers=True, strict_load=False, priority=49
    )
]
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=300, val_interval=10)
env_cfg = dict(cudnn_benchmark=True)
