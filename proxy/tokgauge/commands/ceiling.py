"""`tokgauge ceiling`: the division as a table, cards x quantisations for a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console

from tokgauge.commands._cards import named_cards
from tokgauge.commands._output import new_table, print_json, terminal
from tokgauge.commands._quantities import BANDWIDTH, BITS, BYTES, COUNT, POSITIVE, TOKENS
from tokgauge.gpu.catalogue import load_catalogue
from tokgauge.model.ceiling import (
    Band,
    ComputeRoof,
    StepCeiling,
    band_of,
    efficiency,
    serving_bandwidth,
    step_bytes,
    step_ceiling,
)
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import Basis, WeightsFound, WeightsUnknown

_USUAL_CARDS = (
    "NVIDIA L4",
    "NVIDIA RTX A6000",
    "NVIDIA L40S",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
    "NVIDIA B200",
)
_BASES: tuple[Basis, ...] = ("streamed", "checkpoint")
_GIB = 2**30
_BANDS: dict[Band, str] = {
    "above": "above ceiling",
    "healthy": "healthy",
    "watch": "watch",
    "suspect": "suspect",
}


@dataclass(frozen=True, slots=True)
class _Query:
    """The conditions that every row shares."""

    context: float
    """Tokens in the context of each sequence."""
    batch: int
    tensor_parallel: int
    measured: float | None
    """Tokens per second of one stream."""


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str
    bandwidth: float
    """Of one card [bytes/s]."""
    memory_bytes: float | None
    source: str
    flops: float | None = None
    """Of one card, in 16 bits; None: not known, and then reading alone limits."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """The model in one format."""

    label: str
    weights: WeightsFound
    kv: KvCache | KvUnknown | None
    """Unknown: there is something in it whatever the context, so nothing can be said of speed."""


@dataclass(frozen=True, slots=True)
class _Row:
    gpu: _Gpu
    variant: _Variant
    ceilings: dict[Basis, StepCeiling]
    shares: dict[Basis, float]
    fits: bool | None


@click.command(
    name="ceiling",
    epilog=(
        "Examples: tokgauge ceiling --params 7.62B --bits 16 --gpu A6000 --measured 40.6 | "
        "tokgauge ceiling --model ./Qwen2.5-7B --model ./Qwen2.5-7B-AWQ --context 8k"
    ),
)
@click.option("--gpu", "gpus", multiple=True, help="A card by name, repeatable.")
@click.option("--bandwidth", type=BANDWIDTH, help="Instead of a card: its memory bandwidth.")
@click.option("--params", type=COUNT, help="Number of parameters: 7.62e9, 7.62B.")
@click.option(
    "--bits", type=BITS, multiple=True, help="Bits a parameter, repeatable.  [default: 16, 8, 4]"
)
@click.option(
    "--model", "models", multiple=True, help="Local directory, file or cached repository."
)
@click.option("--weights-bytes", type=BYTES, help="Bytes of weights that a decode step reads.")
@click.option("--checkpoint-bytes", type=BYTES, help="Bytes of the whole checkpoint.")
@click.option("--context", type=TOKENS, help="Tokens in the context of each sequence: 16k.")
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Sequences."
)
@click.option("--kv-bytes-per-token", type=BYTES, help="KV cache of one token.")
@click.option("--kv-cache-dtype", help="As the engine was told: auto, fp8, bfloat16 ...")
@click.option(
    "--tensor-parallel",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Cards that read together.",
)
@click.option("--measured", type=POSITIVE, help="Tokens/s of one stream, as you measured it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def command(
    gpus: tuple[str, ...],
    bandwidth: float | None,
    params: float | None,
    bits: tuple[float, ...],
    models: tuple[str, ...],
    weights_bytes: float | None,
    checkpoint_bytes: float | None,
    context: float | None,
    batch: int,
    kv_bytes_per_token: float | None,
    kv_cache_dtype: str | None,
    tensor_parallel: int,
    measured: float | None,
    as_json: bool,
) -> None:
    """How fast a model can be decoded at best: memory bandwidth / bytes read per token."""
    query = _Query(context or 0.0, batch, tensor_parallel, measured)
    variants = [
        _Variant(label, weights, _kv_of(root, kv_bytes_per_token, kv_cache_dtype, context))
        for label, root, weights in _weights(params, bits, models, weights_bytes, checkpoint_bytes)
    ]
    rows = [_row(gpu, variant, query) for gpu in _gpus(gpus, bandwidth) for variant in variants]
    if as_json:
        print_json(_document(rows, variants, query))
    else:
        _print(terminal(), rows, variants, query)


def _gpus(names: tuple[str, ...], bandwidth: float | None) -> list[_Gpu]:
    if bandwidth is not None:
        if names:
            raise click.UsageError("give --gpu or --bandwidth, not both")
        return [_Gpu("as given", bandwidth, None, "--bandwidth")]
    if names:
        cards = list(dict.fromkeys(card for name in names for card in named_cards(name)))
    else:
        cards = [card for card in load_catalogue() if card.name in _USUAL_CARDS]
    return [
        _Gpu(
            card.name,
            card.bandwidth_bytes_per_second,
            card.memory_gb * _GIB,
            "card table",
            card.dense_flops,
        )
        for card in cards
    ]


def _weights(
    params: float | None,
    bits: tuple[float, ...],
    models: tuple[str, ...],
    weights_bytes: float | None,
    checkpoint_bytes: float | None,
) -> Iterator[tuple[str, str | None, WeightsFound]]:
    """(label, root, weights) of every format that was asked for."""
    stated = weights_bytes is not None or checkpoint_bytes is not None
    if (params is not None) + bool(models) + stated != 1:
        raise click.UsageError(
            "say which model, in one way: --params 7.62B [--bits 16], --model PATH_OR_REPO, "
            "or --weights-bytes 14.14GB (with or without --checkpoint-bytes)"
        )
    if bits and params is None:
        raise click.UsageError("--bits belongs to --params")
    if params is not None:
        for width in bits or (16.0, 8.0, 4.0):
            yield f"{width:g} bit", None, estimate_weights(params, width)
        return
    for root in models or (None,):
        found = resolve_weights(
            root, streamed_bytes=weights_bytes, checkpoint_bytes=checkpoint_bytes
        )
        if isinstance(found, WeightsUnknown):
            raise click.ClickException(f"{found.reason}. Give --weights-bytes or --params instead.")
        yield root.rstrip("/").rsplit("/", 1)[-1] if root else "as given", root, found


def _kv_of(
    root: str | None, bytes_per_token: float | None, dtype: str | None, context: float | None
) -> KvCache | KvUnknown | None:
    """What a sequence keeps; None when nothing counts. Raises UsageError when it should and cannot.

    Without a context only a recurrent state counts, which is there whatever the context.
    """
    if context is None:
        state = resolve_kv(root) if root is not None else None
        if isinstance(state, KvUnknown):
            return None if state.negligible_when_short else state
        return state if state is not None and state.state_bytes else None
    if root is None and bytes_per_token is None:
        raise click.UsageError("--context needs --kv-bytes-per-token, or --model to tell it")
    found = resolve_kv(root, bytes_per_token=bytes_per_token, cache_dtype=dtype)
    if isinstance(found, KvUnknown):
        raise click.UsageError(
            f"--context needs the KV cache of a token, which is unknown: {found.reason}. "
            "Give --kv-bytes-per-token."
        )
    return found


def _row(gpu: _Gpu, variant: _Variant, query: _Query) -> _Row:
    if isinstance(variant.kv, KvUnknown):
        return _Row(gpu, variant, {}, {}, None)
    serving = serving_bandwidth(gpu.bandwidth, query.tensor_parallel)
    ceilings: dict[Basis, StepCeiling] = {}
    for basis in _BASES:
        weights = variant.weights.bytes_per_step(query.batch, basis)
        if weights is not None:
            read = _with_kv(weights, variant.kv, query)
            ceilings[basis] = step_ceiling(serving, read, query.batch, _roof(gpu, variant, query))
    shares: dict[Basis, float] = {}
    if query.measured is not None:
        shares = {
            basis: efficiency(query.measured, found.bytes_per_step, serving)
            for basis, found in ceilings.items()
        }
    return _Row(gpu, variant, ceilings, shares, _fits(gpu, variant.weights, variant.kv, query))


def _roof(gpu: _Gpu, variant: _Variant, query: _Query) -> ComputeRoof | None:
    """What the cards can compute; None where they or the model do not tell."""
    streamed = variant.weights.streamed
    if gpu.flops is None or streamed is None or streamed.parameters is None:
        return None
    return ComputeRoof(gpu.flops * query.tensor_parallel * streamed.speedup, streamed.parameters)


def _with_kv(weights: float, kv: KvCache | None, query: _Query) -> float:
    contexts = [query.context] * query.batch
    return step_bytes(weights, kv, contexts, tensor_parallel=query.tensor_parallel)


def _fits(gpu: _Gpu, weights: WeightsFound, kv: KvCache | None, query: _Query) -> bool | None:
    """Whether weights and KV cache fit into the cards' memory; None where it is not known."""
    if gpu.memory_bytes is None or weights.checkpoint_bytes is None:
        return None
    kept = _with_kv(weights.checkpoint_bytes, kv, query)
    return kept <= gpu.memory_bytes * query.tensor_parallel


def _verdict(row: _Row) -> Band | None:
    """On the basis that judges; None where it is not known."""
    share = row.shares.get(row.variant.weights.basis)
    return None if share is None else band_of(share)


def _document(rows: list[_Row], variants: list[_Variant], query: _Query) -> dict[str, Any]:
    return {
        "assumptions": {
            "context_tokens": query.context,
            "batch": query.batch,
            "tensor_parallel": query.tensor_parallel,
            "measured_tokens_per_second_per_stream": query.measured,
        },
        "variants": [
            {
                "name": variant.label,
                "streamed_bytes": variant.weights.bytes_per_step(query.batch, "streamed"),
                "streamed_source": variant.weights.streamed_source,
                "streamed_unknown_because": variant.weights.streamed_unknown_because,
                "checkpoint_bytes": variant.weights.checkpoint_bytes,
                "checkpoint_source": variant.weights.checkpoint_source,
                **_kv_document(variant.kv),
                "ratio_basis": variant.weights.basis,
            }
            for variant in variants
        ],
        "rows": [
            {
                "gpu": row.gpu.name,
                "variant": row.variant.label,
                "bandwidth_bytes_per_second": row.gpu.bandwidth,
                "bandwidth_source": row.gpu.source,
                "fits": row.fits,
                "ceiling": {basis: asdict(found) for basis, found in row.ceilings.items()},
                "share": row.shares,
                "verdict": _verdict(row),
            }
            for row in rows
        ],
    }


def _kv_document(kv: KvCache | KvUnknown | None) -> dict[str, Any]:
    found = kv if isinstance(kv, KvCache) else None
    return {
        "kv_bytes_per_token": None if found is None else found.bytes_per_token,
        "kv_source": None if found is None else found.source,
        "kv_unknown_because": kv.reason if isinstance(kv, KvUnknown) else None,
    }


def _print(console: Console, rows: list[_Row], variants: list[_Variant], query: _Query) -> None:
    bases = [basis for basis in _BASES if any(basis in row.ceilings for row in rows)]
    table = new_table(console, _title(variants, query))
    table.add_column("GPU", overflow="fold")
    table.add_column("GB/s", justify="right")
    if len(variants) > 1:
        table.add_column("weights", overflow="fold")
    table.add_column("fits")
    for basis in bases:
        if len(variants) > 1:
            table.add_column(f"{basis}\nGB/step", justify="right")
        each = "tok/s each" if query.batch > 1 else "tok/s"
        table.add_column(f"{basis}\n{each}", justify="right", style="bold")
        if query.batch > 1:
            table.add_column("tok/s all", justify="right")
        if query.measured is not None:
            table.add_column("share", justify="right")
    if query.measured is not None:
        table.add_column("verdict")
    for row in rows:
        cells = [
            row.gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "),
            f"{row.gpu.bandwidth * query.tensor_parallel / 1e9:.0f}",
        ]
        if len(variants) > 1:
            cells.append(row.variant.label)
        cells.append({True: "yes", False: "no", None: "?"}[row.fits])
        for basis in bases:
            cells += _basis_cells(row, basis, query, with_bytes=len(variants) > 1)
        if query.measured is not None:
            verdict = _verdict(row)
            cells.append("not judged" if verdict is None else _BANDS[verdict])
        table.add_row(*cells, style="dim" if row.fits is False else None)
    console.print(table)
    for line in _footnotes(rows, variants, bases, query):
        console.print(line, soft_wrap=True)


def _title(variants: list[_Variant], query: _Query) -> str:
    streams = "one stream" if query.batch == 1 else f"{query.batch} streams"
    title = f"ceiling of {streams}, {query.context:g} tokens of context"
    if query.tensor_parallel > 1:
        title += f", {query.tensor_parallel} cards reading together"
    return f"{variants[0].label}: {title}" if len(variants) == 1 else title.capitalize()


def _basis_cells(row: _Row, basis: Basis, query: _Query, *, with_bytes: bool) -> list[str]:
    found = row.ceilings.get(basis)
    if found is None:
        return ["-"] * (1 + with_bytes + (query.batch > 1) + (query.measured is not None))
    cells = [f"{found.bytes_per_step / 1e9:.2f}"] if with_bytes else []
    cells.append(f"{found.tokens_per_second_per_stream:.1f}")
    if query.batch > 1:
        computing = "*" if found.limited_by == "computing" else ""
        cells.append(f"{found.tokens_per_second:.0f}{computing}")
    if query.measured is not None:
        cells.append(f"{row.shares[basis]:.0%}")
    return cells


def _footnotes(
    rows: list[_Row], variants: list[_Variant], bases: list[Basis], query: _Query
) -> Iterator[str]:
    yield ""
    meaning = {
        "streamed": "what a decode step reads (no input embedding unless tied, no towers)",
        "checkpoint": "the whole file, the rule of thumb; it counts more than is read",
    }
    for basis in bases:
        yield f"{basis}: {meaning[basis]}."
    if any(found.limited_by == "computing" for row in rows for found in row.ceilings.values()):
        yield "*: limited by computing, not by reading (dense 16-bit products, or faster formats)."
    silent = [row.gpu.name for row in rows if _roof(row.gpu, row.variant, query) is None]
    if query.batch > 1 and silent:
        names = ", ".join(dict.fromkeys(silent))
        yield f"limited by reading alone, since what it can compute is not known: {names}."
    if any(str(v.weights.checkpoint_source).startswith("estimate") for v in variants):
        yield "estimate: of a mixture of experts, give the parameters that one token uses."
    for variant in variants:
        row = next(row for row in rows if row.variant is variant)
        for basis, found in row.ceilings.items():
            weights = variant.weights
            source = weights.streamed_source if basis == "streamed" else weights.checkpoint_source
            yield (
                f"{variant.label}: {basis} {found.bytes_per_step / 1e9:.2f} GB a step, "
                f"weights from {source}"
            )
        if isinstance(variant.kv, KvUnknown):
            yield f"{variant.label}: no ceiling: {variant.kv.reason}"
            continue
        if "streamed" not in row.ceilings:
            yield f"{variant.label}: streamed unknown: {variant.weights.streamed_unknown_because}"
        elif (fails := variant.weights.rule_of_thumb_fails_because) is not None:
            yield f"{variant.label}: no rule of thumb by the whole checkpoint: {fails}"
        if variant.kv is not None and variant.kv.state_bytes:
            yield (
                f"{variant.label}: recurrent state {variant.kv.state_bytes / 1e6:.1f} MB a "
                "sequence, read and written in every step"
            )
        if variant.kv is not None:
            yield (
                f"{variant.label}: KV cache {variant.kv.bytes_per_token:.0f} bytes a token, "
                f"from {variant.kv.source}"
            )
    if query.measured is not None:
        each = " for each stream" if query.batch > 1 else ""
        yield (
            f"measured: {query.measured:g} tok/s{each}. The verdict uses streamed where it is "
            "known: from 70 % healthy (85-92 % is as good as hardware gets), 50-70 % watch, below "
            "suspect; above 100 %: several tokens per step, or wrong inputs."
        )
        if any(variant.weights.basis == "checkpoint" for variant in variants):
            yield "On the checkpoint basis a share reads higher than it is."
