"""Ceilings as a table for people, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tokgauge.commands._ceiling_rows import BASES, Query, Row, Variant, roof_of, verdict_of
from tokgauge.commands._output import new_table
from tokgauge.diagnosis.expected_time import Band
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Basis

__all__ = ["document", "show"]

_BANDS: dict[Band, str] = {
    "above": "above ceiling",
    "healthy": "healthy",
    "watch": "watch",
    "suspect": "suspect",
}


def document(rows: list[Row], variants: list[Variant], query: Query) -> dict[str, Any]:
    """Everything as one JSON document."""
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
                "normal": None if row.normal is None else asdict(row.normal),
                "verdict": verdict_of(row),
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


def show(console: Console, rows: list[Row], variants: list[Variant], query: Query) -> None:
    """A table for people, and under it what it means and rests on."""
    bases = [basis for basis in BASES if any(basis in row.ceilings for row in rows)]
    table = new_table(console, _title(variants, query))
    _add_columns(table, bases, query, several=len(variants) > 1)
    for row in rows:
        cells = _cells(row, bases, query, several=len(variants) > 1)
        table.add_row(*cells, style="dim" if row.fits is False else None)
    console.print(table)
    for line in _footnotes(rows, variants, bases, query):
        console.print(line, soft_wrap=True)


def _add_columns(table: Table, bases: list[Basis], query: Query, *, several: bool) -> None:
    table.add_column("GPU", overflow="fold")
    table.add_column("GB/s", justify="right")
    if several:
        table.add_column("weights", overflow="fold")
    table.add_column("fits")
    for basis in bases:
        if several:
            table.add_column(f"{basis}\nGB/step", justify="right")
        each = "tok/s each" if query.batch > 1 else "tok/s"
        table.add_column(f"{basis}\n{each}", justify="right", style="bold")
        if query.batch > 1:
            table.add_column("tok/s all", justify="right")
        if query.measured is not None:
            table.add_column("share", justify="right")
    if query.measured is not None:
        table.add_column("normal", justify="right")
        table.add_column("verdict")


def _cells(row: Row, bases: list[Basis], query: Query, *, several: bool) -> list[str]:
    cells = [
        row.gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        f"{row.gpu.bandwidth * query.tensor_parallel / 1e9:.0f}",
    ]
    if several:
        cells.append(row.variant.label)
    cells.append({True: "yes", False: "no", None: "?"}[row.fits])
    for basis in bases:
        cells += _basis_cells(row, basis, query, with_bytes=several)
    if query.measured is not None:
        normal, verdict = row.normal, verdict_of(row)
        cells.append("?" if normal is None else f"{normal.low * 100:.0f}-{normal.high:.0%}")
        cells.append("not judged" if verdict is None else _BANDS[verdict])
    return cells


def _title(variants: list[Variant], query: Query) -> str:
    streams = "one stream" if query.batch == 1 else f"{query.batch} streams"
    title = f"ceiling of {streams}, {query.context:g} tokens of context"
    if query.tensor_parallel > 1:
        title += f", {query.tensor_parallel} cards reading together"
    return f"{variants[0].label}: {title}" if len(variants) == 1 else title.capitalize()


def _basis_cells(row: Row, basis: Basis, query: Query, *, with_bytes: bool) -> list[str]:
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
    rows: list[Row], variants: list[Variant], bases: list[Basis], query: Query
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
    silent = [row.gpu.name for row in rows if roof_of(row.gpu, row.variant, query) is None]
    if query.batch > 1 and silent:
        names = ", ".join(dict.fromkeys(silent))
        yield f"limited by reading alone, since what it can compute is not known: {names}."
    if any(str(v.weights.checkpoint_source).startswith("estimate") for v in variants):
        yield "estimate: of a mixture of experts, give the parameters that one token uses."
    for variant in variants:
        row = next(row for row in rows if row.variant is variant)
        yield from (f"{variant.label}: {said}" for said in _of_variant(variant, row))
    if query.measured is not None:
        each = " for each stream" if query.batch > 1 else ""
        yield (
            f"measured: {query.measured:g} tok/s{each}. The verdict uses streamed where it is "
            "known: within or above the normal range healthy, below it watch, below three quarters "
            "of its lower end suspect; above 100 %: several tokens per step, or wrong inputs."
        )
        if any(variant.weights.basis == "checkpoint" for variant in variants):
            yield "On the checkpoint basis a share reads higher than it is."


def _of_variant(variant: Variant, row: Row) -> Iterator[str]:
    """What the ceilings of a format rest on."""
    weights, kv = variant.weights, variant.kv
    for basis, found in row.ceilings.items():
        source = weights.streamed_source if basis == "streamed" else weights.checkpoint_source
        yield f"{basis} {found.bytes_per_step / 1e9:.2f} GB a step, weights from {source}"
    if isinstance(kv, KvUnknown):
        yield f"no ceiling: {kv.reason}"
        return
    if "streamed" not in row.ceilings:
        yield f"streamed unknown: {weights.streamed_unknown_because}"
    elif (fails := weights.rule_of_thumb_fails_because) is not None:
        yield f"no rule of thumb by the whole checkpoint: {fails}"
    if kv is not None and kv.state_bytes:
        yield (
            f"recurrent state {kv.state_bytes / 1e6:.1f} MB a sequence, "
            "read and written in every step"
        )
    if kv is not None:
        yield f"KV cache {kv.bytes_per_token:.0f} bytes a token, from {kv.source}"
