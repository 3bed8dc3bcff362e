"""``memlint check``: the main job."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from memlint.cli import checking
from memlint.cli import options as shared
from memlint.cli.probe import measurer, probe_options
from memlint.setting_values import FAIL_ON, FORMATS

if TYPE_CHECKING:
    from memlint.checking.invocation import Measure


@click.command("check", short_help="Lint training configs.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@shared.memory_options
@shared.settings_options
@shared.rule_options
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    help="What makes the exit code 1: findings of this severity and above (default: error); tight: errors, and runs "
    "that are OOM or TIGHT; unknown: also those without a verdict.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail also for what was not checked: UNKNOWN runs, files that cannot be parsed or are no config, no configs.",
)
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.option(
    "--output-format",
    type=click.Choice(FORMATS),
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
@shared.jobs_option
@shared.cache_options
@shared.work_option
@click.option("--baseline", metavar="FILE", help="Do not report the findings that this file knows.")
@click.option("--write-baseline", metavar="FILE", help="Write the findings to a file of known ones, and stop.")
@click.option(
    "--add-ignore",
    metavar="REASON",
    help="Write a suppression comment with this reason at every finding, and stop.",
)
@click.option(
    "--changed-since",
    metavar="REV",
    help="Check only runs that read a file that differs from where HEAD parted from this git revision.",
)
@shared.fix_options
@click.option("--no-ignores", is_flag=True, help="Disregard suppression comments.")
@click.option("--require-ignore-reason", is_flag=True, help="Suppression comments without a reason are MEM005.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files to leave out of walks. Repeatable.")
@click.option("--extend-exclude", multiple=True, metavar="PATTERN", help="Leave these out too. Repeatable.")
@click.option("--force-exclude", is_flag=True, help="Leave excluded files out even if they are named.")
@click.option("--stdin-filename", metavar="NAME", default="", help="Name of the text read from PATH -.")
@click.option("--statistics", is_flag=True, help="Also print findings and time per rule.")
@click.option("--show-files", is_flag=True, help="List the files that would be checked, and stop.")
@click.option("-q", "--quiet", is_flag=True, help="Print verdicts and findings only.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show every run and finding, assumptions, what was passed over.",
)
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
    fix: bool,
    unsafe_fixes: bool,
    fix_only: bool,
    diff: bool,
    fixable: list[str] | None,
    unfixable: list[str] | None,
    exit_non_zero_on_fix: bool,
    jobs: int,
    cache_dir: str,
    no_cache: bool,
    **options: Any,
) -> None:
    """Check training configs: files, folders (default: this one), or - for standard input.

    Exit code 0: nothing that --fail-on or --strict names. 1: something does. 2: anything else, such as a bad option or
    settings file, an unreadable file, an internal error, or an interrupted check.

    With --fix these are of what is left. With --fix-only 0, with --diff 1 if anything would be fixed.
    """
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
    folder = shared.cache_folder(cache_dir, no_cache, paths)
    if fix or fix_only or diff:
        if paths == ("-",) or measure is not None or options["show_files"]:
            raise click.UsageError("fixes go with files alone: not with -, --trace, --probe or --show-files", ctx)
        from memlint.cli import fixing
        from memlint.estimates import kept_in

        rules = tuple(fixable or ()), tuple(unfixable or ())
        wish = fixing.Wish(unsafe_fixes, *rules, diff, fix_only, exit_non_zero_on_fix)
        with kept_in(folder) if folder else nullcontext():
            code = fixing.run(paths, resolver, wish)
        ctx.exit(code)
    if unsafe_fixes or fixable or unfixable or exit_non_zero_on_fix:
        raise click.UsageError("--unsafe-fixes and its kin go with --fix, --fix-only or --diff", ctx)
    ctx.exit(checking.run(paths, resolver, stdin_filename, measure, folder, jobs))
