"""What the simulated engine is: the model, the card's speed, the limits and the habits.

The default is Qwen2.5-7B-Instruct in bfloat16 on an RTX A6000, tuned so that one short stream
gets 40.6 tokens per second.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tokgauge.simulator import faults

_WEIGHT_BYTES = 14.141e9  # streamed per decode step: all tensors but the input embedding
_BANDWIDTH = 768e9  # RTX A6000, datasheet [bytes/s]
_SINGLE_STREAM_RATE = 40.6  # tokens/s of one short stream


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a simulated engine.

    Bytes and seconds are in base units. Times are simulated times: with `speed` 10 everything
    happens ten times faster on the wall clock.
    """

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    root: str | None = None
    """`root` in /v1/models; None means the model id."""
    max_model_len: int = 32_768
    api_key: str | None = None

    weights_bytes: float = _WEIGHT_BYTES
    """Bytes of weights that one decode step reads."""
    kv_bytes_per_token: float = 57_344.0
    """2 (K, V) x 28 layers x 4 KV heads x 128 x 2 bytes."""
    bandwidth: float = _BANDWIDTH
    """Memory bandwidth of the card [bytes/s]."""
    efficiency: float = _SINGLE_STREAM_RATE * _WEIGHT_BYTES / _BANDWIDTH
    """Share of the bandwidth that the engine reaches alone on the card, above 0."""
    neighbour: float = 0.0
    """Share of the card that somebody else takes, 0 to below 1."""
    matmul_params: float = 7.07e9
    flops: float = 154.8e12
    """Dense bfloat16 FLOP/s of the card."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    """False: a prompt is processed whole, between decode steps, and every stream waits for it."""
    block_size: int = 16
    num_gpu_blocks: int = 28_000
    ttft_seconds: float | None = None
    """Fixed time to first token of a request that need not queue; None: prefill physics."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and step; above 1 is speculative decoding."""
    tokens_per_event: int = 1
    """vLLM's --stream-interval: the first token alone, then so many tokens per event."""
    speed: float = 1.0
    """Simulated seconds per second of the wall clock."""

    natural_tokens: int = 256
    """Mean length of an answer that no limit cuts; the length is drawn from half to 1.5 times."""
    reasoning_tokens: int = 0
    """Tokens of reasoning before every chat answer."""
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    prompt_tokens_details: bool = False
    """vLLM's --enable-prompt-tokens-details."""
    mfu_metrics: bool = False
    """vLLM's --enable-mfu-metrics."""
    random_faults: dict[str, float] = {}
    """Value of `x-simulate` -> probability that a request without that header suffers it."""

    def __post_init__(self) -> None:
        for name in (
            "weights_bytes", "bandwidth", "efficiency", "flops", "speed", "max_model_len",
            "max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks",
            "tokens_per_event", "natural_tokens",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if not 0 <= self.neighbour < 1:
            raise ValueError("neighbour must be at least 0 and below 1")
        if self.tokens_per_step < 1:
            raise ValueError("tokens_per_step must be at least 1")
        for header in self.random_faults:
            faults.parse(header)

    def step_seconds(self, context_tokens: float, batch_tokens: float) -> float:
        """Simulated duration of one engine step [s]: the slower of memory and arithmetic.

        `context_tokens` is the sum over the sequences in the step, `batch_tokens` the number of
        tokens computed in it (one per decoding sequence plus the prompt tokens).
        """
        share = self.efficiency * (1.0 - self.neighbour)
        memory = self.step_bytes(context_tokens) / (self.bandwidth * share)
        compute = 2.0 * self.matmul_params * batch_tokens / (self.flops * (1.0 - self.neighbour))
        return max(memory, compute)

    def step_bytes(self, context_tokens: float) -> float:
        """Bytes that one step reads from memory."""
        return self.weights_bytes + self.kv_bytes_per_token * context_tokens


CHANGEABLE = frozenset(
    {
        "efficiency", "weights_bytes", "tokens_per_step", "neighbour", "tokens_per_event",
        "root", "ttft_seconds", "natural_tokens", "reasoning_tokens", "random_faults",
        "max_num_seqs", "speed", "bandwidth", "kv_bytes_per_token", "matmul_params", "flops",
        "num_gpu_blocks",
    }
)  # fmt: skip
"""Fields that may change while the engine runs."""


def changed(profile: EngineProfile, patch: dict[str, object]) -> EngineProfile:
    """The profile with some fields replaced; ValueError names a field that cannot change."""
    fixed = sorted(set(patch) - CHANGEABLE)
    if fixed:
        raise ValueError(f"cannot change while running: {', '.join(fixed)}")
    return msgspec.convert({**msgspec.structs.asdict(profile), **patch}, EngineProfile)
