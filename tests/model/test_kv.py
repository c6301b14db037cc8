"""Bytes of KV cache per token, and what a step reads of it."""

from pathlib import Path
from typing import Any

import pytest
from tokgauge.model.config import parse_config
from tokgauge.model.kv import KvCache, KvUnknown, kv_from_bytes_per_token, kv_from_config
from tokgauge.model.resolve import resolve_kv

from tests.model import checkpoints

pytestmark = pytest.mark.socketless

QWEN7B = checkpoints.qwen2_5_7b().config


def cache(config: dict[str, Any], dtype: str | None = None) -> KvCache:
    found = kv_from_config(parse_config(config), "config:test", dtype)
    assert isinstance(found, KvCache), found
    return found


def unknown(config: dict[str, Any], dtype: str | None = None) -> str:
    found = kv_from_config(parse_config(config), "config:test", dtype)
    assert isinstance(found, KvUnknown), found
    return found.reason


def test_grouped_heads() -> None:
    assert cache(QWEN7B).bytes_per_token == 57_344
    assert cache(QWEN7B).bytes_read(32_768) == 57_344 * 32_768
    assert cache(QWEN7B).kv_heads == 4


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 57_344), ("fp8", 28_672), ("fp8_e5m2", 28_672), ("float32", 114_688)],
)
def test_the_engine_may_store_another_dtype(dtype: str, size: int) -> None:
    assert cache(QWEN7B, dtype).bytes_per_token == size


def test_an_unknown_dtype_is_not_guessed() -> None:
    assert "nvfp4" in unknown(QWEN7B, "nvfp4")
    assert "dtype" in unknown({k: v for k, v in QWEN7B.items() if k != "torch_dtype"})
    assert "float32" in unknown(QWEN7B | {"torch_dtype": "float32"})
    assert cache(QWEN7B | {"torch_dtype": "float32"}, "bfloat16").bytes_per_token == 57_344
    scheme = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    assert "quantised KV cache" in unknown(QWEN7B | scheme)
    assert cache(QWEN7B | scheme, "fp8").bytes_per_token == 28_672


def test_new_spelling_of_the_dtype() -> None:
    config = {k: v for k, v in QWEN7B.items() if k != "torch_dtype"}
    assert cache(config | {"dtype": "bfloat16"}).bytes_per_token == 57_344
    assert cache(config | {"dtype": "torch.float16"}).bytes_per_token == 57_344


def test_a_head_size_of_its_own() -> None:
    assert cache(checkpoints.qwen3_30b_a3b().config).bytes_per_token == 2 * 48 * 4 * 128 * 2
    assert cache(QWEN7B | {"head_dim": None}).bytes_per_token == 57_344


def test_latent_attention_keeps_one_compressed_vector() -> None:
    found = cache(checkpoints.deepseek_v3_small().config)
    assert found.bytes_per_token == 27 * (512 + 64) * 2
    assert found.copies(8) == 8


def test_sliding_layers_see_their_window_only() -> None:
    found = cache(checkpoints.gpt_oss_20b().config)
    one_layer = 2 * 8 * 64 * 2
    assert found.bytes_per_token == 24 * one_layer
    assert found.bytes_read(100) == 24 * one_layer * 100
    assert found.bytes_read(10_000) == 12 * one_layer * (10_000 + 128)


def test_mistral_slides_everywhere_and_qwen_nowhere() -> None:
    mistral = QWEN7B | {"model_type": "mistral", "sliding_window": 4096}
    del mistral["use_sliding_window"], mistral["max_window_layers"]
    assert cache(mistral).bytes_read(10_000) == 57_344 * 4096
    assert cache(mistral | {"sliding_window": None}).bytes_read(10_000) == 57_344 * 10_000
    assert cache(QWEN7B | {"sliding_window": 4096}).bytes_read(10_000) == 57_344 * 10_000
    part = QWEN7B | {"use_sliding_window": True, "max_window_layers": 14, "sliding_window": 4096}
    assert cache(part).bytes_read(10_000) == 28_672 * (10_000 + 4096)


def test_gemma_alternates_by_its_pattern() -> None:
    gemma3 = QWEN7B | {"model_type": "gemma3_text", "num_hidden_layers": 12}
    gemma3 |= {"sliding_window": 1024, "sliding_window_pattern": 6, "head_dim": 128}
    gemma3["architectures"] = ["Gemma3ForCausalLM"]
    del gemma3["use_sliding_window"]
    assert cache(gemma3).bytes_read(5000) == 2048 * (2 * 5000 + 10 * 1024)
    gemma2 = gemma3 | {"model_type": "gemma2", "sliding_window": 4096}
    del gemma2["sliding_window_pattern"]
    assert cache(gemma2).bytes_read(5000) == 2048 * (6 * 5000 + 6 * 4096)


def test_a_window_of_an_unknown_architecture_is_not_guessed() -> None:
    other = QWEN7B | {"model_type": "newcomer", "use_sliding_window": None}
    assert "only a part of the context" in unknown(other)


def test_chunked_attention_reads_the_current_chunk() -> None:
    config = QWEN7B | {
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "attention_chunk_size": 8192,
        "no_rope_layers": [1, 1, 1, 0],
        "sliding_window": None,
    }
    found = cache(config)
    assert found.bytes_read(8192) == 4 * 2048 * 8192
    assert found.bytes_read(8193) == 2048 * (8193 + 3)


def test_layers_without_a_cache() -> None:
    nemotron = QWEN7B | {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
        "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*-E", "mamba_num_heads": 8,
        "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 1, "conv_kernel": 4,
    }  # fmt: skip
    found = cache(nemotron)
    assert found.bytes_per_token == 2048
    # Two M layers: a convolution of (8 x 64 + 2 x 128) x 3 values in 16 bits, and a state of
    # 8 x 64 x 128 that this class keeps in 32.
    assert found.state_bytes == 2 * ((8 * 64 + 2 * 128) * 3 * 2 + 8 * 64 * 128 * 4)
    assert found.bytes_read(0) == 2 * found.state_bytes
    assert found.bytes_kept(10) == 10 * 2048 + found.state_bytes


def test_a_state_whose_size_is_not_told_is_never_negligible() -> None:
    config = QWEN7B | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
    found = kv_from_config(parse_config(config), "config:test")
    assert isinstance(found, KvUnknown)
    assert (found.reason, found.negligible_when_short) == (
        "the recurrent state of its layers is not told", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_hidden_layers": None}, "how many layers"),
        ({"num_hidden_layers": 10**9}, "not credible"),
        ({"num_key_value_heads": None}, "KV heads"),
        ({"num_key_value_heads": 29}, "not credible"),
        ({"num_key_value_heads": [4, 8]}, "differ"),
        ({"hidden_size": None}, "how large a head"),
        ({"layer_types": ["novel_attention"] * 28}, "not understood"),
        ({"layer_types": ["full_attention"] * 27}, "not understood"),
        ({"index_topk": 2048}, "index_topk"),
        ({"is_encoder_decoder": True}, "encoder"),
    ],
)
def test_what_is_not_modelled_is_unknown(change: dict[str, Any], reason: str) -> None:
    assert reason in unknown(QWEN7B | change)


def test_absent_kv_heads_of_an_old_llama_mean_all_heads() -> None:
    config = QWEN7B | {"model_type": "llama"}
    del config["num_key_value_heads"]
    assert cache(config).bytes_per_token == 57_344 * 7


def test_one_head_of_a_multi_query_model() -> None:
    falcon = {
        "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544,
        "num_attention_heads": 71, "multi_query": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert cache(falcon).bytes_per_token == 2 * 32 * 64 * 2


def test_the_text_part_of_a_multimodal_config() -> None:
    text = {k: v for k, v in QWEN7B.items() if k != "torch_dtype"}
    nested = {"model_type": "llava", "text_config": text, "torch_dtype": "bfloat16"}
    assert cache(nested).bytes_per_token == 57_344


def test_shapes_tell_what_a_config_leaves_out(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.gemma3_4b())
    found = resolve_kv(str(directory), environment={})
    assert isinstance(found, KvCache)
    assert found.bytes_per_token == 34 * 2 * 4 * 256 * 2
    assert found.bytes_read(5000) == 4096 * (5 * 5000 + 29 * 1024)
    assert "shapes" in found.source


def test_packed_weights_do_not_tell_shapes(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_7b("bnb")
    del model.config["num_key_value_heads"]
    found = resolve_kv(str(checkpoints.write(tmp_path, model)), environment={})
    assert isinstance(found, KvUnknown)


def test_the_setting_wins(tmp_path: Path) -> None:
    found = resolve_kv(None, bytes_per_token=1000.0)
    assert found == kv_from_bytes_per_token(1000.0)
    assert isinstance(found, KvCache)
    assert (found.bytes_read(7), found.source) == (7000, "settings")
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    by_file = resolve_kv(str(directory), cache_dtype="fp8", environment={})
    assert isinstance(by_file, KvCache)
    assert by_file.bytes_per_token == 28_672
    assert by_file.source == f"config:{directory}/config.json"


def test_a_head_is_the_smallest_part_to_share_out() -> None:
    found = cache(QWEN7B)
    assert [found.copies(n) for n in (1, 2, 4, 8)] == [1, 1, 1, 2]
    assert kv_from_bytes_per_token(10.0).copies(8) == 1
