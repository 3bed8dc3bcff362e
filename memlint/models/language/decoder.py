"""Decoder language models, as transformers' eager code computes them.

    tokens -> embedding -> layers of (norm, attention, norm, perceptron or experts) -> norm -> logits -> cross entropy

Shapes: B rows, S tokens, W hidden width, V vocabulary. Source: ``transformers`` 5.23, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import Policy, checkpoint
from memlint.meta.compiled import Compiled, compiled
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, component, empty, float32, int64, state
from memlint.models.language import fused_losses, log_probabilities, losses
from memlint.models.language.attention import ATTENTIONS
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.image_features import ImageBatch, ImageFeatures
from memlint.models.language.parts import (
    Conv1D,
    NoNorm,
    RotaryTables,
    Tables,
    attention_mask,
    norm,
    perceptron,
    position_numbers,
)
from memlint.models.language.quantisation import QUANTISED


class Layer(Module):
    """Norm, block, add; twice (LLaMA and most others)."""

    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        rotates = number not in config.unrotated
        self.self_attn: Module = ATTENTIONS[config.projection](config, kind, rotates)
        self.mlp = mixture(config) if has_experts(config, number) else perceptron(config)
        # Where the perceptron drops by itself, or nothing does, only what follows attention is left.
        inside = config.perceptron == "c_fc c_proj"
        self.dropout = config.residual_dropout
        self.mlp_dropout = 0.0 if inside else config.residual_dropout
        self.scaled = config.scaled_residual
        self.define(config)

    def define(self, config: Decoder) -> None:
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


class NamedLayer(Layer):
    """The same, where what attention reads and returns has names until the layer is done (StableLM)."""

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended, weights = self.self_attn(x, tables, mask)
        residual = residual + attended
        fed = self.mlp(self.post_attention_layernorm(residual))
        fed = F.dropout(fed, self.dropout, self.training)
        x = residual + fed
        del weights
        return x


class PostNormLayer(Layer):
    """Block, norm, add (OLMo2)."""

    def define(self, config: Decoder) -> None:
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

    def define(self, config: Decoder) -> None:
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

    def define(self, config: Decoder) -> None:
        self.input_layernorm = norm(config.norm, config.width)
        self.residual_first = not config.residual_last

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


class FlatPostLayer(Layer):
    """The same, norms behind the blocks (OPT-350M)."""

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x, weights = self.self_attn(x, tables, mask)
        x = F.dropout(x, self.dropout, self.training)
        x = residual + x
        x = self.input_layernorm(x)
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        residual = x
        x = self.mlp(x)
        x = F.dropout(x, self.dropout, self.training)
        x = (residual + x).view(*shape)
        x = self.post_attention_layernorm(x)
        del weights
        return x


LAYERS = {
    "pre": Layer,
    "post": PostNormLayer,
    "sandwich": SandwichLayer,
    "parallel": ParallelLayer,
    "parallel_two": TwoNormParallelLayer,
    "flat": FlatLayer,
    "flat_post": FlatPostLayer,
}


class LanguageModel(Module):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token.

    kind           attention: "eager", "sdpa", "flash", "xformers"
    checkpointed   layers that are recomputed: all for 1, every k-th for k, none for 0
    reentrant      by torch's older implementation
    padded         some row of the batch is shorter than the others, so masks are made
    loss           "full", "chunked", "fused", "cut", "in_forward", "outputs", "shifted", "named", "copied"
                   (:mod:`memlint.models.language.losses`, ``fused_losses``)
    chunks, tile   how it is cut
    policy         what recomputed layers keep all the same
    compile        each layer is a compiled function
    compile_loss   so is the loss
    """

    def __init__(
        self,
        config: Decoder,
        kind: str = "sdpa",
        checkpointed: int = 0,
        reentrant: bool = False,
        padded: bool = False,
        loss: str = "full",
        chunks: int = losses.CHUNKS,
        tile: tuple[int, int] | None = None,
        policy: Policy | None = None,
        compile: bool = False,
        compile_loss: bool = False,
    ) -> None:
        self.config, self.kind = config, kind
        self.checkpointed, self.reentrant, self.padded = checkpointed, reentrant, padded
        self.loss, self.chunks, self.tile, self.policy = loss, chunks, tile, policy
        self.compile, self.compile_loss = compile, compile_loss
        self.smooths = False  # labels, by the Trainer
        self.logits_to_keep = 0  # of each row's last tokens, where log-probabilities are asked for; 0: of all
        narrow = config.embedding_width or config.width
        self.embed_tokens = Embedding(config.vocabulary, narrow)
        self.embed_positions = Embedding(config.positions, config.width) if config.positions else None
        unread = config.unread_mask
        self.causal = buffer(unread, unread, dtype=bool_) if unread else None
        self.embed_scale = buffer() if config.scales_in_embedding else None
        self.layers = [self.define_layer(config, kind, number) for number in range(config.layers)]
        self.norm = self.define_norm(config)
        rotates = config.rotary != "none"
        kind = {"interleaved_wide": "interleaved", "halves": "single", "complex": "complex"}.get(
            config.rotary, "double"
        )
        self.rotary_emb = RotaryTables(config.rotary_dim, kind) if rotates else None
        self.local_rotary_emb = RotaryTables(config.rotary_dim, kind) if rotates and config.local_tables else None
        self.project_out = Linear(config.width, narrow, bias=False) if narrow != config.width else None
        self.project_in = Linear(narrow, config.width, bias=False) if narrow != config.width else None
        self.lm_head = None if config.tied else Linear(narrow, config.vocabulary, bias=config.head_bias)
        self.head_bias = parameter(config.vocabulary) if config.tied and config.head_bias else None
        # What an adapter brings along (memlint.models.language.adapters): virtual tokens, and modules that a trained
        # copy stands in for.
        self.prompt: Module | None = None
        self.originals: list[Module] = []
        self.image_batch: ImageBatch | None = (
            None  # and what it sees with, ``sight``, where images stand among the tokens
        )
        self.sight: Any = None
        self.asks_inputs = False  # enable_input_require_grads, whether or not layers are recomputed

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        layer = NamedLayer if config.named_attention else LAYERS[config.residual]
        return layer(config, kind, number)

    def define_norm(self, config: Decoder) -> Module:
        return norm(config.norm, config.width) if config.final_norm else NoNorm()

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) -> (B, S, W)."""
        embedded: Tensor = self.embed_tokens(tokens)
        if self.embed_scale is not None:  # Gemma's embedding does it itself
            embedded = embedded * 1.0
        if (self.checkpointed or self.asks_inputs) and state.grad_enabled and not embedded.requires_grad:
            embedded.requires_grad_()  # activation_checkpointing_enable: enable_input_require_grads
        return embedded * 1.0 if self.config.scaled and self.embed_scale is None else embedded

    def look(self, tokens: Tensor) -> tuple[Tensor, ImageFeatures | None]:
        """(B, S) -> (B, S, W), in which images stand where the run has some, and what was made of these."""
        return (self.embed(tokens), None) if self.image_batch is None else self.image_batch.look(self, tokens)

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        """``given``: token numbers (B, S), or tokens that are embedded already (B, S, W)."""
        if self.loss in ("shifted", "named"):
            return self.named_loss(given, labels)
        x = self.hidden(given)
        if self.prompt is not None:  # nothing is asked of virtual tokens
            ahead = empty((labels.shape[0], x.shape[1] - labels.shape[1]), int64)
            labels = F.cat((ahead, labels), 1)
            del ahead
        with component("logits"):
            return self.cross_entropy(x, labels)

    def named_loss(self, given: Tensor, labels: Tensor) -> Tensor:
        """The loss of a function that names the logits until backward is through, and what it copied of them."""
        named = losses.Variable()
        x = self.hidden(losses.until_backward(self.embed(given), named))
        with component("logits"):
            logits = self.logits(x)
            del x
            if self.loss == "shifted":
                loss, copied = losses.shifted(logits, labels)
                named.value = [logits, copied]
                return loss
            named.value = [logits]
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

    def hidden(self, given: Tensor) -> Tensor:
        """-> (B, S, W), the last norm included."""
        config = self.config
        embedded, seen = (given, None) if given.ndim != 2 else self.look(given)
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        positions = position_numbers(1 if not config.counted_positions else batch, length)
        x = embedded if self.project_in is None else self.project_in(embedded)
        places = None  # has a name until the end
        if self.embed_positions is not None:
            places = self.embed_positions(positions + 2 if config.counted_positions else positions)
            x = x + places
        masks = self.masks(batch, length, embedded)
        x = F.dropout(x, config.embedding_dropout, self.training)
        dtype = float32 if config.wide_tables else x.dtype
        tables = None if self.rotary_emb is None else self.rotary_emb(positions, dtype)
        local = None if self.local_rotary_emb is None else self.local_rotary_emb(positions, dtype)
        for number, layer in enumerate(self.layers):
            window = config.windows[number] if config.windows else 0
            mask = masks[window > 0]
            own = local if local is not None and window else tables
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, own, mask)
            if seen is not None and number < len(seen.deep):
                x = seen.added(x, number)
        out: Tensor = self.norm(x)
        return out if self.project_out is None else self.project_out(out)

    def through(self, layer: Module, recomputed: bool, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        """A layer's result, as the run computes it."""
        function = Compiled(layer) if self.compile else layer
        out: Tensor
        if recomputed:
            out = checkpoint(function, x, tables, mask, use_reentrant=self.reentrant, policy=self.policy)
        else:
            out = function(x, tables, mask)
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
        if self.loss in ("fused", "cut"):
            head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
            return fused_losses.cut(x, head, labels) if self.loss == "cut" else fused_losses.fused(x, head, labels)
        if self.loss == "in_forward":
            head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
            return fused_losses.in_forward(x, head, labels, self.chunks)
        if self.loss == "chunked" and self.tile is not None:
            return F.neg(F.sum(self.tiles(x, labels))) / 1.0
        if self.loss == "chunked":
            return losses.chunked(x, self.logits, labels, self.chunks)
        logits = self.logits(x)
        if self.loss == "copied":
            return losses.shifted(to(logits, float32), labels)[0]
        if self.loss == "outputs":
            return losses.of_outputs(logits, labels, self.chunks)
        if self.smooths:
            logits = losses.returned(logits)
            return losses.smoothed(logits, labels, shifts=True)
        if self.compile_loss:
            out: Tensor = compiled(losses.full, logits, labels)
            return out
        return losses.full(logits, labels)

    def tiles(self, x: Tensor, labels: Tensor) -> Tensor:
        """Log-probabilities (B, S - 1), tile by tile."""
        assert self.tile is not None
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        bias = self.head_bias if self.lm_head is None else self.lm_head.bias
        return fused_losses.tiled(x, head, bias, labels, self.tile)

    def log_probabilities(
        self, tokens: Tensor, labels: Tensor, way: str = "whole", named: list[Tensor] | None = None
    ) -> Tensor:
        """(B, S), (B, S) -> (B, S - 1): of every token given those before it. ``way``: of whole logits, a key of
        ``log_probabilities.SCORES``; one of copies takes the labels (B, A) of the last tokens. ``named`` is where a
        caller keeps the logits."""
        held = losses.Variable()
        x = self.hidden(losses.until_backward(self.embed(tokens), held) if way in log_probabilities.NAMED else tokens)
        with component("logits"):
            if self.tile is not None:
                return self.tiles(x, labels)
            if 0 < self.logits_to_keep < x.shape[1]:
                x, labels = x[:, -self.logits_to_keep :], labels[:, -self.logits_to_keep :]
            logits = self.logits(x)
            del x
            if way not in log_probabilities.AS_MADE:
                as_returned = way in log_probabilities.AS_RETURNED
                logits = losses.returned(logits) if as_returned else to(logits, float32)
            if named is not None:
                named.append(logits)
            if way in log_probabilities.NAMED:
                held.value = logits
            return log_probabilities.SCORES[way](logits, labels)

    def scores_and_likelihood(self, tokens: Tensor, labels: Tensor, way: str) -> tuple[Tensor, Tensor]:
        """The same, and the cross entropy of the chosen half, both of the same logits."""
        x = self.hidden(tokens)
        with component("logits"):
            logits = self.logits(x)
            del x
            logits = to(logits, float32)
            if way in log_probabilities.SCORED_FIRST:
                scores = log_probabilities.SCORES[way](logits, labels)
                return scores, losses.likelihood_of_chosen(logits, labels)
            likelihood = losses.likelihood_of_chosen(logits, labels)
            return log_probabilities.SCORES[way](logits, labels), likelihood

    def evaluate(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and logits of a batch, without gradients."""
        with no_grad():
            x = self.hidden(tokens)
            with component("logits"):
                logits = self.logits(x)
                if self.compile_loss:
                    return compiled(losses.full, logits, labels), logits
                return losses.full(logits, labels), logits


def replace_linears(module: Module, replace: Callable[[str, Any], Module | None], path: str = "") -> None:
    """Give each linear layer, by its dotted name, the chance to be replaced: the seam for adapters."""
    for name, child in list(module.children()):
        full = f"{path}.{name}" if path else name
        new = replace(full, child) if isinstance(child, (Linear, Conv1D, *QUANTISED)) else None
        if new is None:
            replace_linears(child, replace, full)
            continue
        head, _, index = name.rpartition(".")
        if index.isdigit() and head:
            getattr(module, head)[int(index)] = new
        else:
            setattr(module, name, new)
