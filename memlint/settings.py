"""Settings: found beside the config, checked by hand, and the command line over the file.

``--config`` > ``MEMLINT_CONFIG`` > the nearest folder above the linted file with ``.memlint.toml``,
``memlint.toml`` or ``[tool.memlint]`` in ``pyproject.toml`` > the user's file > defaults. The nearest file alone
counts, unless it says ``extend = "..."``. ``schemas/settings.schema.json`` is the same contract for editors.

A file that was found above a linted file came with the tree, so that a stranger may have written it. It chooses what is
checked and how; ``RESERVED`` has the keys that it may not set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlint import work
from memlint.discover import Pattern
from memlint.named_tuple import NamedTuple
from memlint.setting_values import check_values
from memlint.trust import ancestors, is_within, tree_of

if TYPE_CHECKING:
    import datetime

FILE_NAMES = (".memlint.toml", "memlint.toml")
EXTEND_LIMIT = 16
MAX_LENGTH = 256 * 1024  # of a settings file; what is longer was not written by hand
MAX_DEPTH = 100  # of its tables: a TOML parser takes the square of it
WORK_UNIT = 1_000_000  # steps in one of ``work-limit``


class SettingsError(ValueError):
    """A settings file or an option that cannot be used; exit code 2.

    place    the file and, where it is known, the line; "" for an option
    reason   what is wrong, with the key
    in_tree  the file came with the linted tree, so that only what it governs is lost
    """

    def __init__(self, reason: str, place: str = "", in_tree: bool = False) -> None:
        self.reason = reason if len(reason) <= 500 else reason[:497] + "..."
        self.place = place
        self.in_tree = in_tree
        super().__init__(f"{place}: {self.reason}" if place else self.reason)


class Policy(NamedTuple):
    """What `diff` allows of a change. Of two limits on the increase both have to be exceeded.

    paths        () for every run
    over_budget  the least verdict that is not allowed: ``oom``, ``tight``; "" allows all
    no_estimate  whether a run that had an estimate has to keep one
    """

    paths: tuple[Pattern, ...] = ()
    increase_bytes: int | None = None
    increase_percent: float | None = None
    over_budget: str = ""
    no_estimate: bool = False
    action: str = "fail"


class Waiver(NamedTuple):
    """Runs of which no policy is held, to the end of a day; afterwards it is a failure itself."""

    paths: tuple[Pattern, ...]
    owner: str
    reason: str
    until: datetime.date


class Settings(NamedTuple):
    """The settings in force for one file.

    budget, gpu, host_budget  as written ("" where not given)
    model_config  path of a ``config.json`` that describes the model of every run; "" for none
    budgets     (patterns, size) pairs; the last that covers a file wins
    select      () means every rule that is not in preview
    rules       options by rule code or name as written; ``severity`` re-levels the rule
    policies, waivers  of `diff`
    baseline    path of findings that are known, and not reported; "" for none
    write_baseline, add_ignore  where, and with which reason, findings are made known instead of reported
    changed_since  a git revision: only runs that read a file that differs from it are checked
    work_limit  of one file, in million steps (:mod:`memlint.work`)
    files       the settings files read, nearest first
    in_tree     they came with the linted tree
    origins     key -> where its value came from (``--budget``, ``memlint.toml``)
    """

    budget: str = ""
    gpu: str = ""
    host_budget: str = ""
    model_config: str = ""
    budgets: tuple[tuple[tuple[Pattern, ...], str], ...] = ()
    override: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    extend_ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()
    preview: bool = False
    fail_on: str = "error"
    strict: bool = False
    exit_zero: bool = False
    output_format: str = "full"
    output_file: str = ""
    report: tuple[str, ...] = ()
    no_ignores: bool = False
    require_ignore_reason: bool = False
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
    policies: tuple[Policy, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    baseline: str = ""
    write_baseline: str = ""
    add_ignore: str = ""
    changed_since: str = ""
    work_limit: int = work.FILE_STEPS // WORK_UNIT
    files: tuple[str, ...] = ()
    in_tree: bool = False
    origins: dict[str, str] = {}  # noqa: RUF012

    @property
    def file_steps(self) -> int:
        """Steps of work that one file may take."""
        return self.work_limit * WORK_UNIT

    def error(self, key: str, reason: str) -> SettingsError:
        """What only shows where a value is used: an error at the place where the value of ``key`` came from."""
        origin = self.origins.get(key, key)
        return SettingsError(reason, origin, self.in_tree and origin in self.files)

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


# What a settings file of the linted tree may not say: why, and the option that may. Whatever else it says is about
# which findings there are and how they are printed; docs/settings.md has the reason for each key.
RESERVED: dict[str, tuple[str, str]] = {
    "output-file": ("says where to write", "--output-file"),
    "report": ("says where to write", "--report"),
    "plugins": ("loads code into memlint", ""),
    "show-files": ("turns the check off", "--show-files"),
    "write-baseline": ("says where to write", "--write-baseline"),
    "add-ignore": ("writes into the configs", "--add-ignore"),
    "changed-since": ("leaves out what is checked", "--changed-since"),
    "work-limit": ("raises what a file may cost", "--work-limit"),
}
_ACCUMULATED = ("extend-select", "extend-ignore", "extend-exclude", "override", "report")


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


# Text in quotes and comments, in which dots and brackets mean nothing.
_QUOTED = re.compile(r"""\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*""")
_BETWEEN_KEYS = re.compile(r"[^\w. \t-]")


def _too_deep(text: str) -> bool:
    """Whether a dotted key has too many parts. Before it is parsed: a parser takes the square of them."""
    return any(key.count(".") > MAX_DEPTH for key in _BETWEEN_KEYS.split(_QUOTED.sub("_", text)))


def _nests_too_deep(values: Any) -> bool:
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for value in level
            for below in (value.values() if isinstance(value, dict) else value)
            if isinstance(below, (dict, list))
        ]
        if not level:
            return False
    return True


def _read(path: str, in_tree: bool, required_table: bool = False) -> dict[str, Any] | None:
    """The memlint table of a settings file; None for a pyproject.toml without one. Raises SettingsError."""
    from memlint.documents.load import Unreadable, read_text

    is_pyproject = os.path.basename(path) == "pyproject.toml"

    def wrong(reason: str, line: str = "") -> SettingsError:
        return SettingsError(reason, f"{_shown(path)}:{line}" if line else _shown(path), in_tree)

    try:
        text = read_text(path)
    except Unreadable as error:
        if is_pyproject and not required_table and os.access(path, os.R_OK):
            return None  # what is no text is no TOML, so that it has no table
        raise wrong(f"cannot be read: {error.reason}") from None
    # Cheaper than a TOML parser, and most pyproject.toml files on the way up have no such table.
    if is_pyproject and not required_table and "[tool.memlint" not in text:
        return None
    if len(text) > MAX_LENGTH:
        hint = "; write the settings into a memlint.toml" if is_pyproject else ""
        raise wrong(f"is longer than {MAX_LENGTH // 1024} KiB, which no settings are{hint}")
    work.spend(len(text), "reading settings")
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    too_deep = f"nests deeper than {MAX_DEPTH} levels"
    try:
        if _too_deep(text):
            raise wrong(too_deep)
        values: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong(f"is not valid TOML: {error}") from None
    except RecursionError:
        raise wrong(too_deep) from None
    except ValueError as error:
        if isinstance(error, SettingsError):
            raise
        raise wrong("holds a number of thousands of digits") from None
    if is_pyproject:
        tool = values.get("tool", {})
        values = tool.get("memlint") if isinstance(tool, dict) else None
        if values is None:
            return None
        if not isinstance(values, dict):
            raise wrong("[tool.memlint] takes a table")
    if _nests_too_deep(values):
        raise wrong(too_deep)
    fault = check_values(values) or (_out_of_reach(values) if in_tree else None)
    if fault is not None:
        message, keys = fault
        raise wrong(message, _line_of(path, text, (("tool", "memlint", *keys)) if is_pyproject else keys))
    return dict(values)


def _out_of_reach(values: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """The first key that a settings file of the linted tree may not set: (message, the key), or None."""
    for key in values:
        if key in RESERVED:
            why, option = RESERVED[key]
            instead = f"give {option}, or set it" if option else "set it"
            return (
                f"setting {key!r} {why}, which a settings file of the linted tree may not: {instead} in a file that "
                "you name with --config or in your own settings",
                (key,),
            )
    return None


def _line_of(path: str, text: str, keys: tuple[str, ...]) -> str:
    """The line of the deepest key on the way that the file spells out; "" when there is none."""
    from memlint.documents.toml import read

    node = read(path, text).root
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


def _layers(path: str, values: dict[str, Any], in_tree: bool) -> list[_Layer]:
    """A settings file and those that it extends, nearest first, all of which are trusted alike.

    Raises SettingsError for loops, and where a file of the tree leads out of it.
    """
    found = [_Layer(_shown(path), os.path.dirname(os.path.abspath(path)), values)]
    tree = tree_of(found[0].base)
    seen = {os.path.realpath(path)}
    while "extend" in found[-1].values:
        layer = found[-1]
        written = layer.values["extend"]
        target = os.path.normpath(os.path.join(layer.base, written))

        def wrong(reason: str, place: str = layer.name) -> SettingsError:
            return SettingsError(f"'extend' {reason}", place, in_tree)

        if in_tree and (os.path.isabs(written) or not is_within(target, tree) or not _stays_in(target, tree)):
            raise wrong(f"names {written!r}, which is not in the tree: a settings file of the linted tree stays in it")
        if os.path.realpath(target) in seen:
            raise wrong(f"leads back to {_shown(target)}")
        if len(found) >= EXTEND_LIMIT:
            raise SettingsError(f"more than {EXTEND_LIMIT} files extend one another", layer.name, in_tree)
        if not os.path.isfile(target):
            missing = "is no regular file" if os.path.exists(target) else "does not exist"
            raise wrong(f"names {_shown(target)}, which {missing}")
        seen.add(os.path.realpath(target))
        inherited = _read(target, in_tree, required_table=True)
        if inherited is None:
            raise wrong(f"names {_shown(target)}, which has no [tool.memlint]")
        found.append(_Layer(_shown(target), os.path.dirname(target), inherited))
    return found


def _stays_in(path: str, tree: str) -> bool:
    """Whether a path leads into the tree once its links are followed."""
    return is_within(os.path.realpath(path), os.path.realpath(tree))


def user_file() -> str:
    """``$XDG_CONFIG_HOME/memlint/memlint.toml``, whether it exists or not; "" where that is no absolute path, as one
    that depends on the working folder could be a part of the linted tree."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # as the specification has it
        home = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "memlint", "memlint.toml") if os.path.isabs(home) else ""


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that holds all paths: its settings decide about the invocation (format, exit code)."""
    absolute = [os.path.abspath(path) for path in paths]
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in absolute]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # different drives
        return os.getcwd()


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
        self._fixed: Settings | None = self._merge([], False) if isolated else None
        named = config or ("" if isolated else os.environ.get("MEMLINT_CONFIG", ""))
        if named:
            values = _read(named, False, required_table=True)
            if values is None:
                raise SettingsError("has no [tool.memlint] table", _shown(named))
            self._fixed = self._merge(_layers(named, values, False), False)
        self._by_folder: dict[str, Settings | SettingsError] = {}

    @property
    def given(self) -> tuple[str, ...]:
        """The overrides of the command line alone."""
        return tuple(self._command_line.get("override", ()))

    def for_path(self, path: str) -> Settings:
        """The settings in force for a file or folder. Raises SettingsError for a wrong settings file."""
        absolute = os.path.abspath(path)
        return self.for_folder(absolute if os.path.isdir(absolute) else os.path.dirname(absolute))

    def for_folder(self, folder: str) -> Settings:
        if self._fixed is not None:
            return self._fixed
        passed = []
        for current in ancestors(folder):
            found = self._by_folder.get(current) or self._in(current)
            passed.append(current)
            if found is not None:
                break
        else:
            found = self._of_user()
        self._by_folder.update(dict.fromkeys(passed, found))
        if isinstance(found, SettingsError):
            raise found.with_traceback(None)
        return found

    def _in(self, folder: str) -> Settings | SettingsError | None:
        """What the settings file of one folder says; None where it has none."""
        try:
            for name in (*FILE_NAMES, "pyproject.toml"):
                path = os.path.join(folder, name)
                if not os.path.isfile(path):
                    continue
                in_tree = path != user_file()
                if in_tree and not _stays_in(path, tree_of(folder)):
                    reason = "is a link out of the linted tree: name its target with --config"
                    raise SettingsError(reason, _shown(path), in_tree)
                values = _read(path, in_tree)
                if values is not None:
                    return self._merge(_layers(path, values, in_tree), in_tree)
        except SettingsError as error:
            return error
        return None

    def _of_user(self) -> Settings | SettingsError:
        user = user_file()
        try:
            values = _read(user, False) if user and os.path.isfile(user) else None
            return self._merge([] if values is None else _layers(user, values, False), False)
        except SettingsError as error:
            return error

    def _merge(self, layers: Sequence[_Layer], in_tree: bool) -> Settings:
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
        return Settings(**values, files=tuple(layer.name for layer in layers), in_tree=in_tree, origins=origins)


def _placed(key: str, value: Any, base: str) -> Any:
    """A checked value in the form of :class:`Settings`: tuples for lists, patterns with their folder."""
    if key in ("model-config", "baseline"):
        return os.path.normpath(os.path.join(base, os.path.expanduser(value)))
    if key in ("exclude", "extend-exclude"):
        return tuple(Pattern(base, glob) for glob in value)
    if key == "budgets":
        return tuple((tuple(Pattern(base, glob) for glob in entry["paths"]), entry["budget"]) for entry in value)
    if key == "policies":
        return tuple(_as_policy(entry, base) for entry in value)
    if key == "waivers":
        return tuple(_as_waiver(entry, base) for entry in value)
    if key == "per-file-ignores":
        return tuple((Pattern(base, glob), tuple(codes)) for glob, codes in value.items())
    return tuple(value) if isinstance(value, list) else value


def _as_policy(entry: Mapping[str, Any], base: str) -> Policy:
    from memlint.units import parse_size

    return Policy(
        tuple(Pattern(base, glob) for glob in entry.get("paths", ())),
        parse_size(entry["increase"]) if "increase" in entry else None,
        float(entry["increase-percent"]) if "increase-percent" in entry else None,
        entry.get("over-budget", ""),
        entry.get("no-estimate", False),
        entry.get("action", "fail"),
    )


def _as_waiver(entry: Mapping[str, Any], base: str) -> Waiver:
    import datetime

    until = entry["until"]
    day = datetime.date.fromisoformat(until) if isinstance(until, str) else until
    return Waiver(tuple(Pattern(base, glob) for glob in entry["paths"]), entry["owner"], entry["reason"], day)


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
