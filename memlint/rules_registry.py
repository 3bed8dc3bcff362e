"""Which rules exist and which are on. File names are the manifest: no rule is imported to be listed.

``rules/mem201_token_explosion.py`` is MEM201, ``token-explosion``. A rule module is imported only when its
rule is selected. Rules of other distributions come from the entry-point group ``memlint.rules``, by the names
that the settings list in ``plugins``, which a settings file of the linted tree cannot; and only of distributions that
are installed, never of metadata that lies elsewhere on the path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from memlint.named_tuple import NamedTuple
from memlint.plugin import Rule

ENTRY_POINTS = "memlint.rules"
INTERNAL_ERROR = "MEM001"
WORK_LIMIT = "MEM011"
# What was not checked cannot be hidden by what was not checked.
NEVER_HIDDEN = frozenset((INTERNAL_ERROR, WORK_LIMIT))


class UnknownRule(ValueError):
    """A code, name or prefix that no rule has. ``nearest`` are the closest known ones."""

    def __init__(self, selector: str, nearest: Sequence[str]) -> None:
        self.selector = selector
        self.nearest = tuple(nearest)
        hint = f", did you mean {' or '.join(self.nearest)}?" if nearest else " (`memlint rule` lists them)"
        super().__init__(f"unknown rule {selector!r}{hint}")


class RuleError(ValueError):
    """A rule module or a plugin that breaks the rules for rules."""


class RuleInfo(NamedTuple):
    """A rule before it is imported. ``rule`` is set for plugins only, which are imported to be known."""

    code: str
    name: str
    module: str
    rule: type[Rule] | None = None
    distribution: str = "memlint"


_BUILT_IN: tuple[RuleInfo, ...] | None = None


def built_in() -> tuple[RuleInfo, ...]:
    """The rules that ship with memlint, by code. Raises RuleError when two files claim one code."""
    global _BUILT_IN
    if _BUILT_IN is None:
        from importlib import import_module

        found: dict[str, RuleInfo] = {}
        for folder in import_module("memlint.rules").__path__:
            for file_name in sorted(os.listdir(folder)):
                stem, suffix = os.path.splitext(file_name)
                code, _, name = stem.partition("_")
                if suffix != ".py" or not name or not (code[:3] == "mem" and code[3:].isdigit()):
                    continue
                info = RuleInfo(code.upper(), name.replace("_", "-"), f"memlint.rules.{stem}")
                if info.code in found:
                    raise RuleError(f"{info.code} is claimed twice: {found[info.code].module} and {info.module}")
                found[info.code] = info
        _BUILT_IN = tuple(found[code] for code in sorted(found))
    return _BUILT_IN


def known(plugins: Sequence[str] = ()) -> tuple[RuleInfo, ...]:
    """Built-in rules and those of the named plugins. Raises RuleError for one that is missing or clashes."""
    if not plugins:
        return built_in()
    rules = {info.code: info for info in built_in()}
    names = {info.name: info for info in built_in()}
    for info in _plugin_rules(plugins):
        for other in (rules.get(info.code), names.get(info.name)):
            if other is not None:
                raise RuleError(
                    f"rule {info.code} ({info.name}) of {info.distribution} clashes with {other.code} "
                    f"({other.name}) of {other.distribution}"
                )
        rules[info.code] = names[info.name] = info
    return tuple(rules[code] for code in sorted(rules))


def site_folders() -> list[str]:
    """Folders that hold what is installed for this Python, and the one that holds memlint. What else is on the path may
    lie in a linted tree."""
    import site
    import sysconfig

    import memlint

    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys([*folders, os.path.dirname(os.path.dirname(os.path.abspath(memlint.__file__)))]))


def _plugin_rules(plugins: Sequence[str]) -> Iterable[RuleInfo]:
    from importlib.metadata import distributions

    points = {
        point.name: point
        for distribution in distributions(path=site_folders())
        for point in distribution.entry_points
        if point.group == ENTRY_POINTS
    }
    for plugin in plugins:
        point = points.get(plugin)
        if point is None:
            have = ", ".join(sorted(points)) or "none"
            raise RuleError(f"plugin {plugin!r} is not installed (installed: {have})")
        try:
            loaded = point.load()
        except Exception as error:
            raise RuleError(f"plugin {plugin!r} cannot be loaded: {type(error).__name__}: {error}") from error
        members = vars(loaded).values() if hasattr(loaded, "__spec__") else loaded  # a module, or classes
        if isinstance(members, type):
            members = (members,)
        distribution = point.dist.name if point.dist is not None else plugin
        count = 0
        for rule in members:
            if isinstance(rule, type) and issubclass(rule, Rule) and rule is not Rule:
                count += 1
                yield RuleInfo(rule.code, rule.name, rule.__module__, rule, distribution)
        if not count:
            raise RuleError(f"plugin {plugin!r} of {distribution} holds no rule")


def load(info: RuleInfo) -> type[Rule]:
    """The rule's class. Raises RuleError where the module is not one rule named like its file."""
    if info.rule is not None:
        return info.rule
    from importlib import import_module

    module = import_module(info.module)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == info.module
    ]
    if len(classes) != 1:
        raise RuleError(f"{info.module} must hold exactly one rule, not {len(classes)}")
    rule = classes[0]
    if (rule.code, rule.name) != (info.code, info.name):
        raise RuleError(f"{info.module} holds {rule.code} {rule.name}, its file name says {info.code} {info.name}")
    return rule


IN_FULL = 99


def find(selector: str, rules: Sequence[RuleInfo]) -> RuleInfo:
    """One rule by code or name. Raises UnknownRule."""
    wanted = selector.strip()
    for info in rules:
        if wanted.upper() == info.code or wanted.lower() == info.name:
            return info
    raise UnknownRule(selector, nearest(wanted, [text for info in rules for text in (info.code, info.name)]))


def specificity(selector: str, info: RuleInfo) -> int:
    """How exactly a selector names a rule: 0 not at all, 1 ``ALL``, longer prefixes more, 99 code or name."""
    if selector.upper() == info.code or selector.lower() == info.name:
        return IN_FULL
    if selector.upper() == "ALL":
        return 1
    return 1 + len(selector) if _is_prefix(selector) and info.code.startswith(selector.upper()) else 0


def _is_prefix(selector: str) -> bool:
    letters = selector.rstrip("0123456789")
    return letters.isalpha() and letters.isascii()


def covers(selectors: Iterable[str], info: RuleInfo) -> bool:
    return any(specificity(selector, info) for selector in selectors)


def require(selectors: Iterable[str], rules: Sequence[RuleInfo]) -> None:
    """Raise UnknownRule for the first selector that names no rule."""
    for selector in selectors:
        if selector.upper() != "ALL" and not any(specificity(selector, info) for info in rules):
            raise UnknownRule(selector, nearest(selector, [text for info in rules for text in (info.code, info.name)]))


def reason(select: Sequence[str], ignore: Sequence[str], info: RuleInfo) -> tuple[bool, str]:
    """Whether a rule is on, and the selector that decides: the most exact one; ``ignore`` wins ties."""
    on, by = (0, "") if select else (1, "default")
    for selector in select:
        on, by = max((on, by), (specificity(selector, info), f"select {selector}"), key=lambda item: item[0])
    off, off_by = 0, ""
    for selector in ignore:
        off, off_by = max((off, off_by), (specificity(selector, info), f"ignore {selector}"), key=lambda item: item[0])
    if info.code in NEVER_HIDDEN:
        return True, "cannot be ignored"
    if off >= on and off:
        return False, off_by
    return (True, by) if on else (False, "not selected")


def nearest(word: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """The choices closest to a mistyped word, best first."""
    from difflib import get_close_matches

    by_lower = {choice.lower(): choice for choice in choices}
    return [by_lower[match] for match in get_close_matches(word.lower(), by_lower, count, 0.7)]
