"""``--trace``: the user's own model under fake tensors, beside the static estimate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from memlint.measure import trace, trace_jax, training
from memlint.measure.child import MeasureError
from memlint.measure.request import estimate_from
from memlint.meta.tape import Tape
from memlint.tape.phases import find_peak
from tests.measure.training_runs import EXAMPLES, LAG, MODEL, SMALL, plain_request, project, request, spec_of, static

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text())


def run_trace(folder: Path, facts: dict[str, Any] | None = None, **parts: Any) -> trace.Traced:
    sys.modules.pop("memlint_model", None)
    return trace.trace(plain_request(folder, facts, **parts))


def live_bytes(tape: Tape, component: str) -> int:
    """Bytes that ever belonged to a component."""
    return sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == component)


# -- the examples


@pytest.mark.parametrize(("path", "overrides"), SMALL.values(), ids=SMALL)
def test_the_examples_trace_as_the_static_model_says(path: str, overrides: list[str]) -> None:
    spec = spec_of(EXAMPLES / path, overrides)
    answer = json.loads(json.dumps(trace.answer(request(spec))))
    traced, expected = estimate_from(answer["estimate"]), static(spec)
    assert answer["source"].endswith("model.py")
    assert traced.basis == "trace"
    assert (traced.parameters, traced.trainable_parameters) == (expected.parameters, expected.trainable_parameters)
    assert traced.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=0.01)
    assert traced.peak_phase == expected.peak_phase
    for phase in ("forward", "backward", "optimizer_step"):
        assert traced.phases[phase] == pytest.approx(expected.phases[phase], rel=0.01), phase
    for name in ("parameters", "optimizer", "ema", "helper_models", "buffers", "context"):
        assert traced.component_bytes(name) == pytest.approx(expected.component_bytes(name), rel=0.01), name
    assert sum(component.size_bytes for component in traced.components) == traced.device_bytes


def test_the_jax_example_traces_as_the_static_model_says() -> None:
    spec = spec_of(EXAMPLES / LAG[0], LAG[1])
    traced = estimate_from(json.loads(json.dumps(trace_jax.answer(request(spec))))["estimate"])
    expected = static(spec)
    assert traced.parameters == expected.parameters
    assert traced.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=0.01)
    assert traced.saved_bytes == pytest.approx(expected.saved_bytes, rel=0.01)


def test_a_jax_batch_that_does_not_divide_is_the_codes_own_error() -> None:
    spec = spec_of(EXAMPLES / "lag_mode" / "train_lag_mode_ultra_low_mem.sh")
    with pytest.raises(MeasureError, match=r"batch_size 4 must be divisible by 8 devices \(.*model.py:\d+, in "):
        trace_jax.answer(request(spec))


# -- any model


def test_a_linear_layer_is_counted_by_hand(tmp_path: Path) -> None:
    """One Linear(64, 256) and one Linear(256, 64) on 4 rows, AdamW in the loop form."""
    traced = run_trace(tmp_path, {"optimizer_implementation": "loop"})
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64)
    assert traced.parameters == traced.trainable_parameters == weights // 4
    assert live_bytes(traced.tape, "parameters") == weights
    assert live_bytes(traced.tape, "gradients") == weights
    states = [s for s, label in zip(traced.tape.sizes, traced.tape.labels) if label.name in ("exp_avg", "exp_avg_sq")]
    assert sum(states) == 2 * weights
    # Kept for backward: the batch, what GELU got and gave, and the output that is squared; the loss is alive, too.
    assert traced.tape.saved_bytes == 4 * (4 * 64 + 4 * 256 + 4 * 256 + 4 * 64 + 1)
    assert traced.has_matmul
    assert not traced.has_convolution


def test_storages_carry_the_module_that_made_them_in_backward_too(tmp_path: Path) -> None:
    model = MODEL.replace("nn.Sequential(", "nn.Sequential(nn.Linear(width, width), ")
    traced = run_trace(tmp_path, {"optimizer": "sgd"}, model=model)
    begins = {name: at for at, name in traced.tape.marks}
    begin, end = begins["backward"], begins["optimizer_step"]
    modules = {traced.tape.labels[event].module for event in traced.tape.events[begin:end] if event >= 0}
    assert {"0", "1", "2", "3"} <= modules
    owners = {(label.module, label.name) for label in traced.tape.labels if label.component == "gradients"}
    assert owners == {(module, name) for module in "013" for name in ("weight", "bias")}


def test_a_frozen_part_that_passes_no_gradients_on_is_a_helper(tmp_path: Path) -> None:
    model = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 64).requires_grad_(False)
        self.layer = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(self.head(self.encoder(x)))


def build_model(config):
    return Model()


def make_batch(config, device):
    return torch.rand(4, 64, device=device)


def training_loss(model, batch):
    return model(batch).mean()
"""
    traced = run_trace(tmp_path, model=model)
    assert {label.module for label in traced.tape.labels if label.component == "helper_models"} == {"encoder"}
    assert {label.module for label in traced.tape.labels if label.component == "parameters"} == {"layer", "head"}
    assert traced.trainable_parameters == 64 * 64 + 64


@pytest.mark.parametrize(
    ("asked", "replacement"),
    [
        pytest.param("device=device", 'device="cuda"', id="a device by name"),
        pytest.param("device=device)", "device=torch.device('cuda', 0)).cuda()", id="a device and .cuda()"),
        pytest.param("device=device)", "pin_memory=True).to('cuda:0', non_blocking=True)", id="pinned, then moved"),
    ],
)
def test_code_that_asks_for_a_card_is_traced(tmp_path: Path, asked: str, replacement: str) -> None:
    changed = MODEL.replace(asked, replacement).replace("width, width))", "width, width)).cuda()")
    assert changed != MODEL
    here, there = run_trace(tmp_path / "a"), run_trace(tmp_path / "b", model=changed)
    assert find_peak(here.tape).phases == find_peak(there.tape).phases


def test_a_model_that_is_cast_after_it_was_built_has_the_weights_of_its_new_type(tmp_path: Path) -> None:
    cast = MODEL.replace("width, width))", "width, width)).to(torch.bfloat16)")
    cast = cast.replace("device=device)", "device=device, dtype=torch.bfloat16)")
    traced = run_trace(tmp_path, model=cast)
    weights = 2 * (64 * 256 + 256 + 256 * 64 + 64)
    assert live_bytes(traced.tape, "parameters") == live_bytes(traced.tape, "gradients") == weights


AUTOCAST = {
    "by the loop": MODEL,
    "by the code, for cuda": MODEL.replace(
        "    return model(batch)", "    with torch.autocast('cuda', torch.bfloat16):\n        return model(batch)"
    ),
    "by the code, in the old spelling": MODEL.replace(
        "    return model(batch)",
        "    with torch.cuda.amp.autocast(dtype=torch.bfloat16):\n        return model(batch)",
    ),
}


@pytest.mark.parametrize("model", AUTOCAST.values(), ids=AUTOCAST)
def test_autocast_is_opened_once(model: str, tmp_path: Path) -> None:
    facts = {"compute_dtype": "bfloat16", "parameter_dtype": "float32"}
    mixed, plain = run_trace(tmp_path / "a", facts, model=model), run_trace(tmp_path / "b")
    assert mixed.tape.saved_bytes == run_trace(tmp_path / "c", facts).tape.saved_bytes
    assert mixed.tape.saved_bytes != plain.tape.saved_bytes
    made = {label.name for label in mixed.tape.labels}
    assert "_to_copy" in made  # the weights' 16-bit copies


def test_accumulation_keeps_gradients_through_the_next_forward(tmp_path: Path) -> None:
    once, twice = run_trace(tmp_path / "a"), run_trace(tmp_path / "b", {"gradient_accumulation_steps": 8})
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64)
    more = find_peak(twice.tape).phases["forward"] - find_peak(once.tape).phases["forward"]
    assert more == pytest.approx(weights, rel=0.02)


def test_an_ema_is_one_more_copy(tmp_path: Path) -> None:
    traced = run_trace(tmp_path, {"ema": True})
    assert live_bytes(traced.tape, "ema") == live_bytes(traced.tape, "parameters")


@pytest.mark.parametrize(
    ("implementation", "copies"),
    [pytest.param("foreach", 1.0, id="foreach makes a copy"), pytest.param("fused", 0.0, id="fused makes none")],
)
def test_the_optimizer_runs_as_the_config_says(implementation: str, copies: float, tmp_path: Path) -> None:
    traced = run_trace(tmp_path, {"optimizer": "adamw", "optimizer_implementation": implementation})
    phases = find_peak(traced.tape).phases
    weights = live_bytes(traced.tape, "parameters")
    held = 4 * weights  # parameters, gradients, two moments
    assert phases["optimizer_step"] - held == pytest.approx(copies * weights, abs=0.05 * weights)


def test_checkpointing_keeps_less_and_is_named_by_its_modules(tmp_path: Path) -> None:
    wrapped = MODEL.replace("return model(batch)", "return checkpoint(model, batch, use_reentrant=False)")
    wrapped = "from torch.utils.checkpoint import checkpoint\n" + wrapped
    plain, saving = run_trace(tmp_path / "a"), run_trace(tmp_path / "b", model=wrapped)
    assert saving.tape.saved_bytes < plain.tape.saved_bytes / 3
    begin = next(at for at, name in saving.tape.marks if name == "backward")
    recomputed = [saving.tape.labels[event] for event in saving.tape.events[begin:] if event >= 0]
    assert any(label.module == "1" and label.name == "gelu" for label in recomputed)


def test_the_end_of_a_recomputation_holds_nothing(tmp_path: Path) -> None:
    """Checkpointing leaves a block by an exception once it has what it needs; whoever keeps that keeps the block."""
    block = """
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        wide = self.up(x)
        curved = wide.tanh()
        return self.down(curved * wide)

"""
    wrapped = MODEL.replace("return model(batch)", "return checkpoint(model, batch, use_reentrant=False)")
    wrapped = re.sub(r"nn\.Sequential.*", "Block(width)", wrapped)
    wrapped = wrapped.replace("from torch import nn\n", "from torch import nn\n" + block)
    assert "Block(width)" in wrapped
    stopping = run_trace(tmp_path / "a", model=wrapped)
    with set_checkpoint_early_stop(False):
        finishing = run_trace(tmp_path / "b", model=wrapped)
    assert find_peak(stopping.tape).phases["forward"] == find_peak(finishing.tape).phases["forward"]


def test_the_steady_part_of_a_tape_has_its_peaks() -> None:
    tape = Tape()
    label = trace.Label("activations", "")
    tape.mark("setup")
    kept = tape.allocate(1024, label)
    tape.mark("forward")
    gone = tape.allocate(1 << 20, label)
    tape.free(gone)
    late = tape.allocate(2048, label)
    begin = len(tape.events)
    tape.mark("forward")
    other = tape.allocate(512, label)
    tape.mark("")
    tape.mark("backward")
    tape.free(late)
    tape.free(other)
    found = trace.steady(tape, begin)
    assert find_peak(found).phases == {"setup": 3072, "forward": 3584, "backward": 3584}
    assert found.sizes == [1024, 2048, 512]
    assert kept == 0


# -- what cannot be traced


def failing(body: str, before: str = "") -> str:
    return f"""
import torch
from torch import nn

{before}

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        x = self.layer(x)
{body}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)


def build_model(config):
    return Model()


def make_batch(config, device):
    return torch.rand(config["batch"], 64, device=device)


def training_loss(model, batch):
    return model(batch).mean()
"""


UNREGISTERED = """
library = torch.library.Library("memlint_test_{n}", "DEF")
library.define("sort_of(Tensor x) -> Tensor")
library.impl("sort_of", lambda x: x, "CPU")
"""

ERRORS = {
    "a size by a value": (
        failing("        return x[: int((x > 0).sum())]"),
        ("module inner reads an integer", ".item()", "--probe"),
    ),
    "a result whose size depends on values": (
        failing("        return x[x > 0]"),
        ("module inner calls aten::index", "size that depends on values", "where()", "model.py:14"),
    ),
    "indices of what is not zero": (
        failing("        return x.flatten()[torch.nonzero(x.flatten())]"),
        ("module inner calls aten::nonzero", "--probe"),
    ),
    "an operator without a fake implementation": (
        failing("        return x + torch.ops.memlint_test_a.sort_of(x)", UNREGISTERED.format(n="a")),
        ("module inner calls memlint_test_a::sort_of", "register_fake"),
    ),
    "numpy": (failing("        return x * float(x.detach().numpy().mean())"), ("module inner", "model.py:14")),
    "an exception of its own": (
        failing("        raise KeyError('no such thing')"),
        ("module inner raised KeyError: 'no such thing'", "model.py:14, in forward"),
    ),
    "shapes that do not fit": (
        failing("        return x @ x"),
        ("module inner raised RuntimeError", "model.py:14", "in aten::"),
    ),
    "a loss that is no scalar": (
        failing("        return x").replace("model(batch).mean()", "model(batch)"),
        ("a tensor of shape (4, 64) where a scalar loss is needed", "[probe] step"),
    ),
    "a loss that depends on nothing": (
        failing("        return x").replace("model(batch).mean()", "batch.mean()"),
        ("does not depend on any parameter",),
    ),
    "a loss that is a number": (
        failing("        return x").replace("model(batch).mean()", "3.0"),
        ("a float where a scalar loss is needed",),
    ),
    "a factory that builds something else": (
        failing("        return x").replace("return Model()", "return None"),
        ("built a NoneType, not a torch.nn.Module",),
    ),
    "nothing that trains": (
        failing("        return x").replace("return Model()", "return Model().requires_grad_(False)"),
        ("no parameter that trains",),
    ),
}


@pytest.mark.parametrize(("model", "said"), ERRORS.values(), ids=ERRORS)
def test_what_stands_in_the_way_is_named(
    model: str, said: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MeasureError) as caught:
        run_trace(tmp_path, model=model)
    for part in said:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failed_trace_leaves_torch_as_it_was(tmp_path: Path) -> None:
    init = torch.autocast.__init__
    with pytest.raises(MeasureError):
        run_trace(tmp_path, model=ERRORS["shapes that do not fit"][0])
    assert torch.autocast.__init__ is init
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert not nn.modules.module._global_forward_pre_hooks
    assert torch.rand(2).sum().item() >= 0


def test_values_that_are_read_are_answered_and_said(tmp_path: Path) -> None:
    body = "        if (x > 0).any():\n            x = x * 2\n        print(x.mean().item())\n        return x"
    traced = run_trace(tmp_path, model=failing(body))
    [assumption] = [entry for entry in traced.assumptions if entry[0] == "inner"]
    assert "reads from a bool tensor" in assumption[2]


FACTS = {
    "sharded states": ({"parallelism.zero_stage": 3}, "zero_stage = 3 shards states"),
    "a sharded model": ({"parallelism.strategy": "fsdp1"}, "strategy = fsdp1: a trace follows ddp and fsdp2"),
    "an optimizer of another library": ({"optimizer": "adamw_8bit"}, "adamw_8bit is not one of PyTorch's"),
    "quantised weights": ({"quantization.bits": 4}, "only run on a card"),
}


@pytest.mark.parametrize(("facts", "said"), FACTS.values(), ids=FACTS)
def test_a_run_that_one_process_cannot_show_is_refused(facts: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=said):
        run_trace(tmp_path, facts)


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        pytest.param({}, None, id="nothing said"),
        pytest.param({"compute_dtype": "bfloat16", "parameter_dtype": "bfloat16"}, None, id="pure bfloat16"),
        pytest.param({"compute_dtype": "bfloat16", "parameter_dtype": "float32"}, torch.bfloat16, id="mixed"),
        pytest.param({"compute_dtype": "bfloat16", "autocast": False}, None, id="autocast off"),
        pytest.param(
            {"compute_dtype": "bfloat16", "parameter_dtype": "bfloat16", "autocast": True},
            torch.bfloat16,
            id="autocast over 16-bit weights",
        ),
    ],
)
def test_precision_is_the_configs(facts: dict[str, Any], dtype: torch.dtype | None) -> None:
    assert training.plan_of({"facts": facts, "keys": {}}).autocast is dtype


# -- the command


def memlint(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (environment.pop("first", ""), str(ROOT))))
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(cwd), **environment}
    for name in ("GITHUB_ACTIONS", "MEMLINT_CONFIG", "FORCE_COLOR"):
        env.pop(name, None)
    command = [sys.executable, "-m", "memlint", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_check_shows_the_trace_beside_the_estimate(tmp_path: Path) -> None:
    config = str(EXAMPLES / "dit3d" / "config.py")
    done = memlint(
        "check", "--trace", config, "--budget", "16GB", "--isolated", "--report", "json=report.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "traced peak" in done.stdout
    assert "difference" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    Draft202012Validator(SCHEMA).validate(report)
    [entry] = report["files"]
    assert entry["measured"]["basis"] == "trace"
    assert entry["measured"]["verdict"] == "FITS"
    assert entry["measured"]["device_bytes"] == pytest.approx(entry["estimate"]["device_bytes"], rel=0.01)
    assert set(entry["measured"]["difference"]) >= {"parameters", "activations", "context"}


def test_a_config_of_no_known_family_is_traced_when_it_is_named(tmp_path: Path) -> None:
    path = project(tmp_path)
    done = memlint("check", "--trace", path.name, "--output-format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(report)
    [entry] = report["files"]
    assert entry["family"] is None
    assert entry["estimate"] is None
    assert entry["measured"]["difference"] is None
    assert {"fact": "optimizer", "value": "adamw", "reason": "the config's family is unknown"} in entry["measured"][
        "assumptions"
    ]


def test_a_trace_that_fails_is_exit_2_and_the_rest_is_printed(tmp_path: Path) -> None:
    path = project(tmp_path, model=ERRORS["an exception of its own"][0])
    example = str(EXAMPLES / "dit3d" / "config.py")
    done = memlint("check", "--trace", path.name, example, "--isolated", cwd=tmp_path)
    assert done.returncode == 2
    assert "train.yaml" in done.stderr
    assert "KeyError: 'no such thing'" in done.stderr
    assert "traced peak" in done.stdout


def test_without_torch_the_message_says_so(tmp_path: Path) -> None:
    project(tmp_path)
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "torch.py").write_text("raise ImportError(\"No module named 'torch'\")\n")
    done = memlint("check", "--trace", "train.yaml", cwd=tmp_path, first=str(hiding))
    assert done.returncode == 2
    assert "needs PyTorch" in done.stderr
    assert "-m pip install torch" in done.stderr


def test_the_checking_process_imports_neither_torch_nor_the_model(tmp_path: Path) -> None:
    project(tmp_path)
    script = (
        "import sys\nfrom memlint.cli.main import main\n"
        "try:\n    main(['check', '--trace', 'train.yaml'])\nexcept SystemExit:\n    pass\n"
        "print('MODULES', *sorted(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "traced peak" in done.stdout, done.stderr
    modules = done.stdout.partition("MODULES")[2].split()
    assert "memlint.measure.child" in modules
    assert not {"torch", "model", "memlint_model", "memlint.measure.trace"} & set(modules)


def test_a_settings_file_cannot_ask_for_a_trace(tmp_path: Path) -> None:
    project(tmp_path, settings="trace = true\n")
    done = memlint("check", "train.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown setting 'trace'" in done.stderr
