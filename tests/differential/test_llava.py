"""LLaVA's own training step against torch, and its sizes against transformers' model of the same name."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from memlint.architectures.llava import joined
from memlint.models import record
from tests.dialects.language_models import run
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import compare, in_meta, in_torch

WIDTH, PIXELS, PATCHES, LENGTH = 128, 56, 64, 96
EYES: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 96, "intermediate_size": 352, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": PIXELS, "patch_size": 7, "projection_dim": 64,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": WIDTH, "intermediate_size": 352, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Joined(torch.nn.Module):
    """The parts, and how a batch goes through them."""

    def __init__(self, tower: Any, projector: Any, decoder: Any) -> None:
        super().__init__()
        self.tower, self.projector, self.decoder = tower, projector, decoder

    def seen(self, pixels: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(next(self.tower.parameters()).requires_grad):
            weights = next(self.tower.parameters())
            states = self.tower(pixels.to(weights.dtype), output_hidden_states=True).hidden_states
            return states[-2][:, 1:].to(pixels.dtype)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        features = self.seen(pixels)
        if features.requires_grad:
            gc.collect()  # transformers 5 leaves cycles behind where it records hidden states
        features = self.projector(features)
        x = self.rows(tokens.shape[1], features)
        del features
        loss: torch.Tensor = self.decoder(inputs_embeds=x, labels=torch.zeros_like(labels)).loss
        return loss

    def rows(self, length: int, features: torch.Tensor) -> torch.Tensor:
        words = max(length - PATCHES, 2)
        rows = []
        for number in range(features.shape[0]):
            embedded = self.decoder.get_input_embeddings()(torch.zeros(words, dtype=torch.int64))
            before, behind = torch.split(embedded, [1, words - 1])
            rows.append(torch.cat([before, features[number], behind]))
        cut = [row[:length] for row in rows]
        del rows
        padded = [torch.cat((row, torch.zeros((0, row.shape[1]), dtype=row.dtype))) for row in cut]
        return torch.stack(padded)


def in_words_of_torch(
    setting: Setting, depth: int, frozen: tuple[str, ...], lora: bool, tower: str, text: dict[str, Any] = TEXT
) -> SimpleNamespace:
    width = text["hidden_size"]

    def build_model(_: Any) -> Any:
        dtype = getattr(torch, setting.dtype)
        with no_init_weights():
            eyes = transformers.CLIPVisionModel._from_config(
                AutoConfig.for_model(**EYES), dtype=getattr(torch, tower), attn_implementation="eager"
            )
            config = AutoConfig.for_model(**text)
            config.use_cache = False
            decoder: Any = transformers.LlamaForCausalLM._from_config(
                config, dtype=dtype, attn_implementation=setting.attention
            )
        eyes.requires_grad_("vision_tower" not in frozen)
        if "layers" in frozen:
            decoder.model.requires_grad_(False)
        if "head" in frozen:
            decoder.lm_head.requires_grad_(False)
        if setting.every:
            decoder.activation_checkpointing_enable({"use_reentrant": setting.reentrant})
            if "vision_tower" not in frozen:
                eyes.activation_checkpointing_enable({"use_reentrant": setting.reentrant})
        if lora:
            with pytest.MonkeyPatch.context() as patch:  # fake tensors cannot be swapped
                patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
                decoder = get_peft_model(decoder, LoraConfig(r=4, target_modules=LINEARS, lora_dropout=0.05))
        layers = [torch.nn.Linear(EYES["hidden_size"], width, dtype=dtype)]
        for _ in range(depth - 1):
            layers += [torch.nn.GELU(), torch.nn.Linear(width, width, dtype=dtype)]  # type: ignore[list-item]
        return Joined(eyes, torch.nn.Sequential(*layers), decoder).train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape = (setting.rows, setting.length)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "mask", "labels")}
        dtype = torch.float32 if setting.autocast else getattr(torch, setting.dtype)
        return {**batch, "pixels": torch.zeros((setting.rows, 3, PIXELS, PIXELS), dtype=dtype)}

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(batch["tokens"], batch["labels"], batch["pixels"])
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


BASE = Setting(rows=3, length=LENGTH, dtype="bfloat16")
CHECKPOINTED = BASE._replace(every=1, reentrant=True)
WIDE = Setting(rows=3, length=LENGTH)
TOWER = ("vision_tower",)


@pytest.mark.parametrize(
    ("setting", "depth", "frozen", "lora"),
    [
        pytest.param(BASE, 1, TOWER, False, id="language model and a linear projector train in bfloat16"),
        pytest.param(CHECKPOINTED, 2, TOWER, False, id="layers are recomputed, the projector has two layers"),
        pytest.param(
            CHECKPOINTED,
            2,
            (*TOWER, "embeddings", "layers", "head"),
            False,
            id="the projector alone trains, as in stage 1",
        ),
        pytest.param(BASE, 2, (*TOWER, "embeddings", "layers"), False, id="projector and head train: freeze_backbone"),
        pytest.param(
            Setting(rows=3, length=LENGTH, autocast="bfloat16"), 2, TOWER, False, id="under autocast, without DeepSpeed"
        ),
        pytest.param(WIDE, 1, TOWER, False, id="in float32, whose tower is in float16"),
        pytest.param(BASE._replace(length=48), 2, TOWER, False, id="an image has more tokens than a row may have"),
        pytest.param(BASE, 2, (), False, id="the tower trains as well, as LLaVA-NeXT's may"),
        pytest.param(CHECKPOINTED, 2, (), False, id="the tower trains as well, and its layers are recomputed"),
        pytest.param(BASE, 2, TOWER, True, id="LoRA, and the projector in full"),
    ],
)
def test_a_step_takes_the_memory_that_torch_takes(
    setting: Setting, depth: int, frozen: tuple[str, ...], lora: bool
) -> None:
    tower = "float16" if setting == WIDE else "bfloat16"
    facts = {
        **setting.facts(TEXT),
        "llava": joined(TEXT, EYES, layer=-2, projector_layers=depth),
        "model_class": "vision_language",
        "frozen_parts": list(frozen),
        "tower_dtype": tower,
    }
    if lora:
        facts |= {"tuning": "lora", "lora.r": 4, "lora.targets": LINEARS, "lora.dropout": 0.05}
        facts |= {"frozen_dtype": setting.dtype, "lora.dtype": "float32", "lora.unfrozen": ["multi_modal_projector"]}
    ours = in_meta(spec_of(facts))
    with values_known(False):
        reference = in_words_of_torch(setting, depth, frozen, lora, tower)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=setting.autocast or "float32")
    comparison = compare(str(setting), ours, truth, setting.every > 0)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_before_a_narrow_decoder_the_tower_is_the_peak_of_the_forward_pass() -> None:
    text = {**TEXT, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 16}
    text = {**text, "num_attention_heads": 2}
    own, fused = (
        in_meta(
            spec_of(
                {
                    **BASE.facts(text),
                    "llava": joined(text, EYES, layer=-2, tower_attention=how),
                    "model_class": "vision_language",
                    "frozen_parts": list(TOWER),
                }
            )
        ).phases["forward"]
        for how in ("eager", "sdpa")
    )
    with values_known(False):
        truth = in_torch(in_words_of_torch(BASE, 1, TOWER, False, "bfloat16", text), {}, adamw("foreach"))
    # to within four of the allocator's smallest blocks
    assert 0 <= own - truth.phases["forward"] <= 4 * 512
    assert fused < own


SCRIPT = (
    "deepspeed --num_gpus 1 llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --version v1"
    " --data_path a.json --vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu"
    " --mm_vision_select_layer -2 --mm_use_im_patch_token False --bf16 True --output_dir o"
    " --per_device_train_batch_size 1 --model_max_length 1024 --gradient_checkpointing True\n"
)


def test_the_joined_model_is_as_large_as_transformers_model_of_the_same_sizes() -> None:
    ours = record(run(SCRIPT, "train.sh"))
    vision, text = (
        AutoConfig.for_model("clip_vision_model", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                             num_attention_heads=16, image_size=336, patch_size=14),
        AutoConfig.for_model("llama", vocab_size=32000),
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(vision_config=vision, text_config=text)
        )
    parts = theirs.model.language_model, theirs.lm_head, theirs.model.multi_modal_projector
    assert ours.parameters == sum(parameter.numel() for parameter in theirs.parameters())
    assert ours.trainable_parameters == sum(p.numel() for part in parts for p in part.parameters())


def test_siglip_has_neither_its_head_nor_its_last_layer() -> None:
    script = SCRIPT.replace("openai/clip-vit-large-patch14-336", "google/siglip-so400m-patch14-384")
    ours = record(run(script.replace("--bf16", "--mm_tunable_parts mm_mlp_adapter --bf16"), "train.sh"))
    sizes = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26, "num_attention_heads": 16}
    config = AutoConfig.for_model("siglip_vision_model", **sizes, image_size=384, patch_size=14, vision_use_head=False)
    with torch.device("meta"):
        theirs = transformers.SiglipVisionModel(config)
    tower = sum(parameter.numel() for parameter in theirs.parameters())
    assert ours.parameters == 6_738_415_616 + ours.trainable_parameters + tower
