"""Cards that a person names on the command line, and what they can compute."""

from __future__ import annotations

from difflib import SequenceMatcher

import click

from tokgauge.gpu.catalogue import Card, find_cards, load_catalogue

__all__ = ["named_card", "named_cards"]

_MOST = 4
"""Cards that one name may mean: SXM and PCIe, with the two sizes of memory."""


def named_cards(text: str) -> list[Card]:
    """The cards that `text` means: one, or the forms of it that are sold under that name.

    Raises click.BadParameter, which names near ones.
    """
    exact = [card for card in load_catalogue() if card.name.lower() == text.strip().lower()]
    found = exact or find_cards(text)
    if 1 <= len(found) <= _MOST:
        return found
    if found:
        names = ", ".join(card.name for card in found)
        raise click.BadParameter(f"{text!r} can mean many cards: {names}", param_hint="--gpu")
    near = sorted(load_catalogue(), key=lambda card: -_likeness(text, card.name))[:3]
    names = ", ".join(card.name for card in near)
    raise click.BadParameter(
        f"{text!r} is not in the table of cards. Near names: {names}", param_hint="--gpu"
    )


def named_card(text: str) -> Card:
    """The one card that `text` means; of several that differ it is not known which."""
    found = named_cards(text)
    if len(found) > 1:
        names = " or ".join(
            f"{card.name!r} ({card.bandwidth_bytes_per_second / 1e9:.0f} GB/s)" for card in found
        )
        raise click.BadParameter(f"{text!r} means one of several, say which: {names}",
                                 param_hint="--gpu")  # fmt: skip
    return found[0]


def _likeness(text: str, name: str) -> float:
    """How alike two names are, by the word that tells most: `A600` is near `RTX A6000`."""
    wanted = text.lower().replace(" ", "")
    return max(
        SequenceMatcher(None, wanted, part).ratio()
        for part in (*name.lower().split(), name.lower().replace(" ", ""))
    )
