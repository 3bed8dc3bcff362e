"""CUDA's semantics over CPU tensors: autocast's lists, attention's kernels, and what kernels return and copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from memlint.measure import cuda_autocast
from memlint.measure.cuda_kernels import efficient_backward_workspace_bytes
from memlint.measure.cuda_semantics import CudaSemantics, attention_backend
from memlint.measure.tracker import SavedTensors, StorageTracker


@pytest.fixture
def tracker() -> Iterator[StorageTracker]:
    tracker = StorageTracker(granularity_bytes=1)
    with FakeTensorMode(), tracker, CudaSemantics(tracker):
        yield tracker


# -- autocast

HEADER = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()


def macro(name: str) -> set[str]:
    """Operators in one of the lists of torch's own header, as ``name.overload``."""
    body = HEADER.split(f"#define {name}(_)")[1].split("\n\n")[0]
    return {match[1] + (f".{match[2]}" if match[2] else "") for match in re.finditer(r"_\((\w+)(?:, (\w+))?\)", body)}


def test_the_fp32_list_is_the_headers() -> None:
    assert set(cuda_autocast._FP32) == macro("AT_FORALL_FP32")


def test_the_list_of_fp32_by_argument_is_the_headers() -> None:
    assert set(cuda_autocast._FP32_BY_DTYPE) == macro("AT_FORALL_FP32_SET_OPT_DTYPE")


def test_the_promoting_list_is_the_headers() -> None:
    assert set(cuda_autocast._PROMOTE) == macro("AT_FORALL_PROMOTE")


def test_the_norms_are_the_headers() -> None:
    body = HEADER.split("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_)")[1].split("\n\n")[0]
    assert set(cuda_autocast._FP32_BY_OVERLOAD) == set(re.findall(r'"(norm\.\w+)"', body))


def test_every_operator_of_the_cpus_lists_is_accounted_for() -> None:
    """Each operator with a CPU autocast kernel is overridden, or is on CUDA's 16-bit list, where both agree."""
    on_cpu = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
    }
    lower = macro("AT_FORALL_LOWER_PRECISION_FP")
    overridden = set(cuda_autocast.autocast_kernels())
    # 16-bit on the CPU as well, and absent from CUDA: operators that only the CPU runs, and overloads with a
    # string for the padding, which CUDA takes apart before its list applies.
    only_on_the_cpu = {
        "_addmm_activation",
        "_native_multi_head_attention",
        "mkldnn_rnn_layer",
        "conv1d.padding",
        "conv2d.padding",
        "conv3d.padding",
    }
    assert on_cpu - overridden - lower == only_on_the_cpu
    # And what CUDA has in 16 bits without a kernel on the CPU is a composite of such, or overridden.
    not_on_the_cpu = lower - on_cpu - overridden
    assert not_on_the_cpu <= {
        "_convolution",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    }


LOW, FULL = torch.bfloat16, torch.float32


def low(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=LOW)


def full(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=FULL)


DTYPES: dict[str, tuple[Callable[[], torch.Tensor], torch.dtype]] = {
    "linear of fp32 runs in 16 bits": (lambda: F.linear(full(3, 4), full(5, 4), full(5)), LOW),
    "conv2d of fp32 runs in 16 bits": (lambda: F.conv2d(full(1, 2, 8, 8), full(3, 2, 3, 3)), LOW),
    "matmul of fp32 runs in 16 bits": (lambda: full(3, 4) @ full(4, 5), LOW),
    "bmm of fp32 runs in 16 bits": (lambda: torch.bmm(full(2, 3, 4), full(2, 4, 5)), LOW),
    "einsum of fp32 runs in 16 bits": (lambda: torch.einsum("ij,jk->ik", full(3, 4), full(4, 5)), LOW),
    "mv of fp32 runs in 16 bits": (lambda: torch.mv(full(3, 4), full(4)), LOW),
    "attention of fp32 runs in 16 bits": (
        lambda: F.scaled_dot_product_attention(full(1, 2, 8, 16), full(1, 2, 8, 16), full(1, 2, 8, 16)),
        LOW,
    ),
    "exp of 16 bits runs in fp32": (lambda: low(4).exp(), FULL),
    "log of 16 bits runs in fp32": (lambda: low(4).log(), FULL),
    "rsqrt of 16 bits runs in fp32": (lambda: low(4).rsqrt(), FULL),
    "pow of 16 bits runs in fp32": (lambda: low(4).pow(2), FULL),
    "a number to the power of 16 bits runs in fp32": (lambda: 2.0 ** low(4), FULL),
    "softplus of 16 bits runs in fp32": (lambda: F.softplus(low(4)), FULL),
    "layer_norm of 16 bits runs in fp32": (lambda: F.layer_norm(low(3, 4), (4,)), FULL),
    "group_norm of 16 bits runs in fp32": (lambda: F.group_norm(low(3, 4, 5), 2), FULL),
    "rms_norm of 16 bits runs in fp32": (lambda: F.rms_norm(low(3, 4), (4,)), FULL),
    "mse_loss of 16 bits runs in fp32": (lambda: F.mse_loss(low(4), low(4)), FULL),
    "l1_loss of 16 bits runs in fp32": (lambda: F.l1_loss(low(4), low(4)), FULL),
    "smooth_l1_loss of 16 bits runs in fp32": (lambda: F.smooth_l1_loss(low(4), low(4)), FULL),
    "cosine_similarity of 16 bits runs in fp32": (lambda: F.cosine_similarity(low(3, 4), low(3, 4)), FULL),
    "binary cross entropy with logits runs in fp32": (
        lambda: F.binary_cross_entropy_with_logits(low(4), low(4)),
        FULL,
    ),
    "cross entropy of 16 bits ends in fp32": (
        lambda: F.cross_entropy(low(3, 4), torch.empty(3, dtype=torch.int64)),
        FULL,
    ),
    "cdist of 16 bits runs in fp32": (lambda: torch.cdist(low(3, 4), low(5, 4)), FULL),
    "nearest resizing of 16 bits runs in fp32": (lambda: F.interpolate(low(1, 2, 4, 4), size=8), FULL),
    "bilinear resizing of 16 bits runs in fp32": (
        lambda: F.interpolate(low(1, 2, 4, 4), size=8, mode="bilinear"),
        FULL,
    ),
    "softmax of 16 bits gives fp32": (lambda: low(3, 4).softmax(-1), FULL),
    "softmax of 16 bits asked for 16 bits gives them": (lambda: low(3, 4).softmax(-1, dtype=LOW), LOW),
    "log_softmax of 16 bits gives fp32": (lambda: low(3, 4).log_softmax(-1), FULL),
    "sum of 16 bits gives fp32": (lambda: low(3, 4).sum(), FULL),
    "sum of 16 bits over a dimension gives fp32": (lambda: low(3, 4).sum(-1), FULL),
    "cumsum of 16 bits gives fp32": (lambda: low(3, 4).cumsum(0), FULL),
    "prod of 16 bits gives fp32": (lambda: low(3, 4).prod(), FULL),
    "sum of integers stays integers": (lambda: torch.empty(4, dtype=torch.int64).sum(), torch.int64),
    "norm of 16 bits gives fp32": (lambda: low(3, 4).norm(), FULL),
    "norm of 16 bits over a dimension gives fp32": (lambda: low(3, 4).norm(dim=-1), FULL),
    "mean of 16 bits stays in 16 bits": (lambda: low(3, 4).mean(), LOW),
    "gelu of 16 bits stays in 16 bits": (lambda: F.gelu(low(4)), LOW),
    "silu of 16 bits stays in 16 bits": (lambda: F.silu(low(4)), LOW),
    "sqrt of 16 bits stays in 16 bits": (lambda: low(4).sqrt(), LOW),
    "batch_norm of 16 bits stays in 16 bits": (
        lambda: F.batch_norm(low(3, 4), full(4), full(4), full(4), full(4), True),
        LOW,
    ),
    "dropout of 16 bits stays in 16 bits": (lambda: F.dropout(low(4), 0.1), LOW),
    "max pooling of 16 bits stays in 16 bits": (lambda: F.max_pool2d(low(1, 2, 4, 4), 2), LOW),
    "3-d average pooling of 16 bits stays in 16 bits": (lambda: F.avg_pool3d(low(1, 2, 4, 4, 4), 2), LOW),
    "reflection padding of 16 bits stays in 16 bits": (lambda: F.pad(low(1, 2, 4, 4), (1, 1, 1, 1), "reflect"), LOW),
    "add of both gives fp32": (lambda: low(4) + full(4), FULL),
    "cat of both gives fp32": (lambda: torch.cat([low(4), full(4)]), FULL),
    "stack of 16 bits stays in 16 bits": (lambda: torch.stack([low(4), low(4)]), LOW),
    "addcmul of both gives fp32": (lambda: torch.addcmul(low(4), low(4), full(4)), FULL),
    "addcmul of 16 bits stays in 16 bits": (lambda: torch.addcmul(low(4), low(4), low(4)), LOW),
    "scatter_add of both gives fp32": (
        lambda: torch.scatter_add(full(4), 0, torch.empty(4, dtype=torch.int64), low(4)),
        FULL,
    ),
    "exp of double stays double": (lambda: torch.empty(4, dtype=torch.float64).exp(), torch.float64),
    "linear of double stays double": (
        lambda: F.linear(torch.empty(3, 4, dtype=torch.float64), torch.empty(5, 4, dtype=torch.float64)),
        torch.float64,
    ),
}


@pytest.mark.parametrize("sentence", DTYPES)
@pytest.mark.usefixtures("tracker")
def test_autocast_gives_cudas_dtype(sentence: str) -> None:
    operation, expected = DTYPES[sentence]
    with torch.autocast("cpu", LOW):
        assert operation().dtype is expected


# The three lists of "CUDA Op-Specific Behavior" in docs/source/amp.md (https://docs.pytorch.org/docs/stable/amp.html),
# name by name. Recurrent cells are with the recurrent layers (test_cudnn_rnn.py).
INDEX = torch.int64
DOCUMENTED_16_BIT: dict[str, Callable[[], torch.Tensor]] = {
    "__matmul__": lambda: full(3, 4) @ full(4, 5),
    "addbmm": lambda: torch.addbmm(full(3, 5), full(2, 3, 4), full(2, 4, 5)),
    "addmm": lambda: torch.addmm(full(3, 5), full(3, 4), full(4, 5)),
    "addmv": lambda: torch.addmv(full(3), full(3, 4), full(4)),
    "addr": lambda: torch.addr(full(3, 4), full(3), full(4)),
    "baddbmm": lambda: torch.baddbmm(full(2, 3, 5), full(2, 3, 4), full(2, 4, 5)),
    "bmm": lambda: torch.bmm(full(2, 3, 4), full(2, 4, 5)),
    "chain_matmul": lambda: torch.chain_matmul(full(3, 4), full(4, 5)),
    "multi_dot": lambda: torch.linalg.multi_dot([full(3, 4), full(4, 5), full(5, 6)]),
    "conv1d": lambda: F.conv1d(full(1, 2, 8), full(3, 2, 3)),
    "conv2d": lambda: F.conv2d(full(1, 2, 8, 8), full(3, 2, 3, 3)),
    "conv3d": lambda: F.conv3d(full(1, 2, 8, 8, 8), full(3, 2, 3, 3, 3)),
    "conv_transpose1d": lambda: F.conv_transpose1d(full(1, 2, 8), full(2, 3, 3)),
    "conv_transpose2d": lambda: F.conv_transpose2d(full(1, 2, 8, 8), full(2, 3, 3, 3)),
    "conv_transpose3d": lambda: F.conv_transpose3d(full(1, 2, 8, 8, 8), full(2, 3, 3, 3, 3)),
    "linear": lambda: F.linear(full(3, 4), full(5, 4)),
    "matmul": lambda: torch.matmul(full(3, 4), full(4, 5)),
    "mm": lambda: torch.mm(full(3, 4), full(4, 5)),
    "mv": lambda: torch.mv(full(3, 4), full(4)),
    "prelu": lambda: F.prelu(full(3, 4), full(1)),
}
DOCUMENTED_FP32: dict[str, Callable[[], torch.Tensor]] = {
    "__pow__": lambda: low(4) ** 2,
    "__rdiv__": lambda: low(4).__rdiv__(2.0),
    "__rpow__": lambda: 2.0 ** low(4),
    "__rtruediv__": lambda: 2.0 / low(4),
    "acos": lambda: low(4).acos(),
    "asin": lambda: low(4).asin(),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(low(4), low(4)),
    "cosh": lambda: low(4).cosh(),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(low(3, 4), low(3, 4), low(3)),
    "cdist": lambda: torch.cdist(low(3, 4), low(5, 4)),
    "cosine_similarity": lambda: F.cosine_similarity(low(3, 4), low(3, 4)),
    "cross_entropy": lambda: F.cross_entropy(low(3, 4), torch.empty(3, dtype=INDEX)),
    "cumprod": lambda: low(4).cumprod(0),
    "cumsum": lambda: low(4).cumsum(0),
    "dist": lambda: torch.dist(low(4), low(4)),
    "erfinv": lambda: low(4).erfinv(),
    "exp": lambda: low(4).exp(),
    "expm1": lambda: low(4).expm1(),
    "group_norm": lambda: F.group_norm(low(3, 4, 5), 2),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(low(4), low(4)),
    "kl_div": lambda: F.kl_div(low(3, 4), low(3, 4), reduction="batchmean"),
    "l1_loss": lambda: F.l1_loss(low(4), low(4)),
    "layer_norm": lambda: F.layer_norm(low(3, 4), (4,)),
    "log": lambda: low(4).log(),
    "log10": lambda: low(4).log10(),
    "log_softmax": lambda: low(4).log_softmax(0),
    "log1p": lambda: low(4).log1p(),
    "log2": lambda: low(4).log2(),
    "margin_ranking_loss": lambda: F.margin_ranking_loss(low(4), low(4), low(4)),
    "mse_loss": lambda: F.mse_loss(low(4), low(4)),
    "multilabel_margin_loss": lambda: F.multilabel_margin_loss(low(3, 4), torch.empty(3, 4, dtype=INDEX)),
    "multi_margin_loss": lambda: F.multi_margin_loss(low(3, 4), torch.empty(3, dtype=INDEX)),
    "nll_loss": lambda: F.nll_loss(low(3, 4), torch.empty(3, dtype=INDEX)),
    "norm": lambda: low(3, 4).norm(),
    "normalize": lambda: F.normalize(low(3, 4)),
    "pdist": lambda: F.pdist(low(3, 4)),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(low(4), low(4)),
    "pow": lambda: torch.pow(low(4), low(4)),
    "prod": lambda: low(4).prod(),
    "reciprocal": lambda: low(4).reciprocal(),
    "rsqrt": lambda: low(4).rsqrt(),
    "sinh": lambda: low(4).sinh(),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(low(4), low(4)),
    "soft_margin_loss": lambda: F.soft_margin_loss(low(4), low(4)),
    "softmax": lambda: low(4).softmax(0),
    "softmin": lambda: F.softmin(low(4), 0),
    "softplus": lambda: F.softplus(low(4)),
    "sum": lambda: low(4).sum(),
    "renorm": lambda: low(3, 4).renorm(2, 0, 1.0),
    "tan": lambda: low(4).tan(),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(low(3, 4), low(3, 4), low(3, 4)),
}
Pair = Callable[[Callable[..., torch.Tensor], Callable[..., torch.Tensor]], torch.Tensor]
DOCUMENTED_WIDEST: dict[str, Pair] = {
    "addcdiv": lambda a, b: torch.addcdiv(a(4), a(4), b(4)),
    "addcmul": lambda a, b: torch.addcmul(a(4), a(4), b(4)),
    "atan2": lambda a, b: torch.atan2(a(4), b(4)),
    "bilinear": lambda a, b: F.bilinear(a(3, 4), a(3, 5), b(6, 4, 5)),
    "cross": lambda a, b: torch.cross(a(3), b(3), dim=0),
    "dot": lambda a, b: torch.dot(a(4), b(4)),
    "grid_sample": lambda a, b: F.grid_sample(a(1, 2, 4, 4), b(1, 4, 4, 2), align_corners=False),
    "index_put": lambda a, b: a(4).index_put((torch.empty(2, dtype=INDEX),), b(2)),
    "scatter_add": lambda a, b: torch.scatter_add(a(4), 0, torch.empty(4, dtype=INDEX), b(4)),
    "tensordot": lambda a, b: torch.tensordot(a(3, 4), b(4, 5), dims=1),
}


@pytest.mark.parametrize("name", DOCUMENTED_16_BIT)
@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.usefixtures("tracker")
def test_what_the_documentation_lists_for_16_bits_runs_in_them(name: str) -> None:
    """ "CUDA Ops that can autocast to float16": also where every input is fp32."""
    with torch.autocast("cpu", LOW):
        assert DOCUMENTED_16_BIT[name]().dtype is LOW


@pytest.mark.parametrize("name", DOCUMENTED_FP32)
@pytest.mark.usefixtures("tracker")
def test_what_the_documentation_lists_for_fp32_runs_in_it(name: str) -> None:
    """ "CUDA Ops that can autocast to float32": also where every input has 16 bits."""
    with torch.autocast("cpu", LOW):
        assert DOCUMENTED_FP32[name]().dtype is FULL


@pytest.mark.parametrize("name", DOCUMENTED_WIDEST)
@pytest.mark.usefixtures("tracker")
def test_what_the_documentation_lists_as_promoting_takes_the_widest_type(name: str) -> None:
    """ "CUDA Ops that promote to the widest input type": 16 bits where both have them, else fp32."""
    operation = DOCUMENTED_WIDEST[name]
    with torch.autocast("cpu", LOW):
        assert operation(low, low).dtype is LOW
        # index_put and scatter_add write into their first operand; the widest type is still the result's.
        assert operation(low, full).dtype is FULL
        assert operation(full, low).dtype is FULL


def test_the_documented_lists_are_those_of_the_header() -> None:
    """What the documentation names is in the macro of its policy (by the operator that it ends in)."""
    spelled = {
        "__matmul__": "matmul",
        "multi_dot": "linalg_multi_dot",
        "conv_transpose2d": "conv_transpose2d.input",
        "conv_transpose3d": "conv_transpose3d.input",
    }
    header = {name.partition(".")[0] for name in macro("AT_FORALL_LOWER_PRECISION_FP")}
    assert {spelled.get(name, name).partition(".")[0] for name in DOCUMENTED_16_BIT} <= header


def test_cpu_autocast_is_itself_again_afterwards() -> None:
    def dtypes() -> list[torch.dtype]:
        with torch.autocast("cpu", LOW):
            x, y = torch.zeros(2, 2, dtype=LOW), torch.zeros(2, 2)
            return [
                operation().dtype
                for operation in (x.exp, x.sum, lambda: F.pad(x[None], (1, 1), "reflect"), lambda: torch.mv(y, y[0]))
            ]

    before = dtypes()
    with StorageTracker() as tracker, CudaSemantics(tracker):
        inside = dtypes()
    assert dtypes() == before
    assert inside == [FULL, FULL, LOW, LOW]
    assert inside != before


# -- the cache of weight casts
#
# torch.autocast's documentation: "cache_enabled: Whether the weight cache inside autocast should be enabled. Default:
# True". aten/src/ATen/autocast_mode.cpp, cached_cast, says of what (fp32 leaves that require gradients and are no
# views) and until when (the outermost context's exit).

CAST = 32 * 32 * 2  # bytes of the weight in 16 bits
RESULT = 32 * 2


def two_products(tracker: StorageTracker, weight: torch.Tensor) -> tuple[int, int]:
    """Bytes that the first and the second use of a weight add."""
    x = low(1, 32)
    before = tracker.live_bytes
    first = F.linear(x, weight)
    once = tracker.live_bytes
    second = F.linear(x, weight)
    added = once - before, tracker.live_bytes - once
    del first, second
    return added


def test_weights_are_cast_once_per_context(tracker: StorageTracker) -> None:
    weight = torch.empty(32, 32, requires_grad=True)
    with torch.autocast("cpu", LOW):
        assert two_products(tracker, weight) == (CAST + RESULT, RESULT)


def test_the_cast_weights_go_with_the_outermost_context(tracker: StorageTracker) -> None:
    weight = torch.empty(32, 32, requires_grad=True)
    x = low(1, 32)
    with torch.autocast("cpu", LOW):
        before = tracker.live_bytes
        with torch.autocast("cpu", LOW):
            F.linear(x, weight)
        assert tracker.live_bytes - before == CAST
        assert two_products(tracker, weight) == (RESULT, RESULT)
    assert tracker.live_bytes == before


def test_backward_keeps_the_cast_weight_for_as_long_as_it_needs_it(tracker: StorageTracker) -> None:
    weight = torch.empty(32, 32, requires_grad=True)
    x = low(1, 32).requires_grad_()
    before = tracker.live_bytes
    with torch.autocast("cpu", LOW):
        out = F.linear(x, weight)
    assert tracker.live_bytes - before == CAST + RESULT  # saved for the gradient of x
    out.backward(torch.empty_like(out))
    del out
    assert tracker.live_bytes - before == 32 * 32 * 4 + RESULT  # the gradients


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.empty(32, 32), id="that does not train"),
        pytest.param(lambda: torch.empty(32, 32, requires_grad=True) * 1, id="that was computed"),
        pytest.param(lambda: torch.empty(1, 32, 32, requires_grad=True)[0], id="that is a view"),
    ],
)
def test_a_weight_is_cast_at_each_use(make: Callable[[], torch.Tensor], tracker: StorageTracker) -> None:
    weight = make()
    with torch.autocast("cpu", LOW), torch.no_grad():  # so that nothing is kept for backward
        assert two_products(tracker, weight) == (RESULT, RESULT)
        tracker.reset_peak()
        before = tracker.live_bytes
        F.linear(low(1, 32), weight)
        assert tracker.peak_bytes - before == RESULT + CAST + RESULT


def test_without_the_cache_a_weight_is_cast_at_each_use(tracker: StorageTracker) -> None:
    weight = torch.empty(32, 32, requires_grad=True)
    with torch.autocast("cpu", LOW, cache_enabled=False):
        x = low(1, 32).requires_grad_()
        before = tracker.live_bytes
        kept = [F.linear(x, weight) for _ in range(3)]
        assert tracker.live_bytes - before == 3 * (CAST + RESULT)
    del kept


# -- attention


def heads(*shape: int, dtype: torch.dtype = LOW) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


Q = (2, 4, 64, 32)
BACKENDS: dict[str, tuple[Callable[[], tuple[Any, ...]], dict[str, Any], str]] = {
    "16 bits take flash": (lambda: (heads(*Q),) * 3, {}, "flash"),
    "fp16 takes flash": (lambda: (heads(*Q, dtype=torch.float16),) * 3, {}, "flash"),
    "fp32 takes the memory-efficient one": (lambda: (heads(*Q, dtype=FULL),) * 3, {}, "efficient"),
    "double takes the formula": (lambda: (heads(*Q, dtype=torch.float64),) * 3, {}, "math"),
    "a mask rules out flash": (lambda: (*(heads(*Q),) * 3, heads(64, 64)), {}, "efficient"),
    "a mask whose rows are not packed takes the formula": (lambda: (*(heads(*Q),) * 3, heads(64, 64).t()), {}, "math"),
    "causal queries as many as keys take flash": (lambda: (heads(*Q),) * 3, {"is_causal": True}, "flash"),
    "causal queries fewer than keys do not": (
        lambda: (heads(2, 4, 8, 32), heads(*Q), heads(*Q)),
        {"is_causal": True},
        "efficient",
    ),
    "widths up to 256 take flash": (lambda: (heads(2, 4, 64, 256),) * 3, {}, "flash"),
    "wider heads do not": (lambda: (heads(2, 4, 64, 264),) * 3, {}, "efficient"),
    "an odd width is padded for flash": (lambda: (heads(2, 4, 64, 33),) * 3, {}, "flash"),
    "a width that is no multiple of four takes the formula in fp32": (
        lambda: (heads(2, 4, 64, 18, dtype=FULL),) * 3,
        {},
        "math",
    ),
    "values of another width take the memory-efficient one": (
        lambda: (heads(*Q), heads(*Q), heads(2, 4, 64, 40)),
        {},
        "efficient",
    ),
    "grouped queries take flash": (
        lambda: (heads(*Q), heads(2, 2, 64, 32), heads(2, 2, 64, 32)),
        {"enable_gqa": True},
        "flash",
    ),
    "grouped queries take the formula in fp32": (
        lambda: (heads(*Q, dtype=FULL), heads(2, 2, 64, 32, dtype=FULL), heads(2, 2, 64, 32, dtype=FULL)),
        {"enable_gqa": True},
        "math",
    ),
    "dropout stays with flash": (lambda: (heads(*Q),) * 3, {"dropout_p": 0.1}, "flash"),
    "dropout and a mask stay with the memory-efficient one": (
        lambda: (*(heads(*Q),) * 3, heads(64, 64)),
        {"dropout_p": 0.1},
        "efficient",
    ),
    "dropout in fp32 stays with the memory-efficient one": (
        lambda: (heads(*Q, dtype=FULL),) * 3,
        {"dropout_p": 0.1},
        "efficient",
    ),
    "grouped queries with a mask take the formula": (
        lambda: (heads(*Q), heads(2, 2, 64, 32), heads(2, 2, 64, 32), heads(64, 64)),
        {"enable_gqa": True},
        "math",
    ),
    "a mask of Booleans rules out flash": (
        lambda: (*(heads(*Q),) * 3, torch.empty(64, 64, dtype=torch.bool)),
        {},
        "efficient",
    ),
    "fewer keys than queries stay with flash": (
        lambda: (heads(*Q), heads(2, 4, 8, 32), heads(2, 4, 8, 32)),
        {},
        "flash",
    ),
    "no keys at all take the formula": (lambda: (heads(*Q), heads(2, 4, 0, 32), heads(2, 4, 0, 32)), {}, "math"),
    "mixed types take the formula": (lambda: (heads(*Q), heads(*Q, dtype=FULL), heads(*Q)), {}, "math"),
    "three dimensions take the formula": (lambda: (heads(4, 64, 32),) * 3, {}, "math"),
    "widths that are not packed take the formula": (lambda: (heads(2, 4, 32, 64).transpose(2, 3),) * 3, {}, "math"),
}


@pytest.mark.parametrize("sentence", BACKENDS)
def test_attention_takes_the_kernel_that_cuda_takes(sentence: str) -> None:
    """torch.nn.functional.scaled_dot_product_attention: three implementations, of which the fused ones have "specific
    input limitations": those of native/transformers/cuda/sdp_utils.cpp (use_flash_attention and its neighbour)
    and of sdp_utils_cpp.h, in the order flash, efficient, math."""
    operands, options, expected = BACKENDS[sentence]
    with FakeTensorMode():
        assert attention_backend(*operands(), **options) == expected


def test_the_users_choice_of_kernel_is_honoured() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with FakeTensorMode():
        x = heads(*Q)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            assert attention_backend(x, x, x) == "efficient"
        with sdpa_kernel(SDPBackend.MATH):
            assert attention_backend(x, x, x) == "math"
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            assert attention_backend(x, x, x, dropout_p=0.1) == "efficient"


@pytest.mark.parametrize(
    ("dtype", "extra"),
    [
        # log-sum-exp by row; random state (2 x 8 bytes) and a number that is unused (8)
        (LOW, 2 * 4 * 70 * 4 + 16 + 8),
        # log-sum-exp by row, rows rounded up to 32; the seeds are on the host
        (FULL, 2 * 4 * 96 * 4),
    ],
    ids=["flash", "memory-efficient"],
)
def test_fused_attention_keeps_no_probabilities(tracker: StorageTracker, dtype: torch.dtype, extra: int) -> None:
    q, k, v = (torch.empty(2, 4, 70, 32, dtype=dtype, requires_grad=True) for _ in range(3))
    with SavedTensors((q, k, v), tracker) as saved:
        out = F.scaled_dot_product_attention(q, k, v)
    assert saved.bytes == out.untyped_storage().nbytes() + extra


def test_the_backward_workspace_is_a_tile_per_block_of_queries() -> None:
    tile = (64 * 64 + 4) * 4

    def size(**changes: int | bool) -> int:
        facts: dict[str, Any] = {
            "batch": 1,
            "heads": 1,
            "queries": 64,
            "keys": 64,
            "head_dim": 64,
            "value_dim": 64,
            "low_precision": False,
        }
        return efficient_backward_workspace_bytes(**{**facts, **changes})

    assert size() == tile
    assert size(queries=65) == 2 * tile
    assert size(batch=3, heads=5) == 15 * tile
    assert size(keys=1000) == tile
    assert size(head_dim=128, value_dim=128, queries=128) == 2 * (128 * 64 + 4) * 4
    assert size(head_dim=128, value_dim=128, queries=128, low_precision=True) == (128 * 128 + 4) * 4
    # Wide heads in 16 bits stage the gradients of keys and values, split at most 200 ways over all heads.
    assert size(head_dim=256, value_dim=256, queries=128, keys=64, low_precision=True) == 4 * (
        64 * 512 + 4 * (128 * 64 + 4)
    )


# -- kernels


@pytest.mark.parametrize("dtype", [FULL, LOW, torch.float64], ids=["fp32", "16 bits", "double"])
def test_dropout_keeps_one_byte_per_element(dtype: torch.dtype, tracker: StorageTracker) -> None:
    """native/Dropout.cpp, is_fused_kernel_acceptable, and native/cuda/Dropout.cu: the mask is of Booleans, which have
    a byte each (torch.dtype's documentation); it alone is kept."""
    x = torch.empty(1000, requires_grad=True, dtype=dtype)
    with SavedTensors(tracker=tracker) as saved:
        y = F.dropout(x, 0.1)
    assert saved.bytes == 1000
    assert tracker.live_bytes == 2 * 1000 * dtype.itemsize + 1000
    del y


@pytest.mark.parametrize(("p", "training"), [(0.1, False), (0.0, True)], ids=["in evaluation", "of nothing"])
def test_dropout_that_does_nothing_is_no_copy(p: float, training: bool, tracker: StorageTracker) -> None:
    x = torch.empty(1000, requires_grad=True)
    with SavedTensors(tracker=tracker) as saved:
        y = F.dropout(x, p, training)
    assert saved.bytes == 0
    assert tracker.live_bytes == 4000
    del y


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float16, 0), (LOW, 1)], ids=["fp16 in the kernel", "bf16 first"])
def test_a_softmax_into_fp32_casts(tracker: StorageTracker, dtype: torch.dtype, copies: int) -> None:
    x = torch.empty(1000, dtype=dtype)
    tracker.reset_peak()
    y = x.softmax(-1, dtype=FULL)
    assert tracker.peak_bytes == 2000 + 4000 + copies * 4000
    assert y.dtype is FULL


def test_dropping_everything_keeps_no_mask(tracker: StorageTracker) -> None:
    x = torch.empty(1000, requires_grad=True)
    with SavedTensors(tracker=tracker) as saved:
        y = F.dropout(x, 1.0)
    assert saved.bytes == 4  # the zero that everything is multiplied by
    del y


def test_max_pooling_in_one_dimension_makes_indices_even_where_nothing_trains(tracker: StorageTracker) -> None:
    x = torch.empty(2, 3, 40)
    tracker.reset_peak()
    y = F.max_pool1d(x, 2)
    assert tracker.peak_bytes == 960 + 480 + 960
    del y


def test_a_matrix_that_cublas_cannot_read_is_copied(tracker: StorageTracker) -> None:
    x, y = torch.empty(10, 20, 2)[..., 0], torch.empty(20, 5)
    tracker.reset_peak()
    before = tracker.live_bytes
    z = x @ y
    assert tracker.peak_bytes - before == 10 * 20 * 4 + 10 * 5 * 4
    assert tracker.live_bytes - before == 10 * 5 * 4
    del z


def test_the_norm_of_many_tensors_has_a_partial_result_per_chunk(tracker: StorageTracker) -> None:
    tensors = [torch.empty(65536 * 2 + 1), torch.empty(10)]
    tracker.reset_peak()
    before = tracker.live_bytes
    norms = torch._foreach_norm(tensors)
    assert tracker.peak_bytes - before == 2 * 3 * 4 + 2 * 4
    assert tracker.live_bytes - before == 2 * 4
    del norms


def test_group_norm_copies_a_channels_last_image(tracker: StorageTracker) -> None:
    x = torch.empty(2, 8, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    with SavedTensors((x,), tracker) as saved:
        y = F.group_norm(x, 2)
    assert y.is_contiguous()
    assert saved.bytes == 2 * 8 * 16 * 4 + 2 * 2 * 2 * 4


def test_layer_norm_keeps_fp32_statistics_of_16_bits(tracker: StorageTracker) -> None:
    x = torch.empty(10, 32, dtype=LOW, requires_grad=True)
    with SavedTensors((x,), tracker) as saved:
        y = F.layer_norm(x, (32,))
    assert saved.bytes == 2 * 10 * 4
    del y


def test_a_maxima_gradient_is_scattered_in_place(tracker: StorageTracker) -> None:
    x = torch.empty(10, 100, requires_grad=True)
    values = x.max(-1).values
    gradient = torch.empty_like(values)
    tracker.reset_peak()
    before = tracker.live_bytes
    values.backward(gradient)
    assert tracker.peak_bytes - before == 4000


def test_results_of_kernels_own_just_their_bytes(tracker: StorageTracker) -> None:
    """A shape function may hand out a view of something larger, or of another result; a kernel does not."""
    image = torch.empty(2, 4, 6, 6, requires_grad=True)
    weight = torch.empty(4, requires_grad=True)
    for result in (
        F.group_norm(image, 2, weight, weight),
        F.batch_norm(image, None, None, weight, weight, True),
        F.layer_norm(image, (6, 6)),
        F.conv2d(image, torch.empty(3, 4, 3, 3, requires_grad=True)),
        F.interpolate(image, (12, 12)),
        F.max_pool2d(image, 2),
        image.softmax(1),
        image.cumsum(1),
    ):
        assert result.untyped_storage().nbytes() == result.numel() * 4
        (gradient,) = torch.autograd.grad(result.sum(), image, retain_graph=True)
        assert gradient.untyped_storage().nbytes() == image.numel() * 4


# -- optimizers
#
# torch.optim's documentation: "the foreach implementation uses ~ sizeof(params) more peak memory than the for-loop
# version due to the intermediates being a tensorlist vs just one tensor"; fused kernels have none.

COUNT, SIZE = 8, 1024
EACH = SIZE * 4
Optimizer = Callable[..., torch.optim.Optimizer]


def adamw(parameters: Any, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **how)


def adam_amsgrad(parameters: Any, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, amsgrad=True, **how)


def sgd(parameters: Any, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, **how)


def sgd_momentum(parameters: Any, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, momentum=0.9, **how)


def sgd_decay(parameters: Any, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1, **how)


# bytes beyond parameters, gradients and states: (loop, foreach, fused)
TEMPORARIES: dict[Optimizer, tuple[int, int, int]] = {
    # Loop: sqrt(exp_avg_sq), what its division gives, and the last parameter's, until the name is bound anew.
    # Foreach: sqrt(exp_avg_sq), then in place.
    adamw: (3 * EACH, COUNT * EACH, 0),
    # the same of max_exp_avg_sq
    adam_amsgrad: (3 * EACH, COUNT * EACH, 0),
    # parameters are changed in place
    sgd: (0, 0, 0),
    sgd_momentum: (0, 0, 0),
    # gradient + decay * parameter
    sgd_decay: (EACH, COUNT * EACH, 0),
}


@pytest.mark.parametrize("kind", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("make", TEMPORARIES, ids=lambda make: make.__name__)
def test_a_step_needs_for_a_moment(make: Optimizer, kind: str, tracker: StorageTracker) -> None:
    parameters = [torch.nn.Parameter(torch.empty(SIZE)) for _ in range(COUNT)]
    how = {"fused": True} if kind == "fused" else {"foreach": kind == "foreach"}
    optimizer = make(parameters, **how)
    for _ in range(2):  # the first makes the states
        for parameter in parameters:
            parameter.grad = torch.empty(SIZE)
        tracker.reset_peak()
        before = tracker.live_bytes
        optimizer.step()
    extra = tracker.peak_bytes - before
    assert extra == TEMPORARIES[make][["loop", "foreach", "fused"].index(kind)]
