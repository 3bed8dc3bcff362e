norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    backbone=dict(
        type="ResNetV1c",
        depth=18,
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        out_indices=(0, 1, 2, 3),
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(
        type="PSPHead",
        in_channels=512,
        in_index=3,
        channels=128,
        pool_scales=(1, 2, 3, 6),
        num_classes=19,
        norm_cfg=norm_cfg,
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=256,
        in_index=2,
        channels=64,
        num_convs=1,
        concat_input=False,
        num_classes=19,
        norm_cfg=norm_cfg,
    ),
)
crop_size = (128, 256)
train_pipeline = [dict(type="LoadImageFromFile"), dict(type="RandomCrop", crop_size=crop_size)]
train_dataloader = dict(batch_size=2, num_workers=2, dataset=dict(type="CityscapesDataset", pipeline=train_pipeline))
optim_wrapper = dict(
    type="OptimWrapper", accumulative_counts=1, optimizer=dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=0.0005)
)
