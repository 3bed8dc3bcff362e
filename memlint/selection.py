"""Which rules are on: the settings' choice of what :mod:`memlint.rules_registry` knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memlint.discover import matches
from memlint.named_tuple import NamedTuple
from memlint.plugin import Finding, Rule
from memlint.rules_registry import NEVER_HIDDEN, RuleInfo
from memlint.settings import Settings


class Selected(NamedTuple):
    """A rule that is on. ``options`` is its table in the settings."""

    info: RuleInfo
    rule: Rule
    options: dict[str, Any]


def known_rules(settings: Settings) -> tuple[RuleInfo, ...]:
    """Every rule that exists under these settings. Raises SettingsError for a plugin that does not load."""
    from memlint.rules_registry import RuleError, known

    try:
        return known(settings.plugins)
    except RuleError as error:
        raise settings.error("plugins", str(error)) from None


def select_rules(settings: Settings) -> list[Selected]:
    """The rules that settings switch on, imported. Raises SettingsError naming the option at fault."""
    from memlint.rules_registry import UnknownRule, find, load, reason, require

    rules = known_rules(settings)
    named = {
        "select": settings.select,
        "extend-select": settings.extend_select,
        "ignore": settings.ignore,
        "extend-ignore": settings.extend_ignore,
        "per-file-ignores": tuple(code for _, codes in settings.per_file_ignores for code in codes),
    }
    for key, codes in named.items():
        try:
            require(codes, rules)
        except UnknownRule as error:
            raise settings.error(key, str(error)) from None
    options: dict[str, dict[str, Any]] = {}
    for name, table in settings.rules.items():
        try:
            options[find(name, rules).code] = table
        except UnknownRule as error:
            raise settings.error("rules", f"[rules.{name}]: {error}") from None
    selected = []
    for info in rules:
        if reason(settings.selected, settings.ignored, info)[0]:
            rule = load(info)
            if settings.preview or not rule.preview:
                selected.append(Selected(info, rule(), options.get(info.code, {})))
    return selected


def without_ignored(findings: Iterable[Finding], settings: Settings) -> list[Finding]:
    """What per-file ignores leave. Internal errors stay."""
    if not settings.per_file_ignores:
        return list(findings)
    from memlint.rules_registry import covers

    kept = []
    ignored: dict[str, list[str]] = {}  # path -> selectors
    for finding in findings:
        path = finding.span.path
        if path not in ignored:
            found = [codes for pattern, codes in settings.per_file_ignores if matches((pattern,), path)]
            ignored[path] = list(dict.fromkeys(code for codes in found for code in codes))
        if finding.code in NEVER_HIDDEN or not covers(ignored[path], RuleInfo(finding.code, finding.name, "")):
            kept.append(finding)
    return kept
