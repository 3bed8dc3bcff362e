"""``memlint check FILE`` as editors and hooks call it, without click: importing that takes longer than most checks.

Only what is told apart without doubt is done here, and in the same way; every other command line is click's: other
commands, help, anything misspelled.
"""

from __future__ import annotations

import gc
import os
import sys

# Recordings make many objects that reference counting frees at once; looking for cycles among them at the default pace
# takes almost half of a recording's time.
GARBAGE_THRESHOLD = 200_000

# Options that take one value, and flags, by the names that click gives them.
VALUES = {
    "--budget": "budget",
    "--gpu": "gpu",
    "--host-budget": "host_budget",
    "--config": "config",
    "--output-format": "output_format",
    "--output-file": "output_file",
    "--fail-on": "fail_on",
    "--color": "color",
}
CHOICES = {
    "output_format": ("full", "concise", "json", "github"),
    "fail_on": ("error", "warning", "info"),
    "color": ("auto", "always", "never"),
}
FLAGS = {
    "--isolated": "isolated",
    "--exit-zero": "exit_zero",
    "--preview": "preview",
    "--no-ignores": "no_ignores",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
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
            if value not in CHOICES.get(option, (value,)):
                return None
            options[option] = value
    if overrides:
        options["override"] = tuple(overrides)
    return tuple(paths) or (".",), options


def main() -> None:
    """The program."""
    plain = understood(sys.argv[1:])
    if plain is None:
        from memlint.cli.main import main as other

        other(prog_name="memlint")
        return
    sys.exit(check(*plain))


def program() -> None:
    """As :func:`main`, of a process that ends with it: its memory is given back at once, where Python would take apart
    object by object what was recorded."""
    plain = understood(sys.argv[1:])
    if plain is None:
        main()
        return
    code = check(*plain)
    import atexit

    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)
    os._exit(code)


def check(paths: tuple[str, ...], options: dict[str, object]) -> int:
    """The exit code of a plain check, which is said."""
    from memlint.cli import checking, output

    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        return checking.run(paths, output.resolver(options))
    except output.Stop as error:
        output.echo(f"Error: {error}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        output.note("\nAborted!")
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
