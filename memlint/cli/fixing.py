"""What ``memlint check --fix`` and its kin do once their options are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.cli import checking, output
from memlint.named_tuple import NamedTuple
from memlint.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memlint.fixing import Applied, Fixed
    from memlint.settings import Resolver


class Wish(NamedTuple):
    """unsafe, fixable, unfixable   which fixes
    diff        print them as a patch, and write nothing
    only        say nothing of what is left, nor fail for it
    heed        fail if anything was fixed (``--exit-non-zero-on-fix``)
    """

    unsafe: bool = False
    fixable: tuple[str, ...] = ()
    unfixable: tuple[str, ...] = ()
    diff: bool = False
    only: bool = False
    heed: bool = False


def run(paths: tuple[str, ...], resolver: Resolver, wish: Wish) -> int:
    """Fix, and say it. Returns the exit code; raises Stop where a file cannot be written, and for bad settings."""
    from memlint.check import Interrupted
    from memlint.fixing import fix_paths, permission
    from memlint.rules_registry import UnknownRule
    from memlint.selection import known_rules
    from memlint.settings import SettingsError

    try:
        settings = resolver.for_path(checking.common_folder(paths))
        permitted = permission(wish.unsafe, wish.fixable, wish.unfixable, known_rules(settings))
        fixed = fix_paths(paths, resolver, permitted)
    except UnknownRule as error:
        raise output.Stop(f"--fixable, --unfixable: {error}") from None
    except SettingsError as error:
        raise output.Stop(str(error)) from None
    except Interrupted:
        raise KeyboardInterrupt from None  # nothing is written
    for one in fixed.refused:
        output.note(f"memlint: {one.path}: {one.finding.code} not fixed, {one.why} ({one.fix.title})")
    if wish.diff:
        output.out("".join(patch(fixed.texts)))
        _count(fixed, "would be fixed")
        return 2 if fixed.report.crashed else 1 if fixed.texts else 0
    output.exchange_files(fixed.texts)
    for done in fixed.applied if not settings.quiet else ():
        output.note(f"memlint: {_said(done)}")
    _count(fixed, "fixed")
    for path, why in fixed.report.errors if wish.only else ():
        output.note(f"memlint: error: {path}: {why}")
    code = 2 if fixed.report.crashed else 0
    if not wish.only:
        checking.tell(fixed.report, paths, settings)
        checking.emit(fixed.report, settings)
        code = fixed.report.exit_code(settings.fail_on, settings.exit_zero)
    return max(code, 1) if wish.heed and fixed.applied else code


def patch(texts: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A unified diff, as ``git apply`` and ``patch`` take it, line ends as the files have them."""
    import difflib

    from memlint.reports.text import clean

    for path, (before, after) in sorted(texts.items()):
        name = clean(path.removeprefix("./"))
        made = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
        for line in made:
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Lines as ``patch`` counts them: they end at line feeds alone."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + [part for part in parts[-1:] if part]


def _said(done: Applied) -> str:
    """``a.yaml: MEM202 fixed: checkpointing false -> true: peak 12.8 GiB -> 11.4 GiB``."""
    after = done.fix.device_bytes_after
    peak = ""
    if after is not None and done.before_bytes is not None:
        peak = f": peak {format_bytes(done.before_bytes)} -> {format_bytes(after)}"
    return f"{done.path}: {done.finding.code} fixed: {done.fix.title}{peak}"


def _count(fixed: Fixed, what: str) -> None:
    number, places = len(fixed.applied), len(fixed.texts)
    if number or not fixed.waiting:
        where = f" in {places} file{'s' * (places != 1)}" if number else ""
        output.note(f"memlint: {number} finding{'s' * (number != 1)} {what}{where}")
    for option, waiting in fixed.waiting.items():
        output.note(f"memlint: {waiting} more with {_HINTS[option]}")


_HINTS = {
    "--unsafe-fixes": "--unsafe-fixes: these may change numerics or speed",
    "--fixable": "--unsafe-fixes --fixable CODE: these change the optimisation, and are named one by one",
}
