"""``memlint config show``: the settings in force for a path, and why each rule is on or off."""

from __future__ import annotations

from typing import Any

import click

from memlint.cli import options as shared


@click.group("config", short_help="Show the settings in force.")
def command() -> None:
    """Look at settings."""


@command.command("show", short_help="Show the settings in force for a path.")
@click.argument("path", default=".")
@shared.memory_options
@shared.settings_options
@shared.rule_options
def show(path: str, **options: Any) -> None:
    """Show the settings in force for PATH, where each comes from, and why each rule is on or off."""
    from memlint.reports.text import clean
    from memlint.rules_registry import load, reason
    from memlint.selection import known_rules, select_rules
    from memlint.settings import SettingsError, allowance
    from memlint.units import format_bytes

    resolver = shared.resolver(options)
    try:
        settings = resolver.for_path(path)
        select_rules(settings)
        allowed = allowance(settings, path)
        rules = known_rules(settings)
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    files = ", ".join(settings.files) or "none"
    lines = [f"settings files: {files}"]
    if allowed.size_bytes is None:
        lines.append("budget: none")
    else:
        lines.append(f"budget: {format_bytes(allowed.size_bytes)} ({allowed.source})")
    lines += ["", "settings:"]
    for key, origin in sorted(settings.origins.items()):
        lines.append(f"  {key} = {_shown(getattr(settings, key.replace('-', '_')))}  ({origin})")
    if not settings.origins:
        lines.append("  all defaults")
    lines += ["", "rules:"]
    for info in rules:
        on, why = reason(settings.selected, settings.ignored, info)
        if on and load(info).preview and not settings.preview:
            on, why = False, "in preview, which is off"
        lines.append(f"  {'on ' if on else 'off'}  {info.code} {info.name}  ({why})")
    shared.out("".join(clean(line) + "\n" for line in lines))


def _shown(value: Any) -> str:
    from memlint.discover import Pattern

    if isinstance(value, Pattern):
        return value.glob
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(entry) for entry in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_shown(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
