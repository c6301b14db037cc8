"""Bytes of a model of which only the number of parameters and the bits of one are known.

An estimate, and named so wherever it is shown. Quantising leaves the input embedding and the output
head in 16 bits and adds a scale and a zero point to every group of 128 weights; a decode step does
not read the embedding where a head of its own exists.
"""

from __future__ import annotations

from tokgauge.model.weights import Streamed, WeightsFound

__all__ = ["bits_in_files", "embedding_parameters", "estimate_weights"]

_EMBEDDING = 0.28e9
"""Parameters of the embedding at a billion parameters. It grows about as their cube root: within
15 % from Qwen2.5-7B (0.545e9) over Llama-3.1-8B (0.525e9) and Qwen2.5-72B (1.246e9) to
Llama-3.1-405B (2.1e9)."""

_SMALL = 4e9
"""Below this many parameters one matrix is usually embedding and head."""

_GROUP = 128


def bits_in_files(bits: float) -> float:
    """Bits that a weight of nominally `bits` bits takes, with its share of scales and zeros.

    Of four bits as AWQ and GPTQ write them in groups of 128: 4 + (16 + 4) / 128 = 4.156.
    """
    return bits + (16 + bits) / _GROUP if bits < 8 else bits


def embedding_parameters(parameters: float) -> float:
    """About how many parameters the input embedding has, and the output head likewise."""
    about = _EMBEDDING * (parameters / 1e9) ** (1 / 3)
    return float(min(about, parameters / 4))


def estimate_weights(parameters: float, bits: float) -> WeightsFound:
    """Both bases by parameters x bits / 8, each a few per cent off."""
    embedding = embedding_parameters(parameters)
    matrices = 1 if parameters < _SMALL else 2
    inner = parameters - matrices * embedding
    outer_bits = max(bits, 16.0)
    body = inner * bits_in_files(bits) / 8
    head = embedding * outer_bits / 8
    source = f"estimate: {parameters:g} parameters x {bits:g} bits"
    if bits < 16:
        source += ", embedding and head in 16 bits"
    return WeightsFound(
        streamed=Streamed(
            body + head,
            parameters=inner + embedding,
            speedup=2.0 if bits == 8 else 1.0,
            dequantised=bits < 16,
        ),
        streamed_source=source,
        checkpoint_bytes=body + matrices * head,
        checkpoint_source=source,
    )
