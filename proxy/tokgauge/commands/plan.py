"""`tokgauge plan`: will a model fit, on what, and does buying that pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from tokgauge.commands._cards import named_cards
from tokgauge.commands._output import print_json, terminal
from tokgauge.commands._plan_line import vllm_line
from tokgauge.commands._plan_memory import Format, Hardware, Memory, Wish, plan_memory
from tokgauge.commands._plan_money import Costs, Money, plan_money
from tokgauge.commands._plan_show import document, show
from tokgauge.commands._quantities import (
    AMOUNT,
    BITS,
    BYTES,
    COUNT,
    FACTOR,
    POSITIVE,
    SHARE,
    TOKENS,
)
from tokgauge.diagnosis.ceiling_inputs import compute_roof
from tokgauge.gpu.catalogue import Card
from tokgauge.model.ceiling import serving_bandwidth, step_bytes, step_ceiling
from tokgauge.model.config import ModelConfig
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.resolve import resolve_config, resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound, WeightsUnknown

_GB = 1e9
_GENERIC_MEMORY = 80 * _GB
_GENERIC_PRICE = 35_000.0
_GENERIC_WATTS = 1000.0
"""A card of 80 GB with its share of a server, where none is named: assumed, and shown as such."""

_REACHED = 0.7
"""Share of the ceiling that a plan counts on: the lower end of what is usual for large weights."""


@click.command(
    name="plan",
    epilog=(
        "Examples: tokgauge plan --params 480B | tokgauge plan --model Qwen/Qwen2.5-7B-Instruct "
        "--gpu L40S --users 50 --context 16k --card-price 9000 --card-watts 450 "
        "--tokens-per-month 5B --api-price 0.9"
    ),
)
@click.option("--params", type=COUNT, help="All parameters, those of every expert too: 480B.")
@click.option(
    "--bits", type=BITS, multiple=True, help="Bits a parameter, repeatable.  [default: 16, 8, 4]"
)
@click.option("--model", help="Directory or cached repository, for its bytes, KV cache and heads.")
@click.option(
    "--users", type=click.IntRange(1, 10**6), default=32, show_default=True, help="At one time."
)
@click.option("--context", type=TOKENS, default="8192", show_default=True, help="Tokens a user.")
@click.option("--kv-bytes-per-token", type=BYTES, help="KV cache of one token.")
@click.option("--kv-cache-dtype", help="As the engine will be told: auto, fp8 ...")
@click.option("--gpu", help="A card by name, for its memory and speed.")
@click.option("--card-memory", type=BYTES, help="Memory of one card.  [default: 80GB]")
@click.option(
    "--cards-per-node", type=click.IntRange(1, 1024), default=8, show_default=True, help="Cards."
)
@click.option("--heads", type=click.IntRange(1), help="Attention heads of the model.")
@click.option(
    "--utilization",
    type=SHARE,
    default="0.92",
    show_default=True,
    help="Share of a card that vLLM uses (--gpu-memory-utilization).",
)
@click.option(
    "--activations", type=BYTES, default="2GB", show_default=True, help="Of a card, in a prefill."
)
@click.option("--cuda-graphs", type=BYTES, default="1GB", show_default=True, help="Of a card.")
@click.option("--card-price", type=AMOUNT, help="One card with its share of the server.")
@click.option("--purchase", type=AMOUNT, help="Price of everything, instead of --card-price.")
@click.option("--rent", type=AMOUNT, help="One card for an hour, to compare.")
@click.option("--months", type=POSITIVE, default="36", show_default=True, help="Writing off.")
@click.option("--card-watts", type=AMOUNT, help="One card with its share of the server.")
@click.option("--pue", type=FACTOR, default="1.3", show_default=True, help="Factor for cooling.")
@click.option("--electricity", type=AMOUNT, default="0.20", show_default=True, help="Per kWh.")
@click.option("--hours", type=POSITIVE, default="720", show_default=True, help="Of a month.")
@click.option("--people", type=AMOUNT, default="5000", show_default=True, help="Per month.")
@click.option(
    "--api-price", type=POSITIVE, default="1.00", show_default=True, help="Per million tokens."
)
@click.option("--api-input-price", type=AMOUNT, help="Of the input.  [default: --api-price]")
@click.option("--api-output-price", type=AMOUNT, help="Of the output.  [default: --api-price]")
@click.option("--api-cached-price", type=AMOUNT, help="Of input that the API has cached.")
@click.option(
    "--tokens-per-month", type=COUNT, help="What you would send to the API, or get back: 5B."
)
@click.option(
    "--input-tokens-per-month", type=COUNT, help="The input; --tokens-per-month is then the output."
)
@click.option("--cached-tokens-per-month", type=COUNT, help="Of the input, what is cached.")
@click.option("--speed", type=POSITIVE, help="Tokens/s of all users together, as you measured it.")
@click.option("--currency", default="USD", show_default=True, help="Only a label.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def command(
    params: float | None,
    bits: tuple[float, ...],
    model: str | None,
    users: int,
    context: float,
    kv_bytes_per_token: float | None,
    kv_cache_dtype: str | None,
    gpu: str | None,
    card_memory: float | None,
    cards_per_node: int,
    heads: int | None,
    utilization: float,
    activations: float,
    cuda_graphs: float,
    speed: float | None,
    currency: str,
    as_json: bool,
    **prices: Any,
) -> None:
    """Memory, cards and the vllm line for a model; a purchase against an API bill, or rent."""
    if gpu is not None and card_memory is not None:
        raise click.UsageError("give --gpu or --card-memory, not both")
    card = _card(gpu)
    config = resolve_config(model)
    if heads is None and config is not None:
        heads = config.heads
    hardware = Hardware(
        card_bytes=card.memory_gb * _GB if card else card_memory or _GENERIC_MEMORY,
        cards_per_node=cards_per_node,
        heads=heads,
        utilization=utilization,
        activations_bytes=activations,
        cuda_graphs_bytes=cuda_graphs,
    )
    wish = Wish(users, context)
    kv = _kv(model, kv_bytes_per_token, kv_cache_dtype)
    costs = _costs(prices, assume=gpu is None and card_memory is None)
    plans: list[Memory] = []
    money: list[Money] = []
    lines: list[str] = []
    for form, weights in _formats(params, bits, model, config):
        plan = _memory(form, kv, wish, hardware)
        planned = (speed, "measured") if speed else _speed(plan, weights, kv, card, wish)
        plans.append(plan)
        money.append(plan_money(plan.cards_used, costs, planned))
        lines.append(vllm_line(plan, model, wish, config, utilization, kv_cache_dtype))
    assumptions = {
        "users": users,
        "context_tokens": context,
        "kv_bytes_per_token": kv.bytes_per_token if isinstance(kv, KvCache) else None,
        "kv_source": kv.source if isinstance(kv, KvCache) else f"unknown: {kv.reason}",
        "card": card.name if card else "any",
        "card_memory_bytes": hardware.card_bytes,
        "cards_per_node": cards_per_node,
        "attention_heads": heads,
        "gpu_memory_utilization": utilization,
        "activations_bytes_per_card": activations,
        "cuda_graphs_bytes_per_card": cuda_graphs,
        "currency": currency,
        **asdict(costs),
    }
    if as_json:
        print_json(document(plans, money, lines, assumptions))
    else:
        show(terminal(), plans, money, lines, assumptions, config)


def _memory(form: Format, kv: KvCache | KvUnknown, wish: Wish, hardware: Hardware) -> Memory:
    plan = plan_memory(form, kv if isinstance(kv, KvCache) else None, wish, hardware)
    if plan is None:
        raise click.ClickException(
            f"a card of {hardware.card_bytes / _GB:.0f} GB has nothing left for weights: "
            f"{hardware.utilization:.0%} of it is less than --activations and --cuda-graphs"
        )
    return plan


def _card(gpu: str | None) -> Card | None:
    """The named card; of the forms that one name is sold in the slowest, if their memory agrees."""
    if gpu is None:
        return None
    found = named_cards(gpu)
    if len({card.memory_gb for card in found}) > 1:
        names = ", ".join(f"{card.name!r} ({card.memory_gb:g} GB)" for card in found)
        raise click.BadParameter(f"{gpu!r} means one of several, say which: {names}",
                                 param_hint="--gpu")  # fmt: skip
    return min(found, key=lambda card: card.bandwidth_bytes_per_second)


def _costs(prices: dict[str, Any], *, assume: bool) -> Costs:
    """Prices as given. assume: no card is named, so an assumed one's price and power may stand."""
    if assume and prices["purchase"] is None and prices["card_price"] is None:
        prices["card_price"] = _GENERIC_PRICE
    if assume and prices["card_watts"] is None:
        prices["card_watts"] = _GENERIC_WATTS
    for name in ("input_tokens_per_month", "cached_tokens_per_month"):
        prices[name] = prices[name] or 0.0
    if prices["cached_tokens_per_month"] > prices["input_tokens_per_month"]:
        raise click.UsageError(
            "--cached-tokens-per-month is a part of --input-tokens-per-month, and larger than it"
        )
    return Costs(**prices)


def _kv(model: str | None, bytes_per_token: float | None, dtype: str | None) -> KvCache | KvUnknown:
    if model is None and bytes_per_token is None:
        return KvUnknown("neither --kv-bytes-per-token nor --model is given")
    return resolve_kv(model, bytes_per_token=bytes_per_token, cache_dtype=dtype)


def _formats(
    params: float | None, bits: tuple[float, ...], model: str | None, config: ModelConfig | None
) -> Iterator[tuple[Format, WeightsFound]]:
    """Each precision to plan for, and what a step reads of it."""
    if params is None and model is None:
        raise click.UsageError("say which model: --params 480B, or --model PATH_OR_REPO")
    if params is None:
        found = resolve_weights(model)
        if isinstance(found, WeightsUnknown) or found.checkpoint_bytes is None:
            reason = found.reason if isinstance(found, WeightsUnknown) else "its size is unknown"
            raise click.ClickException(f"{reason}. Give --params instead.")
        stored = found.checkpoint_bytes
        if not bits:
            yield Format("as stored", None, stored, stored), found
        sixteen = config is not None and config.dtype in ("float16", "bfloat16")
        if config is None or config.quantized or not sixteen:
            if bits:
                raise click.UsageError(
                    "--bits needs a model that is stored in 16 bits, or --params instead of --model"
                )
            return
        params = stored / 2
        bits = bits or (8.0, 4.0)
    for width in bits or (16.0, 8.0, 4.0):
        weights = estimate_weights(params, width)
        size = weights.checkpoint_bytes or 0.0
        yield Format(f"{width:g} bit", width, size, params * width / 8), weights


def _speed(
    plan: Memory, weights: WeightsFound, kv: KvCache | KvUnknown, card: Card | None, wish: Wish
) -> tuple[float, str] | None:
    """Tokens per second of all users, at a usual share of the ceiling; None when not known."""
    streamed = weights.streamed
    if card is None or streamed is None or plan.pipeline_parallel > 1 or isinstance(kv, KvUnknown):
        return None
    tensor = plan.tensor_parallel
    read = step_bytes(
        streamed.bytes_per_step(wish.users), kv, [wish.context] * wish.users, tensor_parallel=tensor
    )
    roof = compute_roof(card, streamed, tensor)
    serving = serving_bandwidth(card.bandwidth_bytes_per_second, tensor)
    limit = step_ceiling(serving, read, wish.users, roof)
    return (
        limit.tokens_per_second * _REACHED,
        f"planned: {_REACHED:.0%} of the ceiling of {wish.users} users on {tensor} x {card.name}",
    )
