"""GPT-2 as nanoGPT and llm.c's twin in PyTorch compute it.

Shapes: B rows, S tokens, W hidden width, h heads of d. Temporaries live as they do there.
Sources: nanoGPT, ``model.py`` and ``train.py``; llm.c, ``train_gpt2.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.compiled import Compiled
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tensor import Tensor, bool_, empty, int64
from memlint.models.language import losses
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.parts import norm, perceptron


class NanogptAttention(Module):
    """(B, S, W) -> (B, S, W), by one kernel."""

    def __init__(self, config: Decoder, kind: str) -> None:
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.residual_dropout = config.residual_dropout
        self.c_attn = Linear(config.width, 3 * config.width, config.qkv_bias)
        self.c_proj = Linear(config.width, config.width, config.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = F.split(self.c_attn(x), width, 2)
        shape = (batch, length, self.heads, width // self.heads)
        key = key.view(*shape).transpose(1, 2)
        query = query.view(*shape).transpose(1, 2)
        value = value.view(*shape).transpose(1, 2)
        y = self.attend(query, key, value)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return F.dropout(self.c_proj(y), self.residual_dropout, self.training)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, dropout=dropout, causal=True)


class TwinAttention(NanogptAttention):
    """The same, or scores that are written out unless ``--flash`` is given; the mask is a square of numbers, which each
    layer has for itself."""

    def __init__(self, config: Decoder, kind: str) -> None:
        super().__init__(config, kind)
        self.flash = kind != "eager"
        self.bias = buffer(1, 1, config.context, config.context)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.flash:
            return super().attend(query, key, value)
        length = query.shape[2]
        scores = F.matmul(query, key.transpose(2, 3)) * 1.0
        scores = F.masked_fill(scores, empty((1, 1, length, length), bool_))
        scores = F.softmax(scores, -1)
        return F.matmul(scores, value)


class NanogptLayer(Layer):
    make_attention: type[NanogptAttention] = NanogptAttention

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        self.ln_1, self.ln_2 = norm(config.norm, config.width), norm(config.norm, config.width)
        self.attn, self.mlp = self.make_attention(config, kind), perceptron(config)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class TwinLayer(NanogptLayer):
    make_attention = TwinAttention


class NanogptModel(LanguageModel):
    """The training loop's logits live through the backward pass."""

    make_layer: type[NanogptLayer] = NanogptLayer
    logits_named = True

    def __init__(self, config: Decoder, kind: str, **options: Any) -> None:
        super().__init__(config, kind, **options)
        self.loop = losses.Variable()

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return self.make_layer(config, kind, number)

    def hidden(self, given: Tensor) -> Tensor:
        positions = empty((given.shape[1],), int64)
        embedded = self.embed_tokens(given)
        assert self.embed_positions is not None
        x = F.dropout(embedded + self.embed_positions(positions), self.config.embedding_dropout, self.training)
        for layer in self.layers:
            x = self.through(layer, False, x, None, None)
        out: Tensor = self.norm(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(x)
        if self.logits_named:
            self.loop.value = logits
        function = Compiled(F.cross_entropy) if self.compile_loss else F.cross_entropy
        out: Tensor = function(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return out


class TwinModel(NanogptModel):
    """The model lets go of its logits (``return_logits=False``)."""

    make_layer = TwinLayer
    logits_named = False


# Values of the fact ``implementation``
MODELS = {"nanogpt": NanogptModel, "llm_c": TwinModel}


def applies(config: Decoder) -> bool:
    """Whether this decoder is one that they can compute."""
    return config.projection == "thirds" and config.residual == "pre" and config.positions > 0


def model(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel | None:
    """The decoder as ``implementation`` = nanogpt or llm_c computes it; None for one that they cannot."""
    return MODELS[spec["implementation"]](config, kind, **options) if applies(config) else None
