img_scale = (1024, 1024)
norm_cfg = dict(type="BN", momentum=0.03, eps=0.001)
model = dict(
    type="YOLODetector",
    data_preprocessor=dict(
        type="YOLOv5DetDataPreprocessor", mean=[103.53, 116.28, 123.675], std=[57.375, 57.12, 58.395], bgr_to_rgb=False
    ),
    backbone=dict(
        type="CSPNeXt",
        arch="P5",
        expand_ratio=0.5,
        deepen_factor=0.33,
        widen_factor=0.5,
        channel_attention=True,
        norm_cfg=dict(type="BN"),
        act_cfg=dict(type="SiLU", inplace=True),
    ),
    neck=dict(
        type="CSPNeXtPAFPN",
        deepen_factor=0.33,
        widen_factor=0.5,
        in_channels=[256, 512, 1024],
        out_channels=256,
        num_csp_blocks=3,
        expand_ratio=0.5,
        norm_cfg=dict(type="BN"),
        act_cfg=dict(type="SiLU", inplace=True),
    ),
    bbox_head=dict(
        type="RTMDetRotatedHead",
        head_module=dict(
            type="RTMDetRotatedSepBNHeadModule",
            num_classes=15,
            widen_factor=0.5,
            in_channels=256,
            stacked_convs=2,
            feat_channels=256,
            norm_cfg=dict(type="BN"),
            act_cfg=dict(type="SiLU", inplace=True),
            share_conv=True,
            pred_kernel_size=1,
            featmap_strides=[8, 16, 32],
        ),
        angle_version="le90",
    ),
    train_cfg=dict(
        assigner=dict(
            type="BatchDynamicSoftLabelAssigner",
            num_classes=15,
            topk=13,
            iou_calculator=dict(type="mmrotate.RBboxOverlaps2D"),
            batch_iou=False,
        )
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, box_type="qbox"),
    dict(type="mmdet.Resize", scale=img_scale, keep_ratio=True),
    dict(type="mmdet.RandomFlip", prob=0.75, direction=["horizontal", "vertical", "diagonal"]),
    dict(type="mmdet.Pad", size=img_scale, pad_val=dict(img=(114, 114, 114))),
    dict(type="mmdet.PackDetInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="yolov5_collate"),
    dataset=dict(type="YOLOv5DOTADataset", pipeline=train_pipeline),
)
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=0.00025, weight_decay=0.05))
custom_hooks = [
    dict(
        type="EMAHook", ema_type="ExpMomentumEMA", momentum=0.0001, update_buffers=True, strict_load=False, priority=49
    )
]
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=300, val_interval=10)
env_cfg = dict(cudnn_benchmark=True)
