"""A card and an engine without losses and chance, whose times can be computed by hand."""

from dataclasses import replace
from typing import Any

from tests.physics.hardware import named_card, named_model
from tests.physics.truth import Truth, drawn


def ideal(card: str = "NVIDIA RTX A6000", model: str = "Qwen2.5-7B", **fields: Any) -> Truth:
    truth = drawn(0, "dense", named_card(card), named_model(model), "bf16", eager=False)
    lossless = {
        "attainable": 1.0,
        "tiers": ((1 << 30, 1.0),),
        "grouped": 1.0,
        "attention": 1.0,
        "one_sequence": 1.0,
        "ramp": 0.0,
        "gap": 0.0,
        "tensor_peak": 1.0,
        "tensor_half": 0.0,
        "prefill_attention": 1.0,
        "leak": 0.0,
        "launch": 0.0,
        "asynchronous": False,
        "cpu_step": 0.0,
        "cpu_sequence": 0.0,
        "sampler_passes": 0,
        "jitter": 0.0,
        "hiccups": 0.0,
        "output_delay": 0.0,
        "routing_skew": 0.0,
        "routing_correlation": 1.0,
    }
    return replace(truth, **{**lossless, **fields})
