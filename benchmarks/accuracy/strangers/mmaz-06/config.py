model = dict(
    type="FastRCNN",
    _scope_="mmdet",
    backbone=dict(
        type="ResNet3dSlowOnly",
        depth=101,
        pretrained="https://download.openmmlab.com/mmaction/recognition/slowonly/omni/slowonly_r101_without_omni_8x8x1_kinetics400_rgb_20200926-0c730aef.pth",
        pretrained2d=False,
        lateral=False,
        num_stages=4,
        conv1_kernel=(1, 7, 7),
        conv1_stride_t=1,
        pool1_stride_t=1,
        spatial_strides=(1, 2, 2, 1),
    ),
    roi_head=dict(
        type="AVARoIHead",
        bbox_roi_extractor=dict(
            type="SingleRoIExtractor3D", roi_layer_type="RoIAlign", output_size=8, with_temporal_pool=True
        ),
        bbox_head=dict(type="BBoxHeadAVA", in_channels=2048, num_classes=81, multilabel=True, dropout_ratio=0.5),
    ),
    data_preprocessor=dict(
        type="ActionDataPreprocessor",
        _scope_="mmaction",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        format_shape="NCTHW",
    ),
    train_cfg=dict(
        rcnn=dict(
            assigner=dict(type="MaxIoUAssignerAVA", pos_iou_thr=0.9, neg_iou_thr=0.9, min_pos_iou=0.9),
            sampler=dict(type="RandomSampler", num=32, pos_fraction=1, neg_pos_ub=-1, add_gt_as_proposals=True),
            pos_weight=1.0,
        )
    ),
)
train_pipeline = [
    dict(type="SampleAVAFrames", clip_len=8, frame_interval=8),
    dict(type="RawFrameDecode"),
    dict(type="RandomRescale", scale_range=(256, 320)),
    dict(type="RandomCrop", size=256),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="FormatShape", input_format="NCTHW", collapse=True),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="AVADataset",
        ann_file="data/ava/annotations/ava_train_v2.1.csv",
        exclude_file="data/ava/annotations/ava_train_excluded_timestamps_v2.1.csv",
        pipeline=[
            dict(type="SampleAVAFrames", clip_len=8, frame_interval=8),
            dict(type="RawFrameDecode"),
            dict(type="RandomRescale", scale_range=(256, 320)),
            dict(type="RandomCrop", size=256),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="FormatShape", input_format="NCTHW", collapse=True),
            dict(type="PackActionInputs"),
        ],
        label_file="data/ava/annotations/ava_action_list_v2.1_for_activitynet_2018.pbtxt",
        proposal_file="data/ava/annotations/ava_dense_proposals_train.FAIR.recall_93.9.pkl",
        data_prefix=dict(img="data/ava/rawframes"),
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=20, val_begin=1, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.2, momentum=0.9, weight_decay=1e-05), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
dataset_type = "AVADataset"
