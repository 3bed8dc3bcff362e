"""``memlint probe``: run a config's training step for real, and show where its memory went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memlint.cli import options as shared

if TYPE_CHECKING:
    from memlint.check import Measure
    from memlint.reports.full import Style
    from memlint.reports.report import RunReport

_Function = TypeVar("_Function", bound=Callable[..., Any])
TIMEOUT_S = 600.0


def probe_options(function: _Function) -> _Function:
    """``--probe-timeout`` and ``--probe-device``."""
    for option in (
        click.option(
            "--probe-device",
            type=click.Choice(("cuda", "cpu")),
            default="cuda",
            show_default=True,
            help="Where the steps run; cpu runs the same steps without a card.",
        ),
        click.option(
            "--probe-timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=TIMEOUT_S,
            show_default=True,
            metavar="SECONDS",
            help="End a run that takes longer.",
        ),
    ):
        function = option(function)
    return function


def measurer(kind: str, quiet: bool, timeout_s: float | None = None, **options: Any) -> Measure:
    """What a check asks for each run: a trace or a probe, with its progress on standard error."""
    from memlint.measure import run

    progress = None if quiet else lambda line: shared.note(f"memlint: {line}")
    return run.measurer(kind, timeout_s=timeout_s, progress=progress, **options)


@click.command("probe", short_help="Run a training step for real and measure it.")
@click.argument("path", metavar="CONFIG")
@shared.memory_options
@shared.settings_options
@click.option("--run", "run_name", default="", metavar="NAME", help="Only this run of a file with several.")
@click.option("--parts", default=12, show_default=True, metavar="N", help="Modules to list per component.")
@click.option("--snapshot", default="", metavar="FILE", help="Write the allocator's history for PyTorch's viewer.")
@probe_options
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@shared.color_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: str,
    run_name: str,
    parts: int,
    snapshot: str,
    probe_device: str,
    probe_timeout: float,
    quiet: bool,
    color: str | None,
    **options: Any,
) -> None:
    """Run two training steps of CONFIG in a process of their own, and show the measured memory by component and module
    beside the estimate. Runs the code that CONFIG belongs to. Exit code 1: the step ran out of memory, or does not fit.
    """
    import os

    from memlint.check import check_paths
    from memlint.measure.request import PROBE
    from memlint.reports.full import finish
    from memlint.settings import SettingsError

    if parts < 1:
        raise click.BadParameter("must be at least 1", param_hint="--parts")
    resolver = shared.resolver({**options, "select": ["MEM003", "MEM007"]})
    measure = measurer(
        PROBE,
        quiet,
        probe_timeout,
        device=probe_device,
        snapshot=os.path.abspath(snapshot) if snapshot else "",
    )
    try:
        settings = resolver.for_path(path)
        report = check_paths([path], resolver, measure=_only(measure, run_name))
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    runs = [run for run in report.runs if run_name in ("", run.run)]
    if report.runs and not runs:
        names = ", ".join(run.run for run in report.runs)
        raise shared.Stop(f"{path}: has no run named {run_name!r} (runs: {names})")
    for named, why in (*report.errors, *report.skipped):
        shared.note(f"memlint: error: {named}: {why}")
    style = shared.style(color or settings.color, verbose=True)
    lines: list[str] = []
    for run in runs:
        if run.measured is not None:
            lines += [*(("",) if lines else ()), *_run(run, style, parts)]
    shared.out(finish(lines, style), style.color)
    ctx.exit(2 if report.skipped else report.exit_code())


def _only(measure: Measure, name: str) -> Measure:
    """Measure the named run alone."""

    def one(spec: Any, settings: Any, allowed: Any) -> Any:
        return measure(spec, settings, allowed) if name in ("", spec.run) else None

    return one


def _run(run: RunReport, style: Style, parts: int) -> Iterator[str]:
    from memlint.reports.full import BOLD, breakdown, headline, side_by_side

    assert run.measured is not None
    yield from headline(run, style).splitlines()
    yield ""
    yield from side_by_side(run.measured, run.estimate, style)
    yield ""
    yield style.paint("Measured, at the peak", BOLD)
    yield from breakdown(run.measured.estimate, style, parts)
