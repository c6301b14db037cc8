"""Header-only checkpoints of many architectures, each with its sums made by hand.

Names, shapes and members are those of published models, so that the sums can be compared with what
is known of them; of mixtures with many experts only the first layers are built, which shortens the
headers and changes nothing else. The sums are written from the shapes, never from the tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model import checkpoints
from tests.model.checkpoints import Model, Spec, linear


@dataclass(frozen=True)
class Case:
    """A model and what a decode step reads of it, by hand.

    weights: bytes of a step of one token. token: KV bytes that a token of context adds while no
    window ends. state: recurrent state [bytes]. read: (context, bytes read of the KV cache).
    """

    build: Callable[[], Model]
    weights: float
    token: float
    state: float = 0.0
    read: tuple[int, float] | None = None


def config(architecture: str, model_type: str, layers: int, **members: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": layers,
        "torch_dtype": "bfloat16",
        **members,
    }


def weight(name: str, *shape: int) -> Spec:
    return (f"{name}.weight", "BF16", shape)


def attention(
    at: str, hidden: int, heads: int, kv_heads: int, size: int, bias: bool = False
) -> list[Spec]:
    return [
        *linear(f"{at}.q_proj", heads * size, hidden, bias=bias),
        *linear(f"{at}.k_proj", kv_heads * size, hidden, bias=bias),
        *linear(f"{at}.v_proj", kv_heads * size, hidden, bias=bias),
        *linear(f"{at}.o_proj", hidden, heads * size),
    ]


def gated(at: str, hidden: int, inner: int) -> list[Spec]:
    return [
        *linear(f"{at}.gate_proj", inner, hidden),
        *linear(f"{at}.up_proj", inner, hidden),
        *linear(f"{at}.down_proj", hidden, inner),
    ]


def norms(at: str, hidden: int, *names: str) -> list[Spec]:
    return [weight(f"{at}.{name}", hidden) for name in names]


def llama_like(
    architecture: str, model_type: str, *, hidden: int, layers: int, heads: int, kv_heads: int,
    inner: int, vocabulary: int, size: int | None = None, tied: bool = False,
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    head_norms: bool = False, root: str = "model", **members: Any,
) -> Model:  # fmt: skip
    """A gated decoder as most are."""
    size = size or hidden // heads
    tensors: list[Spec] = [weight(f"{root}.embed_tokens", vocabulary, hidden)]
    for n in range(layers):
        at = f"{root}.layers.{n}"
        tensors += attention(f"{at}.self_attn", hidden, heads, kv_heads, size)
        tensors += gated(f"{at}.mlp", hidden, inner)
        tensors += norms(at, hidden, *norm_names)
        if head_norms:
            tensors += norms(f"{at}.self_attn", size, "q_norm", "k_norm")
    tensors.append(weight(f"{root}.norm", hidden))
    if not tied:
        tensors.append(weight("lm_head", vocabulary, hidden))
    shape = {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "vocab_size": vocabulary, "tie_word_embeddings": tied,
    }  # fmt: skip
    return Model(config(architecture, model_type, layers, **shape | members), tensors)


def mixture(
    architecture: str, model_type: str, *, hidden: int, layers: int, heads: int, kv_heads: int,
    size: int, experts: int, inner: int, vocabulary: int, moe: str = "mlp",
    router: str = "mlp.gate", parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    extra: Callable[[str], list[Spec]] | None = None, **members: Any,
) -> Model:  # fmt: skip
    """A decoder whose layers all have experts; `extra` adds what else a layer has."""
    tensors: list[Spec] = [weight("model.embed_tokens", vocabulary, hidden)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", hidden, heads, kv_heads, size)
        tensors += linear(f"{at}.{router}", experts, hidden)
        for e in range(experts):
            expert = f"{at}.{moe}.experts.{e}"
            tensors += linear(f"{expert}.{parts[0]}", inner, hidden)
            tensors += linear(f"{expert}.{parts[1]}", inner, hidden)
            tensors += linear(f"{expert}.{parts[2]}", hidden, inner)
        tensors += norms(at, hidden, "input_layernorm", "post_attention_layernorm")
        tensors += extra(at) if extra is not None else []
    tensors += [weight("model.norm", hidden), weight("lm_head", vocabulary, hidden)]
    shape = {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": size, "vocab_size": vocabulary, "tie_word_embeddings": False,
    }  # fmt: skip
    return Model(config(architecture, model_type, layers, **shape | members), tensors)


# Plain decoders.

CASES: dict[str, Case] = {}

# Llama-3.1-8B. A layer: q and o 2 x 4096 x 4096, k and v 2 x 1024 x 4096, MLP 3 x 14336 x 4096,
# norms 2 x 4096. The head 128256 x 4096 is read, the embedding is not. KV: 32 x 2 x 1024 values.
CASES["LlamaForCausalLM"] = Case(
    lambda: llama_like(
        "LlamaForCausalLM", "llama", hidden=4096, layers=32, heads=32, kv_heads=8, inner=14336,
        vocabulary=128256,
    ),
    2 * (32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096) + 4096
         + 128256 * 4096),
    32 * 2 * 1024 * 2,
)  # fmt: skip

# Mistral-7B-v0.1, whose every layer sees the last 4,096 tokens.
CASES["MistralForCausalLM"] = Case(
    lambda: llama_like(
        "MistralForCausalLM", "mistral", hidden=4096, layers=32, heads=32, kv_heads=8, inner=14336,
        vocabulary=32000, sliding_window=4096,
    ),
    2 * (32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096) + 4096 + 32000 * 4096),
    32 * 2 * 1024 * 2,
    read=(10_000, 32 * 2 * 1024 * 2 * 4096),
)  # fmt: skip

# Qwen3-8B: heads of 128 with norms of their own, which add 2 x 128 a layer.
CASES["Qwen3ForCausalLM"] = Case(
    lambda: llama_like(
        "Qwen3ForCausalLM", "qwen3", hidden=4096, layers=36, heads=32, kv_heads=8, inner=12288,
        vocabulary=151936, size=128, head_norms=True, head_dim=128,
    ),
    2 * (36 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 12288 * 4096 + 2 * 4096 + 256) + 4096
         + 151936 * 4096),
    36 * 2 * 1024 * 2,
)  # fmt: skip

# Gemma-2-9B: heads of 256, four norms, tied with 256,000 words; every second layer has a window.
CASES["Gemma2ForCausalLM"] = Case(
    lambda: llama_like(
        "Gemma2ForCausalLM", "gemma2", hidden=3584, layers=42, heads=16, kv_heads=8, inner=14336,
        vocabulary=256000, size=256, tied=True, head_dim=256, sliding_window=4096,
        norm_names=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm"),
    ),
    2 * (42 * (2 * 4096 * 3584 + 2 * 2048 * 3584 + 3 * 14336 * 3584 + 4 * 3584) + 3584
         + 256000 * 3584),
    42 * 2 * 2048 * 2,
    read=(8192, 2 * 2048 * 2 * (21 * 8192 + 21 * 4096)),
)  # fmt: skip

# Gemma-3-4B without its vision tower, written as older files are: the class tells heads, sizes and
# that every sixth layer sees all (34 layers: 5 do).
CASES["Gemma3ForCausalLM"] = Case(
    lambda: Model(
        config("Gemma3ForCausalLM", "gemma3_text", 34, hidden_size=2560, sliding_window=1024),
        llama_like("", "", hidden=2560, layers=34, heads=8, kv_heads=4, inner=10240,
                   vocabulary=262208, size=256, tied=True).tensors,
    ),
    2 * (34 * (2 * 2048 * 2560 + 2 * 1024 * 2560 + 3 * 10240 * 2560 + 2 * 2560) + 2560
         + 262208 * 2560),
    34 * 2 * 1024 * 2,
    read=(8192, 2 * 1024 * 2 * (5 * 8192 + 29 * 1024)),
)  # fmt: skip

# Command R7B: tied, one norm a layer; every fourth layer sees all, by the class's own rule.
CASES["Cohere2ForCausalLM"] = Case(
    lambda: llama_like(
        "Cohere2ForCausalLM", "cohere2", hidden=4096, layers=32, heads=32, kv_heads=8, inner=14336,
        vocabulary=256000, tied=True, sliding_window=4096, norm_names=("input_layernorm",),
    ),
    2 * (32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 4096) + 4096 + 256000 * 4096),
    32 * 2 * 1024 * 2,
    read=(8192, 2 * 1024 * 2 * (8 * 8192 + 24 * 4096)),
)  # fmt: skip

# Olmo-3-7B: as many KV heads as heads where the file says nothing, windows by the class.
CASES["Olmo3ForCausalLM"] = Case(
    lambda: Model(
        config("Olmo3ForCausalLM", "olmo3", 32, hidden_size=4096, num_attention_heads=32,
               sliding_window=4096, tie_word_embeddings=False),
        llama_like("", "", hidden=4096, layers=32, heads=32, kv_heads=32, inner=11008,
                   vocabulary=100278, norm_names=("post_attention_layernorm",
                                                  "post_feedforward_layernorm")).tensors,
    ),
    2 * (32 * (4 * 4096**2 + 3 * 11008 * 4096 + 2 * 4096) + 4096 + 100278 * 4096),
    32 * 2 * 4096 * 2,
    read=(8192, 2 * 4096 * 2 * (8 * 8192 + 24 * 4096)),
)  # fmt: skip

# EXAONE-4-32B writes its pattern as letters: three layers with a window, one without.
CASES["Exaone4ForCausalLM"] = Case(
    lambda: llama_like(
        "Exaone4ForCausalLM", "exaone4", hidden=5120, layers=64, heads=40, kv_heads=8, inner=27392,
        vocabulary=102400, size=128, head_norms=True, head_dim=128, sliding_window=4096,
        sliding_window_pattern="LLLG",
    ),
    2 * (64 * (2 * 5120 * 5120 + 2 * 1024 * 5120 + 3 * 27392 * 5120 + 2 * 5120 + 256) + 5120
         + 102400 * 5120),
    64 * 2 * 1024 * 2,
    read=(8192, 2 * 1024 * 2 * (16 * 8192 + 48 * 4096)),
)  # fmt: skip

# SmolLM3-3B: tied; its window is switched off.
CASES["SmolLM3ForCausalLM"] = Case(
    lambda: llama_like(
        "SmolLM3ForCausalLM", "smollm3", hidden=2048, layers=36, heads=16, kv_heads=4, inner=11008,
        vocabulary=128256, tied=True, use_sliding_window=False, sliding_window=None,
    ),
    2 * (36 * (2 * 2048**2 + 2 * 512 * 2048 + 3 * 11008 * 2048 + 2 * 2048) + 2048 + 128256 * 2048),
    36 * 2 * 512 * 2,
)  # fmt: skip


def phi3() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 32064, 3072)]
    for n in range(32):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.self_attn.qkv_proj", 3 * 3072, 3072)
        tensors += linear(f"{at}.self_attn.o_proj", 3072, 3072)
        tensors += linear(f"{at}.mlp.gate_up_proj", 2 * 8192, 3072)
        tensors += linear(f"{at}.mlp.down_proj", 3072, 8192)
        tensors += norms(at, 3072, "input_layernorm", "post_attention_layernorm")
    tensors += [weight("model.norm", 3072), weight("lm_head", 32064, 3072)]
    return Model(
        config("Phi3ForCausalLM", "phi3", 32, hidden_size=3072, num_attention_heads=32,
               num_key_value_heads=32, sliding_window=None, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Phi-3-mini: q, k and v in one matrix, gate and up in another.
CASES["Phi3ForCausalLM"] = Case(
    phi3,
    2 * (32 * (4 * 3072**2 + 3 * 8192 * 3072 + 2 * 3072) + 3072 + 32064 * 3072),
    32 * 2 * 3072 * 2,
)


def falcon() -> Model:
    tensors: list[Spec] = [weight("transformer.word_embeddings", 65024, 4544)]
    for n in range(32):
        at = f"transformer.h.{n}"
        tensors += linear(f"{at}.self_attention.query_key_value", 73 * 64, 4544)
        tensors += linear(f"{at}.self_attention.dense", 4544, 4544)
        tensors += linear(f"{at}.mlp.dense_h_to_4h", 4 * 4544, 4544)
        tensors += linear(f"{at}.mlp.dense_4h_to_h", 4544, 4 * 4544)
        tensors += [weight(f"{at}.input_layernorm", 4544)]
    tensors += [weight("transformer.ln_f", 4544), weight("lm_head", 65024, 4544)]
    return Model(
        config("FalconForCausalLM", "falcon", 32, hidden_size=4544, num_attention_heads=71,
               multi_query=True, new_decoder_architecture=False),
        tensors,
    )  # fmt: skip


# Falcon-7B: 71 heads of 64 with one K and one V head; the head is stored beside the embedding.
CASES["FalconForCausalLM"] = Case(
    falcon,
    2 * (32 * (73 * 64 * 4544 + 4544**2 + 8 * 4544**2 + 4544) + 4544 + 65024 * 4544),
    32 * 2 * 64 * 2,
)


def gpt2() -> Model:
    tensors: list[Spec] = [weight("wte", 50257, 768), weight("wpe", 1024, 768)]
    for n in range(12):
        at = f"h.{n}"
        tensors += [weight(f"{at}.attn.c_attn", 768, 2304), weight(f"{at}.attn.c_proj", 768, 768)]
        tensors += [weight(f"{at}.mlp.c_fc", 768, 3072), weight(f"{at}.mlp.c_proj", 3072, 768)]
        tensors += norms(at, 768, "ln_1", "ln_2")
    tensors.append(weight("ln_f", 768))
    return Model(config("GPT2LMHeadModel", "gpt2", 12, n_layer=12, n_embd=768, n_head=12), tensors)


# GPT-2: the embedding is the head; of the table of positions a token reads one row.
CASES["GPT2LMHeadModel"] = Case(
    gpt2,
    2 * (12 * (4 * 768**2 + 8 * 768**2 + 2 * 768) + 768 + 50257 * 768),
    12 * 2 * 768 * 2,
)


def chatglm() -> Model:
    tensors: list[Spec] = [weight("transformer.embedding.word_embeddings", 65024, 4096)]
    for n in range(28):
        at = f"transformer.encoder.layers.{n}"
        tensors += linear(f"{at}.self_attention.query_key_value", 4096 + 2 * 256, 4096, bias=True)
        tensors += linear(f"{at}.self_attention.dense", 4096, 4096)
        tensors += linear(f"{at}.mlp.dense_h_to_4h", 2 * 13696, 4096)
        tensors += linear(f"{at}.mlp.dense_4h_to_h", 4096, 13696)
        tensors += norms(at, 4096, "input_layernorm", "post_attention_layernorm")
    tensors.append(weight("transformer.encoder.final_layernorm", 4096))
    tensors.append(weight("transformer.output_layer", 65024, 4096))
    return Model(
        config("ChatGLMModel", "chatglm", 28, num_layers=28, hidden_size=4096,
               num_attention_heads=32, multi_query_group_num=2, kv_channels=128,
               multi_query_attention=True, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# ChatGLM3-6B: two KV heads of 128; the bias of q, k and v.
CASES["ChatGLMModel"] = Case(
    chatglm,
    2 * (28 * (4608 * 4096 + 4608 + 4096**2 + 3 * 13696 * 4096 + 2 * 4096) + 4096 + 65024 * 4096),
    28 * 2 * 256 * 2,
)


def internlm2() -> Model:
    tensors: list[Spec] = [weight("model.tok_embeddings", 92544, 4096)]
    for n in range(32):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.attention.wqkv", 4096 + 2 * 1024, 4096)
        tensors += linear(f"{at}.attention.wo", 4096, 4096)
        tensors += linear(f"{at}.feed_forward.w1", 14336, 4096)
        tensors += linear(f"{at}.feed_forward.w2", 4096, 14336)
        tensors += linear(f"{at}.feed_forward.w3", 14336, 4096)
        tensors += norms(at, 4096, "attention_norm", "ffn_norm")
    tensors += [weight("model.norm", 4096), weight("output", 92544, 4096)]
    return Model(
        config("InternLM2ForCausalLM", "internlm2", 32, hidden_size=4096, num_attention_heads=32,
               num_key_value_heads=8, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# InternLM2-7B: its head is called output.
CASES["InternLM2ForCausalLM"] = Case(
    internlm2,
    2 * (32 * (6144 * 4096 + 4096**2 + 3 * 14336 * 4096 + 2 * 4096) + 4096 + 92544 * 4096),
    32 * 2 * 1024 * 2,
)


def opt() -> Model:
    tensors: list[Spec] = [
        weight("model.decoder.embed_tokens", 50272, 2048),
        weight("model.decoder.embed_positions", 2050, 2048),
    ]
    for n in range(24):
        at = f"model.decoder.layers.{n}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors += linear(f"{at}.self_attn.{name}", 2048, 2048, bias=True)
        tensors += linear(f"{at}.fc1", 8192, 2048, bias=True)
        tensors += linear(f"{at}.fc2", 2048, 8192, bias=True)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            tensors += [weight(f"{at}.{name}", 2048), (f"{at}.{name}.bias", "BF16", (2048,))]
    return Model(
        config("OPTForCausalLM", "opt", 24, hidden_size=2048, num_attention_heads=32), tensors
    )


# OPT-1.3B: biases everywhere, the embedding is the head, positions are a table.
CASES["OPTForCausalLM"] = Case(
    opt,
    2 * (24 * (4 * (2048**2 + 2048) + 2 * 8192 * 2048 + 8192 + 2048 + 4 * 2048) + 50272 * 2048),
    24 * 2 * 2048 * 2,
)


def minicpm3() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 73448, 2560)]
    for n in range(62):
        at = f"model.layers.{n}.self_attn"
        tensors += linear(f"{at}.q_a_proj", 768, 2560) + linear(f"{at}.q_b_proj", 40 * 96, 768)
        tensors += linear(f"{at}.kv_a_proj_with_mqa", 256 + 32, 2560)
        tensors += linear(f"{at}.kv_b_proj", 40 * (64 + 64), 256)
        tensors += linear(f"{at}.o_proj", 2560, 40 * 64)
        tensors += gated(f"model.layers.{n}.mlp", 2560, 6400)
    tensors.append(weight("model.norm", 2560))
    return Model(
        config("MiniCPM3ForCausalLM", "minicpm3", 62, hidden_size=2560, num_attention_heads=40,
               num_key_value_heads=40, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64,
               qk_rope_head_dim=32, tie_word_embeddings=True),
        tensors,
    )  # fmt: skip


# MiniCPM3-4B projects its keys and values through a rank of 256 and caches them whole: 40 heads of
# 64 + 32 for K, and as many for V, which is padded.
CASES["MiniCPM3ForCausalLM"] = Case(
    minicpm3,
    2 * (62 * (768 * 2560 + 3840 * 768 + 288 * 2560 + 5120 * 256 + 2560 * 2560 + 3 * 6400 * 2560)
         + 2560 + 73448 * 2560),
    62 * 2 * 40 * 96 * 2,
)  # fmt: skip


def phi4_multimodal() -> Model:
    base = phi3()
    tensors: list[Spec] = []
    for name, dtype, shape in base.tensors:
        part = name.removesuffix(".weight")
        if ".qkv_proj" not in name:
            tensors.append((name, dtype, shape))
            continue
        tensors.append((f"{part}.base_layer.weight", dtype, shape))
        for medium in ("speech", "vision"):
            tensors.append(weight(f"{part}.lora_A.{medium}", 320, 3072))
            tensors.append(weight(f"{part}.lora_B.{medium}", 9216, 320))
    tensors.append(weight("model.embed_tokens_extend.image_embed.img_projection.0", 3072, 1152))
    changed = {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    return Model(base.config | changed, tensors)


# Phi-4-multimodal with the shapes of Phi-3-mini: adapters and the picture's projection are stored,
# and text decoding reads neither.
CASES["Phi4MMForCausalLM"] = Case(
    phi4_multimodal, CASES["Phi3ForCausalLM"].weights, CASES["Phi3ForCausalLM"].token
)

# Mixtures of experts. One token reads the router and k of E experts.

# Mixtral-8x7B: 2 of 8 experts of 3 x 14336 x 4096, the router 8 x 4096.
CASES["MixtralForCausalLM"] = Case(
    lambda: mixture(
        "MixtralForCausalLM", "mixtral", hidden=4096, layers=32, heads=32, kv_heads=8, size=128,
        experts=8, inner=14336, vocabulary=32000, moe="block_sparse_moe",
        router="block_sparse_moe.gate", parts=("w1", "w3", "w2"), num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None,
    ),
    2 * (32 * (2 * 4096**2 + 2 * 1024 * 4096 + 8 * 4096 + 2 * 3 * 14336 * 4096 + 2 * 4096) + 4096
         + 32000 * 4096),
    32 * 2 * 1024 * 2,
)  # fmt: skip

# OLMoE-1B-7B: 8 of 64 experts of 3 x 1024 x 2048.
CASES["OlmoeForCausalLM"] = Case(
    lambda: mixture(
        "OlmoeForCausalLM", "olmoe", hidden=2048, layers=16, heads=16, kv_heads=16, size=128,
        experts=64, inner=1024, vocabulary=50304, num_experts=64, num_experts_per_tok=8,
    ),
    2 * (16 * (4 * 2048**2 + 64 * 2048 + 8 * 3 * 1024 * 2048 + 2 * 2048) + 2048 + 50304 * 2048),
    16 * 2 * 2048 * 2,
)  # fmt: skip

# Qwen1.5-MoE-A2.7B, six layers of it: beside 4 of 60 experts a shared one of 3 x 5632 x 2048 and
# its gate of 2048.
CASES["Qwen2MoeForCausalLM"] = Case(
    lambda: mixture(
        "Qwen2MoeForCausalLM", "qwen2_moe", hidden=2048, layers=6, heads=16, kv_heads=16, size=128,
        experts=60, inner=1408, vocabulary=151936, num_experts=60, num_experts_per_tok=4,
        extra=lambda at: [*gated(f"{at}.mlp.shared_expert", 2048, 5632),
                          *linear(f"{at}.mlp.shared_expert_gate", 1, 2048)],
    ),
    2 * (6 * (4 * 2048**2 + 60 * 2048 + 4 * 3 * 1408 * 2048 + 3 * 5632 * 2048 + 2048 + 2 * 2048)
         + 2048 + 151936 * 2048),
    6 * 2 * 2048 * 2,
)  # fmt: skip


def granite_moe() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 49155, 1536)]
    for n in range(32):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", 1536, 24, 8, 64)
        tensors += [
            weight(f"{at}.block_sparse_moe.input_linear", 40, 1024, 1536),
            weight(f"{at}.block_sparse_moe.output_linear", 40, 1536, 512),
            weight(f"{at}.block_sparse_moe.router.layer", 40, 1536),
        ]
        tensors += norms(at, 1536, "input_layernorm", "post_attention_layernorm")
    tensors.append(weight("model.norm", 1536))
    return Model(
        config("GraniteMoeForCausalLM", "granitemoe", 32, hidden_size=1536, num_attention_heads=24,
               num_key_value_heads=8, num_local_experts=40, num_experts_per_tok=8,
               tie_word_embeddings=True),
        tensors,
    )  # fmt: skip


# Granite-3.1-3B-A800M: all 40 experts of a layer in one tensor, 8 of them read: 8 x (1024 + 512) x
# 1536 each.
CASES["GraniteMoeForCausalLM"] = Case(
    granite_moe,
    2 * (32 * (2 * 1536 * 1536 + 2 * 512 * 1536 + 40 * 1536 + 8 * (1024 + 512) * 1536 + 2 * 1536)
         + 1536 + 49155 * 1536),
    32 * 2 * 512 * 2,
)  # fmt: skip


def llama4() -> Model:
    tensors: list[Spec] = [weight("language_model.model.embed_tokens", 202048, 5120)]
    for n in range(8):
        at = f"language_model.model.layers.{n}"
        tensors += attention(f"{at}.self_attn", 5120, 40, 8, 128)
        tensors += linear(f"{at}.feed_forward.router", 16, 5120)
        tensors += [
            (f"{at}.feed_forward.experts.gate_up_proj", "BF16", (16, 5120, 16384)),
            (f"{at}.feed_forward.experts.down_proj", "BF16", (16, 8192, 5120)),
        ]
        tensors += gated(f"{at}.feed_forward.shared_expert", 5120, 8192)
        tensors += norms(at, 5120, "input_layernorm", "post_attention_layernorm")
    tensors += [
        weight("language_model.model.norm", 5120),
        weight("language_model.lm_head", 202048, 5120),
        weight("vision_model.patch_embedding.linear", 1408, 588),
        weight("multi_modal_projector.linear_1", 5120, 4096),
    ]
    text = {
        "model_type": "llama4_text", "num_hidden_layers": 8, "hidden_size": 5120,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
        "no_rope_layers": [], "torch_dtype": "bfloat16",
    }  # fmt: skip
    outer = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4"}
    return Model(outer | {"text_config": text, "tie_word_embeddings": False}, tensors)


# Llama-4-Scout, eight layers of it: 1 of 16 experts and a shared one, each 3 x 8192 x 5120; the
# empty list of layers without positions means every fourth. At 9,000 tokens of context the six
# others are 808 tokens into their second chunk of 8,192.
CASES["Llama4ForConditionalGeneration"] = Case(
    llama4,
    2 * (8 * (2 * 5120**2 + 2 * 1024 * 5120 + 16 * 5120 + 2 * 3 * 8192 * 5120 + 2 * 5120) + 5120
         + 202048 * 5120),
    8 * 2 * 1024 * 2,
    read=(9000, 2 * 1024 * 2 * (2 * 9000 + 6 * 808)),
)  # fmt: skip


def longcat() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 131072, 6144)]
    for n in range(2):
        at = f"model.layers.{n}"
        for block in range(2):
            attn = f"{at}.self_attn.{block}"
            tensors += linear(f"{attn}.q_a_proj", 1536, 6144)
            tensors += linear(f"{attn}.q_b_proj", 64 * 192, 1536)
            tensors += linear(f"{attn}.kv_a_proj_with_mqa", 576, 6144)
            tensors += linear(f"{attn}.kv_b_proj", 64 * 256, 512)
            tensors += linear(f"{attn}.o_proj", 6144, 64 * 128)
            tensors += gated(f"{at}.mlps.{block}", 6144, 12288)
        tensors += linear(f"{at}.mlp.router.classifier", 768, 6144)
        for e in range(512):
            tensors += gated(f"{at}.mlp.experts.{e}", 6144, 2048)
    tensors += [weight("model.norm", 6144), weight("lm_head", 131072, 6144)]
    tensors += linear("model.mtp.layers.0.eh_proj", 6144, 2 * 6144)
    return Model(
        {
            "architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash",
            "num_layers": 2, "hidden_size": 6144, "num_attention_heads": 64, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
            "n_routed_experts": 512, "zero_expert_num": 256, "zero_expert_type": "identity",
            "moe_topk": 12, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        },
        tensors,
    )  # fmt: skip


# LongCat-Flash, two layers of it: two attentions and two MLPs in a layer, and a token chooses 12 of
# 512 experts and 256 identities, so 12 x 512 / 768 = 8 experts with weights. The cache has 512 + 64
# values for each attention.
CASES["LongcatFlashForCausalLM"] = Case(
    longcat,
    2 * (2 * (2 * (1536 * 6144 + 12288 * 1536 + 576 * 6144 + 16384 * 512 + 6144 * 8192
                   + 3 * 12288 * 6144)
              + 768 * 6144 + 8 * 3 * 2048 * 6144) + 6144 + 131072 * 6144),
    2 * 2 * 576 * 2,
)  # fmt: skip

# Stacks that run several times.


def ouro() -> Model:
    names = ("input_layernorm", "input_layernorm_2", "post_attention_layernorm",
             "post_attention_layernorm_2")  # fmt: skip
    return llama_like(
        "OuroForCausalLM", "ouro", hidden=2048, layers=24, heads=16, kv_heads=16, inner=5632,
        vocabulary=49152, norm_names=names, total_ut_steps=4, head_dim=128,
        layer_types=["full_attention"] * 24,
    )  # fmt: skip


# Ouro-1.4B: 24 layers run four times for a token, and each pass keeps a cache of its own.
CASES["OuroForCausalLM"] = Case(
    ouro,
    2 * (4 * 24 * (4 * 2048**2 + 3 * 5632 * 2048 + 4 * 2048) + 2048 + 49152 * 2048),
    4 * 24 * 2 * 2048 * 2,
)

# IQuest-Coder-Loop with 8 layers of its shapes, run twice. The second pass reads the first one's
# cache again and a window of 64 tokens of its own.
CASES["IQuestLoopCoderForCausalLM"] = Case(
    lambda: llama_like(
        "IQuestLoopCoderForCausalLM", "iquestloopcoder", hidden=5120, layers=8, heads=40,
        kv_heads=8, inner=27648, vocabulary=76800, size=128, head_dim=128, loop_num=2,
        loop_window_size=64,
    ),
    2 * (2 * 8 * (2 * 5120**2 + 2 * 1024 * 5120 + 3 * 27648 * 5120 + 2 * 5120) + 5120
         + 76800 * 5120),
    2 * 8 * 2 * 1024 * 2,
    read=(1000, 8 * 2 * 1024 * 2 * (2 * 1000 + 64)),
)  # fmt: skip


def hrm() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 65536, 1536)]
    for stack in ("L_module", "H_module"):
        for n in range(16):
            at = f"model.{stack}.layers.{n}"
            tensors += linear(f"{at}.attn.gqkv_proj", 4 * 1536, 1536)
            tensors += linear(f"{at}.attn.o_proj", 1536, 1536)
            tensors += linear(f"{at}.mlp.gate_up_proj", 2 * 4096, 1536)
            tensors += linear(f"{at}.mlp.down_proj", 1536, 4096)
    tensors.append(weight("lm_head", 65536, 1536))
    return Model(
        config("HrmTextForCausalLM", "hrm_text", 128, num_layers_per_stack=16, hidden_size=1536,
               num_attention_heads=12, num_key_value_heads=12, head_dim=128, H_cycles=2, L_cycles=3,
               tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# HRM-Text: in each of two outer cycles the L stack runs three times and the H stack once: 2 x 4 x
# 16 layers are read, and each keeps a cache.
CASES["HrmTextForCausalLM"] = Case(
    hrm,
    2 * (2 * 4 * 16 * (4 * 1536**2 + 1536**2 + 3 * 4096 * 1536) + 65536 * 1536),
    2 * 4 * 16 * 2 * 1536 * 2,
)

# Caches that layers share.


def gemma3n() -> Model:
    tensors: list[Spec] = [
        weight("model.language_model.embed_tokens", 262400, 2048),
        weight("model.language_model.embed_tokens_per_layer", 262144, 35 * 256),
        weight("model.language_model.per_layer_model_projection", 35 * 256, 2048),
        weight("model.vision_tower.timm_model.conv_stem.conv", 64, 3, 3, 3),
        weight("model.audio_tower.conformer.0.attention.post", 1536, 1536),
    ]
    for n in range(35):
        at = f"model.language_model.layers.{n}"
        tensors += attention(f"{at}.self_attn", 2048, 8, 2, 256)
        tensors += gated(f"{at}.mlp", 2048, 16384)
        tensors += linear(f"{at}.per_layer_input_gate", 256, 2048)
        tensors += linear(f"{at}.per_layer_projection", 2048, 256)
    for n in range(3):
        tensors.append(weight(f"model.language_model.altup_projections.{n}", 2048, 2048))
    tensors.append(weight("model.language_model.norm", 2048))
    text = {
        "model_type": "gemma3n_text", "num_hidden_layers": 35, "hidden_size": 2048,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
        "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256,
    }  # fmt: skip
    outer = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    return Model(outer | {"text_config": text, "torch_dtype": "bfloat16"}, tensors)


# Gemma-3n-E4B: of the 4.7 GB of per-layer embeddings a token reads one row. 20 layers keep a cache
# (every fifth of all the context: 4), the last 15 read those of the last layers that do (3 of them
# all of the context).
CASES["Gemma3nForConditionalGeneration"] = Case(
    gemma3n,
    2 * (35 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 16384 * 2048 + 2 * 256 * 2048)
         + 35 * 256 * 2048 + 3 * 2048**2 + 2048 + 262400 * 2048),
    20 * 2 * 512 * 2,
    read=(4096, 2 * 512 * 2 * (7 * 4096 + 28 * 512)),
)  # fmt: skip


def gemma4() -> Model:
    tensors: list[Spec] = [weight("model.language_model.embed_tokens", 262144, 5376)]
    for n in range(12):
        at = f"model.language_model.layers.{n}"
        if (n + 1) % 6:
            tensors += attention(f"{at}.self_attn", 5376, 32, 16, 256)
        else:
            tensors += linear(f"{at}.self_attn.q_proj", 32 * 512, 5376)
            tensors += linear(f"{at}.self_attn.k_proj", 4 * 512, 5376)
            tensors += linear(f"{at}.self_attn.o_proj", 5376, 32 * 512)
        tensors += gated(f"{at}.mlp", 5376, 21504)
    tensors.append(weight("model.language_model.norm", 5376))
    text = {
        "model_type": "gemma4_text", "num_hidden_layers": 12, "hidden_size": 5376,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "sliding_window": 1024, "num_kv_shared_layers": 0,
    }  # fmt: skip
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
    return Model(outer | {"text_config": text, "dtype": "bfloat16"}, tensors)


# Gemma-4-31B, twelve layers of it: two see all of the context with 4 KV heads of 512 that are key
# and value at once, ten a window of 1,024 with 16 heads of 256.
CASES["Gemma4ForConditionalGeneration"] = Case(
    gemma4,
    2 * (10 * (2 * 8192 * 5376 + 2 * 4096 * 5376) + 2 * (2 * 16384 * 5376 + 2048 * 5376)
         + 12 * 3 * 21504 * 5376 + 5376 + 262144 * 5376),
    (10 * 2 * 4096 + 2 * 2 * 2048) * 2,
    read=(4096, 2 * (10 * 2 * 4096 * 1024 + 2 * 2 * 2048 * 4096)),
)  # fmt: skip


def hunyuan() -> Model:
    model = llama_like(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", hidden=3072, layers=32, heads=24,
        kv_heads=8, inner=8192, vocabulary=128167, size=128, head_dim=128, use_cla=True,
        cla_share_factor=2,
    )  # fmt: skip
    gone = tuple(
        f"model.layers.{n}.self_attn.{name}.weight"
        for n in range(1, 32, 2)
        for name in ("k_proj", "v_proj")
    )
    return Model(model.config, [spec for spec in model.tensors if spec[0] not in gone])


# Hunyuan with cross-layer attention: every second layer has no keys and values of its own, and
# reads those of the one before.
CASES["HunYuanDenseV1ForCausalLM"] = Case(
    hunyuan,
    2 * (32 * (2 * 3072**2 + 3 * 8192 * 3072 + 2 * 3072) + 16 * 2 * 1024 * 3072 + 3072
         + 128167 * 3072),
    16 * 2 * 1024 * 2,
    read=(1000, 32 * 2 * 1024 * 2 * 1000),
)  # fmt: skip


def deci() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 128256, 8192)]
    blocks = []
    for n in range(8):
        at = f"model.layers.{n}"
        if n % 4 != 3:
            tensors += attention(f"{at}.self_attn", 8192, 64, 8, 128)
        inner = 28672 if n < 4 else 7168
        tensors += gated(f"{at}.mlp", 8192, inner)
        blocks.append({"attention": {"no_op": n % 4 == 3}, "ffn": {"ffn_mult": inner / 8192}})
    tensors += [weight("model.norm", 8192), weight("lm_head", 128256, 8192)]
    return Model(
        config("DeciLMForCausalLM", "nemotron-nas", 8, hidden_size=8192, num_attention_heads=64,
               num_key_value_heads=None, block_configs=blocks, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Nemotron-NAS with eight layers: two of them have no attention, and four a narrow MLP.
CASES["DeciLMForCausalLM"] = Case(
    deci,
    2 * (6 * (2 * 8192**2 + 2 * 1024 * 8192) + 4 * 3 * 28672 * 8192 + 4 * 3 * 7168 * 8192 + 8192
         + 128256 * 8192),
    6 * 2 * 1024 * 2,
)  # fmt: skip

# Recurrent layers. A state is read and written, whatever the context.


def qwen3_next() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 151936, 2048)]
    for n in range(4):
        at = f"model.layers.{n}"
        if n == 3:
            tensors += linear(f"{at}.self_attn.q_proj", 2 * 16 * 256, 2048)
            tensors += linear(f"{at}.self_attn.k_proj", 512, 2048)
            tensors += linear(f"{at}.self_attn.v_proj", 512, 2048)
            tensors += linear(f"{at}.self_attn.o_proj", 2048, 4096)
        else:
            tensors += linear(f"{at}.linear_attn.in_proj_qkvz", 12288, 2048)
            tensors += linear(f"{at}.linear_attn.in_proj_ba", 64, 2048)
            tensors += [
                weight(f"{at}.linear_attn.conv1d", 8192, 1, 4),
                *linear(f"{at}.linear_attn.out_proj", 2048, 4096),
            ]
        tensors += linear(f"{at}.mlp.gate", 512, 2048)
        for e in range(512):
            tensors += gated(f"{at}.mlp.experts.{e}", 2048, 512)
        tensors += gated(f"{at}.mlp.shared_expert", 2048, 512)
        tensors += linear(f"{at}.mlp.shared_expert_gate", 1, 2048)
    tensors += [weight("model.norm", 2048), weight("lm_head", 151936, 2048)]
    tensors += linear("mtp.fc", 2048, 4096)
    return Model(
        config("Qwen3NextForCausalLM", "qwen3_next", 4, hidden_size=2048, num_attention_heads=16,
               num_key_value_heads=2, head_dim=256, num_experts=512, num_experts_per_tok=10,
               linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
               linear_value_head_dim=128, linear_conv_kernel_dim=4, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Qwen3-Next-80B-A3B, four layers of it: three with a gated delta rule, whose state is 32 x 128 x
# 128 values and the last three inputs of 8,192, one with a cache. 10 of 512 experts and a shared
# one of 3 x 512 x 2048.
CASES["Qwen3NextForCausalLM"] = Case(
    qwen3_next,
    2 * (3 * (12288 * 2048 + 64 * 2048 + 8192 * 4 + 2048 * 4096)
         + (8192 + 512 + 512) * 2048 + 2048 * 4096
         + 4 * (512 * 2048 + 11 * 3 * 512 * 2048 + 2048) + 2048 + 151936 * 2048),
    2 * 512 * 2,
    state=3 * (32 * 128 * 128 + 3 * 8192) * 2,
)  # fmt: skip


def kimi_linear() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 163840, 2304)]
    for n in range(4):
        at = f"model.layers.{n}"
        if n == 3:
            tensors += linear(f"{at}.self_attn.q_proj", 32 * 192, 2304)
            tensors += linear(f"{at}.self_attn.kv_a_proj_with_mqa", 576, 2304)
            tensors += linear(f"{at}.self_attn.kv_b_proj", 32 * 256, 512)
        else:
            for name in ("q_proj", "k_proj", "v_proj"):
                tensors += linear(f"{at}.self_attn.{name}", 4096, 2304)
        tensors += linear(f"{at}.self_attn.o_proj", 2304, 4096)
        tensors += gated(f"{at}.mlp", 2304, 9216)
    tensors += [weight("model.norm", 2304), weight("lm_head", 163840, 2304)]
    linear_attention = {
        "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 32, "head_dim": 128,
        "short_conv_kernel_size": 4,
    }  # fmt: skip
    return Model(
        config("KimiLinearForCausalLM", "kimi_linear", 4, hidden_size=2304, num_attention_heads=32,
               num_key_value_heads=32, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
               v_head_dim=128, linear_attn_config=linear_attention, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Kimi-Linear with four dense layers: three keep 32 x 128 x 128 values in 32 bits and the last three
# inputs of 3 x 4096 in 16, one a compressed cache of 576 values a token.
CASES["KimiLinearForCausalLM"] = Case(
    kimi_linear,
    2 * (3 * 3 * 4096 * 2304 + 6144 * 2304 + 576 * 2304 + 8192 * 512 + 4 * 2304 * 4096
         + 4 * 3 * 9216 * 2304 + 2304 + 163840 * 2304),
    576 * 2,
    state=3 * (32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2),
)  # fmt: skip


def mamba2_layer(at: str, hidden: int, heads: int, head: int, state: int) -> list[Spec]:
    inner = heads * head
    return [
        *linear(f"{at}.in_proj", 2 * inner + 2 * state + heads, hidden),
        weight(f"{at}.conv1d", inner + 2 * state, 1, 4),
        *linear(f"{at}.out_proj", hidden, inner),
    ]


def granite_hybrid() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 100352, 2048)]
    kinds = ["attention" if n in (1, 3) else "mamba" for n in range(4)]
    for n, kind in enumerate(kinds):
        at = f"model.layers.{n}"
        if kind == "mamba":
            tensors += mamba2_layer(f"{at}.mamba", 2048, 64, 64, 128)
        else:
            tensors += attention(f"{at}.self_attn", 2048, 32, 8, 64)
        tensors += linear(f"{at}.shared_mlp.input_linear", 16384, 2048)
        tensors += linear(f"{at}.shared_mlp.output_linear", 2048, 8192)
    tensors.append(weight("model.norm", 2048))
    return Model(
        config("GraniteMoeHybridForCausalLM", "granitemoehybrid", 4, hidden_size=2048,
               num_attention_heads=32, num_key_value_heads=8, layer_types=kinds, mamba_n_heads=64,
               mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4,
               mamba_expand=2, num_local_experts=0, num_experts_per_tok=0,
               tie_word_embeddings=True),
        tensors,
    )  # fmt: skip


# Granite-4.0-H-Micro, four layers of it: two of Mamba 2 (in 2 x 4096 + 2 x 128 + 64 rows, a
# convolution of 4352 x 4, a state of 64 x 64 x 128 and 3 x 4352 inputs), two with a cache.
CASES["GraniteMoeHybridForCausalLM"] = Case(
    granite_hybrid,
    2 * (2 * (8512 * 2048 + 4352 * 4 + 2048 * 4096) + 2 * (2 * 2048**2 + 2 * 512 * 2048)
         + 4 * (16384 * 2048 + 2048 * 8192) + 2048 + 100352 * 2048),
    2 * 2 * 512 * 2,
    state=2 * (64 * 64 * 128 + 3 * 4352) * 2,
)  # fmt: skip


def falcon_h1() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 65536, 2048)]
    for n in range(4):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", 2048, 8, 2, 128)
        tensors += mamba2_layer(f"{at}.mamba", 2048, 48, 64, 256)
        tensors += gated(f"{at}.feed_forward", 2048, 4096)
    tensors += [weight("model.final_layernorm", 2048), weight("lm_head", 65536, 2048)]
    return Model(
        config("FalconH1ForCausalLM", "falcon_h1", 4, hidden_size=2048, num_attention_heads=8,
               num_key_value_heads=2, head_dim=128, mamba_n_heads=48, mamba_d_head=64,
               mamba_d_state=256, mamba_n_groups=1, mamba_d_conv=4, mamba_d_ssm=3072,
               tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Falcon-H1-1.5B, four layers of it: attention and Mamba 2 side by side in every layer.
CASES["FalconH1ForCausalLM"] = Case(
    falcon_h1,
    2 * (4 * (2 * 1024 * 2048 + 2 * 256 * 2048 + (2 * 3072 + 512 + 48) * 2048 + (3072 + 512) * 4
              + 2048 * 3072 + 3 * 4096 * 2048) + 2048 + 65536 * 2048),
    4 * 2 * 256 * 2,
    state=4 * (48 * 64 * 256 + 3 * (3072 + 512)) * 2,
)  # fmt: skip


def mamba() -> Model:
    tensors: list[Spec] = [weight("backbone.embeddings", 50280, 2560)]
    for n in range(64):
        at = f"backbone.layers.{n}.mixer"
        tensors += linear(f"{at}.in_proj", 10240, 2560)
        tensors += [weight(f"{at}.conv1d", 5120, 1, 4), (f"{at}.A_log", "BF16", (5120, 16))]
        tensors += linear(f"{at}.x_proj", 160 + 32, 5120) + linear(f"{at}.dt_proj", 5120, 160)
        tensors += linear(f"{at}.out_proj", 2560, 5120)
    tensors.append(weight("backbone.norm_f", 2560))
    return Model(
        config("MambaForCausalLM", "mamba", 64, hidden_size=2560, intermediate_size=5120,
               state_size=16, conv_kernel=4, expand=2),
        tensors,
    )  # fmt: skip


# Mamba-2.8B: no cache at all; 64 states of 5120 x 16 and the last three inputs of 5,120.
CASES["MambaForCausalLM"] = Case(
    mamba,
    2 * (64 * (10240 * 2560 + 5120 * 4 + 5120 * 16 + 192 * 5120 + 5120 * 160 + 2560 * 5120) + 2560
         + 50280 * 2560),
    0,
    state=64 * (5120 * 16 + 3 * 5120) * 2,
    read=(100_000, 0),
)  # fmt: skip


def jamba() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 65536, 4096)]
    for n in range(8):
        at = f"model.layers.{n}"
        if n == 4:
            tensors += attention(f"{at}.self_attn", 4096, 32, 8, 128)
        else:
            tensors += linear(f"{at}.mamba.in_proj", 16384, 4096)
            tensors += linear(f"{at}.mamba.out_proj", 4096, 8192)
            tensors.append(weight(f"{at}.mamba.conv1d", 8192, 1, 4))
        if n % 2:
            tensors += linear(f"{at}.feed_forward.router", 16, 4096)
            for e in range(16):
                tensors += gated(f"{at}.feed_forward.experts.{e}", 4096, 14336)
        else:
            tensors += gated(f"{at}.feed_forward", 4096, 14336)
    tensors += [weight("model.final_layernorm", 4096), weight("lm_head", 65536, 4096)]
    return Model(
        config("JambaForCausalLM", "jamba", 8, hidden_size=4096, intermediate_size=14336,
               num_attention_heads=32, num_key_value_heads=8, attn_layer_period=8,
               attn_layer_offset=4, expert_layer_period=2, num_experts=16, num_experts_per_tok=2,
               mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Jamba, its first period of eight layers: one with a cache, seven of Mamba (8192 x 16 and 3 x 8192
# values); in four of them 2 of 16 experts.
CASES["JambaForCausalLM"] = Case(
    jamba,
    2 * (2 * 4096**2 + 2 * 1024 * 4096 + 7 * (16384 * 4096 + 4096 * 8192 + 8192 * 4)
         + 4 * (16 * 4096 + 2 * 3 * 14336 * 4096) + 4 * 3 * 14336 * 4096 + 4096 + 65536 * 4096),
    2 * 1024 * 2,
    state=7 * (8192 * 16 + 3 * 8192) * 2,
)  # fmt: skip


def nemotron_h() -> Model:
    tensors: list[Spec] = [weight("backbone.embeddings", 131072, 4096)]
    for n, kind in enumerate("M-M*-"):
        at = f"backbone.layers.{n}"
        if kind == "M":
            tensors += [
                *linear(f"{at}.mixer.in_proj", 2 * 8192 + 2 * 8 * 128 + 128, 4096),
                weight(f"{at}.mixer.conv1d", 8192 + 2 * 8 * 128, 1, 4),
                *linear(f"{at}.mixer.out_proj", 4096, 8192),
            ]
        elif kind == "*":
            tensors += attention(f"{at}.mixer", 4096, 32, 8, 128)
        else:
            tensors += linear(f"{at}.mixer.up_proj", 21504, 4096)
            tensors += linear(f"{at}.mixer.down_proj", 4096, 21504)
    tensors += [weight("backbone.norm_f", 4096), weight("lm_head", 131072, 4096)]
    return Model(
        config("NemotronHForCausalLM", "nemotron_h", 5, hidden_size=4096, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, hybrid_override_pattern="M-M*-",
               mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
               conv_kernel=4, tie_word_embeddings=False),
        tensors,
    )  # fmt: skip


# Nemotron-H-8B, five layers of it: two of Mamba 2 with 8 groups, whose states this class keeps in
# 32 bits (128 x 64 x 128), one with a cache, two with an MLP alone.
CASES["NemotronHForCausalLM"] = Case(
    nemotron_h,
    2 * (2 * (18560 * 4096 + 10240 * 4 + 4096 * 8192) + 2 * 4096**2 + 2 * 1024 * 4096
         + 2 * 2 * 21504 * 4096 + 4096 + 131072 * 4096),
    2 * 1024 * 2,
    state=2 * (128 * 64 * 128 * 4 + 3 * 10240 * 2),
)  # fmt: skip


def lfm2() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 65536, 2048)]
    kinds = ["full_attention" if n in (2, 5) else "conv" for n in range(6)]
    for n, kind in enumerate(kinds):
        at = f"model.layers.{n}"
        if kind == "conv":
            tensors += linear(f"{at}.conv.in_proj", 6144, 2048)
            tensors += linear(f"{at}.conv.out_proj", 2048, 2048)
            tensors.append(weight(f"{at}.conv.conv", 2048, 1, 3))
        else:
            tensors += attention(f"{at}.self_attn", 2048, 32, 8, 64)
        for name, shape in (("w1", (8192, 2048)), ("w2", (2048, 8192)), ("w3", (8192, 2048))):
            tensors.append(weight(f"{at}.feed_forward.{name}", *shape))
    tensors.append(weight("model.embedding_norm", 2048))
    return Model(
        config("Lfm2ForCausalLM", "lfm2", 6, hidden_size=2048, num_attention_heads=32,
               num_key_value_heads=8, conv_L_cache=3, layer_types=kinds),
        tensors,
    )  # fmt: skip


# LFM2-1.2B, six layers of it: four short convolutions that keep their last two inputs of 2,048, two
# layers with a cache; tied.
CASES["Lfm2ForCausalLM"] = Case(
    lfm2,
    2 * (4 * (6144 * 2048 + 2048**2 + 2048 * 3) + 2 * (2 * 2048**2 + 2 * 512 * 2048)
         + 6 * 3 * 8192 * 2048 + 2048 + 65536 * 2048),
    2 * 2 * 512 * 2,
    state=4 * 2 * 2048 * 2,
)  # fmt: skip


def zamba2() -> Model:
    tensors: list[Spec] = [weight("model.embed_tokens", 32000, 2560)]
    kinds = ["mamba"] * 2 + ["hybrid", "mamba"] * 4
    for n in range(len(kinds)):
        at = f"model.layers.{n}"
        mamba_at = f"{at}.mamba" if kinds[n] == "mamba" else f"{at}.mamba_decoder.mamba"
        tensors += mamba2_layer(mamba_at, 2560, 80, 64, 64)
        if kinds[n] == "hybrid":
            tensors += linear(f"{at}.linear", 2560, 2560)
    for n in (2, 4):
        at = f"model.layers.{n}.shared_transformer"
        tensors += attention(f"{at}.self_attn", 5120, 32, 32, 160)[:3]
        tensors += linear(f"{at}.self_attn.o_proj", 2560, 5120)
        tensors += linear(f"{at}.feed_forward.gate_up_proj", 20480, 2560)
        tensors += linear(f"{at}.feed_forward.down_proj", 2560, 10240)
        for use in range(2):
            adapter = f"{at}.feed_forward.gate_up_proj_adapter_list.{use}"
            tensors += linear(f"{adapter}.0", 128, 2560) + linear(f"{adapter}.1", 20480, 128)
    tensors.append(weight("model.final_layernorm", 2560))
    return Model(
        config("Zamba2ForCausalLM", "zamba2", 10, hidden_size=2560, num_attention_heads=32,
               layers_block_type=kinds, num_mem_blocks=2, adapter_rank=128,
               use_shared_attention_adapter=False, mamba_d_state=64, mamba_expand=2,
               n_mamba_heads=80, mamba_ngroups=1, mamba_d_conv=4),
        tensors,
    )  # fmt: skip


# Zamba2-2.7B, ten layers of it: two shared blocks serve four hybrid layers, so each is read twice,
# its adapters once for each use. Their attention is over 5,120 values, 32 heads of 160; every
# hybrid layer keeps a cache of its own, and all ten layers a state of 80 x 64 x 64.
CASES["Zamba2ForCausalLM"] = Case(
    zamba2,
    2 * (10 * ((2 * 5120 + 128 + 80) * 2560 + 5248 * 4 + 2560 * 5120) + 4 * 2560 * 2560
         + 2 * 2 * (3 * 5120 * 5120 + 2560 * 5120 + 20480 * 2560 + 2560 * 10240)
         + 4 * (128 * 2560 + 20480 * 128) + 2560 + 32000 * 2560),
    4 * 2 * 5120 * 2,
    state=10 * (80 * 64 * 64 + 3 * 5248) * 2,
)  # fmt: skip

# Those that other tests build too.

CASES["Qwen2ForCausalLM"] = Case(
    # Qwen2.5-7B: 7,615,616,512 parameters less the embedding of 152064 x 3584.
    checkpoints.qwen2_5_7b,
    2 * (7_615_616_512 - 152064 * 3584),
    28 * 2 * 512 * 2,
)
CASES["Qwen3MoeForCausalLM"] = Case(
    # Qwen3-30B-A3B: 8 of 128 experts of 3 x 768 x 2048 in 48 layers.
    checkpoints.qwen3_30b_a3b,
    2 * (48 * (2 * 4096 * 2048 + 2 * 512 * 2048 + 256 + 128 * 2048 + 8 * 3 * 768 * 2048 + 2 * 2048)
         + 2048 + 151936 * 2048),
    48 * 2 * 512 * 2,
)  # fmt: skip
CASES["DeepseekV3ForCausalLM"] = Case(
    # DeepSeek-V2-Lite's shapes: 26 layers with 6 of 64 experts and two shared ones, one dense.
    checkpoints.deepseek_v3_small,
    2 * (27 * (3072 * 2048 + 576 * 2048 + 512 + 4096 * 512 + 2048 * 2048 + 2 * 2048)
         + 3 * 10944 * 2048 + 26 * (64 * 2048 + 6 * 3 * 1408 * 2048 + 3 * 2816 * 2048)
         + 2048 + 102400 * 2048),
    27 * 576 * 2,
)  # fmt: skip
CASES["GptOssForCausalLM"] = Case(
    # gpt-oss-20b: MXFP4 experts of 4.25 bits a weight and 16-bit biases, 4 of 32; 12 of 24 layers
    # see the last 128 tokens.
    checkpoints.gpt_oss_20b,
    24 * (2 * (4096 * 2880 + 4096 + 2 * (512 * 2880 + 512) + 2880 * 4096 + 2880 + 64
               + 32 * 2880 + 32 + 2 * 2880)
          + 4 * (3 * 2880 * 2880 * 4.25 / 8 + 3 * 2880 * 2))
    + 2 * (2880 + 201088 * 2880),
    24 * 2 * 512 * 2,
    read=(10_000, 2 * 512 * 2 * (12 * 10_000 + 12 * 128)),
)  # fmt: skip
CASES["Qwen2_5_VLForConditionalGeneration"] = Case(
    # The text model of Qwen2.5-7B; the tower of 32 blocks is not read.
    checkpoints.qwen2_5_vl_7b,
    CASES["Qwen2ForCausalLM"].weights,
    28 * 2 * 512 * 2,
)
CASES["Gemma3ForConditionalGeneration"] = Case(
    checkpoints.gemma3_4b,
    2 * (34 * (2 * 2048 * 2560 + 2 * 1024 * 2560 + 3 * 10240 * 2560) + 2560 + 262208 * 2560),
    34 * 2 * 1024 * 2,
)
