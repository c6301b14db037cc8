"""Cards and models as their makers describe them."""

from dataclasses import dataclass
from typing import Literal

Memory = Literal["gddr", "hbm", "lpddr"]


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory: Memory
    bandwidth: float
    """Theoretical [bytes/s]."""
    flops: float
    """Dense, 16-bit inputs [1/s]."""
    memory_bytes: float
    has_fp8: bool = False


CARDS = (
    Card("NVIDIA RTX A6000", "gddr", 768e9, 154.8e12, 48e9),
    Card("NVIDIA L4", "gddr", 300e9, 121e12, 24e9, has_fp8=True),
    Card("NVIDIA GeForce RTX 3090", "gddr", 936e9, 71e12, 24e9),
    Card("NVIDIA GeForce RTX 4090", "gddr", 1008e9, 165e12, 24e9, has_fp8=True),
    Card("NVIDIA GeForce RTX 5090", "gddr", 1792e9, 209e12, 32e9, has_fp8=True),
    Card("NVIDIA A100-SXM4-80GB", "hbm", 2039e9, 312e12, 80e9),
    Card("NVIDIA H100 80GB HBM3", "hbm", 3350e9, 989e12, 80e9, has_fp8=True),
    Card("NVIDIA H200", "hbm", 4800e9, 989e12, 141e9, has_fp8=True),
    Card("NVIDIA GB10", "lpddr", 273e9, 125e12, 119e9, has_fp8=True),
)
FAST = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200")


@dataclass(frozen=True, slots=True)
class Model:
    """Shapes of a decoder with grouped-query attention; `ffn` is of one expert where there are."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0

    @property
    def qkv(self) -> int:
        """Weights of one layer's query, key and value matrix."""
        return self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def out(self) -> int:
        return self.heads * self.head_dim * self.hidden

    @property
    def up(self) -> int:
        """Gate and up projection of one layer (of one expert)."""
        return 2 * self.hidden * self.ffn

    @property
    def down(self) -> int:
        return self.ffn * self.hidden

    @property
    def head(self) -> int:
        return self.hidden * self.vocab

    @property
    def kv_layer_bytes(self) -> int:
        """Keys and values of one token in one layer, 16-bit."""
        return 2 * self.kv_heads * self.head_dim * 2


MODELS = (
    Model("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151_936),
    Model("Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128_256),
    Model("Qwen2.5-3B", 36, 2048, 16, 2, 128, 11_008, 151_936),
    Model("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18_944, 152_064),
    Model("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14_336, 128_256),
    Model("Qwen2.5-14B", 48, 5120, 40, 8, 128, 13_824, 152_064),
    Model("Qwen2.5-32B", 64, 5120, 40, 8, 128, 27_648, 152_064),
    Model("Llama-3.3-70B", 80, 8192, 64, 8, 128, 28_672, 128_256),
    Model("Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 768, 151_936, 128, 8),
    Model("Mixtral-8x7B", 32, 4096, 32, 8, 128, 14_336, 32_000, 8, 2),
    Model("gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201_088, 32, 4),
)
SMALL = ("Qwen3-0.6B", "Llama-3.2-1B", "Qwen2.5-3B")

Precision = Literal["bf16", "fp8", "int4"]
BYTES_PER_WEIGHT: dict[Precision, float] = {"bf16": 2.0, "fp8": 1.0, "int4": 4.156 / 8}
"""int4 with a 16-bit scale and a 4-bit zero per group of 128. The head stays 16-bit."""


def named_card(name: str) -> Card:
    return next(card for card in CARDS if card.name == name)


def named_model(name: str) -> Model:
    return next(model for model in MODELS if model.name == name)
