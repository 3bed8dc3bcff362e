"""A report made by hand, with everything that a report can hold."""

from __future__ import annotations

import pytest

from memlint.documents.node import Edit, Span
from memlint.plugin import DISPLAY, ERROR, INFO, SAFE, WARNING, Finding, Fix
from memlint.reports.report import Budget, Report, RunReport, StatedFact, UnresolvedValue
from memlint.tape.estimate import Component, Estimate, Interval, Part
from memlint.units import GiB, MiB

TEXT = "name: demo\ndataloader:\n  batch_size: 128  # large\n  shuffle: true\n"


def make_estimate() -> Estimate:
    components = (
        Component("parameters", 2 * GiB, (Part("encoder", GiB), Part("head", GiB))),
        Component(
            "activations",
            20 * GiB,
            (
                Part("encoder.blocks", 18 * GiB, "12*B*G*768*4", (("B", "micro_batch_size"), ("G", "groups"))),
                Part("head", 2 * GiB, "B*4", (("B", "micro_batch_size"),)),
            ),
        ),
        Component("context", 500 * MiB),
    )
    device = sum(component.size_bytes for component in components)
    return Estimate(
        basis="static",
        parameters=261_609_114,
        trainable_parameters=6_384_448,
        allocated_bytes=22 * GiB,
        reserved_bytes=22 * GiB,
        device_bytes=device,
        saved_bytes=17 * GiB,
        peak_phase="backward",
        phases={"forward": 20 * GiB, "backward": 22 * GiB, "optimizer_step": 9 * GiB},
        components=components,
        allocated_interval=Interval(22 * GiB, 22 * GiB),
        reserved_interval=Interval(22 * GiB, 23 * GiB),
        device_interval=Interval(device - 100 * MiB, device + GiB),
        assumptions=(("framework_version", "torch 2.13", "not stated in the config"),),
    )


def make_finding(
    line: int = 3,
    code: str = "MEM201",
    severity: str = ERROR,
    message: str = "128 samples x 64 groups dominate",
    path: str = "configs/demo.yaml",
    **fields: object,
) -> Finding:
    span = Span(path, line, 3, line, 13)
    finding = Finding(code, "token-explosion", severity, message, span, key="dataloader.batch_size")
    return finding._replace(**fields)  # type: ignore[arg-type]


def make_run(*findings: Finding, path: str = "configs/demo.yaml", text: str = TEXT, run: str = "train") -> RunReport:
    estimate = make_estimate()
    budget = Budget(16 * GiB, "--budget 16GB")
    return RunReport(
        path=path,
        run=run,
        family="demo",
        model_name="Demo ViT-B",
        estimate=estimate,
        verdict=estimate.verdict(budget.size_bytes),
        budget=budget,
        findings=findings,
        unresolved=(UnresolvedValue("data.path", 4, "environment variable", path),),
        facts={
            "micro_batch_size": StatedFact("dataloader.batch_size", 128, 3, path),
            "groups": StatedFact("model.num_group", 64, 0, ""),
        },
        sources={path: text},
    )


@pytest.fixture
def report() -> Report:
    place = Span("configs/demo.yaml", 3, 15, 3, 18)
    fix = Fix("batch_size 128 -> 32", DISPLAY, (Edit(place, "32"),), 8 * GiB, 14 * GiB, True)
    related = (Span("configs/demo.yaml", 4, 3, 4, 10), "shuffle: True")
    main = make_finding(size_bytes=18 * GiB, fixes=(fix,), related=(related,), notes=("grows linearly",))
    other = make_finding(4, "MEM501", WARNING, "workers hold 3 copies", fixes=(Fix("fewer", SAFE, ()),))
    unknown = make_run(make_finding(1, "MEM007", INFO, "no memory estimate"), path="configs/other.yaml")
    unknown = unknown._replace(estimate=None, verdict="UNKNOWN", model_name="")
    return Report((make_run(main, other), unknown), 0.0815)
