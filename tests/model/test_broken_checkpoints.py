"""Whatever lies on disk, the answer is a true sum or the reason why there is none."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.model.architectures import known_architectures
from tokgauge.model.config import parse_config
from tokgauge.model.kv import KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound, WeightsUnknown

from tests.model import checkpoints

pytestmark = pytest.mark.socketless

SHARD = "model-00002-of-00004.safetensors"
INDEX = "model.safetensors.index.json"


def header_file(path: Path, header: object, data: int = 0) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def entry(begin: object, end: object, shape: object = None, dtype: object = "U8") -> object:
    length = end - begin if isinstance(begin, int) and isinstance(end, int) else 0
    return {
        "dtype": dtype,
        "shape": [length] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def change_index(directory: Path, **changes: object) -> None:
    (directory / INDEX).write_text(json.dumps(changes))


def set_weight_map(directory: Path, tensor: str, shard: object) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][tensor] = shard
    (directory / INDEX).write_text(json.dumps(index))


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: (d / SHARD).unlink(), "shard is missing"),
    (lambda d: cut(d / SHARD, 0), "too short"),
    (lambda d: cut(d / SHARD, 7), "too short"),
    (lambda d: cut(d / SHARD, 200), "cut short inside its header"),
    (lambda d: cut(d / SHARD, (d / SHARD).stat().st_size - 1), "1 bytes are missing"),
    (lambda d: header_file(d / SHARD, b"not json"), "not valid JSON"),
    (lambda d: header_file(d / SHARD, b"[" * 200_000), "not valid JSON"),
    (lambda d: header_file(d / SHARD, b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    (lambda d: header_file(d / SHARD, b"\xff\xfe"), "not valid JSON"),
    (lambda d: header_file(d / SHARD, []), "not a JSON object"),
    (lambda d: header_file(d / SHARD, {"a": 1}), "no valid data_offsets"),
    (lambda d: header_file(d / SHARD, {"a": entry(5, 2)}), "no valid data_offsets"),
    (lambda d: header_file(d / SHARD, {"a": entry(-4, 2)}), "no valid data_offsets"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 2.5)}), "no valid data_offsets"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, True)}), "no valid data_offsets"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 2**70)}), "cut short"),
    (lambda d: header_file(d / SHARD, {"a": entry(4, 8)}, 8), "leaves a hole"),
    (
        lambda d: header_file(d / SHARD, {"a": entry(0, 8), "b": entry(4, 12)}, 12),
        "overlaps another",
    ),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 8, [3])}, 8), "other than its shape says"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 8, "8")}, 8), "no valid dtype and shape"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 8, [8], 5)}, 8), "no valid dtype and shape"),
    (lambda d: header_file(d / SHARD, {"a": entry(0, 8)}, 8), "of the index is not in it"),
    (
        lambda d: (d / SHARD).write_bytes((2**63).to_bytes(8, "little") + b"x" * 100),
        "not a safetensors file",
    ),
    (lambda d: instead(d / SHARD, Path.mkdir), "not a regular file"),
    (lambda d: instead(d / SHARD, os.mkfifo), "not a regular file"),
    (lambda d: instead(d / SHARD, lambda p: p.symlink_to(SHARD)), "symbolic links"),
    (lambda d: (d / INDEX).write_text("{"), "not valid JSON"),
    (lambda d: (d / INDEX).write_text("[]"), "not a JSON object"),
    (lambda d: change_index(d, weight_map=[]), "no weight_map"),
    (lambda d: change_index(d, weight_map={}), "no weight_map"),
    (lambda d: change_index(d), "no weight_map"),
    (lambda d: set_weight_map(d, "model.norm.weight", "other.safetensors"), "shard is missing"),
    (lambda d: set_weight_map(d, "invented", SHARD), "of the index is not in it"),
    (lambda d: set_weight_map(d, "x", "../secret"), "not a file of this checkpoint"),
    (lambda d: set_weight_map(d, "x", "/etc/passwd"), "not a file of this checkpoint"),
    (lambda d: set_weight_map(d, "x", 5), "not a file of this checkpoint"),
    (lambda d: set_weight_map(d, "x", "a\0b"), "not a file of this checkpoint"),
]


@pytest.mark.parametrize(("breaking", "reason"), BROKEN)
def test_a_partial_sum_is_no_sum(
    tmp_path: Path, breaking: Callable[[Path], object], reason: str
) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    breaking(directory)
    weights = resolve_weights(str(directory), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert reason in weights.reason
    assert str(directory) in weights.reason


@pytest.mark.parametrize(
    "root",
    [None, "", "/nowhere/at/all", "../../etc/passwd", "a\0b", "x" * 5000, "\ud800", "~nobody/x",
     "~no-such-user/x", "s3://bucket/model", "org/name/third", "org/na me", "-", "..", "org/.."],
)  # fmt: skip
def test_roots_that_name_nothing(root: str | None, tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path)}
    weights = resolve_weights(root, environment=environment)
    assert isinstance(weights, WeightsUnknown)
    assert weights.reason
    assert isinstance(resolve_kv(root, environment=environment), KvUnknown)


def test_a_cache_in_no_home() -> None:
    weights = resolve_weights("org/name", environment={"HF_HOME": "~no-such-user"})
    assert isinstance(weights, WeightsUnknown)
    assert "no such home" in weights.reason


def test_projections_without_a_shape_do_not_raise(tmp_path: Path) -> None:
    model = checkpoints.gemma3_4b()
    model.tensors = [
        (name, "BF16", () if "k_proj" in name else shape) for name, _, shape in model.tensors
    ]
    model.config["text_config"]["model_type"] = "llama"
    checkpoints.write(tmp_path, model)
    assert isinstance(resolve_kv(str(tmp_path), environment={}), KvUnknown)


def test_a_layer_that_is_missing_leaves_the_checkpoint_basis(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_7b()
    model.tensors = [spec for spec in model.tensors if ".layers.13." not in spec[0]]
    weights = resolve_weights(str(checkpoints.write(tmp_path, model)), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.streamed is None
    assert weights.streamed_unknown_because == "layer 13 of 28 is not among its tensors"


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_experts", "num_experts_per_tok"])
def test_monstrous_counts_cost_nothing(tmp_path: Path, key: str) -> None:
    model = checkpoints.qwen3_30b_a3b()
    model.config[key] = 2**52
    weights = resolve_weights(str(checkpoints.write(tmp_path, model)), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.streamed is None
    resolve_kv(str(tmp_path), environment={})


def test_a_path_inside_the_container_says_so() -> None:
    weights = resolve_weights("/models/qwen", environment={})
    assert isinstance(weights, WeightsUnknown)
    assert weights.reason == (
        "/models/qwen does not exist here (perhaps only inside the container)"
    )


def test_a_lora_adapter_is_not_the_model(tmp_path: Path) -> None:
    weights = resolve_weights(str(checkpoints.write_lora(tmp_path)), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "LoRA adapter" in weights.reason


def test_other_directories_and_files(tmp_path: Path) -> None:
    weights = resolve_weights(str(tmp_path), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "no safetensors or GGUF files" in weights.reason
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    weights = resolve_weights(str(tmp_path / "pytorch_model.bin"), environment={})
    assert isinstance(weights, WeightsUnknown)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    weights = resolve_weights(str(tmp_path), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "no tensors" in weights.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_files_that_one_may_not_read(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b())
    tmp_path.chmod(0o700)
    code = (
        "import sys; from tokgauge.model.resolve import resolve_kv, resolve_weights;"
        "import os; os.setuid(65534);"
        "print(resolve_weights(sys.argv[1])); print(resolve_kv(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "WeightsUnknown" in done.stdout
    assert "KvUnknown" in done.stdout
    assert done.stdout.count("permission denied") == 2


@pytest.mark.parametrize("text", ["", "null", "[1]", "{", '{"num_hidden_layers": 1e999}'])
def test_a_config_that_is_none_leaves_the_checkpoint(tmp_path: Path, text: str) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    (directory / "config.json").write_text(text)
    weights = resolve_weights(str(directory), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.checkpoint_bytes == 15_231_233_024
    assert isinstance(resolve_kv(str(directory), environment={}), KvUnknown)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
     "model_type", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
     "text_config", "thinker_config", "quantization_config", "torch_dtype",
     "attn_layer_period", "attn_layer_offset", "attention_chunk_size", "no_rope_layers",
     "hybrid_override_pattern", "full_attention_interval", "kv_lora_rank", "ffn_config",
     "layers_block_type", "linear_attn_config", "full_attn_idxs", "attn_layer_indices",
     "num_kv_shared_layers", "use_cla", "cla_share_factor", "total_ut_steps", "loop_num",
     "H_cycles", "L_cycles", "zero_expert_num", "num_mem_blocks", "sliding_window_pattern",
     "architectures"]
)  # fmt: skip


@given(st.dictionaries(KEYS, JSON | st.sampled_from(["gemma3", "gemma2", "mistral", 4, [0, 1]])))
@settings(max_examples=200, deadline=None)
def test_no_config_raises(document: dict[str, object]) -> None:
    parse_config(document)


@given(
    st.sampled_from([line.name for line in known_architectures()]),
    st.dictionaries(KEYS, JSON | st.sampled_from(["gemma3", 1, 4, 2**52, [0, 1], [[]]])),
)
@settings(max_examples=200, deadline=None)
def test_no_config_of_a_known_class_raises(name: str, document: dict[str, object]) -> None:
    shape = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    parse_config({**shape, **document, "architectures": [name]})


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(data)
    assert isinstance(resolve_weights(str(path), environment={}), WeightsUnknown)
