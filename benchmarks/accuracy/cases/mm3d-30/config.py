model = dict(
    type="DynamicMVXFasterRCNN",
    data_preprocessor=dict(
        type="Det3DDataPreprocessor",
        voxel=True,
        voxel_type="dynamic",
        voxel_layer=dict(
            max_num_points=-1,
            point_cloud_range=[0, -40, -3, 70.4, 40, 1],
            voxel_size=[0.05, 0.05, 0.1],
            max_voxels=(-1, -1),
        ),
        mean=[102.9801, 115.9465, 122.7717],
        std=[1.0, 1.0, 1.0],
        bgr_to_rgb=False,
        pad_size_divisor=32,
    ),
    img_backbone=dict(
        type="mmdet.ResNet",
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        frozen_stages=1,
        norm_cfg=dict(type="BN", requires_grad=False),
        norm_eval=True,
        style="caffe",
    ),
    img_neck=dict(
        type="mmdet.FPN",
        in_channels=[256, 512, 1024, 2048],
        out_channels=256,
        norm_cfg=dict(type="BN", requires_grad=False),
        num_outs=5,
    ),
    pts_voxel_encoder=dict(
        type="DynamicVFE",
        in_channels=4,
        feat_channels=[64, 64],
        with_distance=False,
        voxel_size=[0.05, 0.05, 0.1],
        with_cluster_center=True,
        with_voxel_center=True,
        point_cloud_range=[0, -40, -3, 70.4, 40, 1],
        fusion_layer=dict(
            type="PointFusion",
            img_channels=256,
            pts_channels=64,
            mid_channels=128,
            out_channels=128,
            img_levels=[0, 1, 2, 3, 4],
            align_corners=False,
            activate_out=True,
            fuse_out=False,
        ),
    ),
    pts_middle_encoder=dict(
        type="SparseEncoder", in_channels=128, sparse_shape=[41, 1600, 1408], order=("conv", "norm", "act")
    ),
    pts_backbone=dict(type="SECOND", in_channels=256, layer_nums=[5, 5], layer_strides=[1, 2], out_channels=[128, 256]),
    pts_neck=dict(type="SECONDFPN", in_channels=[128, 256], upsample_strides=[1, 2], out_channels=[256, 256]),
    pts_bbox_head=dict(
        type="Anchor3DHead",
        num_classes=3,
        in_channels=512,
        feat_channels=512,
        use_direction_classifier=True,
        anchor_generator=dict(
            type="Anchor3DRangeGenerator",
            ranges=[
                [0, -40.0, -0.6, 70.4, 40.0, -0.6],
                [0, -40.0, -0.6, 70.4, 40.0, -0.6],
                [0, -40.0, -1.78, 70.4, 40.0, -1.78],
            ],
            sizes=[[0.8, 0.6, 1.73], [1.76, 0.6, 1.73], [3.9, 1.6, 1.56]],
            rotations=[0, 1.57],
            reshape_out=False,
        ),
        assigner_per_size=True,
        diff_rad_by_sin=True,
        assign_per_class=True,
        bbox_coder=dict(type="DeltaXYZWLHRBBoxCoder"),
        loss_cls=dict(type="mmdet.FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
        loss_bbox=dict(type="mmdet.SmoothL1Loss", beta=0.111111, loss_weight=2.0),
        loss_dir=dict(type="mmdet.CrossEntropyLoss", use_sigmoid=False, loss_weight=0.2),
    ),
    train_cfg=dict(
        pts=dict(
            assigner=[
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.35,
                    neg_iou_thr=0.2,
                    min_pos_iou=0.2,
                    ignore_iof_thr=-1,
                ),
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.35,
                    neg_iou_thr=0.2,
                    min_pos_iou=0.2,
                    ignore_iof_thr=-1,
                ),
                dict(
                    type="Max3DIoUAssigner",
                    iou_calculator=dict(type="BboxOverlapsNearest3D"),
                    pos_iou_thr=0.6,
                    neg_iou_thr=0.45,
                    min_pos_iou=0.45,
                    ignore_iof_thr=-1,
                ),
            ],
            allowed_border=0,
            pos_weight=-1,
            debug=False,
        )
    ),
)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        type="RepeatDataset",
        dataset=dict(
            type="KittiDataset",
            pipeline=[
                dict(type="LoadPointsFromFile", load_dim=4, use_dim=4),
                dict(type="LoadImageFromFile"),
                dict(type="RandomResize", scale=[(640, 192), (2560, 768)], keep_ratio=True),
                dict(type="PointsRangeFilter", point_cloud_range=[0, -40, -3, 70.4, 40, 1]),
                dict(
                    type="Pack3DDetInputs",
                    keys=["points", "img", "gt_bboxes_3d", "gt_labels_3d", "gt_bboxes", "gt_labels"],
                ),
            ],
        ),
    ),
)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=0.003, weight_decay=0.01, betas=(0.95, 0.99)),
    clip_grad=dict(max_norm=35, norm_type=2),
)
