model = dict(
    type="SiamRPN",
    backbone=dict(
        type="SOTResNet",
        depth=50,
        out_indices=(1, 2, 3),
        frozen_stages=4,
        strides=(1, 2, 1, 1),
        dilations=(1, 1, 2, 4),
        norm_eval=True,
        init_cfg=dict(
            type="Pretrained",
            checkpoint="https://download.openmmlab.com/mmtracking/pretrained_weights/sot_resnet50.model",
        ),
    ),
    neck=dict(
        type="ChannelMapper",
        in_channels=[512, 1024, 2048],
        out_channels=256,
        kernel_size=1,
        norm_cfg=dict(type="BN"),
        act_cfg=None,
    ),
    head=dict(
        type="SiameseRPNHead",
        anchor_generator=dict(type="SiameseRPNAnchorGenerator", strides=[8], ratios=[0.33, 0.5, 1, 2, 3], scales=[8]),
        in_channels=[256, 256, 256],
        weighted_sum=True,
        bbox_coder=dict(type="DeltaXYWHBBoxCoder", target_means=[0.0, 0.0, 0.0, 0.0], target_stds=[1.0, 1.0, 1.0, 1.0]),
        loss_cls=dict(type="CrossEntropyLoss", reduction="sum", loss_weight=1.0),
        loss_bbox=dict(type="L1Loss", reduction="sum", loss_weight=1.2),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(
                type="MaxIoUAssigner", pos_iou_thr=0.6, neg_iou_thr=0.3, min_pos_iou=0.6, match_low_quality=False
            ),
            sampler=dict(type="RandomSampler", num=64, pos_fraction=0.25, add_gt_as_proposals=False),
            num_neg=16,
            exemplar_size=127,
            search_size=255,
        )
    ),
    test_cfg=dict(
        exemplar_size=127,
        search_size=255,
        context_amount=0.5,
        center_size=7,
        rpn=dict(penalty_k=0.05, window_influence=0.42, lr=0.38),
    ),
)
data = dict(
    samples_per_gpu=28,
    workers_per_gpu=4,
    train=dict(
        type="RandomSampleConcatDataset",
        dataset_sampling_weights=[0.25, 0.2, 0.55],
        dataset_cfgs=[
            dict(
                type="SOTImageNetVIDDataset",
                ann_file="data/ILSVRC/annotations/imagenet_vid_train.json",
                img_prefix="data/ILSVRC/Data/VID",
                pipeline=[
                    dict(type="PairSampling", frame_range=100, pos_prob=0.8, filter_template_img=False),
                    dict(type="LoadMultiImagesFromFile", to_float32=True),
                    dict(type="SeqLoadAnnotations", with_bbox=True, with_label=False),
                    dict(type="SeqCropLikeSiamFC", context_amount=0.5, exemplar_size=127, crop_size=511),
                    dict(type="SeqShiftScaleAug", target_size=[127, 255], shift=[4, 64], scale=[0.05, 0.18]),
                    dict(type="SeqColorAug", prob=[1.0, 1.0]),
                    dict(type="SeqBlurAug", prob=[0.0, 0.2]),
                    dict(type="VideoCollect", keys=["img", "gt_bboxes", "is_positive_pairs"]),
                    dict(type="ConcatSameTypeFrames"),
                    dict(type="SeqDefaultFormatBundle", ref_prefix="search"),
                ],
                split="train",
                test_mode=False,
            ),
            dict(
                type="SOTCocoDataset",
                ann_file="data/coco/annotations/instances_train2017.json",
                img_prefix="data/coco/train2017",
                pipeline=[
                    dict(type="PairSampling", frame_range=100, pos_prob=0.8, filter_template_img=False),
                    dict(type="LoadMultiImagesFromFile", to_float32=True),
                    dict(type="SeqLoadAnnotations", with_bbox=True, with_label=False),
                    dict(type="SeqCropLikeSiamFC", context_amount=0.5, exemplar_size=127, crop_size=511),
                    dict(type="SeqShiftScaleAug", target_size=[127, 255], shift=[4, 64], scale=[0.05, 0.18]),
                    dict(type="SeqColorAug", prob=[1.0, 1.0]),
                    dict(type="SeqBlurAug", prob=[0.0, 0.2]),
                    dict(type="VideoCollect", keys=["img", "gt_bboxes", "is_positive_pairs"]),
                    dict(type="ConcatSameTypeFrames"),
                    dict(type="SeqDefaultFormatBundle", ref_prefix="search"),
                ],
                split="train",
                test_mode=False,
            ),
            dict(
                type="SOTCocoDataset",
                ann_file="data/ILSVRC/annotations/imagenet_det_30plus1cls.json",
                img_prefix="data/ILSVRC/Data/DET",
                pipeline=[
                    dict(type="PairSampling", frame_range=100, pos_prob=0.8, filter_template_img=False),
                    dict(type="LoadMultiImagesFromFile", to_float32=True),
                    dict(type="SeqLoadAnnotations", with_bbox=True, with_label=False),
                    dict(type="SeqCropLikeSiamFC", context_amount=0.5, exemplar_size=127, crop_size=511),
                    dict(type="SeqShiftScaleAug", target_size=[127, 255], shift=[4, 64], scale=[0.05, 0.18]),
                    dict(type="SeqColorAug", prob=[1.0, 1.0]),
                    dict(type="SeqBlurAug", prob=[0.0, 0.2]),
                    dict(type="VideoCollect", keys=["img", "gt_bboxes", "is_positive_pairs"]),
                    dict(type="ConcatSameTypeFrames"),
                    dict(type="SeqDefaultFormatBundle", ref_prefix="search"),
                ],
                split="train",
                test_mode=False,
            ),
        ],
    ),
)
optimizer = dict(
    type="SGD",
    lr=0.005,
    momentum=0.9,
    weight_decay=0.0001,
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1, decay_mult=1.0))),
)
optimizer_config = dict(
    type="SiameseRPNOptimizerHook",
    backbone_start_train_epoch=10,
    backbone_train_layers=["layer2", "layer3", "layer4"],
    grad_clip=dict(max_norm=10.0, norm_type=2),
)
total_epochs = 20
cudnn_benchmark = False
find_unused_parameters = True
