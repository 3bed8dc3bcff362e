norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    backbone=dict(
        type="mmcls.ConvNeXt",
        arch="base",
        out_indices=[0, 1, 2, 3],
        drop_path_rate=0.4,
        layer_scale_init_value=1.0,
        gap_before_final_norm=False,
    ),
    decode_head=dict(
        type="UPerHead",
        in_channels=[128, 256, 512, 1024],
        in_index=[0, 1, 2, 3],
        channels=512,
        num_classes=150,
        norm_cfg=norm_cfg,
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=512,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        num_classes=150,
        norm_cfg=norm_cfg,
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomCrop", crop_size=(640, 640)),
    dict(type="Pad", size=(640, 640)),
]
data = dict(samples_per_gpu=2, train=dict(type="ADE20KDataset", pipeline=train_pipeline))
optimizer = dict(
    type="AdamW", lr=6e-05, weight_decay=0.01, paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)})
)
optimizer_config = dict(type="Fp16OptimizerHook", loss_scale="dynamic")
fp16 = dict()
runner = dict(type="IterBasedRunner", max_iters=160000)
