"""`tokgauge plan`: will a model fit, on what, and does buying that pay."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console

from proxy.commands._cards import named_card
from proxy.commands._output import new_table, print_json, terminal
from proxy.commands._quantities import AMOUNT, BITS, BYTES, COUNT, FACTOR, POSITIVE, TOKENS
from proxy.model.kv import KvCache, KvUnknown
from proxy.model.resolve import resolve_config, resolve_kv, resolve_weights
from proxy.model.weights import WeightsUnknown

_HOURS_PER_MONTH = 730.0
_SECONDS_PER_MONTH = _HOURS_PER_MONTH * 3600
_GB = 1e9


@dataclass(frozen=True, slots=True)
class _Hardware:
    card_bytes: float
    cards_per_node: int
    heads: int | None


@dataclass(frozen=True, slots=True)
class _Costs:
    """Amounts in one currency; the same fields as the options."""

    card_price: float
    purchase: float | None
    months: float
    card_watts: float
    pue: float
    electricity: float
    """Per kWh."""
    people: float
    """Per month."""
    api_price: float
    """Per million tokens."""
    tokens_per_month: float | None


@dataclass(frozen=True, slots=True)
class _Memory:
    """What one format needs, and the cards that follow."""

    label: str
    bits: float | None
    weights_bytes: float
    """With the overhead."""
    kv_bytes: float | None
    """None: unknown, and then not in needed_bytes, which is the rule of thumb alone."""
    needed_bytes: float
    cards: int
    """The smallest number whose memory is enough."""
    nodes: int
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def cards_used(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class _Money:
    """Owning against an API bill."""

    purchase: float
    power_per_month: float
    fixed_per_month: float
    """Purchase spread over its months, power and cooling, people."""
    break_even_tokens_per_month: float
    break_even_tokens_per_second: float
    """The same, spread evenly over the month."""
    api_bill_per_month: float | None
    break_even_months: float | None
    """Until what is saved has paid the purchase; None: never, or no volume was given."""


@click.command(
    name="plan",
    epilog=(
        "Examples: tokgauge plan --params 480B | tokgauge plan --params 70B --bits 8 --users 50 "
        "--context 16k --kv-bytes-per-token 327680 --tokens-per-month 5B --api-price 0.9"
    ),
)
@click.option("--params", type=COUNT, help="All parameters, those of every expert too: 480B.")
@click.option(
    "--bits", type=BITS, multiple=True, help="Bits a parameter, repeatable.  [default: 16, 8, 4]"
)
@click.option("--model", help="Directory or cached repository, for its bytes, KV cache and heads.")
@click.option(
    "--overhead",
    type=FACTOR,
    default="1.2",
    show_default=True,
    help="Memory for weights and all that runs beside them, as a multiple of the weights.",
)
@click.option(
    "--users", type=click.IntRange(1, 10**6), default=32, show_default=True, help="At one time."
)
@click.option("--context", type=TOKENS, default="8192", show_default=True, help="Tokens a user.")
@click.option("--kv-bytes-per-token", type=BYTES, help="KV cache of one token.")
@click.option("--kv-cache-dtype", help="As the engine will be told: auto, fp8 ...")
@click.option("--gpu", help="A card by name, for its memory.")
@click.option("--card-memory", type=BYTES, help="Memory of one card.  [default: 80GB]")
@click.option(
    "--cards-per-node", type=click.IntRange(1, 1024), default=8, show_default=True, help="Cards."
)
@click.option("--heads", type=click.IntRange(1), help="Attention heads of the model.")
@click.option(
    "--card-price",
    type=AMOUNT,
    default="35000",
    show_default=True,
    help="One card with its share of the server.",
)
@click.option("--purchase", type=AMOUNT, help="Price of everything, instead of --card-price.")
@click.option("--months", type=POSITIVE, default="36", show_default=True, help="Writing off.")
@click.option(
    "--card-watts",
    type=AMOUNT,
    default="1000",
    show_default=True,
    help="Power of one card with its share of the server.",
)
@click.option("--pue", type=FACTOR, default="1.3", show_default=True, help="Factor for cooling.")
@click.option("--electricity", type=AMOUNT, default="0.20", show_default=True, help="Per kWh.")
@click.option("--people", type=AMOUNT, default="5000", show_default=True, help="Per month.")
@click.option(
    "--api-price", type=POSITIVE, default="1.00", show_default=True, help="Per million tokens."
)
@click.option("--tokens-per-month", type=COUNT, help="What you would send to the API: 5B.")
@click.option("--currency", default="USD", show_default=True, help="Only a label.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def command(
    params: float | None,
    bits: tuple[float, ...],
    model: str | None,
    overhead: float,
    users: int,
    context: float,
    kv_bytes_per_token: float | None,
    kv_cache_dtype: str | None,
    gpu: str | None,
    card_memory: float | None,
    cards_per_node: int,
    heads: int | None,
    currency: str,
    as_json: bool,
    **costs: Any,
) -> None:
    """Memory, cards and the vllm line for a model; a purchase against an API bill."""
    if gpu is not None and card_memory is not None:
        raise click.UsageError("give --gpu or --card-memory, not both")
    card_bytes = named_card(gpu).memory_gb * _GB if gpu else card_memory or 80 * _GB
    if heads is None and (config := resolve_config(model)) is not None:
        heads = config.heads
    hardware = _Hardware(card_bytes, cards_per_node, heads)
    kv = _kv(model, kv_bytes_per_token, kv_cache_dtype)
    prices = _Costs(**costs)
    plans = [
        _memory(label, width, weights * overhead, kv, users, context, hardware)
        for label, width, weights in _formats(params, bits, model)
    ]
    money = [_money(plan, prices) for plan in plans]
    lines = [_vllm_line(plan, model, users, context, kv_cache_dtype) for plan in plans]
    assumptions = {
        "overhead_factor": overhead,
        "users": users,
        "context_tokens": context,
        "kv_bytes_per_token": kv.bytes_per_token if isinstance(kv, KvCache) else None,
        "kv_source": kv.source if isinstance(kv, KvCache) else f"unknown: {kv.reason}",
        "card_memory_bytes": card_bytes,
        "cards_per_node": cards_per_node,
        "attention_heads": heads,
        "currency": currency,
        **asdict(prices),
    }
    if as_json:
        formats = [
            {**asdict(plan), "cards_used": plan.cards_used, "money": asdict(cost), "command": line}
            for plan, cost, line in zip(plans, money, lines, strict=True)
        ]
        print_json({"assumptions": assumptions, "formats": formats})
    else:
        _print(terminal(), plans, money, lines, assumptions)


def _kv(model: str | None, bytes_per_token: float | None, dtype: str | None) -> KvCache | KvUnknown:
    if model is None and bytes_per_token is None:
        return KvUnknown("neither --kv-bytes-per-token nor --model is given")
    return resolve_kv(model, bytes_per_token=bytes_per_token, cache_dtype=dtype)


def _formats(
    params: float | None, bits: tuple[float, ...], model: str | None
) -> Iterator[tuple[str, float | None, float]]:
    """(label, bits, bytes of all weights) of each format to plan for."""
    if params is None and model is None:
        raise click.UsageError("say which model: --params 480B, or --model PATH_OR_REPO")
    if params is not None:
        for width in bits or (16.0, 8.0, 4.0):
            yield f"{width:g} bit", width, params * width / 8
        return
    if bits:
        raise click.UsageError("--bits belongs to --params; a model's files have their own bits")
    found = resolve_weights(model)
    if isinstance(found, WeightsUnknown) or found.checkpoint_bytes is None:
        reason = found.reason if isinstance(found, WeightsUnknown) else "its size is unknown"
        raise click.ClickException(f"{reason}. Give --params instead.")
    yield "as stored", None, found.checkpoint_bytes


def _memory(
    label: str,
    bits: float | None,
    weights: float,
    kv: KvCache | KvUnknown,
    users: int,
    context: float,
    hardware: _Hardware,
) -> _Memory:
    cache = kv if isinstance(kv, KvCache) else None
    kept = 0.0 if cache is None else users * cache.bytes_read(context)

    def kept_by(tensor_parallel: int) -> float:
        return kept * (1.0 if cache is None else cache.copies(tensor_parallel))

    tensor, pipeline = _parallel(lambda size: weights + kept_by(size), hardware)
    needed = weights + kept_by(tensor)
    cards = _whole(needed / hardware.card_bytes)
    return _Memory(
        label=label,
        bits=bits,
        weights_bytes=weights,
        kv_bytes=None if cache is None else kept_by(tensor),
        needed_bytes=needed,
        cards=cards,
        nodes=math.ceil(tensor * pipeline / hardware.cards_per_node),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
    )


def _parallel(total: Callable[[int], float], hardware: _Hardware) -> tuple[int, int]:
    """(tensor parallel, pipeline parallel).

    Tensor parallelism exchanges data in every layer, so it stays inside a node: the smallest power
    of two that fits and divides the heads. What one node cannot hold goes into pipeline stages.
    """
    size = largest = 1
    while size <= hardware.cards_per_node and (hardware.heads or size) % size == 0:
        if total(size) <= size * hardware.card_bytes:
            return size, 1
        largest, size = size, size * 2
    return largest, _whole(total(largest) / (largest * hardware.card_bytes))


def _whole(count: float) -> int:
    """The next whole number; what is above by rounding errors only stays below."""
    return math.ceil(round(count, 9))


def _money(plan: _Memory, costs: _Costs) -> _Money:
    purchase = costs.purchase
    if purchase is None:
        purchase = plan.cards_used * costs.card_price
    kilowatts = plan.cards_used * costs.card_watts * costs.pue / 1000
    power = kilowatts * _HOURS_PER_MONTH * costs.electricity
    fixed = purchase / costs.months + power + costs.people
    even = fixed / costs.api_price * 1e6
    bill = payback = None
    if costs.tokens_per_month is not None:
        bill = costs.tokens_per_month / 1e6 * costs.api_price
        saved = bill - power - costs.people
        payback = purchase / saved if saved > 0 else None
    return _Money(purchase, power, fixed, even, even / _SECONDS_PER_MONTH, bill, payback)


def _vllm_line(
    plan: _Memory, model: str | None, users: int, context: float, kv_cache_dtype: str | None
) -> str:
    words = ["vllm", "serve", model or "MODEL", "--tensor-parallel-size", str(plan.tensor_parallel)]
    if plan.pipeline_parallel > 1:
        words += ["--pipeline-parallel-size", str(plan.pipeline_parallel)]
    words += ["--max-model-len", f"{context:.0f}", "--max-num-seqs", str(users)]
    if kv_cache_dtype and kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", kv_cache_dtype]
    return shlex.join(words)


def _print(
    console: Console,
    plans: list[_Memory],
    money: list[_Money],
    lines: list[str],
    assumptions: dict[str, Any],
) -> None:
    card = f"{assumptions['card_memory_bytes'] / _GB:g} GB cards"
    table = new_table(console, "Memory")
    table.add_column("format")
    table.add_column(f"weights x {assumptions['overhead_factor']:g}", justify="right")
    for name in ("KV cache", "needed", card, "used", "nodes", "tensor x pipeline"):
        table.add_column(name, justify="right", style="bold" if name == "needed" else None)
    for plan in plans:
        table.add_row(
            plan.label,
            _gigabytes(plan.weights_bytes),
            "unknown" if plan.kv_bytes is None else _gigabytes(plan.kv_bytes),
            _gigabytes(plan.needed_bytes),
            str(plan.cards),
            str(plan.cards_used),
            str(plan.nodes),
            f"{plan.tensor_parallel} x {plan.pipeline_parallel}",
        )
    console.print(table)
    console.print()
    console.print(_money_table(console, plans, money, assumptions))
    console.print()
    for plan, line in zip(plans, lines, strict=True):
        console.print(f"{plan.label}: {line}", soft_wrap=True)
    console.print()
    for note in _notes(plans, assumptions):
        console.print(note, soft_wrap=True)


def _money_table(
    console: Console, plans: list[_Memory], money: list[_Money], assumptions: dict[str, Any]
) -> Any:
    currency = assumptions["currency"]
    table = new_table(console, f"Money [{currency}]")
    volume = assumptions["tokens_per_month"]
    table.add_column("format")
    for name in ("purchase", "power a month", "fixed a month", "breaks even at tokens a month"):
        table.add_column(name, justify="right")
    table.add_column("evenly tok/s", justify="right")
    if volume is not None:
        table.add_column("API bill a month", justify="right")
        table.add_column("purchase is back after", justify="right")
    for plan, cost in zip(plans, money, strict=True):
        cells = [
            plan.label,
            f"{cost.purchase:,.0f}",
            f"{cost.power_per_month:,.0f}",
            f"{cost.fixed_per_month:,.0f}",
            f"{cost.break_even_tokens_per_month / 1e9:,.2f} billion",
            f"{cost.break_even_tokens_per_second:,.0f}",
        ]
        if volume is not None:
            months = cost.break_even_months
            cells.append(f"{cost.api_bill_per_month:,.0f}")
            cells.append("never" if months is None else f"{months:,.1f} months")
        table.add_row(*cells)
    return table


def _notes(plans: list[_Memory], assumptions: dict[str, Any]) -> Iterator[str]:
    yield "Assumptions (each is an option):"
    for name, value in assumptions.items():
        shown = (
            f"{value:,g}" if isinstance(value, float) else "not given" if value is None else value
        )
        yield f"  {name.replace('_', ' ')}: {shown}"
    if any(plan.kv_bytes is None for plan in plans):
        yield "The KV cache is not in the memory above: only the rule of thumb weights x factor is."
    if any(plan.pipeline_parallel > 1 for plan in plans):
        yield "Pipeline stages add memory, not speed for one stream."
    if any(plan.bits is not None and plan.bits < 16 for plan in plans):
        yield (
            "Below 16 bit, MODEL is a checkpoint in that format; for 8 bit, "
            "--quantization fp8 lets vllm convert a 16 bit one while it loads."
        )
    yield "Whether the cards reach the tokens a second of the break-even: tokgauge ceiling."


def _gigabytes(size: float) -> str:
    return f"{size / _GB:,.0f} GB" if size >= 100 * _GB else f"{size / _GB:,.1f} GB"
