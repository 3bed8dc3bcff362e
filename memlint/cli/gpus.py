"""``memlint gpus``: the cards that ``--gpu`` knows."""

from __future__ import annotations

import click

from memlint.cli import options as shared


@click.command("gpus", short_help="List the cards that --gpu knows.")
@click.argument("name", required=False)
@click.option(
    "--output-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How to print them.",
)
def command(name: str | None, output_format: str) -> None:
    """List the cards that --gpu knows with the memory that is their budget, or show the one that NAME means."""
    from memlint.data.catalogue import UnknownGpu, cards, gpu
    from memlint.units import format_bytes

    try:
        chosen = (gpu(name),) if name else cards()
    except UnknownGpu as error:
        raise shared.Stop(str(error)) from None
    if output_format == "json":
        import json

        entries = [card._asdict() for card in chosen]
        shared.out(json.dumps(entries[0] if name else entries, indent=2) + "\n")
        return
    wide = max(len(card.name) for card in chosen)
    lines = [f"{'name':<{wide}}  {'usable':>8}  {'from':<10}  {'capability':<10}  {'types':<13}  card"]
    for card in chosen:
        types = " ".join(("fp16", *(("bf16",) if card.bf16 else ()), *(("fp8",) if card.fp8 else ())))
        lines.append(
            f"{card.name:<{wide}}  {format_bytes(card.usable_bytes):>8}  {card.usable_from:<10}  "
            f"{card.capability:<10}  {types:<13}  {card.label}"
        )
    shared.out("".join(f"{line}\n" for line in lines))
