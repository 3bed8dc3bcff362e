"""What each setting takes. Checked by hand: a schema's validator costs more to import than a whole check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlint.plugin import SEVERITIES

FORMATS = (
    "full",
    "concise",
    "json",
    "json-lines",
    "github",
    "gitlab",
    "junit",
    "markdown",
    "rdjson",
    "sarif",
)
FAIL_ON = (*SEVERITIES, "tight", "unknown")
COLORS = ("auto", "always", "never")
MAX_ENTRIES = 1000  # of a list: each pattern is held against each file
MAX_WORK = 1_000_000  # million steps, some eleven days


class _Wrong(Exception):
    """A value that its key does not take. ``keys`` lead to it."""

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


_Check = Callable[[Any], None]


def _kind(value: Any) -> str:
    for type_, name in ((bool, "true/false"), (str, "text"), ((int, float), "a number"), (list, "a list")):
        if isinstance(value, type_):
            return name
    return "a table" if isinstance(value, dict) else f"a {type(value).__name__}"


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise _Wrong(f"takes text, not {_kind(value)}")
    if not value:
        raise _Wrong("must not be empty")


def _path(value: Any) -> None:
    _text(value)
    if "\0" in value:
        raise _Wrong("must not hold a null character")


def _reason(value: Any) -> None:
    _text(value)
    if not value.strip() or not value.isprintable():
        raise _Wrong("takes a reason on one line")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise _Wrong(f"takes true or false, not {_kind(value)}")


def _size(value: Any) -> None:
    _text(value)
    from memlint.units import parse_size

    try:
        parse_size(value)
    except ValueError as error:
        raise _Wrong(str(error)) from None


def _gpu(value: Any) -> None:
    _text(value)
    from memlint.data.catalogue import UnknownGpu, parse_gpu

    try:
        parse_gpu(value)
    except UnknownGpu as error:
        raise _Wrong(str(error)) from None


def _steps(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong(f"takes a whole number of million steps, not {_kind(value)}")
    if not 1 <= value <= MAX_WORK:
        raise _Wrong(f"takes 1 to {MAX_WORK:,} million steps")


def _one_of(*choices: str) -> _Check:
    def check(value: Any) -> None:
        if value not in choices:
            shown = repr(value) if isinstance(value, str) else _kind(value)
            raise _Wrong(f"takes {', '.join(choices[:-1])} or {choices[-1]}, not {shown}")

    return check


def _percent(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
        raise _Wrong("takes a number of percent, 0 or more")


def _date(value: Any) -> None:
    import datetime

    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return
    try:
        datetime.date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise _Wrong("takes a day, such as 2027-03-31") from None


def _policy(value: Any) -> None:
    _record(_POLICY)(value)
    if not set(value) & {"increase", "increase-percent", "over-budget", "no-estimate"}:
        raise _Wrong("limits nothing: give 'increase', 'increase-percent', 'over-budget' or 'no-estimate'")


def _list_of(item: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise _Wrong(f"takes a list, not {_kind(value)}")
        if len(value) > MAX_ENTRIES:
            raise _Wrong(f"takes at most {MAX_ENTRIES:,} entries")
        for index, element in enumerate(value):
            try:
                item(element)
            except _Wrong as error:
                raise _Wrong(f"entry {index + 1} {error}", (str(index), *error.keys)) from None

    return check


def _override(value: Any) -> None:
    _text(value)
    if "=" not in value and not value.startswith("~"):
        raise _Wrong(f"{value!r} is not KEY=VALUE")


def _report(value: Any) -> None:
    _path(value)
    name, _, path = value.partition("=")
    if name not in FORMATS or not path:
        raise _Wrong(f"{value!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}")


def _table(item: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"takes a table, not {_kind(value)}")
        if len(value) > MAX_ENTRIES:
            raise _Wrong(f"takes at most {MAX_ENTRIES:,} entries")
        for key, element in value.items():
            try:
                item(element)
            except _Wrong as error:
                raise _Wrong(f"{key!r} {error}", (key, *error.keys)) from None

    return check


def _record(keys: Mapping[str, _Check], required: Sequence[str] = ()) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"takes a table, not {_kind(value)}")
        for key, element in value.items():
            if key not in keys:
                raise _Wrong(f"has no key {key!r}{_hint(key, keys)}", (key,))
            try:
                keys[key](element)
            except _Wrong as error:
                raise _Wrong(f"{key!r} {error}", (key, *error.keys)) from None
        for key in required:
            if key not in value:
                raise _Wrong(f"needs the key {key!r}")

    return check


def _hint(key: str, known: Mapping[str, Any]) -> str:
    from memlint.rules_registry import nearest

    near = nearest(key.replace("_", "-"), known, 1)
    return f", did you mean {near[0]!r}?" if near else ""


def _rule_options(value: Any) -> None:
    if not isinstance(value, dict):
        raise _Wrong(f"takes a table, not {_kind(value)}")
    if "severity" in value:
        try:
            _one_of(*SEVERITIES)(value["severity"])
        except _Wrong as error:
            raise _Wrong(f"'severity' {error}", ("severity",)) from None


def _any_table(value: Any) -> None:
    if not isinstance(value, dict):
        raise _Wrong(f"takes a table, not {_kind(value)}")


_CODES = _list_of(_text)

_POLICY: dict[str, _Check] = {
    "paths": _CODES,
    "increase": _size,
    "increase-percent": _percent,
    "over-budget": _one_of("oom", "tight"),
    "no-estimate": _flag,
    "action": _one_of("fail", "warn"),
}
_WAIVER: dict[str, _Check] = {"paths": _CODES, "owner": _text, "reason": _text, "until": _date}

KEYS: dict[str, _Check] = {
    "extend": _path,
    "budget": _size,
    "gpu": _gpu,
    "host-budget": _size,
    "model-config": _path,
    "budgets": _list_of(_record({"paths": _CODES, "budget": _size}, ("paths", "budget"))),
    "override": _list_of(_override),
    "select": _CODES,
    "ignore": _CODES,
    "extend-select": _CODES,
    "extend-ignore": _CODES,
    "per-file-ignores": _table(_CODES),
    "preview": _flag,
    "fail-on": _one_of(*FAIL_ON),
    "strict": _flag,
    "exit-zero": _flag,
    "output-format": _one_of(*FORMATS),
    "output-file": _path,
    "report": _list_of(_report),
    "no-ignores": _flag,
    "require-ignore-reason": _flag,
    "exclude": _CODES,
    "extend-exclude": _CODES,
    "force-exclude": _flag,
    "statistics": _flag,
    "show-files": _flag,
    "quiet": _flag,
    "verbose": _flag,
    "color": _one_of(*COLORS),
    "plugins": _CODES,
    "rules": _table(_rule_options),
    "probe": _record({"model": _text, "batch": _text, "step": _text}),
    "families": _table(_any_table),
    "policies": _list_of(_policy),
    "waivers": _list_of(_record(_WAIVER, tuple(_WAIVER))),
    "baseline": _path,
    "write-baseline": _path,
    "add-ignore": _reason,
    "changed-since": _text,
    "work-limit": _steps,
}


def check_values(values: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """What is wrong with a table of settings: (message, keys that lead to it), or None."""
    for key, value in values.items():
        if key not in KEYS:
            return f"unknown setting {key!r}{_hint(key, KEYS)}", (key,)
        try:
            KEYS[key](value)
        except _Wrong as error:
            return f"setting {key!r} {error}", (key, *error.keys)
    return None
