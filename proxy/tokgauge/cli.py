"""The command line: `tokgauge COMMAND`."""

from __future__ import annotations

import difflib
import importlib

import click

from tokgauge import __version__

_COMMANDS = ("serve", "demo", "simulate", "probe", "calibrate", "ceiling", "plan", "check")


class _LazyGroup(click.Group):
    """Imports a command only when it is used: `tokgauge plan` needs no HTTP server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tokgauge.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if not near:
                raise
            hint = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(hint, ctx) from error


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tokgauge")
def main() -> None:
    """Measure how fast an OpenAI-compatible engine answers, and what the hardware would allow."""
