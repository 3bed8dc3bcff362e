"""``memlint check FILE`` as editors and hooks call it, without click: importing that takes longer than most checks.

Only what is told apart without doubt is done here, and in the same way; every other command line is click's: other
commands, help, anything misspelled.
"""

# No `from __future__ import annotations`: it imports a module, and the path is not safe for that before `program` runs.
import gc
import os
import sys

from memlint.trust import import_nothing_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

# Recordings make many objects that reference counting frees at once; looking for cycles among them at the default pace
# takes almost half of a recording's time.
GARBAGE_THRESHOLD = 200_000

# Functions that Python calls where an exception has nowhere to go: destructors, and callbacks of weak references.
DESTRUCTORS = frozenset(("__del__", "remove", "_remove", "cb"))

# Options that take one value, and flags, by the names that click gives them.
VALUES = {
    "--budget": "budget",
    "--gpu": "gpu",
    "--host-budget": "host_budget",
    "--model-config": "model_config",
    "--config": "config",
    "--output-format": "output_format",
    "--output-file": "output_file",
    "--fail-on": "fail_on",
    "--baseline": "baseline",
    "--color": "color",
    "--cache-dir": "cache_dir",
    "--jobs": "jobs",
    "-j": "jobs",
}
CHOICES = {
    "output_format": (
        *("full", "concise", "json", "json-lines", "github"),
        *("gitlab", "junit", "markdown", "rdjson", "sarif"),
    ),
    "fail_on": ("error", "warning", "info", "tight", "unknown"),
    "color": ("auto", "always", "never"),
}
FLAGS = {
    "--isolated": "isolated",
    "--exit-zero": "exit_zero",
    "--strict": "strict",
    "--preview": "preview",
    "--no-ignores": "no_ignores",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
    "--no-cache": "no_cache",
}


def understood(arguments: list[str]) -> tuple[tuple[str, ...], dict[str, object]] | None:
    """(paths, options) of a plain check; None where click has to look at it."""
    if not arguments or arguments[0] != "check" or "_MEMLINT_COMPLETE" in os.environ or os.name != "posix":
        return None
    paths: list[str] = []
    options: dict[str, object] = {}
    overrides: list[str] = []
    given = iter(arguments[1:])
    for word in given:
        if not word.startswith("-"):
            if not word:
                return None
            paths.append(word)
        elif word in FLAGS:
            options[FLAGS[word]] = True
        else:
            name, equals, value = word.partition("=")
            if name not in VALUES and name != "--override" and word != "-o":
                return None
            if not equals:
                value = next(given, "")
                if not value or value.startswith("-"):
                    return None
            if name not in VALUES:
                overrides.append(value)
                continue
            option = VALUES[name]
            if value not in CHOICES.get(option, (value,)) or (option == "jobs" and not value.isdecimal()):
                return None
            options[option] = value
    if overrides:
        options["override"] = tuple(overrides)
    return tuple(paths) or (".",), options


def main() -> None:
    """The program, in a process that goes on."""
    sys.exit(run(sys.argv[1:]))


def program() -> None:
    """As :func:`main`, of a process that ends with it: its memory is given back at once, where Python would take apart
    object by object what was recorded. Nothing of a linted tree can be imported here, and SIGTERM is as good as Ctrl-C.
    """
    import_nothing_of(sys.argv[1:])
    _heed_signals()
    code = run(sys.argv[1:])
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 2
    os._exit(code)


def _heed_signals() -> None:
    """What is done when a job is stopped is what is done for Ctrl-C: the report so far, and exit code 2."""
    import signal

    def stop(number: int, frame: "FrameType | None") -> None:
        while frame is not None:
            # What these raise is lost, and freed storages have many: a moment later it is over.
            if frame.f_code.co_name in DESTRUCTORS and hasattr(signal, "setitimer"):
                signal.signal(signal.SIGALRM, stop)
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def run(arguments: list[str]) -> int:
    """The exit code of one command line: 0 or 1 by what was found, 2 for however else it ends, which is said."""
    from memlint.cli import output

    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    try:
        _no_file_as_option(arguments)
        plain = understood(arguments)
        return _by_click(arguments) if plain is None else check(*plain)
    except SystemExit as ended:
        return 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 2
    except output.Unheard:
        pass
    except output.Stop as error:
        output.note(f"Error: {error}")
    except KeyboardInterrupt:
        output.note("memlint: error: interrupted")
    except Exception as error:
        output.note(output.fault(error))
        if os.environ.get(output.DEBUG):
            import traceback

            traceback.print_exc()
    return 2


def _no_file_as_option(arguments: list[str]) -> None:
    """Refuse a file that is named like an option: a hook or a glob would pass it on as one, and whoever wrote the tree
    would choose what memlint does. Raises Stop."""
    from memlint.cli.output import Stop

    for word in arguments:
        if word == "--":
            return
        if word.startswith("-") and word != "-" and os.path.lexists(word):
            raise Stop(f"{word} is an option and a file here: write ./{word}, or put -- before the paths")


def _by_click(arguments: list[str]) -> int:
    """The exit code of a command line that click reads."""
    import click

    from memlint.cli.main import main as command

    try:
        code = command(arguments, prog_name="memlint", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def check(paths: tuple[str, ...], options: dict[str, object]) -> int:
    """The exit code of a plain check, which is said."""
    from memlint.cli import checking, output

    gc.set_threshold(GARBAGE_THRESHOLD)
    named, off = str(options.pop("cache_dir", "")), bool(options.pop("no_cache", False))
    folder = output.cache_folder(named, off, paths)
    jobs = int(str(options.pop("jobs", 1)))
    return checking.run(paths, output.resolver(options), cache_folder=folder, jobs=jobs)
