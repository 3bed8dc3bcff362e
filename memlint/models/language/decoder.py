"""Decoder language models, as transformers' eager code computes them.

    tokens -> embedding -> layers of (norm, attention, norm, perceptron or experts) -> norm -> logits -> cross entropy

Shapes: B rows, S tokens, W hidden width, V vocabulary. Source: ``transformers`` 5.23, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, component, empty, float32, int64, state
from memlint.models.language import losses
from memlint.models.language.attention import ATTENTIONS
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.hyperparameters import Hyperparameters
from memlint.models.language.parts import (
    Conv1D,
    RotaryTables,
    Tables,
    attention_mask,
    norm,
    perceptron,
    position_numbers,
)


class Layer(Module):
    """Norm, block, add; twice (LLaMA and most others)."""

    replay_after = 1

    def __init__(self, config: Hyperparameters, kind: str, number: int) -> None:
        rotates = number not in config.unrotated
        self.self_attn = ATTENTIONS[config.projection](config, kind, rotates)
        self.mlp = mixture(config) if has_experts(config, number) else perceptron(config)
        # Where the perceptron drops by itself, or nothing does, only what follows attention is left.
        inside = config.perceptron == "c_fc c_proj"
        self.dropout = config.residual_dropout
        self.mlp_dropout = 0.0 if inside else config.residual_dropout
        self.scaled = config.scaled_residual
        self.define(config)

    def define(self, config: Hyperparameters) -> None:
        self.input_layernorm = norm(config.norm, config.width)
        self.post_attention_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x, weights = self.self_attn(x, tables, mask)
        x = residual + self.added(x, self.dropout)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + self.added(x, self.mlp_dropout)
        del weights
        return x

    def added(self, x: Tensor, dropout: float) -> Tensor:
        """What is added to the residual stream."""
        x = F.dropout(x, dropout, self.training)
        return x * 1.0 if self.scaled else x


class PostNormLayer(Layer):
    """Block, norm, add (OLMo2)."""

    def define(self, config: Hyperparameters) -> None:
        self.post_attention_layernorm = norm(config.norm, config.width)
        self.post_feedforward_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x, weights = self.self_attn(x, tables, mask)
        x = self.post_attention_layernorm(x)
        x = residual + x
        residual = x
        x = self.mlp(x)
        x = self.post_feedforward_layernorm(x)
        x = residual + x
        del weights
        return x


class SandwichLayer(Layer):
    """A norm before each block and one after it (Gemma 2 and 3)."""

    def define(self, config: Hyperparameters) -> None:
        self.input_layernorm = norm(config.norm, config.width)
        self.post_attention_layernorm = norm(config.norm, config.width)
        self.pre_feedforward_layernorm = norm(config.norm, config.width)
        self.post_feedforward_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x, weights = self.self_attn(x, tables, mask)
        x = self.post_attention_layernorm(x)
        x = residual + x
        residual = x
        x = self.pre_feedforward_layernorm(x)
        x = self.mlp(x)
        x = self.post_feedforward_layernorm(x)
        x = residual + x
        del weights
        return x


class ParallelLayer(Layer):
    """Attention and perceptron read one norm, and both are added (Cohere, Phi, StableLM)."""

    def define(self, config: Hyperparameters) -> None:
        self.input_layernorm = norm(config.norm, config.width)
        self.residual_first = config.model_type != "phi"

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        if not self.residual_first:
            attended = F.dropout(attended, self.dropout, self.training)
        fed = self.mlp(x)
        fed = F.dropout(fed, self.dropout, self.training)
        x = residual + attended + fed if self.residual_first else attended + fed + residual
        del weights
        return x


class TwoNormParallelLayer(Layer):
    """Attention and perceptron read the stream, each through a norm of its own (GPT-NeoX)."""

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        attended, weights = self.self_attn(self.input_layernorm(x), tables, mask)
        attended = F.dropout(attended, self.dropout, self.training)
        fed = self.mlp(self.post_attention_layernorm(x))
        fed = F.dropout(fed, self.mlp_dropout, self.training)
        x = fed + attended + x
        del weights
        return x


class FlatLayer(Layer):
    """The second half works on all tokens of the batch in one dimension (OPT)."""

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x, weights = self.self_attn(x, tables, mask)
        x = F.dropout(x, self.dropout, self.training)
        x = residual + x
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = F.dropout(x, self.dropout, self.training)
        x = (residual + x).view(*shape)
        del weights
        return x


LAYERS = {
    "pre": Layer,
    "post": PostNormLayer,
    "sandwich": SandwichLayer,
    "parallel": ParallelLayer,
    "parallel_two": TwoNormParallelLayer,
    "flat": FlatLayer,
}


class LanguageModel(Module):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token.

    kind           attention: "eager", "sdpa", "flash", "xformers"
    checkpointed   layers that are recomputed: all for 1, every k-th for k, none for 0
    reentrant      by torch's older implementation
    padded         some row of the batch is shorter than the others, so masks are made
    loss           "full", "chunked", "fused" (:mod:`memlint.models.language.losses`)
    """

    def __init__(
        self,
        config: Hyperparameters,
        kind: str = "sdpa",
        checkpointed: int = 0,
        reentrant: bool = False,
        padded: bool = False,
        loss: str = "full",
        chunks: int = losses.CHUNKS,
    ) -> None:
        self.config, self.kind = config, kind
        self.checkpointed, self.reentrant, self.padded = checkpointed, reentrant, padded
        self.loss, self.chunks = loss, chunks
        self.embed_tokens = Embedding(config.vocabulary, config.width)
        self.embed_positions = Embedding(config.positions, config.width) if config.positions else None
        self.embed_scale = buffer() if config.model_type.startswith("gemma") else None
        layer = LAYERS[config.residual]
        self.layers = [layer(config, kind, number) for number in range(config.layers)]
        self.norm = norm(config.norm, config.width)
        rotates = config.rotary != "none"
        kind = {"interleaved_wide": "interleaved", "halves": "single", "complex": "complex"}.get(
            config.rotary, "double"
        )
        self.rotary_emb = RotaryTables(config.rotary_dim, kind) if rotates else None
        self.local_rotary_emb = RotaryTables(config.rotary_dim, kind) if rotates and config.local_tables else None
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, bias=config.head_bias)
        self.head_bias = parameter(config.vocabulary) if config.tied and config.head_bias else None
        # What an adapter brings along (memlint.models.language.adapters): virtual tokens, and modules that a trained
        # copy stands in for.
        self.prompt: Module | None = None
        self.originals: list[Module] = []

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) -> (B, S, W)."""
        embedded: Tensor = self.embed_tokens(tokens)
        if self.checkpointed and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()  # activation_checkpointing_enable: enable_input_require_grads
        return embedded * 1.0 if self.config.scaled else embedded

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        """``given``: token numbers (B, S), or tokens that are embedded already (B, S, W)."""
        x = self.hidden(given)
        if self.prompt is not None:  # nothing is asked of virtual tokens
            ahead = empty((labels.shape[0], x.shape[1] - labels.shape[1]), int64)
            labels = F.cat((ahead, labels), 1)
            del ahead
        with component("logits"):
            return self.cross_entropy(x, labels)

    def hidden(self, given: Tensor) -> Tensor:
        """-> (B, S, W), the last norm included."""
        config = self.config
        embedded = self.embed(given) if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        positions = position_numbers(1 if not config.counted_positions else batch, length)
        x = embedded
        if self.embed_positions is not None:
            x = embedded + self.embed_positions(positions + 2 if config.counted_positions else positions)
        masks = self.masks(batch, length, embedded)
        x = F.dropout(x, config.embedding_dropout, self.training)
        dtype = float32 if config.wide_tables else x.dtype
        tables = None if self.rotary_emb is None else self.rotary_emb(positions, dtype)
        local = None if self.local_rotary_emb is None else self.local_rotary_emb(positions, dtype)
        for number, layer in enumerate(self.layers):
            window = config.windows[number] if config.windows else 0
            mask = masks[window > 0]
            own = local if local is not None and window else tables
            if self.checkpointed and number % self.checkpointed == 0:
                x = checkpoint(layer, x, own, mask, use_reentrant=self.reentrant)
            else:
                x = layer(x, own, mask)
        out: Tensor = self.norm(x)
        return out

    def masks(self, batch: int, length: int, embedded: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """For layers without and with a window; what no layer needs is not made where transformers does not."""
        windows = self.config.windows
        both = not windows or 0 in windows or self.config.both_masks
        full = attention_mask(self.kind, batch, length, embedded.dtype, 0, self.padded) if both else None
        window = max(windows, default=0)
        local = attention_mask(self.kind, batch, length, embedded.dtype, window, self.padded) if window else None
        return full, local

    def logits(self, x: Tensor) -> Tensor:
        """(B, S, W) -> (B, S, V)."""
        if self.lm_head is None:
            logits = F.linear(x, self.embed_tokens.weight, self.head_bias)
        else:
            logits = self.lm_head(x)
        if self.config.scaled_logits:
            logits = logits * 1.0
        if self.config.logit_cap:
            logits = logits / 1.0
            logits = F.tanh(logits)
            logits = logits * 1.0
        return logits

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.loss == "fused":
            head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
            return losses.fused(x, head, labels)
        if self.loss == "chunked":
            return losses.chunked(x, self.logits, labels, self.chunks)
        logits = self.logits(x)
        return losses.full(logits, labels)

    def evaluate(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and logits of a batch, without gradients."""
        with no_grad():
            x = self.hidden(tokens)
            with component("logits"):
                logits = self.logits(x)
                return losses.full(logits, labels), logits


def replace_linears(module: Module, replace: Callable[[str, Linear | Conv1D], Module | None], path: str = "") -> None:
    """Give each linear layer, by its dotted name, the chance to be replaced: the seam for adapters."""
    for name, child in list(module.children()):
        full = f"{path}.{name}" if path else name
        new = replace(full, child) if isinstance(child, (Linear, Conv1D)) else None
        if new is None:
            replace_linears(child, replace, full)
            continue
        head, _, index = name.rpartition(".")
        if index.isdigit() and head:
            getattr(module, head)[int(index)] = new
        else:
            setattr(module, name, new)
