model = dict(
    type="RecognizerGCN",
    backbone=dict(type="STGCN", graph_cfg=dict(layout="coco", mode="stgcn_spatial")),
    cls_head=dict(type="GCNHead", num_classes=60, in_channels=256),
)
train_pipeline = [
    dict(type="PreNormalize2D"),
    dict(type="GenSkeFeat", dataset="coco", feats=["b"]),
    dict(type="UniformSampleFrames", clip_len=100),
    dict(type="PoseDecode"),
    dict(type="FormatGCNInput", num_person=2),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="RepeatDataset",
        times=5,
        dataset=dict(
            type="PoseDataset",
            ann_file="data/skeleton/ntu60_2d.pkl",
            pipeline=[
                dict(type="PreNormalize2D"),
                dict(type="GenSkeFeat", dataset="coco", feats=["b"]),
                dict(type="UniformSampleFrames", clip_len=100),
                dict(type="PoseDecode"),
                dict(type="FormatGCNInput", num_person=2),
                dict(type="PackActionInputs"),
            ],
            split="xsub_train",
        ),
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=16, val_begin=1, val_interval=1)
optim_wrapper = dict(optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.0005, nesterov=True))
auto_scale_lr = dict(enable=False, base_batch_size=128)
default_scope = "mmaction"
