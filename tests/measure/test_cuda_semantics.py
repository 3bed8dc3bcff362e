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

from memlint.measure import cuda_semantics
from memlint.measure.cuda_semantics import CudaSemantics, attention_backend, efficient_backward_workspace_bytes
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
    assert set(cuda_semantics._FP32) == macro("AT_FORALL_FP32")


def test_the_list_of_fp32_by_argument_is_the_headers() -> None:
    assert set(cuda_semantics._FP32_BY_DTYPE) == macro("AT_FORALL_FP32_SET_OPT_DTYPE")


def test_the_promoting_list_is_the_headers() -> None:
    assert set(cuda_semantics._PROMOTE) == macro("AT_FORALL_PROMOTE")


def test_the_norms_are_the_headers() -> None:
    body = HEADER.split("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_)")[1].split("\n\n")[0]
    assert set(cuda_semantics._FP32_BY_OVERLOAD) == set(re.findall(r'"(norm\.\w+)"', body))


def test_every_operator_of_the_cpus_lists_is_accounted_for() -> None:
    """Each operator with a CPU autocast kernel is overridden, or is on CUDA's 16-bit list, where both agree."""
    on_cpu = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
    }
    lower = macro("AT_FORALL_LOWER_PRECISION_FP")
    overridden = set(cuda_semantics._autocast_kernels())
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


def test_weights_are_cast_once_per_context(tracker: StorageTracker) -> None:
    weight = torch.empty(32, 32, requires_grad=True)
    x = low(1, 32)
    with torch.autocast("cpu", LOW):
        before = tracker.live_bytes
        first = F.linear(x, weight)
        once = tracker.live_bytes
        second = F.linear(x, weight)
        assert once - before == 32 * 32 * 2 + 32 * 2
        assert tracker.live_bytes - once == 32 * 2
    del first, second


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
    "three dimensions take the formula": (lambda: (heads(4, 64, 32),) * 3, {}, "math"),
    "widths that are not packed take the formula": (lambda: (heads(2, 4, 32, 64).transpose(2, 3),) * 3, {}, "math"),
}


@pytest.mark.parametrize("sentence", BACKENDS)
def test_attention_takes_the_kernel_that_cuda_takes(sentence: str) -> None:
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


def test_dropout_keeps_one_byte_per_element(tracker: StorageTracker) -> None:
    x = torch.empty(1000, requires_grad=True)
    with SavedTensors(tracker=tracker) as saved:
        y = F.dropout(x, 0.1)
    assert saved.bytes == 1000
    assert tracker.live_bytes == 4000 + 4000 + 1000
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
