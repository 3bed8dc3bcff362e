norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    backbone=dict(
        type="VisionTransformer",
        img_size=(512, 512),
        embed_dims=768,
        num_heads=12,
        out_indices=(2, 5, 8, 11),
        final_norm=False,
    ),
    decode_head=dict(
        type="UPerHead", in_channels=[768] * 4, in_index=[0, 1, 2, 3], channels=512, num_classes=150, norm_cfg=norm_cfg
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=768,
        in_index=3,
        channels=256,
        num_convs=1,
        concat_input=False,
        num_classes=150,
        norm_cfg=norm_cfg,
    ),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="RandomCrop", crop_size=(512, 512)),
    dict(type="Pad", size=(512, 512)),
]
data = dict(samples_per_gpu=2, train=dict(type="ADE20KDataset", pipeline=train_pipeline))
optimizer = dict(
    type="AdamW", lr=6e-05, weight_decay=0.01, paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)})
)
optimizer_config = dict()
runner = dict(type="IterBasedRunner", max_iters=160000)
