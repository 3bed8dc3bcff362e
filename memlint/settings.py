"""Settings: found beside the config, checked by hand, and the command line over the file.

``--config`` > ``MEMLINT_CONFIG`` > the nearest folder above the linted file with ``.memlint.toml``,
``memlint.toml`` or ``[tool.memlint]`` in ``pyproject.toml`` > the user's file > defaults. The nearest file alone
counts, unless it says ``extend = "..."``. ``schemas/settings.schema.json`` is the same contract for editors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlint.discover import Pattern
from memlint.named_tuple import NamedTuple
from memlint.plugin import SEVERITIES

FORMATS = ("full", "concise", "json", "github")
COLORS = ("auto", "always", "never")
FILE_NAMES = (".memlint.toml", "memlint.toml")
EXTEND_LIMIT = 16


class SettingsError(ValueError):
    """A settings file or an option that cannot be used; exit code 2. The text names file, line and key."""


class Settings(NamedTuple):
    """The settings in force for one file.

    budget, gpu, host_budget  as written ("" where not given)
    budgets     (patterns, size) pairs; the last that covers a file wins
    select      () means every rule that is not in preview
    rules       options by rule code or name as written; ``severity`` re-levels the rule
    files       the settings files read, nearest first
    origins     key -> where its value came from (``--budget``, ``memlint.toml``)
    """

    budget: str = ""
    gpu: str = ""
    host_budget: str = ""
    budgets: tuple[tuple[tuple[Pattern, ...], str], ...] = ()
    override: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    extend_ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()
    preview: bool = False
    fail_on: str = "error"
    exit_zero: bool = False
    output_format: str = "full"
    output_file: str = ""
    report: tuple[str, ...] = ()
    no_ignores: bool = False
    exclude: tuple[Pattern, ...] = ()
    extend_exclude: tuple[Pattern, ...] = ()
    force_exclude: bool = False
    statistics: bool = False
    show_files: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    plugins: tuple[str, ...] = ()
    rules: dict[str, dict[str, Any]] = {}  # noqa: RUF012  (never mutated)
    probe: dict[str, str] = {}  # noqa: RUF012
    families: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    files: tuple[str, ...] = ()
    origins: dict[str, str] = {}  # noqa: RUF012

    @property
    def selected(self) -> tuple[str, ...]:
        """Selectors that switch rules on; empty when every stable rule is on."""
        if self.select:
            return self.select + self.extend_select
        return ("ALL", *self.extend_select) if self.extend_select else ()

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.ignore + self.extend_ignore


# -- checking values ---------------------------------------------------------------------------------


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


def _one_of(*choices: str) -> _Check:
    def check(value: Any) -> None:
        if value not in choices:
            shown = repr(value) if isinstance(value, str) else _kind(value)
            raise _Wrong(f"takes {', '.join(choices[:-1])} or {choices[-1]}, not {shown}")

    return check


def _list_of(item: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise _Wrong(f"takes a list, not {_kind(value)}")
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
    _text(value)
    name, _, path = value.partition("=")
    if name not in FORMATS or not path:
        raise _Wrong(f"{value!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}")


def _table(item: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"takes a table, not {_kind(value)}")
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

KEYS: dict[str, _Check] = {
    "extend": _text,
    "budget": _size,
    "gpu": _gpu,
    "host-budget": _size,
    "budgets": _list_of(_record({"paths": _CODES, "budget": _size}, ("paths", "budget"))),
    "override": _list_of(_override),
    "select": _CODES,
    "ignore": _CODES,
    "extend-select": _CODES,
    "extend-ignore": _CODES,
    "per-file-ignores": _table(_CODES),
    "preview": _flag,
    "fail-on": _one_of(*SEVERITIES),
    "exit-zero": _flag,
    "output-format": _one_of(*FORMATS),
    "output-file": _text,
    "report": _list_of(_report),
    "no-ignores": _flag,
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
}
_ACCUMULATED = ("extend-select", "extend-ignore", "extend-exclude", "override", "report")


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


# -- reading files -----------------------------------------------------------------------------------


class _Layer(NamedTuple):
    """Checked values of one source. ``base`` is the folder that its patterns are relative to."""

    name: str
    base: str
    values: dict[str, Any]


def _shown(path: str) -> str:
    """A settings file's path for people: relative to the working directory where it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _read(path: str, required_table: bool = False) -> dict[str, Any] | None:
    """The memlint table of a settings file; None for a pyproject.toml without one. Raises SettingsError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise SettingsError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    is_pyproject = os.path.basename(path) == "pyproject.toml"
    # Cheaper than a TOML parser, and most pyproject.toml files on the way up have no such table.
    if is_pyproject and not required_table and b"[tool.memlint" not in data:
        return None
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: Any = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise SettingsError(f"{_shown(path)}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{_shown(path)}: is not valid TOML: {error}") from None
    if is_pyproject:
        tool = values.get("tool", {})
        values = tool.get("memlint") if isinstance(tool, dict) else None
        if values is None:
            return None
        if not isinstance(values, dict):
            raise SettingsError(f"{_shown(path)}: [tool.memlint] takes a table")
    wrong = check_values(values)
    if wrong is not None:
        message, keys = wrong
        line = _line_of(path, data, (("tool", "memlint", *keys)) if is_pyproject else keys)
        raise SettingsError(f"{_shown(path)}:{line + ':' if line else ''} {message}")
    return dict(values)


def _line_of(path: str, data: bytes, keys: tuple[str, ...]) -> str:
    """The line of the deepest key on the way that the file spells out; "" when there is none."""
    from memlint.documents.toml import read

    node = read(path, data.decode("utf-8")).root
    line = ""
    for key in keys:
        if isinstance(node.value, dict) and key in node.value:
            node = node.value[key]
        elif isinstance(node.value, list) and key.isdigit() and int(key) < len(node.value):
            node = node.value[int(key)]
        else:
            break
        line = str((node.key_span or node.span).line)
    return line


def _layers(path: str, values: dict[str, Any]) -> list[_Layer]:
    """A settings file and those that it extends, nearest first. Raises SettingsError for loops."""
    found = [_Layer(_shown(path), os.path.dirname(os.path.abspath(path)), values)]
    seen = {os.path.realpath(path)}
    while "extend" in found[-1].values:
        layer = found[-1]
        target = os.path.normpath(os.path.join(layer.base, layer.values["extend"]))
        if os.path.realpath(target) in seen:
            raise SettingsError(f"{layer.name}: 'extend' leads back to {_shown(target)}")
        if len(found) >= EXTEND_LIMIT:
            raise SettingsError(f"{layer.name}: more than {EXTEND_LIMIT} files extend one another")
        if not os.path.isfile(target):
            raise SettingsError(f"{layer.name}: 'extend' names {_shown(target)}, which does not exist")
        seen.add(os.path.realpath(target))
        inherited = _read(target, required_table=True)
        if inherited is None:
            raise SettingsError(f"{layer.name}: 'extend' names {_shown(target)}, which has no [tool.memlint]")
        found.append(_Layer(_shown(target), os.path.dirname(target), inherited))
    return found


def user_file() -> str:
    """``$XDG_CONFIG_HOME/memlint/memlint.toml``, whether it exists or not."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "memlint", "memlint.toml")


class Resolver:
    """Settings for any path: the command line over the file that is in force there. Remembers per folder.

    options   values given on the command line, by setting key; only those that were given
    config    the file of ``--config``
    isolated  no file at all
    Raises SettingsError at once for bad options and for an unreadable ``config``.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, config: str = "", isolated: bool = False) -> None:
        self._command_line = dict(options or {})
        if isolated and config:
            raise SettingsError("--isolated and --config cannot be combined")
        wrong = check_values(self._command_line)
        if wrong is not None:
            message, keys = wrong
            raise SettingsError(message.replace(f"setting {keys[0]!r}", f"option --{keys[0]}", 1))
        self._isolated = isolated
        self._fixed: list[_Layer] | None = [] if isolated else None
        named = config or ("" if isolated else os.environ.get("MEMLINT_CONFIG", ""))
        if named:
            values = _read(named, required_table=True)
            if values is None:
                raise SettingsError(f"{_shown(named)}: has no [tool.memlint] table")
            self._fixed = _layers(named, values)
        self._by_folder: dict[str, list[_Layer]] = {}
        self._merged: dict[str, Settings] = {}

    @property
    def given(self) -> tuple[str, ...]:
        """The overrides of the command line alone."""
        return tuple(self._command_line.get("override", ()))

    def for_path(self, path: str) -> Settings:
        """The settings in force for a file or folder. Raises SettingsError for a wrong settings file."""
        absolute = os.path.abspath(path)
        return self.for_folder(absolute if os.path.isdir(absolute) else os.path.dirname(absolute))

    def for_folder(self, folder: str) -> Settings:
        if folder not in self._merged:
            self._merged[folder] = self._merge(self._fixed if self._fixed is not None else self._nearest(folder))
        return self._merged[folder]

    def _nearest(self, folder: str) -> list[_Layer]:
        if folder not in self._by_folder:
            self._by_folder[folder] = self._look(folder)
        return self._by_folder[folder]

    def _look(self, folder: str) -> list[_Layer]:
        for name in (*FILE_NAMES, "pyproject.toml"):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                values = _read(path)
                if values is not None:
                    return _layers(path, values)
        parent = os.path.dirname(folder)
        if parent != folder:
            return self._nearest(parent)
        user = user_file()
        values = _read(user) if os.path.isfile(user) else None
        return [] if values is None else _layers(user, values)

    def _merge(self, layers: Sequence[_Layer]) -> Settings:
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        command_line = _Layer("", os.getcwd(), self._command_line)
        for layer in (*reversed(layers), command_line):
            for key, value in layer.values.items():
                if key == "extend":
                    continue
                placed = _placed(key, value, layer.base)
                field = key.replace("-", "_")
                if key in _ACCUMULATED and field in values:
                    placed = values[field] + placed
                elif key == "rules" and field in values:
                    merged = dict(values[field])
                    for rule, options in placed.items():
                        merged[rule] = {**merged.get(rule, {}), **options}
                    placed = merged
                values[field] = placed
                origins[key] = layer.name or f"--{key}"
        return Settings(**values, files=tuple(layer.name for layer in layers), origins=origins)


def _placed(key: str, value: Any, base: str) -> Any:
    """A checked value in the form of :class:`Settings`: tuples for lists, patterns with their folder."""
    if key in ("exclude", "extend-exclude"):
        return tuple(Pattern(base, glob) for glob in value)
    if key == "budgets":
        return tuple((tuple(Pattern(base, glob) for glob in entry["paths"]), entry["budget"]) for entry in value)
    if key == "per-file-ignores":
        return tuple((Pattern(base, glob), tuple(codes)) for glob, codes in value.items())
    return tuple(value) if isinstance(value, list) else value


class Allowance(NamedTuple):
    """What a run may use: bytes and where that figure came from, and the card behind it, if one was named."""

    size_bytes: int | None
    source: str
    gpu: str
    host_bytes: int | None


def allowance(settings: Settings, path: str) -> Allowance:
    """Budget, card and host budget of one file.

    The command line wins over files, ``[[budgets]]`` over ``budget``, and in one source a size over a card.
    """
    from memlint.discover import matches
    from memlint.units import parse_size

    host = parse_size(settings.host_budget) if settings.host_budget else None
    origin = settings.origins.get

    def sized(text: str, source: str) -> Allowance:
        return Allowance(parse_size(text), source, settings.gpu, host)

    if origin("budget") == "--budget":
        return sized(settings.budget, f"--budget {settings.budget}")
    if origin("gpu") != "--gpu":
        for patterns, text in reversed(settings.budgets):
            if matches(patterns, path):
                return sized(text, f"{origin('budgets')}: budgets, {patterns[0].glob}: {text}")
        if settings.budget:
            return sized(settings.budget, f"{origin('budget')}: budget = {settings.budget}")
    if settings.gpu:
        from memlint.data.catalogue import parse_gpu

        card, _ = parse_gpu(settings.gpu)
        given = origin("gpu")
        text = f"--gpu {settings.gpu}" if given == "--gpu" else f"{given}: gpu = {settings.gpu}"
        return Allowance(card.usable_bytes, text, settings.gpu, host)
    return Allowance(None, "", "", host)
