"""What the commands say, and where: text out, files, errors of the invocation. Without click, which a plain check does
not need (:mod:`memlint.cli.plain`)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlint.reports.full import Style
    from memlint.settings import Resolver


class Stop(Exception):
    """An error of the invocation, which ends the program: exit code 2, as for every option that cannot be used."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        from memlint.reports.text import clean

        super().__init__(clean(message))


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


def echo(text: str, nl: bool = True, err: bool = False, color: bool | None = None) -> None:
    """As ``click.echo``, which knows more of terminals, does where it is loaded."""
    if "click" in sys.modules:
        import click

        click.echo(text, nl=nl, err=err, color=color)
        return
    stream = sys.stderr if err else sys.stdout
    stream.write(text + "\n" if nl else text)
    stream.flush()


def out(text: str, color: bool = False) -> None:
    """Text to standard output; what its encoding lacks is shown as an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, color=color)


def note(text: str) -> None:
    """One line to standard error, with foreign text made harmless."""
    from memlint.reports.text import clean, harmless_in_actions

    line = clean(text)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        line = harmless_in_actions(line)
    encoding = sys.stderr.encoding or "utf-8"
    echo(line.encode(encoding, "backslashreplace").decode(encoding), err=True)


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
