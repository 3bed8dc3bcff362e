"""``memlint record``: trace a model once into a profile that ``check`` evaluates without PyTorch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from memlint.cli import options as shared

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.settings import Allowance, Settings


@click.command("record", short_help="Record a model's memory as formulas.")
@click.argument("path", metavar="TARGET")
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="[NAME=]KEY[:FACT]",
    help="A key of the config whose number is a dimension: B=data.batch_size:micro_batch_size. Repeatable. Without it,"
    " those that the config's family or their names tell.",
)
@click.option("--output", default="", metavar="FILE", help="Where to write it; beside the config if not given.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after this time.")
@shared.settings_options
def command(path: str, dims: tuple[str, ...], output: str, timeout: float | None, **options: Any) -> None:
    """Trace the training step of TARGET, a config, with symbolic batch, sequence and resolution.

    This runs the model's code (in a process of its own, on fake tensors; no GPU is needed). What it takes is PyTorch,
    and a way to build the model: [probe] in memlint.toml, or a model.py beside the config.
    """
    from memlint.check import check_paths
    from memlint.measure.child import MeasureError, measure
    from memlint.measure.request import request_for
    from memlint.profiles.dimensions import DimensionError, choose
    from memlint.profiles.profile import SUFFIX
    from memlint.settings import SettingsError

    target = os.path.abspath(output or path + SUFFIX)
    resolver = shared.resolver({**options, "select": ["MEM003"]})
    answers: list[dict[str, Any]] = []

    def record(spec: TrainingSpec, settings: Settings, allowed: Allowance) -> Any:
        if answers:
            raise MeasureError("states several runs; a profile is of one: name it with -o, or split the file")
        if spec.get("framework") == "jax":
            raise MeasureError("is a JAX run, whose sizes PyTorch cannot carry as symbols: memlint check --trace")
        try:
            chosen = choose(spec, dims)
        except DimensionError as error:
            raise MeasureError(str(error)) from None
        for one in chosen:
            shared.note(f"{one['name']}: {one['fact']}, {one['key'] or 'not in the config'} = {one['value']}")
        request = request_for("record", spec, settings, allowed, dimensions=chosen, output=target)
        answers.append(measure(request, timeout, shared.note))
        return None

    try:
        report = check_paths([path], resolver, lint=True, measure=record)
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    for named, why in (*report.errors, *report.skipped):
        raise shared.Stop(f"{named}: {why}")
    for finding in report.findings:
        if finding.code == "MEM003":
            raise shared.Stop(f"{finding.span.path}:{finding.span.line}: {finding.message}")
    if not answers:
        raise shared.Stop(f"{path}: there is nothing to record")
    text = answers[0]["profile"]
    shared.write_file(target, text, folders=True)
    checked = answers[0]["checked"]
    shown = os.path.relpath(target)
    shared.out(f"{shown}: {len(text) / 1024:.0f} KiB, compared with a fresh trace at {checked} other settings\n")
    for line in answers[0]["notes"]:
        shared.out(f"  {line}\n")
