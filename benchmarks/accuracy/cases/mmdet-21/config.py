model = dict(
    type="MaskRCNN",
    backbone=dict(type="SwinTransformer", depths=[2, 2, 18, 2], drop_path_rate=0.2),
    neck=dict(type="FPN", in_channels=[96, 192, 384, 768], out_channels=256, num_outs=5),
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
    dict(
        type="AutoAugment",
        policies=[
            [
                dict(
                    type="Resize",
                    img_scale=[
                        (480, 1333),
                        (512, 1333),
                        (544, 1333),
                        (576, 1333),
                        (608, 1333),
                        (640, 1333),
                        (672, 1333),
                        (704, 1333),
                        (736, 1333),
                        (768, 1333),
                        (800, 1333),
                    ],
                    multiscale_mode="value",
                    keep_ratio=True,
                )
            ],
            [
                dict(type="Resize", img_scale=[(400, 1333), (500, 1333), (600, 1333)], multiscale_mode="value"),
                dict(type="RandomCrop", crop_type="absolute_range", crop_size=(384, 600)),
                dict(
                    type="Resize",
                    img_scale=[
                        (480, 1333),
                        (512, 1333),
                        (544, 1333),
                        (576, 1333),
                        (608, 1333),
                        (640, 1333),
                        (672, 1333),
                        (704, 1333),
                        (736, 1333),
                        (768, 1333),
                        (800, 1333),
                    ],
                    multiscale_mode="value",
                    override=True,
                    keep_ratio=True,
                ),
            ],
        ],
    ),
    dict(type="Pad", size_divisor=32),
]
data = dict(samples_per_gpu=2, train=dict(type="CocoDataset", pipeline=train_pipeline))
optimizer = dict(
    type="AdamW", lr=0.0001, weight_decay=0.05, paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)})
)
fp16 = dict(loss_scale=512.0)
runner = dict(type="EpochBasedRunner", max_epochs=12)
