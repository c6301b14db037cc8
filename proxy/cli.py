"""The command line: `tokgauge COMMAND`."""

from __future__ import annotations

import importlib

import click

from proxy import __version__

_COMMANDS = ("serve", "demo", "simulate", "probe", "ceiling", "plan", "check")


class _LazyGroup(click.Group):
    """Imports a command only when it is used: `tokgauge plan` needs no HTTP server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"proxy.commands.{cmd_name}").command
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tokgauge")
def main() -> None:
    """Measure how fast an OpenAI-compatible engine answers, and what the hardware would allow."""
