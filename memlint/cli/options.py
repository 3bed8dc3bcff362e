"""What the commands share: options, colours, and writing text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import click

from memlint.cli.output import Stop as Stop
from memlint.cli.output import cache_folder as cache_folder
from memlint.cli.output import create_files as create_files
from memlint.cli.output import note as note
from memlint.cli.output import out as out
from memlint.cli.output import refuse_links as refuse_links
from memlint.cli.output import resolver as resolver
from memlint.cli.output import style as style
from memlint.cli.output import use_color as use_color
from memlint.cli.output import write_file as write_file

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _codes(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[str] | None:
    """``MEM2,MEM305`` and repeated options alike."""
    codes = [code.strip() for value in values for code in value.split(",") if code.strip()]
    return codes or None


def _per_file(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for value in values:
        pattern, _, codes = value.rpartition(":")
        named = [code.strip() for code in codes.split(",") if code.strip()]
        if not pattern or not named:
            raise click.BadParameter(f"{value!r} is not PATTERN:CODES", ctx, parameter)
        found.setdefault(pattern, []).extend(named)
    return found or None


def memory_options(function: _Function) -> _Function:
    """``--budget``, ``--gpu``, ``--host-budget`` and ``--model-config``."""
    for option in (
        click.option(
            "--model-config",
            metavar="FILE",
            help="config.json of the model that is trained, whatever a config calls it.",
        ),
        click.option("--host-budget", metavar="SIZE", help="Host memory that the run may use."),
        click.option("--gpu", metavar="NAME[xN]", help="Card to run on: its memory is the budget (memlint gpus)."),
        click.option("--budget", metavar="SIZE", help="Device memory that the run may use: 16GB, 16GiB, 80g."),
    ):
        function = option(function)
    return function


def settings_options(function: _Function) -> _Function:
    """``-o``, ``--config`` and ``--isolated``."""
    for option in (
        click.option("--isolated", is_flag=True, help="Read no settings file."),
        click.option("--config", metavar="FILE", default="", help="Settings file to trust and use, not the nearest."),
        click.option(
            "-o",
            "--override",
            multiple=True,
            metavar="KEY=VALUE",
            help="Check the configs with a value changed; Hydra's dot list. Repeatable.",
        ),
    ):
        function = option(function)
    return function


def rule_options(function: _Function) -> _Function:
    """Which rules are on."""
    for option in (
        click.option("--preview", is_flag=True, help="Also run rules that are in preview."),
        click.option(
            "--per-file-ignores",
            multiple=True,
            metavar="PATTERN:CODES",
            callback=_per_file,
            help="Rules to leave out for some files. Repeatable.",
        ),
        click.option("--extend-ignore", multiple=True, metavar="CODES", callback=_codes, help="Leave these out too."),
        click.option("--extend-select", multiple=True, metavar="CODES", callback=_codes, help="Run these too."),
        click.option("--ignore", multiple=True, metavar="CODES", callback=_codes, help="Rules to leave out."),
        click.option(
            "--select",
            multiple=True,
            metavar="CODES",
            callback=_codes,
            help="Rules to run: codes, names or prefixes, with commas.",
        ),
    ):
        function = option(function)
    return function


def fix_options(function: _Function) -> _Function:
    """What is written into configs. None of it is a setting: a tree does not say that it may be written to."""
    for option in (
        click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit with 1 if anything was fixed."),
        click.option(
            "--unfixable", multiple=True, metavar="CODES", callback=_codes, help="Leave these rules' findings."
        ),
        click.option(
            "--fixable",
            multiple=True,
            metavar="CODES",
            callback=_codes,
            help="Fix these rules' findings only; named in full, also where it changes the optimisation.",
        ),
        click.option("--diff", is_flag=True, help="Print what --fix-only would change, as a patch; write nothing."),
        click.option("--fix-only", is_flag=True, help="As --fix, without a report of what is left."),
        click.option("--unsafe-fixes", is_flag=True, help="Also fixes that may change numerics or speed."),
        click.option("--fix", is_flag=True, help="Apply fixes that cannot change what is learned, report the rest."),
    ):
        function = option(function)
    return function


def cache_options(function: _Function) -> _Function:
    """``--cache-dir`` and ``--no-cache``: for who runs memlint to say, and no settings of a tree."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Take nothing from earlier checks, and leave nothing."),
        click.option(
            "--cache-dir",
            metavar="DIR",
            default="",
            help="Where estimates are kept between checks (default: $MEMLINT_CACHE_DIR, or memlint in the user's "
            "cache folder).",
        ),
    ):
        function = option(function)
    return function


def cached(function: _Function) -> _Function:
    """A command that estimates with the cache: the options, and nothing of them reaches it."""

    @cache_options
    @wraps(function)
    def command(*arguments: Any, cache_dir: str, no_cache: bool, **options: Any) -> Any:
        from memlint.estimates import kept_in

        paths = [options[name] for name in ("path", "before", "after") if options.get(name)]
        folder = cache_folder(cache_dir, no_cache, paths)
        with kept_in(folder) if folder else nullcontext():
            return function(*arguments, **options)

    return cast(_Function, command)


jobs_option = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=1,
    metavar="N",
    help="Processes that work on the files; 0 for as many as there are cores (default: 1).",
)

work_option = click.option(
    "--work-limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Work that one file may take, in million steps of about a microsecond (default: 8).",
)

color_option = click.option(
    "--color",
    type=click.Choice(("auto", "always", "never")),
    help="When to colour the output; auto obeys NO_COLOR, then FORCE_COLOR, then the terminal.",
)
