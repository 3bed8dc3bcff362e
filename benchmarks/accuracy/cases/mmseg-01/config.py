norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    backbone=dict(
        type="MixVisionTransformer", embed_dims=32, num_heads=[1, 2, 5, 8], num_layers=[2, 2, 2, 2], drop_path_rate=0.1
    ),
    decode_head=dict(
        type="SegformerHead",
        in_channels=[32, 64, 160, 256],
        in_index=[0, 1, 2, 3],
        channels=256,
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
