"""Tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["new_table", "print_json", "terminal"]

_WIDE = 200
"""Columns when nobody looks: a table in a file or pipe is not folded."""


def terminal() -> Console:
    """Standard output: colours and its own width on a terminal, plain and wide elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE, file=sys.stdout)
    return console


def new_table(console: Console, title: str) -> Table:
    """A table with lines on a terminal, without any elsewhere."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2,
        show_edge=False,
        pad_edge=False,
    )


def print_json(document: dict[str, Any]) -> None:
    """One document on standard output; an infinite number in it would be a defect."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))
