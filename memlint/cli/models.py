"""``memlint models``: the models that configs can name, and ``memlint models add``, which fetches one more."""

from __future__ import annotations

from typing import Any

import click

from memlint.cli import options as shared


class _Models(click.Group):
    """``memlint models`` lists, whatever stands behind it, and ``memlint models add`` adds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if args[:1] and args[0] in known else ["list", *args])


@click.group("models", cls=_Models, short_help="List the models that configs can name, or add one.")
def command() -> None:
    """List the models that configs can name (`memlint models PATTERN`), or add one (`memlint models add ID`)."""


@command.command("add")
@click.argument("name", metavar="ID")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
def add(name: str, revision: str) -> None:
    """Fetch the config.json of a model of the Hugging Face hub, and keep it for every later check.

    This one file is fetched, over HTTPS, from huggingface.co or from $HF_ENDPOINT, with $HF_TOKEN where it is set. No
    other command asks the network.
    """
    from memlint.data import download
    from memlint.reports.text import clean

    try:
        added = download.add(name, revision)
    except download.NotFetched as error:
        raise shared.Stop(str(error)) from None
    kind = clean(str(added.resolved.config["model_type"]))
    at = f" at {clean(added.commit)}" if added.commit else ""
    shared.out(f"{name}{at}: {kind}, kept in {added.path}\n")


@command.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--output-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How to print them.",
)
def listed(pattern: str | None, output_format: str) -> None:
    """List the models of the catalogue, or those whose hub id holds PATTERN (in any case). With * or ? in it, PATTERN
    is the whole id, or all of it behind the organisation.

    A PATTERN that fits none is looked up as configs do it: what was added, a folder with a config.json, then the local
    hub cache.
    """
    from memlint.data import hub, models

    rows: list[tuple[str, dict[str, Any], int | None, str]] = []
    for name in models.names():
        if pattern is None or _fits(name, pattern):
            model = models.find(name)
            assert model is not None
            source = hub.CATALOGUE if name == model.name else f"same as {model.name}"
            rows.append((name, model.config, model.parameters, source))
    if not rows and pattern is not None:
        found = hub.resolve(pattern)
        if found is None:
            raise shared.Stop(hub.unknown(pattern))
        if found.reason:
            raise shared.Stop(found.reason)
        rows.append((pattern, found.config, None, found.source))
    if output_format == "json":
        import json

        entries = [
            {
                "id": name,
                "model_type": config["model_type"],
                "parameters": parameters,
                "context": models.context(config),
                "source": source,
                "config": config,
            }
            for name, config, parameters, source in rows
        ]
        shared.out(json.dumps(entries, indent=2) + "\n")
        return
    from memlint.reports.text import clean

    table = [
        (
            clean(name),
            clean(config["model_type"]),
            "-" if parameters is None else f"{parameters:,}",
            "-" if (length := models.context(config)) is None else f"{length:,}",
            clean(source),
        )
        for name, config, parameters, source in rows
    ]
    table.insert(0, ("id", "type", "parameters", "context", "source"))
    wide, kind, count, length = (max(len(row[column]) for row in table) for column in range(4))
    shared.out(
        "".join(
            f"{row[0]:<{wide}}  {row[1]:<{kind}}  {row[2]:>{count}}  {row[3]:>{length}}  {row[4]}\n" for row in table
        )
    )


def _fits(name: str, pattern: str) -> bool:
    name, pattern = name.lower(), pattern.lower()
    if "*" in pattern or "?" in pattern:
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)
    return pattern in name
