model = dict(
    type="Recognizer3D",
    backbone=dict(
        type="TimeSformer",
        pretrained="https://download.openmmlab.com/mmaction/recognition/timesformer/vit_base_patch16_224.pth",
        num_frames=8,
        img_size=224,
        patch_size=16,
        embed_dims=768,
        in_channels=3,
        dropout_ratio=0.0,
        transformer_layers=None,
        attention_type="space_only",
        norm_cfg=dict(type="LN", eps=1e-06),
    ),
    cls_head=dict(type="TimeSformerHead", num_classes=400, in_channels=768, average_clips="prob"),
    data_preprocessor=dict(
        type="ActionDataPreprocessor", mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], format_shape="NCTHW"
    ),
)
train_pipeline = [
    dict(type="DecordInit"),
    dict(type="SampleFrames", clip_len=8, frame_interval=32, num_clips=1),
    dict(type="DecordDecode"),
    dict(type="RandomRescale", scale_range=(256, 320)),
    dict(type="RandomCrop", size=224),
    dict(type="Flip", flip_ratio=0.5),
    dict(type="FormatShape", input_format="NCTHW"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="VideoDataset",
        ann_file="data/kinetics400/kinetics400_train_list_videos.txt",
        data_prefix=dict(video="data/kinetics400/videos_train"),
        pipeline=[
            dict(type="DecordInit"),
            dict(type="SampleFrames", clip_len=8, frame_interval=32, num_clips=1),
            dict(type="DecordDecode"),
            dict(type="RandomRescale", scale_range=(256, 320)),
            dict(type="RandomCrop", size=224),
            dict(type="Flip", flip_ratio=0.5),
            dict(type="FormatShape", input_format="NCTHW"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=15, val_begin=1, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.005, momentum=0.9, weight_decay=0.0001, nesterov=True),
    paramwise_cfg=dict(
        custom_keys={
            ".backbone.cls_token": dict(decay_mult=0.0),
            ".backbone.pos_embed": dict(decay_mult=0.0),
            ".backbone.time_embed": dict(decay_mult=0.0),
        }
    ),
    clip_grad=dict(max_norm=40, norm_type=2),
)
default_scope = "mmaction"
dataset_type = "VideoDataset"
