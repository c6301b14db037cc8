"""What is known of model classes: which are understood, and what their configurations leave out.

`architectures.tsv` has one line for every architecture that vLLM 0.32 lists for generating text
(vllm/model_executor/models/registry.py), those included that it ran before or runs through
transformers. A class that is not in it, or that is in it as `unknown`, has no figures: read as a
plain transformer, a looped or sparse model would look several times faster or slower than it is.
`defaults.tsv` holds what a class takes when config.json leaves a field out (transformers 5.24,
the classes' own defaults).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast, get_args

__all__ = ["Architecture", "Defaults", "Rule", "defaults_of", "known_architectures", "understand"]

Rule = Literal[
    "plain", "looped", "double", "shared", "mamba1", "mamba2", "delta", "kimi", "convolution",
    "text part", "unknown",
]  # fmt: skip
"""plain: every layer once. looped: the stack runs several times for a token. double: two attention
blocks in a layer. shared: blocks that are read again in several layers. mamba1, mamba2, delta,
kimi, convolution: recurrent layers, by the shape of their state. text part: a model of several
media, whose text model decides. unknown: not understood."""

CHANGES_READING = frozenset(
    [
        # loops
        "total_ut_steps", "loop_num", "loop_num_passes", "num_loops", "n_recurrent_loops",
        "n_recurrent_layers", "mean_recurrence", "recurrent_depth", "H_cycles", "L_cycles",
        "num_hidden_groups", "num_recurrent_steps",
        # blocks and caches that several layers share
        "num_mem_blocks", "hybrid_layer_ids", "num_kv_shared_layers", "use_cla", "kv_source_layers",
        "cross_attention_layers", "cross_layer_interval", "add_cross_attention",
        # experts without weights, or of another kind
        "zero_expert_num", "mova_num_experts", "pyramid_num_routed",
        # parts of the context only
        "index_topk", "index_topk_blocks", "index_block_size", "indexer_budget", "compress_ratios",
        "compress_rates", "sparse_attention_config", "sparse_attn_config", "sparse_config",
        "attn_type_list", "attention_types", "hybrid_layer_pattern", "layer_group_size",
        # layers that differ
        "block_configs", "global_head_dim", "num_global_key_value_heads",
        "swa_num_key_value_heads", "swa_head_dim",
        # tables
        "ngram_size", "ngram_vocab_size_ratio", "ple_embed_dim", "oe_vocab_sizes",
        # states
        "mamba_d_state", "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "ssm_state_size",
        "ssm_cfg", "state_size", "linear_num_value_heads", "linear_num_heads", "linear_attn_config",
        "conv_L_cache", "conv_kernel_size", "short_conv_kernel_size", "lru_width", "rwkv",
        "attention_hidden_size",
    ]
)  # fmt: skip
"""Members of a configuration that change what a step reads, as found in the configurations of all
architectures that vLLM 0.32 lists. One that the table's line does not name is not understood."""

_OF_RULE: Mapping[str, frozenset[str]] = {
    "mamba1": frozenset(["mamba_d_state", "state_size"]),
    "mamba2": frozenset(
        ["mamba_d_state", "mamba_n_heads", "mamba_num_heads", "ssm_state_size", "state_size"]
    ),
    "shared": frozenset(["mamba_d_state", "n_mamba_heads", "attention_hidden_size"]),
    "delta": frozenset(["linear_num_value_heads"]),
    "convolution": frozenset(["conv_L_cache"]),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One line of the table. `members`: configuration members that the rule accounts for."""

    name: str
    model_types: tuple[str, ...]
    rule: Rule
    members: frozenset[str]
    note: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a class takes when config.json does not say; None: it has no fixed value."""

    heads: int | None = None
    kv_heads: int | Literal["heads"] | None = None
    head_size: int | None = None
    window: int | None = None
    pattern: str | None = None
    """Which layers slide: "4" all but every fourth, "first 4" all but the first of four, "6 last"
    the last layer sees all too, "all", "late" from max_window_layers on where switched on."""


@cache
def known_architectures() -> tuple[Architecture, ...]:
    """The whole table."""
    return tuple(
        Architecture(
            name=row["architecture"],
            model_types=tuple(row["model_types"].split()),
            rule=_rule(row["rule"]),
            members=frozenset(row["members"].split()),
            note=row["note"],
        )
        for row in _rows("architectures.tsv")
    )


def _rule(text: str) -> Rule:
    if text not in get_args(Rule):
        raise ValueError(f"{text!r} is not a rule")
    return cast(Rule, text)


@cache
def _by_name() -> Mapping[str, Architecture]:
    return {line.name: line for line in known_architectures()}


@cache
def _by_model_type() -> Mapping[str, Architecture]:
    return {kind: line for line in known_architectures() for kind in line.model_types}


@cache
def _defaults() -> Mapping[str, Defaults]:
    def number(text: str) -> int | None:
        return int(text) if text else None

    return {
        row["model_type"]: Defaults(
            heads=number(row["heads"]),
            kv_heads="heads" if row["kv_heads"] == "heads" else number(row["kv_heads"]),
            head_size=number(row["head_size"]),
            window=number(row["window"]),
            pattern=row["pattern"] or None,
        )
        for row in _rows("defaults.tsv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def defaults_of(model_type: str | None) -> Defaults:
    """What the class of this model_type takes for fields that are left out."""
    return _defaults().get(model_type or "", Defaults())


def understand(
    document: Mapping[str, Any], text: Mapping[str, Any]
) -> tuple[Architecture | None, str | None]:
    """(the line that tells how the text model is read, or why it is not understood).

    document: config.json; text: its text section, the same object where it has none.
    """
    line, named = _named(document)
    if line is None and not document.get("architectures") and text is not document:
        line, named = _named(text)
    if line is None:
        return None, f"{named} is not among the architectures that are understood"
    if line.rule == "text part" and text is not document:
        line, named = _named(text)
        if line is None:
            return None, f"its text model, {named}, is not among those that are understood"
    if line.rule == "unknown":
        return line, f"{named} is not understood: {line.note}"
    expected = line.members | _OF_RULE.get(line.rule, frozenset())
    for member in sorted(CHANGES_READING - expected):
        if text.get(member) or document.get(member):
            return line, f"{named} with {member} in its configuration is not understood"
    return line, None


def _named(section: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """The line of the class that a section names, and how it names it."""
    listed = section.get("architectures")
    model_type = section.get("model_type")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for name in names:
        if line := _by_name().get(name):
            return line, name
    if names:
        return None, f"the architecture {names[0]}"
    if isinstance(model_type, str) and model_type:
        return _by_model_type().get(model_type), f"the model_type {model_type}"
    return None, "a configuration that names no architecture"
