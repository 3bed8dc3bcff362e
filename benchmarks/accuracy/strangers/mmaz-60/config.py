model = dict(
    type="RecognizerAudio",
    backbone=dict(type="ResNet", depth=18, in_channels=1, norm_eval=False),
    cls_head=dict(
        type="TSNAudioHead", num_classes=400, in_channels=512, dropout_ratio=0.5, init_std=0.01, average_clips="prob"
    ),
)
train_pipeline = [
    dict(type="LoadAudioFeature"),
    dict(type="SampleFrames", clip_len=64, frame_interval=1, num_clips=1),
    dict(type="AudioFeatureSelector"),
    dict(type="FormatAudioShape", input_format="NCTF"),
    dict(type="PackActionInputs"),
]
train_dataloader = dict(
    batch_size=320,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="AudioDataset",
        ann_file="data/kinetics400/kinetics400_val_list_audio_features.txt",
        data_prefix=dict(audio="data/kinetics400/audio_features_val"),
        suffix=".npy",
        pipeline=[
            dict(type="LoadAudioFeature"),
            dict(type="SampleFrames", clip_len=64, frame_interval=1, num_clips=1),
            dict(type="AudioFeatureSelector"),
            dict(type="FormatAudioShape", input_format="NCTF"),
            dict(type="PackActionInputs"),
        ],
    ),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=100, val_begin=1, val_interval=5)
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.0001), clip_grad=dict(max_norm=40, norm_type=2)
)
default_scope = "mmaction"
dataset_type = "AudioDataset"
