model = dict(
    detector=dict(
        type="MaskRCNN",
        backbone=dict(
            type="ResNeXt",
            depth=101,
            num_stages=4,
            out_indices=(0, 1, 2, 3),
            frozen_stages=1,
            norm_cfg=dict(type="BN", requires_grad=True),
            norm_eval=True,
            style="pytorch",
            init_cfg=dict(type="Pretrained", checkpoint="open-mmlab://resnext101_64x4d"),
            groups=64,
            base_width=4,
        ),
        neck=dict(type="FPN", in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5),
        rpn_head=dict(
            type="RPNHead",
            in_channels=256,
            feat_channels=256,
            anchor_generator=dict(
                type="AnchorGenerator", scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64]
            ),
            bbox_coder=dict(
                type="DeltaXYWHBBoxCoder", target_means=[0.0, 0.0, 0.0, 0.0], target_stds=[1.0, 1.0, 1.0, 1.0]
            ),
            loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=True, loss_weight=1.0),
            loss_bbox=dict(type="L1Loss", loss_weight=1.0),
        ),
        roi_head=dict(
            type="StandardRoIHead",
            bbox_roi_extractor=dict(
                type="SingleRoIExtractor",
                roi_layer=dict(type="RoIAlign", output_size=7, sampling_ratio=0),
                out_channels=256,
                featmap_strides=[4, 8, 16, 32],
            ),
            bbox_head=dict(
                type="Shared2FCBBoxHead",
                in_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=40,
                bbox_coder=dict(
                    type="DeltaXYWHBBoxCoder", target_means=[0.0, 0.0, 0.0, 0.0], target_stds=[0.1, 0.1, 0.2, 0.2]
                ),
                reg_class_agnostic=False,
                loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
                loss_bbox=dict(type="L1Loss", loss_weight=1.0),
            ),
            mask_roi_extractor=dict(
                type="SingleRoIExtractor",
                roi_layer=dict(type="RoIAlign", output_size=14, sampling_ratio=0),
                out_channels=256,
                featmap_strides=[4, 8, 16, 32],
            ),
            mask_head=dict(
                type="FCNMaskHead",
                num_convs=4,
                in_channels=256,
                conv_out_channels=256,
                num_classes=40,
                loss_mask=dict(type="CrossEntropyLoss", use_mask=True, loss_weight=1.0),
            ),
        ),
        train_cfg=dict(
            rpn=dict(
                assigner=dict(
                    type="MaxIoUAssigner",
                    pos_iou_thr=0.7,
                    neg_iou_thr=0.3,
                    min_pos_iou=0.3,
                    match_low_quality=True,
                    ignore_iof_thr=-1,
                ),
                sampler=dict(type="RandomSampler", num=64, pos_fraction=0.5, neg_pos_ub=-1, add_gt_as_proposals=False),
                allowed_border=-1,
                pos_weight=-1,
                debug=False,
            ),
            rpn_proposal=dict(nms_pre=200, max_per_img=200, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0),
            rcnn=dict(
                assigner=dict(
                    type="MaxIoUAssigner",
                    pos_iou_thr=0.5,
                    neg_iou_thr=0.5,
                    min_pos_iou=0.5,
                    match_low_quality=True,
                    ignore_iof_thr=-1,
                ),
                sampler=dict(type="RandomSampler", num=128, pos_fraction=0.25, neg_pos_ub=-1, add_gt_as_proposals=True),
                mask_size=28,
                pos_weight=-1,
                debug=False,
            ),
        ),
        test_cfg=dict(
            rpn=dict(nms_pre=200, max_per_img=200, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0),
            rcnn=dict(score_thr=0.01, nms=dict(type="nms", iou_threshold=0.5), max_per_img=100, mask_thr_binary=0.5),
        ),
        init_cfg=dict(
            type="Pretrained",
            checkpoint="https://download.openmmlab.com/mmdetection/v2.0/mask_rcnn/mask_rcnn_x101_64x4d_fpn_1x_coco/mask_rcnn_x101_64x4d_fpn_1x_coco_20200201-9352eb0d.pth",
        ),
    ),
    type="MaskTrackRCNN",
    track_head=dict(
        type="RoITrackHead",
        roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=7, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        embed_head=dict(type="RoIEmbedHead", num_fcs=2, roi_feat_size=7, in_channels=256, fc_out_channels=1024),
        train_cfg=dict(
            assigner=dict(
                type="MaxIoUAssigner",
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=True,
                ignore_iof_thr=-1,
            ),
            sampler=dict(type="RandomSampler", num=128, pos_fraction=0.25, neg_pos_ub=-1, add_gt_as_proposals=True),
            pos_weight=-1,
            debug=False,
        ),
    ),
    tracker=dict(
        type="MaskTrackRCNNTracker", match_weights=dict(det_score=1.0, iou=2.0, det_label=10.0), num_frames_retain=20
    ),
)
data = dict(
    samples_per_gpu=1,
    workers_per_gpu=2,
    train=dict(
        type="YouTubeVISDataset",
        dataset_version="2019",
        ann_file="data/youtube_vis_2019/annotations/youtube_vis_2019_train.json",
        img_prefix="data/youtube_vis_2019/train/JPEGImages",
        ref_img_sampler=dict(num_ref_imgs=1, frame_range=100, filter_key_img=True, method="uniform"),
        pipeline=[
            dict(type="LoadMultiImagesFromFile", to_float32=True),
            dict(type="SeqLoadAnnotations", with_bbox=True, with_mask=True, with_track=True),
            dict(type="SeqResize", share_params=True, img_scale=(640, 360), keep_ratio=True),
            dict(type="SeqRandomFlip", share_params=True, flip_ratio=0.5),
            dict(type="SeqNormalize", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True),
            dict(type="SeqPad", size_divisor=32),
            dict(type="VideoCollect", keys=["img", "gt_bboxes", "gt_labels", "gt_masks", "gt_instance_ids"]),
            dict(type="SeqDefaultFormatBundle", ref_prefix="ref"),
        ],
    ),
)
optimizer = dict(type="SGD", lr=0.00125, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
total_epochs = 12
