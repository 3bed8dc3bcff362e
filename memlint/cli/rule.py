"""``memlint rule``: a rule's manual page, which is the docstring of its class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from memlint.cli import options as shared

if TYPE_CHECKING:
    from memlint.plugin import Rule
    from memlint.rules_registry import RuleInfo

HEADINGS = (
    "What it does",
    "Why it matters",
    "Why is this bad",
    "Example",
    "Use instead",
    "Fix safety",
    "Options",
    "Known problems",
    "References",
)


@click.command("rule", short_help="Print a rule's manual page.")
@click.argument("rule_name", metavar="[CODE|NAME]", required=False)
@click.option("--all", "all_", is_flag=True, help="Print every rule.")
@click.option(
    "--output-format",
    type=click.Choice(("text", "json", "markdown")),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option("--config", metavar="FILE", default="", help="Settings file to use instead of the nearest.")
@click.option("--isolated", is_flag=True, help="Read no settings file, so no plugins.")
@click.pass_context
def command(
    ctx: click.Context, rule_name: str | None, all_: bool, output_format: str, config: str, isolated: bool
) -> None:
    """Print the manual page of one rule, of all with --all, or without either a list of the rules."""
    from memlint.rules_registry import RuleError, UnknownRule, find, load
    from memlint.selection import known_rules
    from memlint.settings import SettingsError

    if rule_name and all_:
        raise click.UsageError("give a rule or --all, not both", ctx)
    try:
        settings = shared.resolver({"config": config, "isolated": isolated}).for_path(".")
        infos = known_rules(settings)
        chosen = [find(rule_name, infos)] if rule_name else list(infos)
        pages = [(info, load(info)) for info in chosen]
    except (SettingsError, UnknownRule, RuleError) as error:
        raise shared.Stop(str(error)) from None
    if output_format == "json":
        import json

        entries = [as_dict(info, rule) for info, rule in pages]
        shared.out(json.dumps(entries[0] if rule_name else entries, indent=2) + "\n")
    elif rule_name or all_:
        show = markdown if output_format == "markdown" else text
        shared.out("\n".join(show(info, rule) for info, rule in pages))
    elif output_format == "markdown":
        rows = [f"| {i.code} | {i.name} | {r.severity} | {first_line(r)} |\n" for i, r in pages]
        shared.out("| code | name | severity | what it finds |\n|---|---|---|---|\n" + "".join(rows))
    else:
        wide = max([len(info.name) for info in infos], default=0)
        shared.out("".join(f"{i.code}  {i.name:<{wide}}  {r.severity:<7}  {first_line(r)}\n" for i, r in pages))


def manual(rule: type[Rule]) -> list[str]:
    """The lines of a rule's docstring without its indentation."""
    from inspect import cleandoc

    return cleandoc(rule.__doc__ or "").splitlines()


def first_line(rule: type[Rule]) -> str:
    """The summary: the docstring up to its first blank line, without the rule's name before it."""
    lines = manual(rule)
    end = lines.index("") if "" in lines else len(lines)
    return " ".join(lines[:end]).removeprefix(f"{rule.name}: ")


def _heading(line: str) -> str:
    """The heading that a line is, or "": ``## Example``, ``Example:`` and ``Example`` all are."""
    bare = line.strip("# :").lower()
    if line.startswith(" "):
        return ""
    return next((heading for heading in HEADINGS if heading.lower() == bare), "")


def text(info: RuleInfo, rule: type[Rule]) -> str:
    title = f"{info.code} {info.name} ({rule.severity}{', preview' if rule.preview else ''})"
    lines = [title, "=" * len(title), ""]
    for line in manual(rule):
        heading = _heading(line)
        if heading:
            lines += [heading, "-" * len(heading)]
        elif not (line and not line.strip("-=~") and lines[-1].startswith("-")):
            lines.append(line)
    return "\n".join(lines) + "\n"


def markdown(info: RuleInfo, rule: type[Rule]) -> str:
    note = f"`{info.code}` · {rule.severity}{' · preview' if rule.preview else ''}"
    lines = [f"# {info.name}", "", note, ""]
    previous = ""
    for line in manual(rule):
        heading = _heading(line)
        if heading:
            lines.append(f"## {heading}")
        elif not (line and not line.strip("-=~") and _heading(previous)):
            lines.append(line)
        previous = line
    return "\n".join(lines) + "\n"


def as_dict(info: RuleInfo, rule: type[Rule]) -> dict[str, Any]:
    return {
        "code": info.code,
        "name": info.name,
        "severity": rule.severity,
        "preview": rule.preview,
        "summary": first_line(rule),
        "manual": "\n".join(manual(rule)),
        "distribution": info.distribution,
    }
