"""`tokgauge ceiling`: the division as a table, cards x quantisations for a model."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tokgauge.commands._cards import named_cards
from tokgauge.commands._ceiling_rows import Gpu, Query, Variant, row_of
from tokgauge.commands._ceiling_show import document, show
from tokgauge.commands._output import print_json, terminal
from tokgauge.commands._quantities import BANDWIDTH, BITS, BYTES, COUNT, POSITIVE, TOKENS
from tokgauge.gpu.catalogue import load_catalogue
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound, WeightsUnknown

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
_GIB = 2**30


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
    query = Query(context or 0.0, batch, tensor_parallel, measured)
    variants = [
        Variant(label, weights, _kv_of(root, kv_bytes_per_token, kv_cache_dtype, context))
        for label, root, weights in _weights(params, bits, models, weights_bytes, checkpoint_bytes)
    ]
    rows = [row_of(gpu, variant, query) for gpu in _gpus(gpus, bandwidth) for variant in variants]
    if as_json:
        print_json(document(rows, variants, query))
    else:
        show(terminal(), rows, variants, query)


def _gpus(names: tuple[str, ...], bandwidth: float | None) -> list[Gpu]:
    if bandwidth is not None:
        if names:
            raise click.UsageError("give --gpu or --bandwidth, not both")
        return [Gpu("as given", bandwidth, None, "--bandwidth")]
    if names:
        cards = list(dict.fromkeys(card for name in names for card in named_cards(name)))
    else:
        cards = [card for card in load_catalogue() if card.name in _USUAL_CARDS]
    return [
        Gpu(
            card.name,
            card.bandwidth_bytes_per_second,
            card.memory_gb * _GIB,
            "card table",
            card,
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
