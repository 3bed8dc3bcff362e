"""Decoders as Megatron-LM computes them: its transformer layer, operation by operation.

Shapes: B rows, S tokens, S' those of this rank, W hidden width, h heads of d. A layer keeps for its backward pass what
arXiv 2205.05198 (Korthikanti et al., section 4) adds up to ``S B W (34 + 5 h S / W)`` bytes in 16 bits: each operation
here, in ``megatron_attention.py`` and in ``megatron_feed_forward.py`` says which of those it keeps. With ranks that
share a layer's tokens, only their own share is kept, and gathered again.

Sources: Megatron-LM core 0.16 (``transformer/{transformer_layer,attention,mlp,dot_product_attention}.py``,
``tensor_parallel/{layers,cross_entropy,random}.py``, ``fusions/``); GPT-NeoX 2.0 (``megatron/model/``), whose layer is
that of an older Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Module, buffer
from memlint.meta.tensor import Tensor, component, empty, float32, int64, state, uint8
from memlint.models import UnknownModel, cards
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.experts import has_experts
from memlint.models.language.megatron_attention import LatentAttention, MegatronAttention, own_norm
from memlint.models.language.megatron_feed_forward import MegatronExperts, MegatronPerceptron
from memlint.models.language.megatron_functions import (
    ColumnLinear,
    Kernels,
    bias_dropout_add,
    column_product,
    cross_entropy_in_place,
    parallel_cross_entropy,
)

# Products make gradients of their weights in tensors of their own (--no-gradient-accumulation-fusion).
NOT_ADDED = HYPER + "no_gradient_accumulation_fusion"


class MegatronLayer(Layer):
    """(B, S', W) -> (B, S', W)."""

    def __init__(self, config: Decoder, kernels: Kernels, number: int = 0) -> None:
        self.kernels, self.dropout = kernels, config.residual_dropout
        self.parallel = config.residual in ("parallel", "parallel_two")
        self.input_layernorm = own_norm(config, config.width, kernels)
        self.self_attn = (LatentAttention if config.latent is not None else MegatronAttention)(config, kernels)
        self.pre_mlp_layernorm = own_norm(config, config.width, kernels)
        self.mixed = has_experts(config, number)
        self.mlp = MegatronExperts(config, kernels) if self.mixed else MegatronPerceptron(config, kernels)
        self.recomputes_mlp = ("moe" if self.mixed else "mlp") in kernels.recomputes

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        residual = x
        normed = self.input_layernorm(x)
        attended, bias = self.self_attn(normed, tables)
        if self.parallel:
            attended = self.added(attended, bias, None)
            fed, bias = self.fed(self.pre_mlp_layernorm(x))
            return residual + (self.added(fed, bias, None) + attended)
        x = self.added(attended, bias, residual)
        residual = x
        normed = self.pre_mlp_layernorm(x)
        fed, bias = self.fed(normed)
        return self.added(fed, bias, residual)

    def fed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.recomputes_mlp:
            out: tuple[Tensor, Tensor | None] = self.mlp(x)
            return out
        made: Tensor = checkpoint(lambda given: self.mlp(given)[0], x, use_reentrant=True)
        return made, getattr(getattr(self.mlp, "linear_fc2", None), "bias", None)

    def added(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:  # type: ignore[override]
        dropout = self.dropout if self.training else 0.0
        if self.kernels.dropout and residual is not None:
            return bias_dropout_add(x, bias, residual, dropout)
        if bias is not None:
            x = x + bias
        x = F.dropout(x, dropout)
        return x if residual is None else residual + x


class MegatronModel(LanguageModel):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token."""

    splits_tokens = True  # it gathers and scatters by itself (memlint.models.split)

    def __init__(
        self, config: Decoder, kernels: Kernels, first: int | None = None, chunk: int = 1, **options: Any
    ) -> None:
        self.kernels, self.first, self.chunk = kernels, first, chunk
        self.head_kernels = kernels._replace(float8=False)  # the head is none of Transformer Engine's modules
        super().__init__(config, "flash" if kernels.flash else "eager", **options)
        if self.rotary_emb is not None and kernels.rotary:
            self.rotary_emb = None
            self.frequencies = buffer(config.rotary_dim // 2)
        # BLOOM's: a norm of its own, and biases by distance that the product of queries and keys starts from.
        self.embedding_norm = own_norm(config, config.width, kernels) if config.embedding_norm else None
        streams = 1 + (STREAMS if config.experts is not None else 0)
        with component("workspace"):
            size = kernels.workspace_bytes
            self.workspaces = [empty((size,), uint8) for _ in range(streams)] if size else []
        if self.lm_head is not None:
            self.lm_head = ColumnLinear(config.width, config.vocabulary, config.head_bias, self.head_kernels)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return MegatronLayer(config, self.kernels, number)

    def define_norm(self, config: Decoder) -> Module:
        return own_norm(config, config.width, self.kernels)

    def hidden(self, given: Tensor) -> Tensor:
        """-> (B, S', W), the last norm included."""
        config, ranks = self.config, self.kernels.ranks
        x, seen = self.look(given) if given.ndim == 2 else (given, None)
        length = given.shape[1] if given.ndim == 2 else given.shape[1] * ranks
        positions = empty((x.shape[0], length), int64)
        if given.ndim == 2:
            if self.embed_positions is not None:
                x = x + self.embed_positions(positions)
            if self.image_batch is not None and x.shape[0] > 1:
                x = F.clone(x)  # tokens come first from here on (mm_gpt_model.py)
            if ranks > 1:
                x = scattered(x, ranks)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
            x = F.dropout(x, config.embedding_dropout, self.training)
        if state.grad_enabled and not x.requires_grad:
            x.requires_grad_()  # of a frozen embedding (mcore_bridge, model/gpt_model.py)
        biases = empty((x.shape[0] * config.heads, 1, length), x.dtype) if config.alibi else None
        tables: Any = None
        if self.rotary_emb is not None:
            tables = self.rotary_emb(positions[:1], x.dtype)
        elif config.rotary != "none":
            tables = (empty((1, length, config.rotary_dim), float32),) * 2
        for number in range(0, len(self.layers), self.chunk):
            recomputed = self.checkpointed > 0 and (self.first is None or number < self.first)
            if self.chunk == 1:
                x = self.through(self.layers[number], recomputed, x, tables, None)
                if seen is not None and number < len(seen.deep):
                    from memlint.models.language import megatron_sight  # models that see do so alone

                    x = megatron_sight.added(x, seen.deep[number], ranks)
            else:
                several = self.layers[number : number + self.chunk]
                x = checkpoint(_Several(several), x, tables, None, use_reentrant=True)
        del biases
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        if self.lm_head is None:
            return column_product(x, self.embed_tokens.weight, None, self.head_kernels)
        out: Tensor = self.lm_head(x)
        return out

    def token_losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(B, S), (B, S) -> (B, S), in fp32."""
        x = self.hidden(tokens)
        with component("logits"):
            return self.losses_of(x, labels)

    def losses_of(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(x)
        del x
        if self.kernels.loss_in_place:
            return cross_entropy_in_place(logits, labels)
        return parallel_cross_entropy(logits, labels, self.kernels.loss_compiled)

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        found = self.losses_of(x, labels)
        mask = empty(found.shape, float32)
        return F.sum(found * mask) / 1.0


class _Several:
    """Layers that are recomputed together."""

    def __init__(self, layers: Sequence[Module]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, tables, mask)
        return x


def scattered(x: Tensor, ranks: int) -> Tensor:
    """Every rank keeps its share of the tokens."""
    shape, dtype = x.shape, x.dtype
    out = Tensor((shape[0], shape[1] // ranks, *shape[2:]), dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


def refused(config: Decoder) -> str:
    """What about a decoder is not known here, or ""."""
    if config.experts is not None and (
        config.experts.shared_gate
        or config.experts.router in ("all", "chosen", "granite", "lfm2", "minimax", "sampled")
    ):
        return f"experts that are chosen as {config.experts.router!r}"
    if config.norm not in ("layer", "rms"):
        return f"norms {config.norm!r}"
    if config.residual not in ("pre", "parallel_two") or config.windows or config.scaled_query or config.hybrid:
        return f"layers with residuals {config.residual!r}, windows or states"
    if config.query_norm == "head_rotated" or config.rotary == "interleaved_tables":
        return f"norms of queries {config.query_norm!r} and rotation {config.rotary!r}"
    return ""


# TransformerEngine, pytorch/cpp_extensions/gemm.py: get_cublas_workspace_size_bytes, and one for each of four streams
# where experts' products are grouped (get_cublas_workspace).
WORKSPACE_BYTES, WORKSPACE_BYTES_SINCE_HOPPER, STREAMS = 4 << 20, 32 << 20, 4


def _workspace_bytes(spec: TrainingSpec) -> int:
    if spec.get(HYPER + "transformer_impl") == "local":
        return 0
    return WORKSPACE_BYTES_SINCE_HOPPER if cards.is_hopper_or_newer(spec) else WORKSPACE_BYTES


def model(spec: TrainingSpec, config: Decoder, _: str, options: dict[str, Any]) -> LanguageModel | None:
    """The decoder as ``implementation`` = megatron or neox computes it; None where :func:`refused` says why not. Raises
    UnknownModel for a loss that it does not have."""
    if refused(config):
        return None
    older = spec.get("implementation") == "neox"
    kind = spec.get("checkpointing")
    selective = kind == "selective"
    parts = spec.get("checkpointing_modules") or ("core_attn",)
    # Transformer Engine's fused kernels ask for such a card as well (attention/dot_product_attention/utils.py).
    flash = spec.get("attention", "flash") != "eager" and (older or not cards.without_flash(spec))
    tensor = int(spec.get("parallelism.tensor") or 1)
    ranks = tensor if spec.get("parallelism.sequence", False) else 1
    adds = not older and spec.get("optimizer_library") == "megatron" and not spec.get(NOT_ADDED, False)
    fused = spec.get("fused_kernels") or ()
    kernels = Kernels(
        norm="rms_norm" in fused,
        gate="swiglu" in fused,
        rotary="rotary" in fused,
        softmax="softmax" in fused if older else not spec.get(HYPER + "no_softmax_fusion", False),
        dropout="dropout" in fused if older else not spec.get(HYPER + "no_dropout_fusion", False),
        flash=flash,
        recomputes=frozenset(parts if selective else ()),
        ranks=ranks,
        adds=bool(adds),
        experts=int(spec.get("parallelism.expert") or 1),
        each=int(spec.get("parallelism.expert_tensor") or 1) if config.experts is not None else 1,
        float8=bool(spec.get("float8", False)),
        weights8=spec.get("float8_weights", False),
        loss_in_place="cross_entropy_in_place" in fused,
        loss_compiled="cross_entropy" in fused,
        capacity=float(spec.get(HYPER + "moe_expert_capacity_factor") or 0),
        fills=bool(spec.get(HYPER + "moe_pad_expert_input_to_capacity", False)),
        workspace_bytes=_workspace_bytes(spec) if not older and "rms_norm" in fused else 0,
    )
    first = spec.get("checkpointing_layers") if kind == "blocks" else None
    chunk = int(spec.get("checkpointing_chunk") or 1) if kind == "full" else 1
    options = {
        **options,
        "policy": None,
        "reentrant": True,
        "checkpointed": 0 if selective else options["checkpointed"],
    }
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in Megatron's code")
    return MegatronModel(config, kernels, first, chunk, **options)
