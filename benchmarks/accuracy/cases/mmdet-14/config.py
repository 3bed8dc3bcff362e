model = dict(
    type="MaskRCNN",
    backbone=dict(
        type="ResNeXt",
        groups=32,
        base_width=4,
        depth=101,
        frozen_stages=1,
        norm_eval=True,
        norm_cfg=dict(type="BN", requires_grad=True),
    ),
    neck=dict(type="FPN", in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5),
    rpn_head=dict(
        type="RPNHead",
        in_channels=256,
        feat_channels=256,
        anchor_generator=dict(type="AnchorGenerator", scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64]),
    ),
    roi_head=dict(
        type="StandardRoIHead",
        bbox_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=7),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        mask_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=14),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        mask_head=dict(type="FCNMaskHead", num_convs=4, in_channels=256, conv_out_channels=256, num_classes=80),
        bbox_head=dict(type="Shared2FCBBoxHead", in_channels=256, roi_feat_size=7, num_classes=80),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=2000, max_per_img=1000),
        rcnn=dict(sampler=dict(type="RandomSampler", num=512, pos_fraction=0.25)),
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", img_scale=[(1333, 640), (1333, 800)], multiscale_mode="range", keep_ratio=True),
    dict(type="Pad", size_divisor=32),
]
data = dict(samples_per_gpu=2, train=dict(type="CocoDataset", pipeline=train_pipeline))
optimizer = dict(type="SGD", lr=0.02, momentum=0.9, weight_decay=0.0001)
runner = dict(type="EpochBasedRunner", max_epochs=12)
