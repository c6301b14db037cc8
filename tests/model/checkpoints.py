"""Checkpoints with the names, shapes and dtypes of real models, and no data.

A file is a true safetensors header with nothing behind it but a hole of the right size, so that a
model of 15 GB takes a few kilobytes of disk.
"""

import json
import os
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

BITS = {"BF16": 16, "F16": 16, "F32": 32, "I32": 32, "U8": 8, "F8_E4M3": 8, "F8_E8M0": 8}

Spec = tuple[str, str, tuple[int, ...]]


@dataclass
class Model:
    config: dict[str, Any]
    tensors: list[Spec]
    shards: int = 1
    files: dict[str, str] = field(default_factory=dict)


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    return prod(shape) * BITS[dtype] // 8


def write_shard(path: Path, tensors: list[Spec]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        end = position + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    os.truncate(path, 8 + len(data) + position)


def write(directory: Path, model: Model) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model.config))
    if model.shards == 1:
        write_shard(directory / "model.safetensors", model.tensors)
        return directory
    weight_map: dict[str, str] = {}
    per_shard = -(-len(model.tensors) // model.shards)
    for number in range(model.shards):
        name = f"model-{number + 1:05}-of-{model.shards:05}.safetensors"
        part = model.tensors[number * per_shard : (number + 1) * per_shard]
        write_shard(directory / name, part)
        weight_map |= {tensor: name for tensor, _, _ in part}
    # As in real indexes: total_size is there, and is not to be relied on.
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def linear(name: str, out: int, into: int, form: str = "bf16", bias: bool = False) -> list[Spec]:
    """The tensors of one matrix in a format."""
    extra: list[Spec] = [(f"{name}.bias", "BF16" if form == "bf16" else "F16", (out,))]
    if form == "bf16":
        found: list[Spec] = [(f"{name}.weight", "BF16", (out, into))]
    elif form == "awq":
        found = [
            (f"{name}.qweight", "I32", (into, out // 8)),
            (f"{name}.qzeros", "I32", (into // 128, out // 8)),
            (f"{name}.scales", "F16", (into // 128, out)),
        ]
    elif form == "gptq":
        found = [
            (f"{name}.g_idx", "I32", (into,)),
            (f"{name}.qweight", "I32", (into // 8, out)),
            (f"{name}.qzeros", "I32", (into // 128, out // 8)),
            (f"{name}.scales", "F16", (into // 128, out)),
        ]
    elif form == "fp8":
        found = [
            (f"{name}.weight", "F8_E4M3", (out, into)),
            (f"{name}.weight_scale", "BF16", (out, 1)),
        ]
    elif form == "bnb":
        found = [
            (f"{name}.weight", "U8", (out * into // 2, 1)),
            (f"{name}.weight.absmax", "U8", (out * into // 64,)),
            (f"{name}.weight.quant_map", "F32", (16,)),
            (f"{name}.weight.nested_absmax", "F32", (out * into // 64 // 256,)),
            (f"{name}.weight.nested_quant_map", "F32", (256,)),
            (f"{name}.weight.quant_state.bitsandbytes__nf4", "U8", (95,)),
        ]
    elif form == "nvfp4":
        found = [
            (f"{name}.weight", "U8", (out, into // 2)),
            (f"{name}.weight_scale", "F8_E4M3", (out, into // 16)),
            (f"{name}.weight_scale_2", "F32", ()),
        ]
    else:
        raise ValueError(form)
    return found + (extra if bias else [])


def qwen2_5(
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocabulary: int,
    tied: bool,
    form: str = "bf16",
    shards: int = 1,
) -> Model:
    head_dim = hidden // heads
    plain = "BF16" if form in ("bf16", "fp8", "bnb", "nvfp4") else "F16"
    tensors: list[Spec] = [("model.embed_tokens.weight", plain, (vocabulary, hidden))]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.self_attn.q_proj", heads * head_dim, hidden, form, bias=True)
        tensors += linear(f"{at}.self_attn.k_proj", kv_heads * head_dim, hidden, form, bias=True)
        tensors += linear(f"{at}.self_attn.v_proj", kv_heads * head_dim, hidden, form, bias=True)
        tensors += linear(f"{at}.self_attn.o_proj", hidden, heads * head_dim, form)
        tensors += linear(f"{at}.mlp.gate_proj", intermediate, hidden, form)
        tensors += linear(f"{at}.mlp.up_proj", intermediate, hidden, form)
        tensors += linear(f"{at}.mlp.down_proj", hidden, intermediate, form)
        tensors.append((f"{at}.input_layernorm.weight", plain, (hidden,)))
        tensors.append((f"{at}.post_attention_layernorm.weight", plain, (hidden,)))
    tensors.append(("model.norm.weight", plain, (hidden,)))
    if not tied:
        tensors.append(("lm_head.weight", plain, (vocabulary, hidden)))
    config: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_window_layers": layers,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16" if plain == "BF16" else "float16",
    }
    if form != "bf16":
        config["quantization_config"] = {"quant_method": form}
    return Model(config, tensors, shards)


def qwen2_5_7b(form: str = "bf16", shards: int = 4) -> Model:
    return qwen2_5(
        hidden=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        intermediate=18944,
        vocabulary=152064,
        tied=False,
        form=form,
        shards=shards,
    )


def qwen2_5_half_b() -> Model:
    return qwen2_5(
        hidden=896,
        layers=24,
        heads=14,
        kv_heads=2,
        intermediate=4864,
        vocabulary=151936,
        tied=True,
    )


def qwen3_30b_a3b() -> Model:
    hidden, layers, experts = 2048, 48, 128
    tensors: list[Spec] = [("model.embed_tokens.weight", "BF16", (151936, hidden))]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.self_attn.q_proj", 32 * 128, hidden)
        tensors += linear(f"{at}.self_attn.k_proj", 4 * 128, hidden)
        tensors += linear(f"{at}.self_attn.v_proj", 4 * 128, hidden)
        tensors += linear(f"{at}.self_attn.o_proj", hidden, 32 * 128)
        tensors.append((f"{at}.self_attn.q_norm.weight", "BF16", (128,)))
        tensors.append((f"{at}.self_attn.k_norm.weight", "BF16", (128,)))
        tensors += linear(f"{at}.mlp.gate", experts, hidden)
        for e in range(experts):
            tensors += linear(f"{at}.mlp.experts.{e}.gate_proj", 768, hidden)
            tensors += linear(f"{at}.mlp.experts.{e}.up_proj", 768, hidden)
            tensors += linear(f"{at}.mlp.experts.{e}.down_proj", hidden, 768)
        tensors.append((f"{at}.input_layernorm.weight", "BF16", (hidden,)))
        tensors.append((f"{at}.post_attention_layernorm.weight", "BF16", (hidden,)))
    tensors.append(("model.norm.weight", "BF16", (hidden,)))
    tensors.append(("lm_head.weight", "BF16", (151936, hidden)))
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": experts,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return Model(config, tensors, 16)


def deepseek_v3_small() -> Model:
    """DeepSeek-V2-Lite's shapes with the one layer of V3 that predicts a second token."""
    hidden, layers, experts = 2048, 27, 64

    def layer(n: int) -> list[Spec]:
        at = f"model.layers.{n}"
        found: list[Spec] = [
            *linear(f"{at}.self_attn.q_proj", 16 * 192, hidden),
            *linear(f"{at}.self_attn.kv_a_proj_with_mqa", 512 + 64, hidden),
            (f"{at}.self_attn.kv_a_layernorm.weight", "BF16", (512,)),
            *linear(f"{at}.self_attn.kv_b_proj", 16 * 256, 512),
            *linear(f"{at}.self_attn.o_proj", hidden, 16 * 128),
            (f"{at}.input_layernorm.weight", "BF16", (hidden,)),
            (f"{at}.post_attention_layernorm.weight", "BF16", (hidden,)),
        ]
        if n == 0:
            return (
                found
                + linear(f"{at}.mlp.gate_proj", 10944, hidden)
                + linear(f"{at}.mlp.up_proj", 10944, hidden)
                + linear(f"{at}.mlp.down_proj", hidden, 10944)
            )
        found += linear(f"{at}.mlp.gate", experts, hidden)
        for e in range(experts):
            found += linear(f"{at}.mlp.experts.{e}.gate_proj", 1408, hidden)
            found += linear(f"{at}.mlp.experts.{e}.up_proj", 1408, hidden)
            found += linear(f"{at}.mlp.experts.{e}.down_proj", hidden, 1408)
        found += linear(f"{at}.mlp.shared_experts.gate_proj", 2816, hidden)
        found += linear(f"{at}.mlp.shared_experts.up_proj", 2816, hidden)
        found += linear(f"{at}.mlp.shared_experts.down_proj", hidden, 2816)
        return found

    tensors: list[Spec] = [("model.embed_tokens.weight", "BF16", (102400, hidden))]
    for n in range(layers):
        tensors += layer(n)
    tensors += layer(layers)
    tensors += [
        *linear(f"model.layers.{layers}.eh_proj", hidden, 2 * hidden),
        (f"model.layers.{layers}.embed_tokens.weight", "BF16", (102400, hidden)),
        (f"model.layers.{layers}.shared_head.head.weight", "BF16", (102400, hidden)),
        ("model.norm.weight", "BF16", (hidden,)),
        ("lm_head.weight", "BF16", (102400, hidden)),
    ]
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": experts,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return Model(config, tensors, 4)


def gpt_oss_20b() -> Model:
    hidden, layers, experts = 2880, 24, 32
    tensors: list[Spec] = [("model.embed_tokens.weight", "BF16", (201088, hidden))]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.self_attn.q_proj", 4096, hidden, bias=True)
        tensors += linear(f"{at}.self_attn.k_proj", 512, hidden, bias=True)
        tensors += linear(f"{at}.self_attn.v_proj", 512, hidden, bias=True)
        tensors += linear(f"{at}.self_attn.o_proj", hidden, 4096, bias=True)
        tensors.append((f"{at}.self_attn.sinks", "BF16", (64,)))
        tensors += linear(f"{at}.mlp.router", experts, hidden, bias=True)
        tensors += [
            (f"{at}.mlp.experts.gate_up_proj_blocks", "U8", (experts, 2 * hidden, 90, 16)),
            (f"{at}.mlp.experts.gate_up_proj_scales", "U8", (experts, 2 * hidden, 90)),
            (f"{at}.mlp.experts.gate_up_proj_bias", "BF16", (experts, 2 * hidden)),
            (f"{at}.mlp.experts.down_proj_blocks", "U8", (experts, hidden, 90, 16)),
            (f"{at}.mlp.experts.down_proj_scales", "U8", (experts, hidden, 90)),
            (f"{at}.mlp.experts.down_proj_bias", "BF16", (experts, hidden)),
            (f"{at}.input_layernorm.weight", "BF16", (hidden,)),
            (f"{at}.post_attention_layernorm.weight", "BF16", (hidden,)),
        ]
    tensors.append(("model.norm.weight", "BF16", (hidden,)))
    tensors.append(("lm_head.weight", "BF16", (201088, hidden)))
    config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return Model(config, tensors, 3)


def qwen2_5_vl_7b() -> Model:
    """Text part of Qwen2.5-7B below `model.`, a vision tower below `visual.`."""
    text = qwen2_5_7b()
    tensors = list(text.tensors)
    tensors.append(("visual.patch_embed.proj.weight", "BF16", (1280, 3, 2, 14, 14)))
    for n in range(32):
        tensors += linear(f"visual.blocks.{n}.attn.qkv", 3840, 1280, bias=True)
        tensors += linear(f"visual.blocks.{n}.attn.proj", 1280, 1280, bias=True)
        tensors += linear(f"visual.blocks.{n}.mlp.gate_proj", 3420, 1280, bias=True)
        tensors += linear(f"visual.blocks.{n}.mlp.up_proj", 3420, 1280, bias=True)
        tensors += linear(f"visual.blocks.{n}.mlp.down_proj", 1280, 3420, bias=True)
    tensors += linear("visual.merger.mlp.0", 5120, 5120, bias=True)
    tensors += linear("visual.merger.mlp.2", 3584, 5120, bias=True)
    config = text.config | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_config": {"hidden_size": 1280, "num_hidden_layers": 32, "depth": 32},
    }
    return Model(config, tensors, 5)


def gemma3_4b() -> Model:
    """Tied, multimodal, with a config.json that leaves the text model's defaults out."""
    hidden, layers, intermediate = 2560, 34, 10240
    tensors: list[Spec] = [
        ("language_model.model.embed_tokens.weight", "BF16", (262208, hidden)),
        ("multi_modal_projector.mm_input_projection_weight", "BF16", (1152, hidden)),
        ("vision_tower.vision_model.embeddings.position_embedding.weight", "BF16", (4096, 1152)),
    ]
    for n in range(27):
        tensors += linear(f"vision_tower.vision_model.encoder.layers.{n}.mlp.fc1", 4304, 1152)
    for n in range(layers):
        at = f"language_model.model.layers.{n}"
        tensors += linear(f"{at}.self_attn.q_proj", 8 * 256, hidden)
        tensors += linear(f"{at}.self_attn.k_proj", 4 * 256, hidden)
        tensors += linear(f"{at}.self_attn.v_proj", 4 * 256, hidden)
        tensors += linear(f"{at}.self_attn.o_proj", hidden, 8 * 256)
        tensors += linear(f"{at}.mlp.gate_proj", intermediate, hidden)
        tensors += linear(f"{at}.mlp.up_proj", intermediate, hidden)
        tensors += linear(f"{at}.mlp.down_proj", hidden, intermediate)
    tensors.append(("language_model.model.norm.weight", "BF16", (hidden,)))
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "model_type": "gemma3_text",
            "num_hidden_layers": layers,
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
    }
    return Model(config, tensors, 2)


def write_lora(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    at = "base_model.model.model.layers.0.self_attn.q_proj"
    write_shard(
        directory / "adapter_model.safetensors",
        [(f"{at}.lora_A.weight", "BF16", (16, 3584)), (f"{at}.lora_B.weight", "BF16", (3584, 16))],
    )
    (directory / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "r": 16})
    )
    return directory
