"""The line that starts vLLM as planned."""

from __future__ import annotations

import shlex

from tokgauge.commands._plan_memory import Memory, Wish
from tokgauge.model.config import ModelConfig

__all__ = ["vllm_line"]

_HOST, _PORT = "127.0.0.1", "8000"
"""Where the proxy beside it looks for the engine."""


def vllm_line(
    plan: Memory,
    model: str | None,
    wish: Wish,
    config: ModelConfig | None,
    utilization: float,
    kv_cache_dtype: str | None,
) -> str:
    """`vllm serve …` with everything that the plan rests on.

    A larger --max-model-len than the model allows would be refused. vLLM converts 16 bits to 8
    while it loads; for fewer another checkpoint has to be named.
    """
    longest = config.max_context if config is not None else None
    context = wish.context if longest is None else min(wish.context, longest)
    if plan.bits is not None and plan.bits < 8 and model is not None:
        model = f"MODEL_IN_{plan.bits:g}_BIT"
    name = (model or "MODEL").rstrip("/").rsplit("/", 1)[-1]
    words = ["vllm", "serve", model or "MODEL", "--served-model-name", name]
    words += ["--tensor-parallel-size", str(plan.tensor_parallel)]
    if plan.pipeline_parallel > 1:
        words += ["--pipeline-parallel-size", str(plan.pipeline_parallel)]
    if plan.bits == 8:
        words += ["--quantization", "fp8"]
    else:
        words += ["--dtype", "bfloat16" if plan.bits == 16 else "auto"]
    words += ["--gpu-memory-utilization", f"{utilization:g}"]
    words += ["--max-model-len", f"{context:.0f}", "--max-num-seqs", str(wish.users)]
    if kv_cache_dtype and kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", kv_cache_dtype]
    words += ["--host", _HOST, "--port", _PORT]
    return shlex.join(words)
