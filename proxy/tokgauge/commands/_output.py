"""Tables for people, one JSON document for programs."""

from __future__ import annotations

import json
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
    # Names of files and models are shown as they are, also when they look like markup.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_WIDE)
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
        padding=(0, 1, 0, 0) if console.is_terminal else (0, 1),
    )


def print_json(document: dict[str, Any]) -> None:
    """One document on standard output; an infinite number in it would be a defect."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))
