"""The tables of docs/normal.md: constants, worked examples, and what was measured elsewhere."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tokgauge.diagnosis import typical
from tokgauge.diagnosis.expected_time import FAR, Interval

from docs.evidence import EXAMPLES, Measured, card_named, decoding, prompts

MISTAKEN = Path(__file__).parent / "mistaken.tsv"

_CONSTANTS: tuple[tuple[str, Interval, str, str], ...] = (
    (
        "B_eff of GDDR, of the theoretical bandwidth",
        typical.ATTAINABLE["gddr"],
        "%",
        "reading alone: RTX 3090 91-96 %, RTX 5090 93 %; decoding a 7B: A6000 75 %, L4 77-81 %",
    ),
    (
        "of HBM",
        typical.ATTAINABLE["hbm"],
        "%",
        "reading alone: A800 89 %, H100 92 %, H100 NVL 96-97 %",
    ),
    (
        "of LPDDR",
        typical.ATTAINABLE["lpddr"],
        "%",
        "reading alone: Jetson Orin 75 %; decoding a 7B in 8 bits on a GB10 81 %",
    ),
    (
        "of that, where weights are stored in fewer bits",
        typical.DEQUANTISED,
        "%",
        "one 4-bit model takes 17, 45 or 59 ms a step on an L4 by its kernel (arXiv 2605.30571); "
        "the last two are slow",
    ),
    (
        "of that, where experts are read",
        typical.EXPERTS_READ,
        "%",
        "gpt-oss-20b on a GB10: 64.5 % with two streams, 79.1 % with one",
    ),
    (
        "of a bandwidth measured by reading (`gpu_measured_bandwidth`)",
        typical.OF_MEASURED,
        "%",
        "the first line ÷ what reading alone reaches",
    ),
    (
        "t0 of a layer with CUDA graphs",
        typical.PER_LAYER,
        "µs",
        "Llama-3.2-1B on an H100: at most half of the bandwidth",
    ),
    (
        "of a layer in eager mode",
        typical.PER_LAYER_EAGER,
        "µs",
        "Qwen2.5-7B on an H100 without graphs: 27 % of the bandwidth",
    ),
    (
        "added by tensor parallelism",
        typical.ALL_REDUCE,
        "µs",
        "Llama-2-7B on eight A100s; Qwen2-7B on four A10Gs over PCIe",
    ),
    (
        "added by experts",
        typical.EXPERTS,
        "µs",
        "Qwen3-30B-A3B on an A100: 9.6 ms a step, of which reading explains 3.5; its products "
        "alone take 52 µs a layer more than reading (vllm#19049)",
    ),
    (
        "t0 of a step beside its layers",
        typical.PER_STEP,
        "µs",
        "Qwen3-0.6B on an H100 under load: 2.4 ms a step",
    ),
    ("t_seq", typical.PER_SEQUENCE, "µs", "70 µs on two CPU cores; on GPUs a few to 20"),
    (
        "P_eff, of the peak in 16 bits",
        typical.OF_PEAK,
        "%",
        "the last table; 35-70 % is usual for long prompts",
    ),
    ("of a mixture of experts", typical.OF_PEAK_EXPERTS, "%", "the last table"),
)

_PER_UNIT = {"%": 100, "µs": 1e6}


def constants_table() -> Iterator[str]:
    """The typical constants with what they rest on."""
    yield "| constant | from | to | seen in |"
    yield "| --- | --- | --- | --- |"
    for name, interval, unit, source in _CONSTANTS:
        low, high = (f"{end * _PER_UNIT[unit]:g} {unit}" for end in (interval.low, interval.high))
        yield f"| {name} | {low} | {high} | {source} |"


def examples_table() -> Iterator[str]:
    """The first case in words, then all of them."""
    founding = EXAMPLES[0]
    shortest, longest = (
        founding.ideal / end for end in (founding.normal.high, founding.normal.low)
    )
    yield f"{founding.model} on an RTX A6000, one stream: a step reads"
    yield f"{founding.step_bytes / 1e9:.3f} GB, at 768 GB/s in {founding.ideal * 1e3:.2f} ms."
    yield f"By the constants for GDDR and {founding.layers} layers it should take"
    yield f"{shortest * 1e3:.1f} to {longest * 1e3:.1f} ms, {_percent(founding.normal)} of the"
    yield "bandwidth. It took 24.6 ms."
    yield ""
    yield "| case | reading alone | normal range | suspect below | measured |"
    yield "| --- | --- | --- | --- | --- |"
    for example in EXAMPLES:
        card = card_named(example.card).name.removeprefix("NVIDIA ")
        normal = example.normal
        yield (
            f"| {card}, {example.model} | {example.ideal * 1e3:.2f} ms | {_percent(normal)} | "
            f"{FAR * normal.low * 100:.1f} % | {example.observed} |"
        )


def decoding_table() -> Iterator[str]:
    """The lines of evidence.tsv."""
    yield from _measured(decoding())


def prompts_table() -> Iterator[str]:
    """The lines of evidence_prompts.tsv."""
    yield from _measured(prompts())


def _measured(lines: Iterable[Measured]) -> Iterator[str]:
    yield "| engine, model, card, load | measured | share | normal range | |"
    yield "| --- | --- | --- | --- | --- |"
    for measured in lines:
        line = measured.line
        source = f"[source]({line['source']})" if ":" in line["source"] else line["source"]
        state = "" if measured.state == "healthy" else f"**{measured.state}**"
        remarks = "; ".join(part for part in (state, line["note"], source) if part)
        yield (
            f"| {measured.name} | {line['measured']} | {_percent(measured.share)} | "
            f"{_percent(measured.normal)} | {remarks} |"
        )


def _percent(interval: Interval) -> str:
    low, high = f"{interval.low * 100:.1f}", f"{interval.high * 100:.1f}"
    return f"{low} %" if low == high else f"{low}-{high} %"


def mistaken_table() -> Iterator[str]:
    """The lines of mistaken.tsv, which `python -m tests.situations --record` writes."""
    with MISTAKEN.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    yield "| what is wrong | situations | right | mistaken for |"
    yield "| --- | --- | --- | --- |"
    for line in lines:
        yield f"| {line['wrong']} | {line['situations']} | {line['right']} | {line['mistaken']} |"


NORMAL_TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "constants": constants_table,
    "examples": examples_table,
    "decoding": decoding_table,
    "prompts": prompts_table,
    "mistaken": mistaken_table,
}
"""Part of docs/normal.md → what stands between its marks."""
