"""What the commands share: options, colours, and writing text out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from memlint.reports.full import Style
    from memlint.settings import Resolver

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Stop(click.ClickException):
    """An error of the invocation: exit code 2, as for every option that cannot be used."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        from memlint.reports.text import clean

        super().__init__(clean(message))


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
    """``--budget``, ``--gpu`` and ``--host-budget``."""
    for option in (
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
        click.option("--config", metavar="FILE", default="", help="Settings file to use instead of the nearest."),
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


color_option = click.option(
    "--color",
    type=click.Choice(("auto", "always", "never")),
    help="When to colour the output; auto obeys NO_COLOR, then FORCE_COLOR, then the terminal.",
)


def resolver(options: dict[str, Any]) -> Resolver:
    """Settings from the options that were given (and only those). Ends the program for bad ones."""
    from memlint.settings import Resolver, SettingsError

    values = {
        key.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if key not in ("config", "isolated") and value not in (None, (), False, "")
    }
    try:
        return Resolver(values, options.get("config", ""), options.get("isolated", False))
    except SettingsError as error:
        raise Stop(str(error)) from None


def use_color(choice: str) -> bool:
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def style(color: str, verbose: bool = False, quiet: bool = False) -> Style:
    """How to print to standard output."""
    from memlint.reports.full import Style

    return Style(
        color=use_color(color),
        unicode=(sys.stdout.encoding or "").lower().replace("-", "").startswith("utf"),
        actions=os.environ.get("GITHUB_ACTIONS") == "true",
        verbose=verbose,
        quiet=quiet,
    )


def out(text: str, color: bool = False) -> None:
    """Text to standard output; what its encoding lacks is shown as an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, color=color)


def note(text: str) -> None:
    """One line to standard error, with foreign text made harmless."""
    from memlint.reports.text import clean, harmless_in_actions

    line = clean(text)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        line = harmless_in_actions(line)
    encoding = sys.stderr.encoding or "utf-8"
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding), err=True)


def write_file(path: str, text: str) -> None:
    """Write a whole file or nothing: beside it first, then in its place. Ends the program where it cannot."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:  # a device or a pipe has no other place
                file.write(data)
            return
        target = os.path.realpath(path)
        beside = f"{target}.{os.getpid()}.tmp"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            if os.path.exists(target):
                os.chmod(beside, os.stat(target).st_mode & 0o7777)
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise Stop(f"{path}: cannot be written: {error.strerror}") from None
