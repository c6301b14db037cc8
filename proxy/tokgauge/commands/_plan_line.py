"""The line that starts vLLM as planned."""

from __future__ import annotations

import shlex

from tokgauge.commands._plan_memory import Memory, Wish

__all__ = ["vllm_line"]

_HOST, _PORT = "127.0.0.1", "8000"
"""Where the proxy beside it looks for the engine."""


def vllm_line(
    plan: Memory,
    model: str | None,
    wish: Wish,
    *,
    utilization: float,
    kv_cache_dtype: str | None,
    longest_context: int | None,
    stored_bits: float | None,
) -> str:
    """`vllm serve …` with everything that the plan rests on.

    longest_context: that the model allows; a larger --max-model-len would be refused. stored_bits:
    bits of the files that `model` names. vLLM converts 16 bits to 8 while it loads; for fewer
    another checkpoint has to be named.
    """
    context = wish.context if longest_context is None else min(wish.context, longest_context)
    if plan.bits is not None and plan.bits < 8 and model is not None:
        model = f"MODEL_IN_{plan.bits:g}_BIT"
    name = (model or "MODEL").rstrip("/").rsplit("/", 1)[-1]
    words = ["vllm", "serve", model or "MODEL", "--served-model-name", name]
    words += ["--tensor-parallel-size", str(plan.tensor_parallel)]
    if plan.pipeline_parallel > 1:
        words += ["--pipeline-parallel-size", str(plan.pipeline_parallel)]
    if plan.bits == 8 and stored_bits != 8:
        words += ["--quantization", "fp8"]
    else:
        words += ["--dtype", "bfloat16" if plan.bits == 16 else "auto"]
    words += ["--gpu-memory-utilization", f"{utilization:g}"]
    words += ["--max-model-len", f"{context:.0f}", "--max-num-seqs", str(wish.users)]
    if kv_cache_dtype and kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", kv_cache_dtype]
    words += ["--host", _HOST, "--port", _PORT]
    return shlex.join(words)
