"""InternVL's own training step against torch: its tower and what joins it to a decoder are said here once more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from memlint.architectures.internvl import joined
from tests.differential.test_language_models import TOLERANCE, Setting, adamw, spec_of, values_known
from tests.differential.training import compare, in_meta, in_torch

PIXELS, TILES, LENGTH, WIDTH = 56, 3, 96, 128
EYES: dict[str, Any] = {
    "model_type": "intern_vit_6b", "hidden_size": 96, "intermediate_size": 352, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": PIXELS, "patch_size": 14, "norm_type": "layer_norm", "qkv_bias": True,
    "qk_normalization": False,
}  # fmt: skip
LARGE = {**EYES, "norm_type": "rms_norm", "qkv_bias": False, "qk_normalization": True}
TEXT: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 1000, "hidden_size": WIDTH, "intermediate_size": 352, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Packed(torch.autograd.Function):
    """What flash-attn's ``flash_attn_varlen_qkvpacked_func`` asks the allocator for (2.3.6)."""

    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, tiles: int) -> Any:
        tokens, _, heads, width = qkv.shape
        places = torch.empty(tiles + 1, dtype=torch.int32)
        out = torch.empty((tokens, heads, width), dtype=qkv.dtype)
        sums, seed = torch.empty((tiles, heads, tokens // tiles)), torch.empty(2, dtype=torch.int64)
        ctx.save_for_backward(qkv, out, sums, seed, places)
        ctx.tiles = tiles
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        qkv = ctx.saved_tensors[0]
        tokens, _, heads, width = qkv.shape
        rows = -(-tokens // ctx.tiles // 128) * 128
        gradient = torch.empty_like(qkv)
        delta = torch.empty((ctx.tiles, heads, rows))
        if tokens // ctx.tiles > (128 if width <= 64 else 64):
            gathered = torch.empty((ctx.tiles, heads, rows, -(-width // 32) * 32))
            del gathered
        del delta
        return gradient, None


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        mean = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(mean + 1e-6)
        return self.weight * x.to(dtype)


class Attention(nn.Module):
    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        width = sizes["hidden_size"]
        self.heads = sizes["num_attention_heads"]
        self.qkv = nn.Linear(width, 3 * width, bias=sizes["qkv_bias"])
        self.q_norm = RootMeanSquare(width) if sizes["qk_normalization"] else None
        self.k_norm = RootMeanSquare(width) if sizes["qk_normalization"] else None
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        qkv = self.qkv(x).view(count, length, 3, self.heads, -1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key, value = qkv.unbind(2)
            query = self.q_norm(query.flatten(-2, -1)).view(query.shape)
            key = self.k_norm(key.flatten(-2, -1)).view(key.shape)
            qkv = torch.stack([query, key, value], dim=2)
        seen: Any = Packed.apply(qkv.view(count * length, 3, self.heads, -1), count)
        out: torch.Tensor = self.proj(seen.view(count, length, width))
        return out


class Perceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(x)
        x = nn.functional.gelu(x)
        x = self.fc2(x)
        return x


class Dropped(nn.Module):
    """Whole paths, as timm's DropPath."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.new_empty((x.shape[0], 1, 1)).bernoulli_(1 - self.rate)
        kept.div_(1 - self.rate)
        return x * kept


class Block(nn.Module):
    def __init__(self, sizes: dict[str, Any], rate: float) -> None:
        super().__init__()
        width = sizes["hidden_size"]
        norm: Any = nn.LayerNorm if sizes["norm_type"] == "layer_norm" else RootMeanSquare
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attn, self.mlp = Attention(sizes), Perceptron(width, sizes["intermediate_size"])
        self.ls1, self.ls2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.drop = Dropped(rate) if rate else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.norm1(x).to(x.dtype)) * self.ls1)
        x = x + self.drop(self.mlp(self.norm2(x).to(x.dtype)) * self.ls2)
        return x


class Tower(nn.Module):
    def __init__(self, sizes: dict[str, Any], rate: float) -> None:
        super().__init__()
        width, patch, layers = sizes["hidden_size"], sizes["patch_size"], sizes["num_hidden_layers"]
        self.side = sizes["image_size"] // patch
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.zeros(1, self.side**2 + 1, width))
        self.blocks = nn.ModuleList(Block(sizes, rate * number / (layers - 1)) for number in range(layers))

    def placed(self, rows: int, columns: int) -> torch.Tensor:
        places = self.places[:, 1:]
        dtype = places.dtype
        places = places.float().reshape(1, self.side, self.side, -1).permute(0, 3, 1, 2)
        places = nn.functional.interpolate(places, size=(rows, columns), mode="bicubic", align_corners=False)
        return places.reshape(1, -1, rows * columns).permute(0, 2, 1).to(dtype)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        patches = self.patches(tiles)
        count, _, rows, columns = patches.shape
        patches = patches.flatten(2).transpose(1, 2)
        first = self.first.expand(count, 1, -1)
        x = torch.cat([first, patches], dim=1)
        places = torch.cat([self.places[:, :1], self.placed(rows, columns)], dim=1)
        x = x + places
        del patches, places, first
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


class Chat(nn.Module):
    """The parts, and how a batch goes through them."""

    def __init__(self, tower: Tower, decoder: Any, out: int, adapted: bool, weighs: bool) -> None:
        super().__init__()
        width = 4 * tower.places.shape[-1]
        self.tower, self.decoder, self.weighs = tower, decoder, weighs
        self.mlp1 = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out), nn.GELU(), nn.Linear(out, out))
        if adapted:
            decoder.enable_input_require_grads()

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        count, side, _, width = x.shape
        x = x.view(count, side, side // 2, width * 2)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(count, side // 2, side // 2, width * 4)
        return x.permute(0, 2, 1, 3).contiguous()

    def seen(self, tiles: torch.Tensor) -> torch.Tensor:
        x = self.tower(tiles)[:, 1:]
        x = x.reshape(x.shape[0], self.tower.side, self.tower.side, -1)
        x = self.joined(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        out: torch.Tensor = self.mlp1(x)
        return out

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
        x = self.decoder.get_input_embeddings()(tokens).clone()
        features = self.seen(tiles)
        features = features[torch.zeros(features.shape[0], dtype=torch.int64)]
        count, length, width = x.shape
        x = x.reshape(count * length, width)
        selected = torch.empty(count * length, dtype=torch.bool)
        number = features.shape[0] * features.shape[1]
        own = x[torch.zeros(number, dtype=torch.int64)] * 0.0
        x[torch.zeros(number, dtype=torch.int64)] = own + features.reshape(-1, width)
        del own
        x = x.reshape(count, length, width)
        logits = self.decoder(inputs_embeds=x).logits.float()
        kept = logits[..., :-1, :].contiguous()
        asked = labels[..., 1:].contiguous()
        kept, asked = kept.view(-1, kept.shape[-1]), asked.view(-1)
        if not self.weighs:
            loss = nn.functional.cross_entropy(kept, asked)
            del selected
            return loss
        weights = torch.empty(labels.shape)
        own = weights[..., 1:].contiguous().view(-1)
        loss = nn.functional.cross_entropy(kept, asked, reduction="none")
        whole = own.sum()
        loss = loss * own
        loss = loss.sum() / whole
        del selected
        return loss


def in_words_of_torch(
    setting: Setting,
    eyes: dict[str, Any],
    text: dict[str, Any],
    frozen: tuple[str, ...],
    lora: bool,
    rate: float,
    tiles: int = TILES,
    weighs: bool = False,
) -> SimpleNamespace:
    dtype = getattr(torch, setting.dtype)

    def build_model(_: Any) -> Any:
        with no_init_weights():
            config = AutoConfig.for_model(**text)
            config.use_cache = False
            decoder: Any = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=setting.attention
            )
        if setting.every:
            decoder.activation_checkpointing_enable({"use_reentrant": True})
            decoder.disable_input_require_grads()
        decoder.requires_grad_("language_model" not in frozen)
        if lora:
            with pytest.MonkeyPatch.context() as patch:  # fake tensors cannot be swapped
                patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
                decoder = get_peft_model(decoder, LoraConfig(r=4, target_modules=LINEARS, lora_dropout=0.05))
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = Chat(Tower(eyes, rate), decoder, text["hidden_size"], lora, weighs)
        finally:
            torch.set_default_dtype(before)
        model.tower.requires_grad_("vision_tower" not in frozen)
        model.mlp1.requires_grad_("projector" not in frozen)
        return model.train()

    def make_batch(_: Any) -> dict[str, torch.Tensor]:
        shape, count = (setting.rows, setting.length), setting.rows * tiles
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels", "places")}
        kind = torch.float32 if setting.autocast else dtype
        return {
            **batch,
            "mask": torch.zeros(shape, dtype=torch.bool),
            "tiles": torch.zeros((count, 3, PIXELS, PIXELS), dtype=kind),
            "flags": torch.zeros(count, dtype=torch.int64),
        }

    def training_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(batch["tokens"], batch["labels"], batch["tiles"])
        return loss

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)


PLAIN = Setting(rows=2, length=LENGTH, dtype="bfloat16")
RECOMPUTED = PLAIN._replace(every=1, reentrant=True)
CAST = RECOMPUTED._replace(autocast="bfloat16")
TOWER, REST = ("vision_tower",), ("vision_tower", "language_model")
ALL = (*REST, "projector")


PACKED = RECOMPUTED._replace(rows=1, length=2 * LENGTH)


@pytest.mark.parametrize(
    ("setting", "eyes", "frozen", "lora", "rate"),
    [
        pytest.param(RECOMPUTED, EYES, TOWER, False, 0.0, id="decoder and projector train, layers are recomputed"),
        pytest.param(PLAIN, EYES, TOWER, False, 0.1, id="the same without recomputing, and a tower that drops paths"),
        pytest.param(RECOMPUTED, EYES, (), False, 0.1, id="all trains"),
        pytest.param(PLAIN, LARGE, (), False, 0.4, id="all trains, with the large tower's norms of queries and keys"),
        pytest.param(RECOMPUTED, LARGE, REST, False, 0.0, id="the projector alone, as in stage 1"),
        pytest.param(RECOMPUTED, EYES, ("language_model",), False, 0.1, id="tower and projector, as in stage 1.5"),
        pytest.param(RECOMPUTED, EYES, ALL, True, 0.0, id="LoRA alone"),
        pytest.param(PLAIN, EYES, REST, True, 0.0, id="LoRA and the projector in full, nothing recomputed"),
        pytest.param(CAST, EYES, TOWER, False, 0.0, id="under autocast, without DeepSpeed"),
        pytest.param(PACKED, EYES, (), False, 0.1, id="a packed row, whose tokens' losses are weighed"),
        pytest.param(RECOMPUTED._replace(accumulation=2), EYES, TOWER, False, 0.0, id="two micro-batches"),
    ],
)
def test_a_step_takes_the_memory_that_torch_takes(
    setting: Setting, eyes: dict[str, Any], frozen: tuple[str, ...], lora: bool, rate: float
) -> None:
    facts = {
        **setting.facts(TEXT),
        "llava": joined(TEXT, eyes, drop_path=rate, weighs=setting == PACKED),
        "model_class": "vision_language",
        "images_per_sample": TILES,
        "frozen_parts": list(frozen),
    }
    if lora:
        unfrozen = [] if "projector" in frozen else ["multi_modal_projector"]
        facts |= {"tuning": "lora", "lora.r": 4, "lora.targets": LINEARS, "lora.dropout": 0.05}
        facts |= {"frozen_dtype": setting.dtype, "lora.dtype": "float32", "lora.unfrozen": unfrozen}
    ours = in_meta(spec_of(facts))
    with values_known(False):
        reference = in_words_of_torch(setting, eyes, TEXT, frozen, lora, rate, weighs=setting == PACKED)
        truth = in_torch(reference, {}, adamw("foreach"), setting.accumulation, autocast=setting.autocast or "float32")
    comparison = compare(str(setting), ours, truth, checkpointed=True)
    assert comparison.worst <= TOLERANCE, str(comparison)


NARROW = {**TEXT, "vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
NARROW |= {"num_attention_heads": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("eyes", "frozen"),
    [
        pytest.param(EYES, (), id="the small tower trains"),
        pytest.param(LARGE, (), id="the large tower trains"),
        pytest.param(EYES, TOWER, id="the small tower looks on"),
        pytest.param(LARGE, TOWER, id="the large tower looks on"),
    ],
)
def test_before_a_narrow_decoder_the_tower_is_the_peak(eyes: dict[str, Any], frozen: tuple[str, ...]) -> None:
    tiles = 24
    facts = {
        **RECOMPUTED.facts(NARROW),
        "llava": joined(NARROW, eyes, drop_path=0.1),
        "model_class": "vision_language",
        "images_per_sample": tiles,
        "frozen_parts": list(frozen),
    }
    ours = in_meta(spec_of(facts))
    with values_known(False):
        reference = in_words_of_torch(RECOMPUTED, eyes, NARROW, frozen, False, 0.1, tiles)
        truth = in_torch(reference, {}, adamw("foreach"))
    compared = compare("a narrow decoder", ours, truth, checkpointed=True)
    assert compared.worst <= TOLERANCE, str(compared)
    for phase in ("forward", "backward"):
        assert abs(ours.phases[phase] / truth.phases[phase] - 1) <= TOLERANCE, phase
