import detectron2.data.transforms as T
from detectron2 import model_zoo
from detectron2.config import LazyCall as L

image_size = 1024
dataloader = model_zoo.get_config("common/data/coco.py").dataloader
dataloader.train.mapper.augmentations = [
    L(T.RandomFlip)(horizontal=True),
    L(T.ResizeScale)(min_scale=0.1, max_scale=2.0, target_height=image_size, target_width=image_size),
    L(T.FixedSizeCrop)(crop_size=(image_size, image_size), pad=False),
]
dataloader.train.mapper.image_format = "RGB"
dataloader.train.mapper.recompute_boxes = True
dataloader.train.total_batch_size = 64
model = model_zoo.get_config("common/models/mask_rcnn_vitdet.py").model
model.backbone.net.embed_dim = 1280
model.backbone.net.depth = 32
model.backbone.net.num_heads = 16
model.backbone.net.drop_path_rate = 0.5
model.backbone.net.window_block_indexes = [n for n in range(32) if n % 8 != 7]

train = model_zoo.get_config("common/train.py").train
train.amp.enabled = True
train.ddp.fp16_compression = True
optimizer = model_zoo.get_config("common/optim.py").AdamW
