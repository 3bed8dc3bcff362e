model = dict(
    type="EncoderDecoder3D",
    data_preprocessor=dict(type="Det3DDataPreprocessor"),
    backbone=dict(
        type="PointNet2SASSG",
        in_channels=9,
        num_points=(1024, 256, 64, 16),
        radius=(None, None, None, None),
        num_samples=(32, 32, 32, 32),
        sa_channels=((32, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512)),
        fp_channels=(),
        norm_cfg=dict(type="BN2d", momentum=0.1),
        sa_cfg=dict(
            type="PAConvSAModule",
            pool_mod="max",
            use_xyz=True,
            normalize_xyz=False,
            paconv_num_kernels=[16, 16, 16],
            paconv_kernel_input="w_neighbor",
            scorenet_input="w_neighbor_dist",
            scorenet_cfg=dict(mlp_channels=[16, 16, 16], score_norm="softmax", temp_factor=1.0, last_bn=False),
        ),
    ),
    decode_head=dict(
        type="PAConvHead",
        fp_channels=((768, 256, 256), (384, 256, 256), (320, 256, 128), (134, 128, 128, 128)),
        channels=128,
        dropout_ratio=0.5,
        conv_cfg=dict(type="Conv1d"),
        norm_cfg=dict(type="BN1d"),
        act_cfg=dict(type="ReLU"),
        loss_decode=dict(type="mmdet.CrossEntropyLoss", use_sigmoid=False, class_weight=None, loss_weight=1.0),
        num_classes=13,
        ignore_index=13,
    ),
    loss_regularization=dict(type="PAConvRegularizationLoss", reduction="sum", loss_weight=10.0),
    train_cfg=dict(),
)
train_dataloader = dict(
    batch_size=8,
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
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="SGD", lr=0.2, momentum=0.9, weight_decay=0.0001), clip_grad=None
)
