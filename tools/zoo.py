"""The programs of libraries' classification models, into ``memlint/data/programs/LIBRARY/``, each proven.

    python -m tools.zoo [LIBRARY/NAME ...] [--to FOLDER] [--seconds N]

Needs torch and the libraries, at the releases that ``RELEASES`` says: another one is refused, as what is recorded has
to come out the same, byte for byte. torchvision may be a build for another device than this torch's: its operators are
declared without their kernels, and none of them is called here.

A program is written only if it agrees with fresh traces of the library's model, to the byte, in fp32, under autocast
and with the library's own checkpointing, at three settings each: what is alive at the end of the forward pass, what
autograd holds then (not under checkpointing, whose hooks hide it), the peaks of forward and backward, and how many
parameters there are. Everything else of a step (optimizer, EMA) is the engine's, whatever the model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from memlint.facts.spec import TrainingSpec
from memlint.measure import forward
from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.libraries import with_shapes_alone
from memlint.measure.trace import converting_in_place
from memlint.measure.tracker import SavedTensors, StorageTracker
from memlint.meta import functional as F
from memlint.meta.tape import Tape
from memlint.meta.tensor import DTYPES, Tensor, float32, int64
from memlint.models import program
from memlint.models.step import record_step
from memlint.models.system import System
from memlint.profiles.program import Program, read
from tools import transformers_models

FOLDER = Path(__file__).parents[1] / "memlint" / "data" / "programs"
RELEASES = {
    **{"torch": "2.13.0", "timm": "1.0.31", "torchvision": "0.28.0", "transformers": "5.23.0"},
    "open_clip_torch": "3.3.0",
}
# What a library is installed as, where that is another name.
DISTRIBUTIONS = {"open_clip": "open_clip_torch"}
GRANULARITY_BYTES = 512
CLASSES = 15_013  # a number that is no other size of any model
MODES = ("fp32", "autocast", "checkpointed")
# Three settings: images, and pixels beside the size that a model is made for.
BATCHES = (3, 6, 17)
OFFSETS = (0, 64, -32)
ALONE = ("1 < B", "B > 1", "B != 1")


class Recipe(NamedTuple):
    """A model of a library.

    build   (how many classes) -> the model
    side    of the images that it is made for
    given   (sizes) -> the arguments of its call; images where it is None
    sizes   that it is recorded with, and those of three settings that it is proven at; images' where there are none
    alone   conditions on a batch of one are left out where it is proven at such a batch as well
    pairs   its results are rows of images, rows of texts and a scale: a loss tells which belong together
    fixed   its program is for images of its own side alone
    """

    build: Callable[[int], nn.Module]
    side: int
    given: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    sizes: Sequence[Mapping[str, int]] = ()
    alone: bool = False
    pairs: bool = False
    fixed: bool = False

    def inputs(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        if self.given is not None:
            return self.given(sizes)
        return {"x": torch.empty(sizes["B"], 3, sizes["H"], sizes["W"])}


# -- libraries


@cache
def declare_torchvision() -> None:
    """torchvision's operators, where its own library of kernels does not load: their fake kernels want the names."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return
    folder = Path(spec.submodule_search_locations[0])
    for library in sorted(folder.glob("_C.*")):
        try:
            torch.ops.load_library(library)
        except OSError:
            continue
        return
    text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?([^"]+)"', text)
    for name in names:
        torch.library.define(f"torchvision::{name}", "(Tensor input) -> Tensor")


def _timm(name: str) -> Recipe:
    import timm

    made = timm.get_pretrained_cfg(name, allow_unregistered=False)
    side = made.input_size[-1] if made is not None else 224

    def build(classes: int) -> nn.Module:
        model: nn.Module = timm.create_model(name, num_classes=classes)
        return model

    return Recipe(build, side, fixed=name.startswith(OF_ONE_SIZE))


def _torchvision(name: str) -> Recipe:
    import torchvision

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return Recipe(
        lambda classes: torchvision.models.get_model(name, num_classes=classes, **options),
        299 if name == "inception_v3" else 224,
    )


def _transformers(name: str) -> Recipe:
    published = transformers_models.MODELS[name]
    sizes: Sequence[Mapping[str, int]] = () if published.side else transformers_models.SOUND
    if published.kind == "audio-spectrogram-transformer":
        sizes = [{"B": batch} for batch in (4, *BATCHES)]
    return Recipe(
        lambda classes: transformers_models.model(published, classes),
        published.side,
        transformers_models.given(published),
        sizes,
        name not in transformers_models.WITH_SEVERAL,
    )


def _open_clip(name: str) -> Recipe:
    import logging

    import open_clip

    logging.getLogger().setLevel(logging.ERROR)  # it says of each model that its weights are drawn
    config = open_clip.get_model_config(name)
    side = config["vision_cfg"].get("image_size", 224)
    length = config["text_cfg"].get("context_length", 77)

    def build(classes: int) -> nn.Module:
        model: nn.Module = open_clip.create_model(name, load_weights=False)
        return model

    def given(sizes: Mapping[str, Any]) -> dict[str, Any]:
        images = torch.empty(sizes["B"], 3, side, side)
        return {"image": images, "text": torch.zeros(sizes["B"], length, dtype=torch.int64)}

    return Recipe(build, side, given, [{"B": batch} for batch in (4, *BATCHES)], alone=True, pairs=True)


LIBRARIES: dict[str, Callable[[str], Recipe]] = {
    "open_clip": _open_clip,
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}

# In the order in which they are wanted: the models that published scripts and papers train most come first.
NAMES = {
    "timm": """
        resnet50 resnet18 vit_base_patch16_224 vit_small_patch16_224 vit_tiny_patch16_224 resnet34 resnet101
        efficientnet_b0 swin_tiny_patch4_window7_224 convnext_tiny mobilenetv3_large_100 mobilenetv2_100
        resnet152 vit_large_patch16_224 swin_base_patch4_window7_224
        swin_small_patch4_window7_224 convnext_base convnext_small regnety_016 efficientnet_b3 resnext50_32x4d
        wide_resnet50_2 mixer_b16_224 densenet121 vgg16 efficientnet_b4 efficientnet_b2 efficientnet_b1
        efficientnetv2_rw_s tf_efficientnetv2_s tf_efficientnetv2_m
        deit3_base_patch16_224 deit_base_distilled_patch16_224 convnext_large beit_base_patch16_224 regnety_032
        regnety_040 regnety_080 regnety_160 mobilenetv3_small_100 tf_efficientnet_b0 vit_base_patch32_224
        seresnet50 resnetv2_50 resnet26 resnet50d resnet26d ecaresnet50d vit_small_patch32_224 resmlp_24_224
        gmlp_s16_224 mixer_s16_224 mixer_l16_224 vgg19 vgg16_bn densenet161 densenet169 densenet201
        efficientnet_b5 vit_huge_patch14_224 swin_large_patch4_window7_224 convnextv2_tiny convnextv2_base
        pvt_v2_b2 mobileone_s0 repvgg_b0 ghostnet_100 inception_v3 cait_s24_224 xcit_small_12_p16_224 levit_256
        coatnet_0_rw_224 maxvit_tiny_tf_224 eva02_base_patch14_224 seresnet34 seresnext26t_32x4d seresnet18
        seresnext50_32x4d vit_base_patch16_clip_224 deit_tiny_distilled_patch16_224 tf_mobilenetv3_large_100
        mobilenetv4_conv_small_050 tf_efficientnetv2_b0 tf_efficientnet_b1 resnetv2_18 resnetv2_34 ecaresnet26t
        ecaresnetlight resnet50t resnet50c darknet53 gernet_s dla34 mobilenetv3_large_075 mobilenetv3_small_075
        vgg11 vgg11_bn vgg13 vgg13_bn vgg19_bn regnetx_002 regnety_002 resnet26t mobilenetv4_conv_small
        mobilenetv2_050 mobilenetv3_small_050 convnext_atto convnextv2_atto resmlp_12_224
        vit_small_patch14_dinov2 vit_base_patch14_dinov2 eva02_tiny_patch14_224 vit_base_patch16_siglip_224
        resnetrs50 repvgg_a0 ghostnet_050 xception41 tf_mobilenetv3_small_075 tf_efficientnet_lite0
        efficientnet_lite0 efficientnet_es mnasnet_100 semnasnet_100 spnasnet_100 fbnetc_100 hardcorenas_a
        lcnet_050 tinynet_a mixnet_s rexnet_100 mobilenetv1_100 vit_base_patch8_224 vit_base_patch32_clip_224
        resnet10t resnet14t regnetx_004 regnetx_006 regnetx_008 regnetx_016 regnety_004 regnety_006 regnety_008
        resnetv2_50d resnet50s ecaresnet50t cspdarknet53 visformer_small inception_next_tiny starnet_s1
        tinynet_b tinynet_c tinynet_d tinynet_e lcnet_075 lcnet_100 fbnetv3_b mobilenet_edgetpu_100
        mobilenetv3_rw mobilenetv2_140 mobilenetv2_110d mobilenetv4_conv_medium tf_mobilenetv3_small_100
        tf_mobilenetv3_large_075 efficientnet_lite1 tf_efficientnet_lite1 tf_efficientnetv2_b1
        tf_efficientnetv2_b2 tf_efficientnetv2_b3 tf_efficientnet_b2 tf_efficientnet_b3 tf_efficientnet_b4
        efficientnetv2_rw_t convnext_femto convnext_pico convnext_nano convnextv2_femto convnextv2_pico
        convnextv2_nano vit_small_patch14_reg4_dinov2 vit_base_patch14_reg4_dinov2
        eva02_small_patch14_224 deit_small_distilled_patch16_224 vit_small_patch16_384 vit_large_patch16_384
        vit_tiny_patch16_384 deit3_medium_patch16_224 resnext50d_32x4d seresnext26d_32x4d
        xcit_nano_12_p16_224 regnety_120 regnetx_032 resnext101_32x4d resnext101_32x8d wide_resnet101_2
        hgnet_tiny hgnetv2_b0 repvit_m0_9 resnetaa50 res2net50_26w_4s resnest50d skresnet18 dm_nfnet_f0
        hrnet_w18_small nest_tiny vitamin_small_224 focalnet_tiny_srf efficientformerv2_s0
        fastvit_t8 flexivit_small vit_relpos_small_patch16_224 vit_base_patch16_rope_224
        vit_small_patch16_dinov3 swin_s3_tiny_224 tnt_s_patch16_224 crossvit_tiny_240 coat_tiny hiera_tiny_224
        mambaout_femto selecsls42b dpn68 cspresnet50 convmixer_768_32 resnetv2_50x1_bit legacy_xception inception_v4
        legacy_senet154 regnetz_b16 resnet33ts mobilenetv4_hybrid_medium nextvit_small gcvit_xxtiny
        vit_large_patch14_dinov2 vit_large_patch32_384 vit_large_patch14_clip_224 vit_so400m_patch14_siglip_224
        convnextv2_large resnet200d resnet200 vit_base_patch16_dinov3 vit_base_patch16_224_miil
        deit3_small_patch16_224 resnet101d resnet152d resnet18d resnet34d vit_base_patch16_384 resnetaa34d
        resnest14d resnext26ts seresnet33ts resnet32ts gcresnet33ts selecsls60b repvgg_a1
        cs3darknet_s resnetv2_50t regnetx_040 vit_medium_patch16_gap_240 efficientnetv2_s poolformer_s12
        poolformerv2_s12 convformer_s18 caformer_s18 poolformer_s24 resnetblur18 resnetblur50
        beit_base_patch16_384 beit_large_patch16_224 convnext_xlarge convnextv2_small deit3_base_patch16_384
        deit3_small_patch16_384 vit_large_patch16_dinov3 vit_small_plus_patch16_dinov3
        convnext_tiny_hnf convnext_atto_ols convnext_femto_ols convnext_pico_ols convnext_nano_ols
        tf_efficientnet_es ecaresnext26t_32x4d resnetaa50d resnetblur50d resnest26d mobilenetv4_conv_small_035
        tf_mobilenetv3_large_minimal_100 tf_mobilenetv3_small_minimal_100 mobilenetv2_035 mobilenetv2_075
        mobilenetv1_100h mobilenetv1_125 lcnet_035 lcnet_150 mnasnet_050 mnasnet_075 mnasnet_140 xception41p
        legacy_seresnet18 legacy_seresnet34 legacy_seresnet50 legacy_seresnext26_32x4d legacy_seresnext50_32x4d
        mixer_b32_224 mixer_s32_224 gmixer_12_224 res2net50_48w_2s res2next50 dla46_c dla46x_c dla60 dla60x
        dla60x_c selecsls42 selecsls60 inception_next_atto hgnet_small hgnetv2_b1 coat_lite_tiny coat_lite_mini
        convmixer_1024_20_ks9_p14 convmixer_1536_20 cs3darknet_m cs3darknet_focus_l cs3darknet_focus_m
        darknetaa53 sedarknet21 darknet17 darknet21 eca_resnet33ts eca_resnext26ts gcresnext26ts seresnext26ts
        mambaout_tiny mambaout_kobe resnetv2_18d resnetv2_34d resnetv2_50x3_bit resnetv2_50d_gn starnet_s2
        starnet_s3 starnet_s050 starnet_s100 starnet_s150 visformer_tiny vit_pwee_patch16_reg1_gap_256
        vit_dpwee_patch16_reg1_gap_256
        mnasnet_small semnasnet_050 semnasnet_075 semnasnet_140 mobilenet_edgetpu_v2_xs mobilenet_edgetpu_v2_s
        mobilenet_edgetpu_v2_m mobilenet_edgetpu_v2_l vit_base_patch16_dinov3_qkvb vit_small_patch16_dinov3_qkvb
        eva02_small_patch14_336 eva02_tiny_patch14_336 res2net50d cs3darknet_l gernet_m starnet_s4
        vit_small_patch16_rope_224 vit_base_patch16_rope_reg1_gap_256 vit_betwixt_patch16_rope_reg4_gap_256
        vit_medium_patch16_rope_reg1_gap_256 vit_small_patch16_rope_ape_224 vit_base_patch16_rope_ape_224
        vit_pe_spatial_base_patch16_512
        vit_small_plus_patch16_dinov3_qkvb cspresnext50
        ecaresnet50d_pruned ecaresnext50t_32x4d vit_base_patch16_clip_384 vit_base_patch32_384
        vit_base_patch32_clip_384 vit_base_patch32_clip_448 vit_base_patch32_clip_256
        vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_quickgelu_224 vit_base_patch16_siglip_gap_224
        vit_base_patch16_siglip_gap_256 vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512
        beit3_base_patch16_224 rexnet_130 rexnet_150 rexnet_200 rexnet_300 rexnetr_100 rexnetr_130 rexnetr_150
        rexnetr_200 coat_lite_small cspresnet50d cspresnet50w skresnet34 flexivit_base vit_base_patch16_gap_224
        vit_base_patch16_plus_240 vit_base_patch16_reg4_gap_256 vit_base_patch32_plus_256
        vit_medium_patch16_gap_256 vit_medium_patch16_gap_384 vit_medium_patch16_reg1_gap_256
        vit_betwixt_patch16_reg4_gap_256 vit_betwixt_patch16_reg1_gap_256 vit_betwixt_patch16_reg4_gap_384
        vit_srelpos_medium_patch16_224 vit_srelpos_small_patch16_224 vit_pe_core_base_patch16_224
        vit_pe_core_small_patch16_384 vit_pe_core_tiny_patch16_384
        vit_medium_patch16_reg4_gap_256
        tf_efficientnet_lite2 tf_efficientnet_lite3 efficientnet_lite2 efficientnet_lite3 tf_efficientnet_em
        tf_efficientnet_el efficientnet_em efficientnet_el seresnet50t seresnetaa50d regnetx_064 regnetx_120
        regnetx_160 regnetx_004_tv regnety_008_tv regnety_080_tv mobilenetv3_large_150d tf_mixnet_s
        vit_small_patch32_384 vit_small_patch8_224 vit_base_patch16_siglip_256 vit_base_patch16_siglip_384
        vit_base_patch16_siglip_512 vit_base_patch32_siglip_256 deit_base_distilled_patch16_384
        eva02_base_patch14_448 eva02_base_patch16_clip_224 xception65p ghostnet_130 gmlp_b16_224 gmlp_ti16_224
        resmlp_big_24_224 res2net50_26w_6s dla102 dla102x dla102x2 dla60_res2net dla60_res2next hardcorenas_b
        hardcorenas_c hardcorenas_d hardcorenas_e hardcorenas_f selecsls84 repvgg_a2 repvgg_b1 repvgg_b1g4
        repvgg_b2 repvgg_b2g4 repvgg_b3 repvgg_b3g4 hgnetv2_b2 hgnetv2_b3 coat_mini coat_small cs3darknet_x
        cs3sedarknet_l dpn68b dpn92 gernet_l resnet51q resnet61q resnet50_clip resnet50_mlp resnet50_clip_gap
        mambaout_small mambaout_base repvit_m1_1 skresnet50 skresnet50d skresnext50_32x4d
        vit_wee_patch16_reg1_gap_256 vit_dwee_patch16_reg1_gap_256 vit_little_patch16_reg1_gap_256
        vit_little_patch16_reg4_gap_256 vit_relpos_base_patch32_plus_rpn_256 vit_relpos_medium_patch16_rpn_224
        xcit_nano_12_p8_224 xcit_tiny_12_p16_224 xcit_tiny_12_p8_224 xcit_small_12_p8_224
        repvit_m2 levit_128 cait_xxs24_224 pvt_v2_b0 coatnet_nano_rw_224 edgenext_xx_small edgenext_small
        efficientvit_m0 tiny_vit_5m_224 tresnet_m rdnet_tiny repghostnet_050 shvit_s1 swiftformer_xs
        twins_pcpvt_small fasternet_t0 cspnext_tiny lowformer_b0 lambda_resnet26t pit_ti_224 efficientformer_l1
        twins_svt_small mobilevit_xxs davit_tiny
        iformer_t
        lcnetv2_small mobilevitv2_050 twins_svt_base pvt_v2_b1 pvt_v2_b3 mobilevit_xs mobilevit_s
        mobilevitv2_075 mobilevitv2_100 mobilevitv2_150 mobilevitv2_200 edgenext_x_small edgenext_base
        edgenext_small_rw pvt_v2_b4
        pvt_v2_b2_li levit_128s tiny_vit_21m_224 vit_small_r26_s32_224 vit_base_r50_s16_224 nextvit_base
        mobilenetv4_conv_large samvit_base_patch16_224 levit_192 levit_384 tiny_vit_11m_224 tiny_vit_21m_384
        twins_pcpvt_base hiera_small_224 hiera_base_224
        coatnet_0_224
        tf_efficientnet_b5 vit_large_patch14_clip_336 vit_huge_patch14_clip_224 vit_so400m_patch14_siglip_384
        eva02_large_patch14_448 swin_large_patch4_window12_384 inception_resnet_v2 coatnet_1_rw_224
    """.split(),  # noqa: SIM905
    "torchvision": """
        resnet50 resnet18 mobilenet_v3_large mobilenet_v2 resnet101 resnet34 resnet152 efficientnet_b0 vit_b_16
        swin_t convnext_tiny vgg16 mobilenet_v3_small resnext50_32x4d alexnet densenet121 shufflenet_v2_x1_0
        regnet_y_400mf mnasnet1_0 vgg11 vgg16_bn squeezenet1_0 vit_b_32 vit_l_16 swin_s swin_b swin_v2_t
        efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_v2_s wide_resnet50_2
        resnext101_32x8d convnext_small convnext_base vgg19 vgg13 vgg11_bn vgg13_bn vgg19_bn regnet_y_800mf
        regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf
        shufflenet_v2_x0_5 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_1 mnasnet0_5 mnasnet0_75 mnasnet1_3
        wide_resnet101_2 vit_l_32 swin_v2_s swin_v2_b efficientnet_v2_m regnet_y_16gf regnet_x_8gf densenet169
        densenet201 resnext101_64x4d convnext_large efficientnet_b5 maxvit_t densenet161
    """.split(),  # noqa: SIM905
    "transformers": [*transformers_models.MODELS],
    "open_clip": """
        ViT-B-32 ViT-B-16 ViT-L-14 RN50 ViT-H-14 ViT-S-32 ViT-B-32-quickgelu ViT-L-16 RN101 ViT-g-14 ViT-S-16
        ViT-L-14-336 RN50-quickgelu ViT-bigG-14 ViT-M-32 ViT-M-16 ViT-B-32-256 ViT-S-32-alt ViT-B-16-quickgelu
        ViT-L-14-quickgelu ViT-H-14-quickgelu RN50x4 RN50x16 RN50x64 RN101-quickgelu ViT-B-16-plus ViT-B-16-plus-240
        ViT-B-32-plus-256 ViT-L-14-280 ViT-L-16-320 ViT-H-16 ViT-M-32-alt ViT-M-16-alt ViT-S-16-alt ViT-e-14
        ViT-L-14-336-quickgelu ViT-H-14-378-quickgelu
    """.split(),  # noqa: SIM905
}

# Recorded for images of their own side alone, as vision transformers come out by themselves: what is of one size in
# these (positions, windows that are padded, patches that are stretched) makes guards that take minutes, or none at all.
OF_ONE_SIZE = tuple(
    """
        botnet coatnet coatnext crossvit davit efficientformer_ efficientvit_ gcvit halonet hiera levit maxvit
        maxxvit mobilevit mvitv2 nest_ pit_ samvit swinv2 tiny_vit twins vit_base_r50 vit_base_resnet
        vit_large_r50 vit_small_r26 vit_small_resnet vit_tiny_r_ vitamin
    """.split()  # noqa: SIM905
)

# Those that are left out, each of a family that is like it, and why: what is recorded of them is not what they do.
WITHOUT = {
    "timm/convit_tiny": "calls other functions in 16 bits than in fp32",
    "timm/resnet50_gn": "its checkpointing keeps the stem's result a while, and so its program does where it is not on",
    "timm/swinv2_tiny_window8_256": "the peak of backward under autocast is 0.1 % over that of the trace",
    "timm/ese_vovnet19b_dw": "a list of its caller's holds what a module made, which the program lets go of at its end",
    "timm/ese_vovnet39b": "a list of its caller's holds what a module made, which the program lets go of at its end",
    "timm/efficientvit_b0": "what is saved under autocast is 4 % under that of the trace",
    "timm/eca_nfnet_l0": "the peak of backward under autocast is 6 KB under that of the trace",
    "timm/nfnet_l0": "the peak of backward under autocast is 6 KB under that of the trace",
    "timm/nf_resnet50": "the peak of backward under autocast is 8 KB under that of the trace",
    "timm/maxvit_tiny_tf_224": "the peak of forward under autocast is 0.01 % over that of the trace",
    "timm/tnt_s_patch16_224": "its guards hold it to the batch that it was recorded with",
    "timm/sequencer2d_s": "its LSTM is called with other dtypes under autocast",
    "timm/bat_resnext26ts": "calls adaptive_max_pool2d, which is not known",
    "timm/gcvit_xxtiny": "calls repeat_interleave on what trains, which is not known",
    "timm/mvitv2_tiny": "the peak of forward with checkpointing is 6 KB over that of the trace",
    "timm/vit_small_patch16_rope_mixed_224": "calls repeat_interleave on what trains, which is not known",
    "timm/vit_base_patch16_rope_mixed_224": "calls repeat_interleave on what trains, which is not known",
    "timm/volo_d1_224": "calls what torch does not trace with formulas for sizes",
}


# -- what is recorded


def made(library: str, name: str, recipe: Recipe) -> dict[str, Any]:
    """The program of a model, as a JSON value."""
    sizes = dict(recipe.sizes[0]) if recipe.sizes else {"B": 4, "H": recipe.side, "W": recipe.side}
    release = RELEASES[DISTRIBUTIONS.get(library, library)]
    source = f"{library} {release}, torch {RELEASES['torch']}"
    own = {key: sizes.pop(key) for key in ("H", "W")} if recipe.fixed else {}
    found: dict[str, Any] = forward.program(
        lambda: with_shapes_alone(lambda: recipe.build(CLASSES)),
        lambda symbolic: recipe.inputs({**symbolic, **own}),
        sizes,
        f"{library}/{name}",
        source,
        {} if recipe.pairs else {"K": CLASSES},
    )
    found["sizes"] = {**sizes, **own, **found["sizes"]}
    found["guards"] = [*(f"{key} == {side}" for key, side in own.items()), *found["guards"]]
    if recipe.alone:
        found["guards"] = [guard for guard in found["guards"] if guard not in ALONE]
    return found


def text_of(made: Mapping[str, Any]) -> str:
    """The file of a program."""
    return json.dumps(made, separators=(",", ":")) + "\n"


def calls(made: Program) -> int:
    """How many functions a forward pass calls, which is what recording and proving it take their time for."""
    found: list[int] = []
    for body in made.bodies:
        found.append(sum(found[row[1]] if row[0].startswith(">") else 1 for row in body["rows"]))
    return found[-1]


def settings(made: Program, recipe: Recipe) -> list[dict[str, int]]:
    """Three, of other batches, sizes and classes than it was recorded with, as far as its guards let them be."""
    found, side = [], recipe.side
    if recipe.sizes:
        every = [{**sizes, "K": classes} for sizes, classes in zip(recipe.sizes[1:], (1000, 10, 21_841))]
        found = [sizes for sizes in every if not made.outside(sizes)]
    for batch, offset, classes in zip(() if recipe.sizes else BATCHES, OFFSETS, (1000, 10, 21_841)):
        for height, width in ((side + offset, side + offset), (side, side)):
            sizes = {"B": batch, "H": height, "W": width, "K": classes}
            if not made.outside(sizes):
                found.append(sizes)
                break
    if recipe.alone and found:
        one = {**found[0], "B": 1}
        found += [] if made.outside(one) else [one]
    return found


# -- what it is proven by


class Step(NamedTuple):
    """Bytes of a forward and a backward pass, each storage rounded up to 512."""

    parameters: int
    forward: int
    backward: int
    held: int
    saved: int | None


@contextmanager
def _fake_cuda() -> Iterator[StorageTracker]:
    tracker = StorageTracker(GRANULARITY_BYTES)
    with FakeTensorMode(), tracker, CudaSemantics(tracker), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tracker


def traced(recipe: Recipe, sizes: Mapping[str, int], mode: str, dtype: torch.dtype) -> Step:
    """The second of two passes, as libraries keep things from their first call on."""
    with converting_in_place(), _fake_cuda() as tracker:
        model = with_shapes_alone(lambda: recipe.build(sizes["K"])).train()
        if mode == "checkpointed":
            getattr(model, "set_grad_checkpointing", getattr(model, "gradient_checkpointing_enable", None))()
        weights = [*model.parameters(), *model.buffers()]
        saved_bytes = held = 0
        for number in range(2):
            if number == 1:
                tracker.reset_peak()
            with tracker.phase("forward"):
                batch = recipe.inputs(sizes)
                context: Any = torch.autocast("cpu", dtype) if mode == "autocast" else nullcontext()
                with SavedTensors(weights, tracker) as saved, context:
                    out = model(**batch)
                    target: Any = None
                    if recipe.pairs:
                        loss = nn.functional.mse_loss(out[0], out[1]) * out[2]
                    else:
                        out = out[0] if isinstance(out, tuple) else out
                        out = out.flatten(0, 1) if out.ndim == 3 else out
                        target = torch.empty((out.shape[0], *out.shape[2:]), dtype=torch.int64)
                        loss = nn.functional.cross_entropy(out, target)
                    del out
                held, saved_bytes = tracker.live_bytes, saved.bytes
            with tracker.phase("backward"):
                loss.backward()
            loss = loss.detach()
            for weight in model.parameters():
                weight.grad = None
            del loss, batch, target
        peaks = tracker.phase_peaks
        count = sum(p.numel() for p in model.parameters())
        return Step(count, peaks["forward"], peaks["backward"], held, None if mode == "checkpointed" else saved_bytes)


def replayed(made: Program, sizes: Mapping[str, int], mode: str, dtype: str, pairs: bool = False) -> Step:
    def build(_: TrainingSpec) -> System:
        run = program.Run(made, sizes, float32)
        model = program.build(run)
        if mode == "checkpointed":
            model.checkpoint()

        def loss(batch: list[Tensor]) -> Tensor:
            if pairs:
                images, texts, scale, *_ = model(*batch)
                return F.mse_loss(images, texts) * scale
            logits = model(*batch)[0]
            logits = F.flatten(logits, 0, 1) if logits.ndim == 3 else logits
            batch.append(Tensor((logits.shape[0], *logits.shape[2:]), int64))  # which the loop names as well
            return F.cross_entropy(logits, batch[-1])

        def batch() -> list[Tensor]:
            return run.inputs()

        return System(model, batch, loss, "sgd", autocast=DTYPES[dtype] if mode == "autocast" else None)

    recording = record_step(build, TrainingSpec("zoo", None, None, {}, "zoo"))  # type: ignore[arg-type]
    peaks, held = _walked(recording.tape)
    saved = None if mode == "checkpointed" else recording.tape.saved_bytes
    return Step(recording.parameters, peaks["forward"], peaks["backward"], held, saved)


def _walked(tape: Tape) -> tuple[dict[str, int], int]:
    """Peaks by phase, and what is alive when the backward pass begins."""
    sizes = [-(-size // GRANULARITY_BYTES) * GRANULARITY_BYTES for size in tape.sizes]
    starts = dict(tape.marks)
    live = held = 0
    phase = ""
    peaks: dict[str, int] = {}
    for number, event in enumerate([*tape.events, None]):
        phase = starts.get(number, phase)
        if number in starts and phase == "backward":
            held = live
        if event is not None:
            peaks[phase] = max(peaks.get(phase, 0), live)
            live += sizes[event] if event >= 0 else -sizes[~event]
        peaks[phase] = max(peaks.get(phase, 0), live)
    return peaks, held


def proofs(made: Program, recipe: Recipe) -> Iterator[tuple[str, dict[str, int], str]]:
    """What a program is proven at: mode, sizes, and the dtype of autocast."""
    for mode in MODES:
        if mode == "checkpointed" and not made.checkpoints:
            continue
        for sizes, dtype in zip(settings(made, recipe), ("bfloat16", "float16", "float16", "bfloat16")):
            yield mode, sizes, dtype


def difference(made: Program, recipe: Recipe, mode: str, sizes: Mapping[str, int], dtype: str) -> str:
    """Where a program is not what the library's model is; "" where it is."""
    ours = replayed(made, sizes, mode, dtype, recipe.pairs)
    truth = traced(recipe, sizes, mode, getattr(torch, dtype))
    return "" if ours == truth else f"{mode} {sizes}: {ours} where the trace says {truth}"


def differences(made: Program, recipe: Recipe) -> Iterator[str]:
    """Where a program is not what the library's model is, of all that it is proven at."""
    for mode, sizes, dtype in proofs(made, recipe):
        found = difference(made, recipe, mode, sizes, dtype)
        if found:
            yield found


# -- the command


def main() -> int:
    warnings.filterwarnings("ignore", category=FutureWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="LIBRARY/NAME")
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("--missing", action="store_true", help="only those that are not there yet")
    asked = parser.parse_args()
    declare_torchvision()
    every = asked.names or [f"{library}/{name}" for library, names in NAMES.items() for name in names]
    failed = 0
    for entry in every:
        library, _, name = entry.partition("/")
        target = asked.to / library / f"{name}.json"
        if asked.missing and target.exists():
            continue
        wanted = ("torch", DISTRIBUTIONS.get(library, library))
        installed = {key: version(key).partition("+")[0] for key in wanted}
        if any(RELEASES[key] != release for key, release in installed.items()):
            raise SystemExit(f"{entry} is recorded with {RELEASES}, and these are {installed}")
        failed += not _write(library, name, target)
    return 1 if failed else 0


def _write(library: str, name: str, target: Path) -> bool:
    started = time.process_time()
    try:
        recipe = LIBRARIES[library](name)
        text = text_of(made(library, name, recipe))
        recorded = time.process_time() - started
        if len(settings(read(json.loads(text)), recipe)) < len(BATCHES):
            raise ValueError("its guards leave fewer than three settings to prove it at")
        wrong = list(differences(read(json.loads(text)), recipe))
    except Exception as error:
        print(f"{library}/{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return False
    if wrong:
        print(f"{library}/{name}: not written, {len(wrong)} settings differ, the first: {wrong[0]}", flush=True)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, target)
    seconds = time.process_time() - started
    print(f"{library}/{name}: {len(text):,} bytes, {recorded:.1f} s to record, {seconds:.1f} s in all", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
