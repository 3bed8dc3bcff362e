"""The command ``memlint``. A subcommand's module is imported when it is called."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any

import click

from memlint import __version__
from memlint.cli.output import Stop, Unheard
from memlint.cli.plain import GARBAGE_THRESHOLD

# Command -> (attribute of memlint.cli.<module>, one line for --help).
COMMANDS = {
    "check": ("check", "Lint training configs: predict peak memory and flag the lines that cause it."),
    "fit": ("fit", "Find the least intrusive changes with which a config fits a card."),
    "explain": ("explain", "Show where every byte of a config's peak comes from."),
    "diff": ("diff", "Compare the memory of two files, folders, saved reports or git revisions."),
    "plan": ("plan", "Show what a model takes by method, card and number of devices, before there is a config."),
    "record": ("record", "Trace a model once into a profile that check can use without torch."),
    "probe": ("probe", "Run a config's training step for real and measure it."),
    "rule": ("rule", "Print the manual page of a rule."),
    "gpus": ("gpus", "List the cards that --gpu knows."),
    "models": ("models", "List the models that configs can name."),
    "config": ("config", "Show the settings in force for a path."),
}


class _Ended(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Unheard:
            raise
        except Stop as error:
            raise _Ended(str(error)) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"memlint.cli.{COMMANDS[cmd_name][0]}"), "command")  # noqa: B009
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from memlint.rules_registry import nearest

            near = nearest(name, COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="memlint", message="memlint %(version)s")
def main() -> None:
    """Predict the peak GPU memory of training configs, and point at the lines that cause it."""
    gc.set_threshold(GARBAGE_THRESHOLD)
