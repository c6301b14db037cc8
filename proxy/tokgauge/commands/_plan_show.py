"""A plan as tables for people, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tokgauge.commands._output import new_table
from tokgauge.commands._plan_memory import RULE_OF_THUMB, Memory
from tokgauge.commands._plan_money import Money
from tokgauge.model.config import ModelConfig

__all__ = ["document", "show"]

_GB = 1e9


def show(
    console: Console,
    plans: list[Memory],
    money: list[Money],
    lines: list[str],
    assumptions: dict[str, Any],
    config: ModelConfig | None,
) -> None:
    """Memory, what fits, money, the lines that start vLLM, and everything that was assumed."""
    console.print(_memory_table(console, plans, assumptions))
    console.print()
    if any(plan.fits for plan in plans):
        console.print(_fits_table(console, plans, assumptions))
        console.print()
    if any(cost.purchase is not None or cost.rent_per_month is not None for cost in money):
        console.print(_money_table(console, plans, money, assumptions))
        console.print()
    for plan, line in zip(plans, lines, strict=True):
        console.print(f"{plan.label}: {line}", soft_wrap=True)
    console.print()
    for note in _notes(plans, money, assumptions, config):
        console.print(note, soft_wrap=True)


def document(
    plans: list[Memory], money: list[Money], lines: list[str], assumptions: dict[str, Any]
) -> dict[str, Any]:
    """Everything as one JSON document."""
    formats = [
        {**asdict(plan), "cards_used": plan.cards_used, "money": asdict(cost), "command": line}
        for plan, cost, line in zip(plans, money, lines, strict=True)
    ]
    return {"assumptions": assumptions, "formats": formats}


def _memory_table(console: Console, plans: list[Memory], assumptions: dict[str, Any]) -> Table:
    card = f"{assumptions['card_memory_bytes'] / _GB:.3g} GB cards"
    table = new_table(console, "Memory")
    table.add_column("format")
    for name in ("weights", "KV cache", "activations", "CUDA graphs", "needed", card, "used",
                 "nodes", "tensor x pipeline", f"or weights x {RULE_OF_THUMB:g}"):  # fmt: skip
        table.add_column(name, justify="right", style="bold" if name == "needed" else None)
    for plan in plans:
        rule = plan.rule_of_thumb
        table.add_row(
            plan.label,
            _gigabytes(plan.weights_bytes),
            "unknown" if plan.kv_bytes is None else _gigabytes(plan.kv_bytes),
            "-" if plan.kv_bytes is None else _gigabytes(plan.activations_bytes),
            "-" if plan.kv_bytes is None else _gigabytes(plan.cuda_graphs_bytes),
            _gigabytes(plan.needed_bytes),
            str(plan.cards),
            str(plan.cards_used),
            str(plan.nodes),
            f"{plan.tensor_parallel} x {plan.pipeline_parallel}",
            f"{_gigabytes(rule.bytes)}: {_some(rule.cards, 'card')}, {_some(rule.nodes, 'node')}",
        )
    return table


def _fits_table(console: Console, plans: list[Memory], assumptions: dict[str, Any]) -> Table:
    table = new_table(console, "What fits")
    table.add_column("format")
    for name in ("cards", "left for the KV cache",
                 f"users with {assumptions['context_tokens']:,.0f} tokens each",
                 f"tokens for each of {assumptions['users']} users"):  # fmt: skip
        table.add_column(name, justify="right")
    for plan in plans:
        for fit in plan.fits:
            table.add_row(
                plan.label,
                str(fit.cards),
                _gigabytes(fit.cache_bytes) if fit.cache_bytes else "weights do not fit",
                f"{fit.users:,}" if fit.users else "none",
                f"{fit.context:,}" if fit.context else "none",
            )
    return table


def _money_table(
    console: Console, plans: list[Memory], money: list[Money], assumptions: dict[str, Any]
) -> Table:
    table = new_table(console, f"Money [{assumptions['currency']}]")
    table.add_column("format")
    columns = _money_columns(money)
    for name, _ in columns:
        table.add_column(name, justify="right")
    for plan, cost in zip(plans, money, strict=True):
        table.add_row(plan.label, *(cell(cost) for _, cell in columns))
    return table


def _money_columns(money: list[Money]) -> list[tuple[str, Callable[[Money], str]]]:
    """Head and cell of each column that has something to say."""
    columns: list[tuple[str, Callable[[Money], str]]] = [
        ("purchase", lambda cost: _amount(cost.purchase)),
        ("power a month", lambda cost: _amount(cost.power_per_month)),
        ("fixed a month", lambda cost: _amount(cost.fixed_per_month)),
        ("breaks even at tokens a month", _break_even),
        ("evenly tok/s", lambda cost: _amount(cost.break_even_tokens_per_second)),
    ]
    if any(cost.api_bill_per_month is not None for cost in money):
        columns += [
            ("API bill a month", lambda cost: _amount(cost.api_bill_per_month)),
            ("purchase is back after", lambda cost: _months(cost, cost.break_even_months)),
        ]
    has_rent = any(cost.rent_per_month is not None for cost in money)
    if has_rent:
        columns += [
            ("rent a month", lambda cost: _amount(cost.rent_per_month)),
            ("back against rent after", lambda cost: _months(cost, cost.rent_break_even_months)),
        ]
    if any(cost.tokens_per_second is not None for cost in money):
        columns += [
            ("tok/s all users", lambda cost: _amount(cost.tokens_per_second)),
            ("a million tokens, owned", lambda cost: _cents(cost.cost_per_million_tokens)),
        ]
        if has_rent:
            columns += [("rented", lambda cost: _cents(cost.rent_per_million_tokens))]
    return columns


def _break_even(cost: Money) -> str:
    even = cost.break_even_tokens_per_month
    return "-" if even is None else f"{even / 1e9:,.2f} billion"


def _notes(
    plans: list[Memory],
    money: list[Money],
    assumptions: dict[str, Any],
    config: ModelConfig | None,
) -> Iterator[str]:
    yield "Assumptions (each is an option):"
    for name, value in assumptions.items():
        shown = (
            f"{value:,g}" if isinstance(value, float) else "not given" if value is None else value
        )
        yield f"  {name.replace('_', ' ')}: {shown}"
    if any(plan.kv_bytes is None for plan in plans):
        yield (
            f"The KV cache is unknown, so the cards follow from the rule of thumb weights x "
            f"{RULE_OF_THUMB:g}, which holds a cache of common size already."
        )
    else:
        yield (
            f"The rule of thumb weights x {RULE_OF_THUMB:g} holds the cache already: it is another "
            "answer, nothing to add."
        )
    if all(cost.purchase is None for cost in money):
        yield "No price of this card is assumed: give --card-price or --purchase."
    elif all(cost.power_per_month is None for cost in money):
        yield "No power of this card is assumed, so nothing is said by month: give --card-watts."
    if source := next((cost.speed_source for cost in money if cost.speed_source), None):
        yield f"Cost of a million tokens: at full speed in all hours; {source}."
    longest = config.max_context if config is not None else None
    if longest is not None and assumptions["context_tokens"] > longest:
        yield f"The model's positions end at {longest:,} tokens, and so does --max-model-len."
    if any(plan.pipeline_parallel > 1 for plan in plans):
        yield "Pipeline stages add memory, not speed for one stream."
    if any(plan.bits is not None and plan.bits < 8 for plan in plans):
        yield "Below 8 bit, the model named in the line has to be a checkpoint in that format."
    if any(plan.bits is not None for plan in plans):
        yield "Sizes by bits are estimates, a few per cent off; a model's own files are exact."
    yield "Whether the cards reach the tokens a second of the break-even: tokgauge ceiling."


def _months(cost: Money, months: float | None) -> str:
    if cost.purchase is None or cost.power_per_month is None:
        return "-"
    return "never" if months is None else f"{months:,.1f} months"


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _cents(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _some(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _gigabytes(size: float) -> str:
    return f"{size / _GB:,.0f} GB" if size >= 100 * _GB else f"{size / _GB:,.1f} GB"
