model = dict(
    type="EncoderDecoder3D",
    data_preprocessor=dict(type="Det3DDataPreprocessor"),
    backbone=dict(
        type="DGCNNBackbone",
        in_channels=9,
        num_samples=(20, 20, 20),
        knn_modes=("D-KNN", "F-KNN", "F-KNN"),
        radius=(None, None, None),
        gf_channels=((64, 64), (64, 64), (64,)),
        fa_channels=(1024,),
        act_cfg=dict(type="LeakyReLU", negative_slope=0.2),
    ),
    decode_head=dict(
        type="DGCNNHead",
        fp_channels=(1216, 512),
        channels=256,
        dropout_ratio=0.5,
        conv_cfg=dict(type="Conv1d"),
        norm_cfg=dict(type="BN1d"),
        act_cfg=dict(type="LeakyReLU", negative_slope=0.2),
        loss_decode=dict(type="mmdet.CrossEntropyLoss", use_sigmoid=False, class_weight=None, loss_weight=1.0),
        num_classes=13,
        ignore_index=13,
    ),
    train_cfg=dict(),
)
train_dataloader = dict(
    batch_size=32,
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
    type="OptimWrapper", optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.001), clip_grad=None
)
