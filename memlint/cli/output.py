"""What the commands say, and where: text out, files, errors of the invocation. Without click, which a plain check does
not need (:mod:`memlint.cli.plain`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from memlint.trust import ancestors, is_within, tree_of

if TYPE_CHECKING:
    from memlint.reports.full import Style
    from memlint.settings import Resolver


DEBUG = "MEMLINT_DEBUG"  # environment variable: the whole traceback of what nobody expected


class Stop(Exception):
    """An error of the invocation, which ends the program: exit code 2, as for every option that cannot be used."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        from memlint.reports.text import clean

        super().__init__(clean(message))


class Unheard(Stop):
    """Standard output leads nowhere any more: whoever read it has seen enough. Nobody is told, and it is no success."""

    def __init__(self) -> None:
        super().__init__("standard output was closed by its reader")


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


def cache_folder(named: str, off: bool, paths: Sequence[str] = ()) -> str:
    """Where estimates are kept between invocations: a folder that the command line names, or the user's
    (``$MEMLINT_CACHE_DIR``, where that is empty none; ``$XDG_CACHE_HOME/memlint``, ``~/.cache/memlint``); "" for none.
    Of the user's, one in the tree that is linted is not taken: whoever wrote the tree could have filled it."""
    if off:
        return ""
    if named:
        return os.path.realpath(os.path.expanduser(named))
    folder = os.environ.get("MEMLINT_CACHE_DIR")
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(home):
            home = os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(home, "memlint")
    if not os.path.isabs(folder):
        return ""
    folder = os.path.realpath(folder)
    return "" if any(is_within(folder, os.path.realpath(tree)) for tree in _linted(paths)) else folder


def _linted(paths: Sequence[str]) -> Iterator[str]:
    """The trees of the working folder and of what is checked."""
    try:
        for path in ("", *paths):
            place = os.path.abspath(path)
            yield tree_of(place if os.path.isdir(place) else os.path.dirname(place))
    except (OSError, ValueError):  # the working folder is gone, or this is no path
        return


def use_color(choice: str) -> bool:
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def style(color: str, verbose: bool = False, quiet: bool = False) -> Style:
    """How to print to standard output."""
    from memlint.reports.full import Style

    return Style(
        color=use_color(color),
        unicode=(getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf"),
        actions=os.environ.get("GITHUB_ACTIONS") == "true",
        verbose=verbose,
        quiet=quiet,
        columns=_columns(),
    )


def _columns() -> int:
    """How wide the terminal is that standard output goes to; 0 where there is none, so that nothing is wrapped."""
    try:
        if sys.stdout is None or not sys.stdout.isatty():
            return 0
        return int(os.environ.get("COLUMNS", "0") or 0) or os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0


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
    """Text to standard output; what its encoding lacks is shown as an escape. Ends the program where it cannot."""
    if sys.stdout is None:
        if text:
            raise Stop("standard output is closed: there is nowhere to write the report")
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, color=color)
    except BrokenPipeError:
        abandon(sys.stdout)
        raise Unheard() from None
    except OSError as error:
        abandon(sys.stdout)
        raise Stop(f"standard output cannot be written: {error.strerror}") from None


def note(text: str) -> None:
    """One line to standard error, with foreign text made harmless; where that cannot be written, nothing."""
    from memlint.reports.text import clean, harmless_in_actions

    if sys.stderr is None:
        return
    line = clean(text)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        line = harmless_in_actions(line)
    encoding = sys.stderr.encoding or "utf-8"
    try:
        echo(line.encode(encoding, "backslashreplace").decode(encoding), err=True)
    except OSError:
        abandon(sys.stderr)


def fault(error: Exception) -> str:
    """One line for what nobody expected: what it was, and the innermost place of it."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    text = str(error)
    text = f": {text[:300]}" if text else ""
    return f"memlint: error: {type(error).__name__}{text} (raised{place}; {DEBUG}=1 shows more)"


def abandon(stream: TextIO) -> None:
    """Nothing more goes to a stream that cannot take it: Python would try once more at its end, and exit with 120."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # no file of the system's
        return


def write_file(path: str, text: str, folders: bool = False) -> None:
    """Write a whole file or nothing: beside it first, then in its place. Ends the program where it cannot.

    folders  make those that are missing on the way
    """
    data = text.encode("utf-8", "backslashreplace")
    try:
        target = os.path.abspath(path)  # "a/.." is nothing, where a might be a link to elsewhere
        if _is_stream(target):
            _write_device(target, data)
            return
        refuse_links(path)
        if folders:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target) and not os.path.isfile(target):
            _write_device(target, data)
            return
        beside = f"{target}.{os.getpid()}.tmp"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            if os.path.exists(target):
                os.chmod(beside, os.stat(target).st_mode & 0o666)  # a report is no program, whatever was there before
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise Stop(f"{path}: cannot be written: {error.strerror}") from None
    except ValueError:
        raise Stop(f"{path}: cannot be written: not a path") from None


def create_files(texts: Mapping[str, str]) -> None:
    """Write files that are not there yet: all of them or none. Ends the program where one is there, or cannot be
    written.

    texts  path -> text
    """
    made: list[str] = []
    try:
        for path, text in texts.items():
            refuse_links(path)
            target = os.path.abspath(path)
            # Exclusive: what another program has put there meanwhile is not written over either.
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            made.append(target)
            with open(handle, "wb") as file:
                file.write(text.encode("utf-8"))
        made.clear()
    except FileExistsError:
        raise Stop(f"{path} is there already, and is not written over") from None
    except OSError as error:
        raise Stop(f"{path}: cannot be written: {error.strerror}") from None
    except ValueError:
        raise Stop(f"{path}: cannot be written: not a path") from None
    finally:
        for target in made:
            os.unlink(target)


def exchange_files(texts: Mapping[str, tuple[str, str]]) -> None:
    """Write texts in the place of others: all of them or none, each beside its file first. Byte order marks, line ends
    and permissions stay. Ends the program where a file is not what was read any more, or cannot be written.

    texts  path -> (as it was read, as it is to be)
    """
    from memlint import files
    from memlint.documents.load import MAX_BYTES

    staged: list[tuple[str, str, bytes]] = []
    try:
        for path, (before, after) in texts.items():
            refuse_links(path)
            target = os.path.abspath(path)
            try:
                was = files.read(target, MAX_BYTES, follow=False)
                if was.removeprefix(_MARK) != before.encode("utf-8"):
                    raise Stop(f"{path}: not written: it has changed since it was read")
                data = (_MARK if was.startswith(_MARK) else b"") + after.encode("utf-8")
                staged.append((target, _staged(target, data), was))
            except OSError as error:
                raise Stop(f"{path}: cannot be written: {error.strerror}") from None
        _exchange(staged)
    finally:
        for _, beside, _ in staged:
            with contextlib.suppress(OSError):
                os.unlink(beside)


_MARK = b"\xef\xbb\xbf"


def _staged(target: str, data: bytes) -> str:
    """A new file beside another, with its permissions."""
    beside = f"{target}.{os.getpid()}.tmp"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(beside, os.stat(target).st_mode & 0o777)
    except BaseException:
        os.unlink(beside)
        raise
    return beside


def _exchange(staged: list[tuple[str, str, bytes]]) -> None:
    """Move files in the place of others; those that were moved go back where one cannot be."""
    moved: list[tuple[str, bytes]] = []
    for target, beside, was in staged:
        try:
            os.replace(beside, target)
        except OSError as error:
            for other, content in moved:
                os.replace(_staged(other, content), other)
            raise Stop(f"{target}: cannot be written: {error.strerror}") from None
        moved.append((target, was))


def _is_stream(absolute: str) -> bool:
    """``/dev/stdout``, ``/dev/fd/63`` and their like: links of the system's, to what is open already."""
    return absolute in ("/dev/stdout", "/dev/stderr") or absolute.startswith(("/dev/fd/", "/proc/"))


def refuse_links(path: str) -> None:
    """Raise Stop where a symbolic link would lead what is written to ``path`` elsewhere.

    The file itself must be none. Of the folders on the way to it, those below the working folder or below a
    repository's root must be none, as they came with a checkout; others, like macOS's /tmp, are the machine's own.
    """
    target = os.path.abspath(path)
    here = os.getcwd()
    for link in filter(os.path.islink, ancestors(target)):
        outer = ancestors(link)[1:]
        in_working_folder = here in outer and here != os.path.dirname(here)
        in_repository = any(os.path.lexists(os.path.join(folder, ".git")) for folder in outer)
        if link == target or in_working_folder or in_repository:
            shown = path if link == target else link
            raise Stop(f"{path}: not written: {shown} is a symbolic link, and memlint writes through none")


def _write_device(path: str, data: bytes) -> None:
    """Write to what has no other place: a device, or a pipe that somebody reads."""
    # Not blocking: a pipe without a reader must not stop the run.
    how = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, how)
    with open(handle, "wb") as file:
        if os.name == "posix":
            os.set_blocking(handle, True)
        file.write(data)
