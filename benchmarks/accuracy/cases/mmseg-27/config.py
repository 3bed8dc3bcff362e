norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    backbone=dict(
        type="ResNetV1c",
        depth=101,
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        contract_dilation=True,
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(type="PSPHead", in_channels=2048, in_index=3, channels=512, num_classes=19, norm_cfg=norm_cfg),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=1024,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        num_classes=19,
        norm_cfg=norm_cfg,
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomCrop", crop_size=(512, 1024)),
    dict(type="Pad", size=(512, 1024)),
]
data = dict(samples_per_gpu=2, train=dict(type="CityscapesDataset", pipeline=train_pipeline))
optimizer = dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=0.0005)
optimizer_config = dict(type="Fp16OptimizerHook", loss_scale="dynamic")
fp16 = dict()
runner = dict(type="IterBasedRunner", max_iters=160000)
