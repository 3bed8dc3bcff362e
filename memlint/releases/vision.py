"""Libraries that train on images: Ultralytics, torchvision, timm.

Each row was read from the library's own code, as published in the releases on both sides of the border.
"""

from __future__ import annotations

from memlint.releases.behaviour import LESS, LITTLE, MORE, Behaviour

BEHAVIOURS: dict[str, Behaviour] = {
    "timm.fuses_attention": Behaviour(
        "timm",
        (0, 9),
        None,
        LESS,
        "a vision transformer's attention is torch's scaled_dot_product_attention, where torch has one",
        "timm/models/vision_transformer.py: Attention; timm/layers/config.py: use_fused_attn",
    ),
    "ultralytics.looks_at_each_side": Behaviour(
        "ultralytics",
        (8, 4, 105),
        None,
        LESS,
        "whether an anchor lies within a box is asked one side after the other, not of eight numbers for each pair",
        "ultralytics/utils/tal.py: select_candidates_in_gts, get_targets",
    ),
    "ultralytics.lists_candidates": Behaviour(
        "ultralytics",
        (8, 4, 134),
        None,
        LESS,
        "boxes and anchors that may belong together are a list, and marks of all pairs are bytes",
        "ultralytics/utils/tal.py: get_box_metrics, select_topk_candidates",
    ),
    "ultralytics.clears_before_validation": Behaviour(
        "ultralytics",
        (8, 3, 152),
        None,
        LESS,
        "before an epoch's validation the cache is emptied where more than half of the card is reserved",
        "ultralytics/engine/trainer.py: _do_train, _clear_memory",
    ),
    "ultralytics.keeps_channels_last": Behaviour(
        "ultralytics",
        (8, 4, 105),
        None,
        LITTLE,
        "weights and maps on a card are in channels-last format",
        "ultralytics/engine/trainer.py: _setup_train",
    ),
    "ultralytics.auto_takes_musgd": Behaviour(
        "ultralytics",
        (8, 4, 8),
        None,
        MORE,
        "`optimizer: auto` takes MuSGD for long runs, which keeps two momenta, where it took SGD",
        "ultralytics/engine/trainer.py: build_optimizer",
    ),
    "ultralytics.fuses_adam": Behaviour(
        "ultralytics",
        (8, 4, 154),
        None,
        LESS,
        "Adam and AdamW are one kernel",
        "ultralytics/engine/trainer.py: build_optimizer",
    ),
    "torchvision.detectors_start_from_a_trained_backbone": Behaviour(
        "torchvision",
        None,
        (0, 13),
        LESS,
        "a detector of references/detection starts from a trained backbone, of which three parts train",
        "references/detection/train.py: --weights-backbone; models/detection/faster_rcnn.py: pretrained_backbone",
    ),
}
