model = dict(
    type="MVXFasterRCNN",
    data_preprocessor=dict(
        type="Det3DDataPreprocessor",
        voxel=True,
        voxel_layer=dict(
            max_num_points=20,
            point_cloud_range=[-76.8, -51.2, -2, 76.8, 51.2, 4],
            voxel_size=[0.08, 0.08, 0.1],
            max_voxels=(80000, 90000),
        ),
    ),
    pts_voxel_encoder=dict(type="HardSimpleVFE", num_features=5),
    pts_middle_encoder=dict(
        type="SparseEncoder", in_channels=5, sparse_shape=[61, 1280, 1920], order=("conv", "norm", "act")
    ),
    pts_backbone=dict(
        type="SECOND",
        in_channels=384,
        norm_cfg=dict(type="naiveSyncBN2d", eps=0.001, momentum=0.01),
        layer_nums=[5, 5],
        layer_strides=[1, 2],
        out_channels=[128, 256],
    ),
    pts_neck=dict(
        type="SECONDFPN",
        norm_cfg=dict(type="naiveSyncBN2d", eps=0.001, momentum=0.01),
        in_channels=[128, 256],
        upsample_strides=[1, 2],
        out_channels=[256, 256],
    ),
    pts_bbox_head=dict(
        type="Anchor3DHead",
        num_classes=3,
        in_channels=512,
        feat_channels=512,
        use_direction_classifier=True,
        anchor_generator=dict(
            type="AlignedAnchor3DRangeGenerator",
            ranges=[
                [-76.8, -51.2, -0.0345, 76.8, 51.2, -0.0345],
                [-76.8, -51.2, -0.1188, 76.8, 51.2, -0.1188],
                [-76.8, -51.2, 0, 76.8, 51.2, 0],
            ],
            sizes=[[4.73, 2.08, 1.77], [1.81, 0.84, 1.77], [0.91, 0.84, 1.74]],
            rotations=[0, 1.57],
            reshape_out=False,
        ),
        diff_rad_by_sin=True,
        dir_offset=-0.7854,
        bbox_coder=dict(type="DeltaXYZWLHRBBoxCoder", code_size=7),
        loss_cls=dict(type="mmdet.FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
        loss_bbox=dict(type="mmdet.SmoothL1Loss", beta=0.111111, loss_weight=1.0),
        loss_dir=dict(type="mmdet.CrossEntropyLoss", use_sigmoid=False, loss_weight=0.2),
    ),
    train_cfg=dict(
        pts=dict(
            assigner=[
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.55,
                    neg_iou_thr=0.4,
                    min_pos_iou=0.4,
                    ignore_iof_thr=-1,
                ),
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.5,
                    neg_iou_thr=0.3,
                    min_pos_iou=0.3,
                    ignore_iof_thr=-1,
                ),
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.5,
                    neg_iou_thr=0.3,
                    min_pos_iou=0.3,
                    ignore_iof_thr=-1,
                ),
            ],
            allowed_border=0,
            code_weight=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            pos_weight=-1,
            debug=False,
        )
    ),
)
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        type="RepeatDataset",
        dataset=dict(
            type="WaymoDataset",
            pipeline=[
                dict(type="LoadPointsFromFile", load_dim=6, use_dim=5),
                dict(type="PointsRangeFilter", point_cloud_range=[-76.8, -51.2, -2, 76.8, 51.2, 4]),
                dict(type="Pack3DDetInputs", keys=["points", "gt_bboxes_3d", "gt_labels_3d"]),
            ],
        ),
    ),
)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=0.001, weight_decay=0.01),
    clip_grad=dict(max_norm=35, norm_type=2),
)
