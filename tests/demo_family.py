"""A small made-up family, with an estimate of known size, to test what is not about families or estimates.

    demo:
      batch: 4
      width: 1024
      model: net        (anything else is an unknown model)

Its peak is batch * width MiB of activations and 64 MiB of parameters, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memlint import rules_registry
from memlint.dialects import registry
from memlint.dialects.base import Dialect
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.plugin import ERROR, SAFE, Finding, Rule, Run
from memlint.rules_registry import RuleInfo
from memlint.tape.estimate import Component, Estimate, Interval, Part
from memlint.units import MiB

SCHEMA: dict[str, Any] = {
    "x-memlint": {
        "family": "demo",
        "title": "demo",
        "formats": ["yaml", "json", "toml", "python", "shell"],
        "signature": {"all": ["demo.batch"]},
        "framework": "torch 2.13",
        "architecture": "demo-net",
    },
    "type": "object",
    "properties": {
        "demo": {
            "type": "object",
            "properties": {
                "batch": {"type": "integer", "x-memlint": {"fact": "micro_batch_size"}},
                "width": {
                    "type": "integer",
                    "x-memlint": {"fact": "hyperparameters.width", "default": 1024, "default_of": "demo"},
                },
                "model": {"type": "string", "x-memlint": {"fact": "model", "default": "net", "default_of": "demo"}},
            },
        }
    },
}


class UnknownModel(Exception):
    pass


def estimate_spec(
    spec: TrainingSpec, gpu: str = "", symbolic: bool = False, detailed: bool = True, **_: object
) -> Estimate:
    if spec.get("model") == "crash":
        raise ZeroDivisionError("a fault of ours")
    if spec.get("model") != "net":
        raise UnknownModel(f"no model {spec.get('model')!r}")
    batch, width = spec["micro_batch_size"], spec[HYPER + "width"]
    activations = batch * width * MiB
    formula = ("B*W*1048576", (("B", "micro_batch_size"), ("W", "hyperparameters.width"))) if symbolic else ("", ())
    components = (
        Component("parameters", 64 * MiB, (Part("net", 64 * MiB),)),
        Component("activations", activations, (Part("net.blocks", activations, *formula),)),
    )
    total = activations + 64 * MiB
    whole = Interval(total, total)
    return Estimate(
        "static", 16_777_216, 16_777_216, total, total, total, activations, "backward",
        {"forward": total, "backward": total, "optimizer_step": 64 * MiB}, components, whole, whole, whole,
    )  # fmt: skip


class Large(Rule):
    """More than a gibibyte of activations.

    What it does
    Speaks up.
    """

    code = "MEM990"
    name = "demo-large"
    severity = ERROR
    facts = ("micro_batch_size",)

    def check(self, run: Run) -> Iterator[Finding]:
        limit = run.options.get("limit_mib", 1024) * MiB
        assert run.estimate is not None
        if run.estimate.component_bytes("activations") > limit:
            batch = run.value("micro_batch_size")
            fix = run.fix(f"batch {batch} -> 1", SAFE, micro_batch_size=1)
            yield self.finding(run, f"batch {batch} is large", "micro_batch_size", size_bytes=batch * MiB, fixes=(fix,))


class Crash(Rule):
    """Raises on width 13."""

    code = "MEM991"
    name = "demo-crash"
    needs_estimate = False

    def check(self, run: Run) -> Iterator[Finding]:
        if run.value(HYPER + "width") == 13:
            raise KeyError("width\x1b[31m")
        yield from ()


class Preview(Rule):
    """Speaks about every run, in preview."""

    code = "MEM992"
    name = "demo-preview"
    preview = True

    def check(self, run: Run) -> Iterator[Finding]:
        yield self.finding(run, "hello from preview", HYPER + "width")


class NeedsFact(Rule):
    """Would speak about runs that state a fact nobody has."""

    code = "MEM993"
    name = "demo-needs-fact"
    facts = (HYPER + "nobody_has_this",)

    def check(self, run: Run) -> Iterator[Finding]:
        yield self.finding(run, "cannot be")


class OverBudget(Rule):
    """The estimate is over the budget."""

    code = "MEM190"
    name = "demo-over-budget"
    severity = ERROR

    def check(self, run: Run) -> Iterator[Finding]:
        if run.over_budget:
            yield self.finding(run, "does not fit")


RULES = (Large, Crash, Preview, NeedsFact, OverBudget)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the family, its estimate and its rules in place for one test."""
    monkeypatch.setitem(registry._dialects, "demo", Dialect(SCHEMA))
    monkeypatch.setattr("memlint.estimates.estimate_spec", estimate_spec)
    monkeypatch.setattr("memlint.estimates.record", lambda *_: None)  # of which its estimates are not made
    monkeypatch.setattr("memlint.estimates.saved_bytes", lambda spec: estimate_spec(spec).saved_bytes)
    monkeypatch.setattr("memlint.checking.judging._unknown_model", lambda: UnknownModel)
    real = [info for info in rules_registry.built_in() if info.code < "MEM008"]
    infos = [RuleInfo(rule.code, rule.name, rule.__module__, rule) for rule in RULES]
    monkeypatch.setattr(rules_registry, "_BUILT_IN", tuple(sorted([*real, *infos])))


CONFIG = "demo:\n  batch: 4\n  width: 1024\n"
SMALL = "demo:\n  batch: 1\n"
