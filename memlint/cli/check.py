"""``memlint check``: the main job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from memlint.cli import options as shared
from memlint.cli.probe import measurer, probe_options

if TYPE_CHECKING:
    from memlint.check import Measure
    from memlint.reports.report import Report
    from memlint.settings import Resolver, Settings

STDIN_NAME = "stdin.yaml"


@click.command("check", short_help="Lint training configs.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@shared.memory_options
@shared.settings_options
@shared.rule_options
@click.option(
    "--fail-on",
    type=click.Choice(("error", "warning", "info")),
    help="Least severity that makes the exit code 1 (default: error).",
)
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.option(
    "--output-format",
    type=click.Choice(("full", "concise", "json", "github")),
    help="What to print (default: full).",
)
@click.option("--output-file", metavar="FILE", help="Write the output to a file instead.")
@click.option("--report", multiple=True, metavar="FORMAT=FILE", help="Write another report. Repeatable.")
@click.option(
    "--trace",
    is_flag=True,
    help="Also run the model under fake tensors, without a GPU, beside the static estimate. Runs the linted code.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Also run training steps for real and measure them, beside the static estimate. Runs the linted code.",
)
@probe_options
@click.option("--no-ignores", is_flag=True, help="Disregard suppression comments.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files to leave out of walks. Repeatable.")
@click.option("--extend-exclude", multiple=True, metavar="PATTERN", help="Leave these out too. Repeatable.")
@click.option("--force-exclude", is_flag=True, help="Leave excluded files out even if they are named.")
@click.option("--stdin-filename", metavar="NAME", default="", help="Name of the text read from PATH -.")
@click.option("--statistics", is_flag=True, help="Also print findings and time per rule.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked, and stop.")
@click.option("-q", "--quiet", is_flag=True, help="Print findings only.")
@click.option("-v", "--verbose", is_flag=True, help="Also print assumptions and what was passed over.")
@shared.color_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    stdin_filename: str,
    trace: bool,
    probe: bool,
    probe_device: str,
    probe_timeout: float,
    **options: Any,
) -> None:
    """Check training configs: files, folders (default: this one), or - for standard input.

    Exit code 0: nothing at or above --fail-on. 1: findings. 2: a bad option or settings file, an unreadable file,
    or an internal error.
    """
    from memlint.check import check_paths, check_text
    from memlint.settings import SettingsError

    paths = paths or (".",)
    if "-" in paths and len(paths) > 1:
        raise click.UsageError("- (standard input) cannot be combined with other paths", ctx)
    if stdin_filename and paths != ("-",):
        raise click.UsageError("--stdin-filename goes with the path -", ctx)
    resolver = shared.resolver(options)
    # Not a setting: whether linted code is run is for whoever calls to say, not for a file that came with it.
    if trace and probe:
        raise click.UsageError("give --trace or --probe, not both: the report has room for one", ctx)
    measure: Measure | None = None
    if trace:
        measure = measurer("trace", options["quiet"])
    elif probe:
        measure = measurer("probe", options["quiet"], probe_timeout, device=probe_device)
    try:
        if paths == ("-",):
            name = stdin_filename or STDIN_NAME
            settings = resolver.for_path(name)
            report = check_text(name, _stdin(), resolver, formulas=_formulas(settings), measure=measure)
        else:
            settings = resolver.for_path(_common(paths))
            if settings.show_files:
                _show_files(paths, resolver)
                return
            report = check_paths(paths, resolver, formulas=_formulas(settings), measure=measure)
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    _tell(report, paths, settings)
    emit(report, settings)
    ctx.exit(report.exit_code(settings.fail_on, settings.exit_zero))


def _common(paths: tuple[str, ...]) -> str:
    """The deepest folder that holds all paths: its settings decide about the invocation (format, exit code)."""
    absolute = [os.path.abspath(path) for path in paths]
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in absolute]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # different drives
        return os.getcwd()


def _formulas(settings: Settings) -> bool:
    formats = [settings.output_format, *(entry.partition("=")[0] for entry in settings.report)]
    return "json" in formats


def _stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        return str(data, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise shared.Stop(f"standard input is not UTF-8 text (byte {error.start})") from None


def _show_files(paths: tuple[str, ...], resolver: Resolver) -> None:
    from memlint.check import check_paths
    from memlint.reports.text import clean

    report = check_paths(paths, resolver, lint=False)
    listed = dict.fromkeys(run.path for run in report.runs if run.family)
    shared.out("".join(f"{clean(path)}\n" for path in listed))
    for path, why in report.errors:
        shared.note(f"memlint: error: {path}: {why}")
    if report.crashed:
        raise SystemExit(2)


def _tell(report: Report, paths: tuple[str, ...], settings: Settings) -> None:
    """What belongs to no run, to standard error."""
    for path, why in report.errors:
        shared.note(f"memlint: error: {path}: {why}")
    if not settings.quiet:
        for path, why in report.skipped:
            shared.note(f"memlint: {path}: skipped, {why}")
        if settings.verbose:
            for path, why in report.unparsed:
                shared.note(f"memlint: {path}: passed over, {why}")
        elif report.unparsed:
            files = "1 file" if len(report.unparsed) == 1 else f"{len(report.unparsed)} files"
            shared.note(f"memlint: {files} could not be parsed, passed over (-v lists them)")
    if not (report.runs or report.errors or report.skipped or settings.quiet):
        shared.note(f"memlint: no training configs found in {', '.join(paths)}")


def render(report: Report, name: str, color: bool, plain: bool, settings: Settings) -> str:
    """The report in one format. ``plain``: for a file, so no colours and no terminal."""
    if name == "json":
        from memlint.reports import json

        return json.render(report)
    if name == "github":
        from memlint.reports import github

        return github.render(report)
    style = shared.style("never" if plain else settings.color, settings.verbose, settings.quiet)
    style = style._replace(color=color, unicode=style.unicode or plain, actions=style.actions and not plain)
    if name == "concise":
        from memlint.reports import concise

        return concise.render(report, style)
    from memlint.reports import full

    return full.render(report, style) if report.runs else ""


def emit(report: Report, settings: Settings) -> None:
    """Write the report wherever the settings want it."""
    color = not settings.output_file and shared.use_color(settings.color)
    text = render(report, settings.output_format, color, bool(settings.output_file), settings)
    machine = settings.output_format in ("json", "github")
    if settings.statistics:
        from memlint.reports.full import statistics

        if machine or settings.output_file:
            for line in statistics(report).splitlines():
                shared.note(line)
        else:
            text += ("\n" if text else "") + statistics(report)
    if settings.output_file:
        shared.write_file(settings.output_file, text)
    else:
        shared.out(text, color)
    for entry in settings.report:
        name, _, path = entry.partition("=")
        shared.write_file(path, render(report, name, False, True, settings))
    if settings.output_format == "github":
        from memlint.reports.github import write_summary

        try:
            write_summary(report)
        except OSError as error:
            raise shared.Stop(f"the job summary cannot be written: {error.strerror}") from None
