"""``memlint explain``: where every byte of the peak comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from memlint.cli import options as shared
from memlint.units import format_bytes

if TYPE_CHECKING:
    from memlint.reports.full import Style
    from memlint.reports.report import RunReport
    from memlint.tape.estimate import Component, Part


@click.command("explain", short_help="Show where the memory goes.")
@click.argument("path", metavar="CONFIG")
@shared.memory_options
@shared.settings_options
@click.option("--run", "run_name", default="", metavar="NAME", help="Only this run of a file with several.")
@click.option("--parts", default=12, show_default=True, metavar="N", help="Modules to list per component.")
@shared.work_option
@shared.color_option
@shared.cached
def command(path: str, run_name: str, parts: int, color: str | None, **options: Any) -> None:
    """Show the peak of CONFIG by component and module, with the formula and the config lines behind each figure."""
    from memlint.check import check_paths
    from memlint.reports.full import finish
    from memlint.settings import SettingsError

    if parts < 1:
        raise click.BadParameter("must be at least 1", param_hint="--parts")
    # Only what can stand in the way of an estimate; `check` runs the other rules.
    resolver = shared.resolver({**options, "select": ["MEM003", "MEM007"]})
    try:
        settings = resolver.for_path(path)
        report = check_paths([path], resolver, formulas=True)
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    for named, why in (*report.errors, *report.skipped):
        raise shared.Stop(f"{named}: {why}")
    if not report.runs:
        raise shared.Stop(f"{path}: no training config")
    runs = [run for run in report.runs if run_name in ("", run.run)]
    if not runs:
        names = ", ".join(run.run for run in report.runs) or "none"
        raise shared.Stop(f"{path}: has no run named {run_name!r} (runs: {names})")
    style = shared.style(color or settings.color, verbose=True)
    lines: list[str] = []
    for run in runs:
        lines += [*(("",) if lines else ()), *_run(run, style, parts)]
    shared.out(finish(lines, style), style.color)
    if report.crashed or any(run.estimate is None for run in runs):
        raise SystemExit(2)


def _run(run: RunReport, style: Style, parts: int) -> Iterator[str]:
    from memlint.reports.full import BOLD, bar, headline, table
    from memlint.reports.text import clean

    yield from headline(run, style).splitlines()
    estimate = run.estimate
    if estimate is None:
        if run.partial is not None and not run.partial.at_least:
            yield from table(run.partial, run.budget, style)
        # Whatever stood in the way: a fault of the text, an unknown model, an internal error.
        for finding in run.findings:
            if finding.code.startswith("MEM00"):
                yield f"  {finding.code} {clean(finding.message)} ({clean(run.path)}:{finding.span.line})"
        return
    for title, size, interval in (
        ("allocated", estimate.allocated_bytes, estimate.allocated_interval),
        ("reserved", estimate.reserved_bytes, estimate.reserved_interval),
        ("device", estimate.device_bytes, estimate.device_interval),
    ):
        low, high = interval
        within = "" if low == high else f"  ({format_bytes(low)} to {format_bytes(high)})"
        yield f"  {title:<10} {format_bytes(size):>10}{within}"
    yield ""
    yield style.paint("Phases (peak of allocated memory within each)", BOLD)
    top = max([*estimate.phases.values(), 1])
    for phase, size in estimate.phases.items():
        name = phase.replace("_", " ")
        mark = "  <- peak" if phase == estimate.peak_phase else ""
        yield f"  {name:<15} {format_bytes(size):>10}  {bar(size / top, style)}{mark}"
    yield ""
    yield style.paint("At the peak", BOLD)
    whole = max(estimate.device_bytes, 1)
    for component in sorted(estimate.components, key=lambda entry: -entry.size_bytes):
        yield from _component(component, component.size_bytes / whole, run, style, parts)
    yield from _fine_print(run, style)


def _component(component: Component, share: float, run: RunReport, style: Style, limit: int) -> Iterator[str]:
    from memlint.reports.full import BAR_COLUMNS, BLUE, bar

    name = component.name.replace("_", " ")
    drawn = style.paint(bar(share, style).ljust(BAR_COLUMNS), BLUE)
    yield f"  {name:<15} {format_bytes(component.size_bytes):>10}  {drawn} {share:5.1%}"
    ordered = sorted(component.parts, key=lambda part: -part.size_bytes)
    if len(ordered) == 1 and ordered[0].name in ("", component.name) and not ordered[0].formula:
        return
    for part in ordered[:limit]:
        yield from _part(part, run, style)
    rest = ordered[limit:]
    if rest:
        size = format_bytes(sum(part.size_bytes for part in rest))
        yield f"    {size:>10}  {len(rest)} more module{'s' * (len(rest) != 1)} (--parts {len(ordered)} lists them)"


def _part(part: Part, run: RunReport, style: Style) -> Iterator[str]:
    from memlint.reports.full import DIM
    from memlint.reports.text import clean, shorten

    title = f" ({part.title})" if part.title else ""
    yield f"    {format_bytes(part.size_bytes):>10}  {clean(part.name or '(top)')}{title}"
    if part.symbols:  # a formula without them is the number again
        yield style.paint(f"                = {clean(shorten(part.formula, 400))} bytes", DIM)
    for symbol, fact in part.symbols:
        if fact in run.facts:
            stated = run.facts[fact]
            place = f"{clean(stated.path)}:{stated.line}" if stated.path else "not written in the config"
            said = f"{clean(stated.key)} = {clean(shorten(str(stated.value), 60))}"
            yield style.paint(f"                  {clean(symbol)}: {said}  {place}", DIM)


def _fine_print(run: RunReport, style: Style) -> Iterator[str]:
    from memlint.reports.full import BOLD
    from memlint.reports.text import clean

    assert run.estimate is not None
    if run.estimate.assumptions:
        yield ""
        yield style.paint("Assumed", BOLD)
        for fact, value, reason in run.estimate.assumptions:
            yield f"  {clean(fact)} = {clean(value)}" + (f"  ({clean(reason)})" if reason else "")
    if run.unresolved:
        yield ""
        yield style.paint("Unresolved", BOLD)
        for entry in run.unresolved:
            yield f"  {clean(entry.key)}  {clean(entry.path)}:{entry.line}  ({clean(entry.reason)})"
