"""Cards that a person names on the command line."""

from __future__ import annotations

from difflib import SequenceMatcher

import click

from proxy.gpu.catalogue import Card, find_cards, load_catalogue

__all__ = ["named_card"]


def named_card(text: str) -> Card:
    """The one card that `text` means. Raises click.BadParameter, which names near ones."""
    exact = [card for card in load_catalogue() if card.name.lower() == text.strip().lower()]
    found = exact or find_cards(text)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(card.name for card in found)
        raise click.BadParameter(f"{text!r} can mean several cards: {names}", param_hint="--gpu")
    near = sorted(load_catalogue(), key=lambda card: -_likeness(text, card.name))[:3]
    names = ", ".join(card.name for card in near)
    raise click.BadParameter(
        f"{text!r} is not in the table of cards. Near names: {names}", param_hint="--gpu"
    )


def _likeness(text: str, name: str) -> float:
    """How alike two names are, by the word that tells most: `A600` is near `RTX A6000`."""
    wanted = text.lower().replace(" ", "")
    return max(
        SequenceMatcher(None, wanted, part).ratio()
        for part in (*name.lower().split(), name.lower().replace(" ", ""))
    )
