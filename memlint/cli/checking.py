"""What ``memlint check`` does once its options are read."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING

from memlint.cli import output
from memlint.settings import common_folder as common_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from memlint.checking.invocation import Measure
    from memlint.reports.report import Report
    from memlint.settings import Resolver, Settings

STDIN_NAME = "stdin.yaml"

# Formats that programs read, each a module of memlint.reports; the others are text for a terminal.
MACHINE = frozenset(("json", "json-lines", "github", "gitlab", "junit", "markdown", "rdjson", "sarif"))
MOST_NAMED = 5  # of the paths in which nothing was found
MOST_UNLISTED = 3  # of the commands that a report does not list, where it lists nothing else


def run(
    paths: tuple[str, ...],
    resolver: Resolver,
    stdin_filename: str = "",
    measure: Measure | None = None,
    cache_folder: str = "",
    jobs: int = 1,
) -> int:
    """Check, and say it. Returns the exit code; raises Stop for settings that cannot be used.

    cache_folder  where estimates are kept between invocations; "" for nowhere
    jobs          processes that work on it, 0 for one a core
    """
    from memlint.cli import known
    from memlint.settings import SettingsError

    try:
        os.getcwd()
    except OSError as error:
        raise output.Stop(f"the working folder is gone: {error.strerror}") from None
    try:
        if paths == ("-",):
            settings = resolver.for_path(stdin_filename or STDIN_NAME)
            report = _of_stdin(stdin_filename or STDIN_NAME, settings, resolver, measure, cache_folder)
        else:
            settings = resolver.for_path(common_folder(paths))
            if settings.show_files:
                _show_files(paths, resolver)
                return 0
            report = _of_files(paths, settings, resolver, measure, cache_folder, jobs)
    except SettingsError as error:
        raise output.Stop(str(error)) from None
    if settings.write_baseline:
        return known.write(report, settings)
    if settings.add_ignore:
        return known.silence(report, settings, resolver)
    report = known.held_against(report, settings)
    tell(report, paths, settings)
    emit(report, settings)
    return report.exit_code(settings.fail_on, settings.exit_zero, settings.strict)


def _of_stdin(name: str, settings: Settings, resolver: Resolver, measure: Measure | None, cache_folder: str) -> Report:
    from memlint.check import check_text
    from memlint.estimates import kept_in

    if settings.add_ignore:
        raise output.Stop("--add-ignore writes into files, and - is none")
    formulas, details = _wanted(settings)
    text = _stdin()
    with kept_in(cache_folder) if cache_folder else nullcontext():
        return check_text(name, text, resolver, measure=measure, formulas=formulas, details=details)


def _of_files(
    paths: tuple[str, ...],
    settings: Settings,
    resolver: Resolver,
    measure: Measure | None,
    cache_folder: str,
    jobs: int,
) -> Report:
    """Of an interrupted check, what it had come to."""
    from memlint.check import Interrupted, check_paths
    from memlint.cli.progress import Progress
    from memlint.estimates import kept_in

    if jobs != 1:
        from memlint.cli.jobs import Jobs
    silent = settings.quiet or measure is not None  # which says itself how far it is
    progress, jobs = Progress(silent), jobs or os.cpu_count() or 1
    try:
        formulas, details = _wanted(settings)
        closer = _closer(paths, settings) if details and measure is None else None
        details = details and closer is None
        changed = _changed(settings, paths)
        with ExitStack() as ends:
            if jobs > 1 and not cache_folder:
                from tempfile import TemporaryDirectory

                cache_folder = ends.enter_context(TemporaryDirectory(prefix="memlint-"))
            if cache_folder:
                ends.enter_context(kept_in(cache_folder))
            ends.callback(progress.clear)
            return check_paths(
                paths,
                resolver,
                measure=measure,
                formulas=formulas,
                details=details,
                closer=closer,
                changed=changed,
                progress=progress.of_files(),
                share=Jobs(jobs, paths, resolver, cache_folder).share if jobs > 1 else None,
            )
    except Interrupted as ended:
        return ended.report


def _changed(settings: Settings, paths: tuple[str, ...]) -> frozenset[str] | None:
    """The files that differ from where HEAD parted from a revision; None where none is asked for. Raises Stop."""
    if not settings.changed_since:
        return None
    from memlint.revisions import Repository, RevisionError

    try:
        repository = Repository.of(common_folder(paths))
        base = repository.commit(settings.changed_since)
        return repository.changed_since(repository.merge_base(base, repository.commit("HEAD")))
    except RevisionError as error:
        raise output.Stop(f"--changed-since: {error}") from None


def _wanted(settings: Settings) -> tuple[bool, bool]:
    """What the formats that are asked for show: whether formulas, and fixes and notes, have to be made at all."""
    formats = {settings.output_format, *(entry.partition("=")[0] for entry in settings.report)}
    return bool(formats & {"json", "json-lines"}), formats != {"concise"}


def _closer(paths: tuple[str, ...], settings: Settings) -> Callable[[Report], Collection[str]] | None:
    """Which files' fixes a text for people shows, where it may be of many runs and is an overview of them; None where
    it tells all of them."""
    from memlint.reports import overview

    few = len(paths) <= overview.DETAILED and not any(map(os.path.isdir, paths))
    if few or settings.verbose or settings.output_format != "full" or settings.report:
        return None
    return overview.looked_at


def _stdin() -> str:
    from memlint.documents.load import MAX_BYTES

    if sys.stdin is None:
        raise output.Stop("standard input is closed")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise output.Stop(f"standard input is larger than {MAX_BYTES // 2**20} MiB, which no config is")
    try:
        return str(data, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise output.Stop(f"standard input is not UTF-8 text (byte {error.start})") from None


def _show_files(paths: tuple[str, ...], resolver: Resolver) -> None:
    from memlint.check import check_paths
    from memlint.reports.text import clean

    report = check_paths(paths, resolver, lint=False)
    listed = dict.fromkeys(run.path for run in report.runs if run.family)
    output.out("".join(f"{clean(path)}\n" for path in listed))
    for path, why in report.errors:
        output.note(f"memlint: error: {path}: {why}")
    if report.crashed:
        raise SystemExit(2)


def tell(report: Report, paths: tuple[str, ...], settings: Settings) -> None:
    """What belongs to no run, to standard error: what was passed over, and what fails the check."""
    from memlint.reports.report import VERDICTS_FAILING

    for path, why in report.errors:
        output.note(f"memlint: error: {path}: {why}")
    if not settings.quiet:
        for path, why in report.skipped:
            output.note(f"memlint: {path}: skipped, {why}")
        if settings.verbose:
            for path, why in report.unparsed:
                output.note(f"memlint: {path}: passed over, {why}")
        elif report.unparsed:
            files = "1 file" if len(report.unparsed) == 1 else f"{len(report.unparsed)} files"
            output.note(f"memlint: {files} could not be parsed, passed over (-v lists them)")
        if report.empty and (settings.strict or settings.verbose):
            for path in report.empty:
                output.note(f"memlint: {path}: is empty")
        told = len(report.unlisted) if settings.verbose else 0 if report.runs else MOST_UNLISTED
        for place, why in report.unlisted[:told]:
            output.note(f"memlint: {place}: not listed, {why}")
        if left := len(report.unlisted[told:]):
            commands = f"{left} {'more ' * bool(told)}command{'s' * (left != 1)}"
            output.note(f"memlint: {commands} in documents without an estimate, not listed (-v lists them)")
    if not (report.runs or report.errors or report.skipped or settings.quiet):
        found = "no training run with an estimate" if report.unlisted else "no training configs found"
        more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
        output.note(f"memlint: {found} in {', '.join(paths[:MOST_NAMED])}{more}")
    failures = () if settings.exit_zero else report.failures(settings.fail_on, settings.strict)
    if failures and (settings.strict or settings.fail_on in VERDICTS_FAILING):
        policy = f"--fail-on {settings.fail_on}" + (" --strict" if settings.strict else "")
        output.note(f"memlint: failed by {policy}: {', '.join(failures)}")


def render(report: Report, name: str, color: bool, plain: bool, settings: Settings) -> str:
    """The report in one format. ``plain``: for a file, so no colours and no terminal."""
    if name in MACHINE:
        from importlib import import_module

        module = import_module(f"memlint.reports.{name.replace('-', '_')}")
        return str(module.render(report))
    style = output.style("never" if plain else settings.color, settings.verbose, settings.quiet)
    style = style._replace(color=color, unicode=style.unicode or plain, actions=style.actions and not plain)
    if plain:
        style = style._replace(columns=0)
    if name == "concise":
        from memlint.reports import concise

        return concise.render(report, style)
    from memlint.reports import full

    return full.render(report, style) if report.runs else ""


def emit(report: Report, settings: Settings) -> None:
    """Write the report wherever the settings want it. Raises Stop, once all is written that can be."""
    color = not settings.output_file and output.use_color(settings.color)
    text = render(report, settings.output_format, color, bool(settings.output_file), settings)
    machine = settings.output_format in MACHINE
    if settings.statistics:
        from memlint.reports.full import statistics

        if machine or settings.output_file:
            for line in statistics(report).splitlines():
                output.note(line)
        else:
            text += ("\n" if text else "") + statistics(report)
    failed: list[output.Stop] = []
    try:
        if settings.output_file:
            output.write_file(settings.output_file, text)
        else:
            output.out(text, color)
    except output.Stop as error:
        failed.append(error)
    for entry in settings.report:
        name, _, path = entry.partition("=")
        try:
            output.write_file(path, render(report, name, False, True, settings))
        except output.Stop as error:
            failed.append(error)
    if settings.output_format == "github":
        from memlint.reports.github import write_summary

        try:
            write_summary(report)
        except OSError as error:
            failed.append(output.Stop(f"the job summary cannot be written: {error.strerror}"))
    if failed:
        for stop in failed[:-1]:
            output.note(f"Error: {stop}")
        raise failed[-1]
