model = dict(
    type="YOLOX",
    input_size=(640, 640),
    backbone=dict(type="CSPDarknet", deepen_factor=0.33, widen_factor=0.375),
    neck=dict(type="YOLOXPAFPN", in_channels=[96, 192, 384], out_channels=96, num_csp_blocks=1),
    bbox_head=dict(type="YOLOXHead", num_classes=80, in_channels=96, feat_channels=96),
)
data = dict(samples_per_gpu=8, train=dict(type="MultiImageMixDataset"))
optimizer = dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
custom_hooks = [dict(type="ExpMomentumEMAHook")]
