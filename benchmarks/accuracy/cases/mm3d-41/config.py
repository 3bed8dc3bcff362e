model = dict(
    type="EncoderDecoder3D",
    data_preprocessor=dict(type="Det3DDataPreprocessor"),
    backbone=dict(
        type="PointNet2SAMSG",
        in_channels=9,
        num_points=(1024, 256, 64, 16),
        radii=((0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 0.8)),
        num_samples=((16, 32), (16, 32), (16, 32), (16, 32)),
        sa_channels=(
            ((16, 16, 32), (32, 32, 64)),
            ((64, 64, 128), (64, 96, 128)),
            ((128, 196, 256), (128, 196, 256)),
            ((256, 256, 512), (256, 384, 512)),
        ),
        aggregation_channels=(None, None, None, None),
        fps_mods=("D-FPS", "D-FPS", "D-FPS", "D-FPS"),
        fps_sample_range_lists=(-1, -1, -1, -1),
        dilated_group=(False, False, False, False),
        out_indices=(0, 1, 2, 3),
        sa_cfg=dict(type="PointSAModuleMSG", pool_mod="max", use_xyz=True, normalize_xyz=False),
    ),
    decode_head=dict(
        type="PointNet2Head",
        fp_channels=((1536, 256, 256), (512, 256, 256), (352, 256, 128), (128, 128, 128, 128)),
        channels=128,
        dropout_ratio=0.5,
        conv_cfg=dict(type="Conv1d"),
        norm_cfg=dict(type="BN1d"),
        act_cfg=dict(type="ReLU"),
        loss_decode=dict(type="mmdet.CrossEntropyLoss", use_sigmoid=False, class_weight=None, loss_weight=1.0),
        num_classes=13,
        ignore_index=13,
    ),
    train_cfg=dict(),
)
train_dataloader = dict(
    batch_size=16,
    dataset=dict(
        type="S3DISSegDataset",
        pipeline=[
            dict(type="LoadPointsFromFile", shift_height=False, load_dim=6, use_dim=[0, 1, 2, 3, 4, 5]),
            dict(type="PointSegClassMapping"),
            dict(type="IndoorPatchPointSample", num_points=4096, block_size=1.0, use_normalized_coord=True),
            dict(type="NormalizePointsColor"),
            dict(type="Pack3DDetInputs", keys=["points", "pts_semantic_mask"]),
        ],
    ),
)
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="Adam", lr=0.001, weight_decay=0.001), clip_grad=None)
