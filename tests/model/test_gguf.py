"""GGUF checkpoints, tensor by tensor."""

from pathlib import Path

import pytest
from tokgauge.model.gguf import read_gguf
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound, WeightsUnknown

pytestmark = pytest.mark.socketless

gguf = pytest.importorskip("gguf")
numpy = pytest.importorskip("numpy")


def write(path: Path, *, tied: bool = False, experts: bool = False, metadata: bool = True) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    if experts and metadata:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    quantised = gguf.GGMLQuantizationType.Q4_K

    def plain(name: str, *shape: int) -> None:
        writer.add_tensor(name, numpy.zeros(shape, dtype=numpy.float32))

    def packed(name: str, *shape: int) -> None:
        # 256 weights of Q4_K take 144 bytes.
        data = numpy.zeros((*shape[:-1], shape[-1] // 256 * 144), dtype=numpy.uint8)
        writer.add_tensor(name, data, raw_dtype=quantised)

    packed("token_embd.weight", 1000, 256)
    if not tied:
        packed("output.weight", 1000, 256)
    plain("output_norm.weight", 256)
    for n in range(2):
        packed(f"blk.{n}.attn_q.weight", 256, 256)
        if experts:
            packed(f"blk.{n}.ffn_up_exps.weight", 4, 512, 256)
            packed(f"blk.{n}.ffn_up_shexp.weight", 512, 256)
        else:
            packed(f"blk.{n}.ffn_up.weight", 512, 256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def described(path: Path, architecture: str, **fields: int | list[int]) -> KvCache | KvUnknown:
    """The cache of a file with these metadata; dots in keys are written as two underscores."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in fields.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tensor("blk.0.x.weight", numpy.zeros(32, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return resolve_kv(str(path), environment={})


def test_the_cache_of_a_small_gemma(tmp_path: Path) -> None:
    # Gemma 3 270M: 18 layers, one KV head of 256, every sixth layer sees more than 512 tokens.
    found = described(
        tmp_path / "g.gguf", "gemma3", block_count=18, embedding_length=640,
        attention__head_count=4, attention__head_count_kv=1, attention__key_length=256,
        attention__value_length=256, attention__sliding_window=512,
    )  # fmt: skip
    assert isinstance(found, KvCache), found
    assert found.bytes_per_token == 18 * 512 * 2
    assert found.bytes_read(2000) == 512 * 2 * (3 * 2000 + 15 * 512)
    assert found.source == f"gguf:{tmp_path}/g.gguf"
    small = resolve_kv(str(tmp_path / "g.gguf"), cache_dtype="q8_0", environment={})
    assert isinstance(small, KvCache)
    assert small.bytes_per_token == 18 * 512 * 34 / 32


def test_head_sizes_follow_from_the_width_and_heads_may_differ(tmp_path: Path) -> None:
    llama = {"block_count": 2, "embedding_length": 4096, "attention__head_count": 32}
    found = described(tmp_path / "a.gguf", "llama", **llama, attention__head_count_kv=8)
    assert isinstance(found, KvCache)
    assert found.bytes_per_token == 2 * 2 * 8 * 128 * 2
    listed = described(tmp_path / "b.gguf", "llama", **llama, attention__head_count_kv=[8, 0])
    assert isinstance(listed, KvCache)
    assert listed.bytes_per_token == 2 * 8 * 128 * 2
    absent = described(tmp_path / "c.gguf", "llama", **llama)
    assert isinstance(absent, KvCache)
    assert absent.bytes_per_token == 2 * 2 * 32 * 128 * 2


def test_compressed_and_shared_caches(tmp_path: Path) -> None:
    found = described(
        tmp_path / "d.gguf", "deepseek2", block_count=27, attention__key_length_mla=192,
        attention__kv_lora_rank=512, rope__dimension_count=64,
    )  # fmt: skip
    assert isinstance(found, KvCache)
    assert found.bytes_per_token == 27 * 576 * 2
    shared = described(
        tmp_path / "n.gguf", "gemma3n", block_count=35, attention__head_count=8,
        embedding_length=2048, attention__head_count_kv=2, attention__sliding_window=512,
    )  # fmt: skip
    assert isinstance(shared, KvCache)
    assert shared.bytes_per_token == 20 * 2 * 512 * 2
    assert shared.bytes_read(4096) == 2 * 512 * 2 * (7 * 4096 + 28 * 512)


@pytest.mark.parametrize("architecture", ["qwen3next", "mamba", "llama4", "newcomer"])
def test_an_architecture_that_is_not_understood(tmp_path: Path, architecture: str) -> None:
    found = described(tmp_path / "x.gguf", architecture, block_count=1)
    assert isinstance(found, KvUnknown)
    assert architecture in found.reason
    weights = resolve_weights(str(tmp_path / "x.gguf"), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.bytes_per_step() is None
    assert architecture in str(weights.streamed_unknown_because)


def found(path: Path) -> WeightsFound:
    weights = resolve_weights(str(path), environment={})
    assert isinstance(weights, WeightsFound), weights
    return weights


def test_bytes_of_a_mixture_of_types(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    weights = found(path)
    embedding, layers, norm = 1000 * 144, 2 * (256 + 512) * 144, 256 * 4
    assert weights.checkpoint_bytes == 2 * embedding + layers + norm
    assert weights.bytes_per_step() == embedding + layers + norm
    assert weights.streamed is not None
    assert (weights.streamed.layers, weights.streamed.dequantised) == (2, True)
    assert weights.streamed_source == f"gguf:{path}"
    assert found(tmp_path) == weights


def test_a_tied_head(tmp_path: Path) -> None:
    weights = found(write(tmp_path / "model.gguf", tied=True))
    assert weights.bytes_per_step() == weights.checkpoint_bytes


def test_experts(tmp_path: Path) -> None:
    weights = found(write(tmp_path / "model.gguf", experts=True))
    assert weights.streamed is not None
    assert weights.streamed.expert_bytes == 2 * 512 * 144
    assert (weights.streamed.experts, weights.streamed.experts_per_token) == (4, 2)
    silent = found(write(tmp_path / "silent.gguf", experts=True, metadata=False))
    assert silent.streamed is None


def test_damaged_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (0, 3, 10, 100, 300, len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:size])
        weights = resolve_weights(str(path), environment={})
        assert isinstance(weights, WeightsUnknown), size
        assert "not a whole GGUF file" in weights.reason


@pytest.mark.parametrize(
    ("position", "value"),
    [(4, b"\0\0\0\3"), (4, b"\x09"), (8, b"\xff" * 8), (16, b"\xff" * 8), (24, b"\xff" * 8)],
)
def test_numbers_that_lead_astray(tmp_path: Path, position: int, value: bytes) -> None:
    path = write(tmp_path / "model.gguf")
    data = bytearray(path.read_bytes())
    data[position : position + len(value)] = value
    path.write_bytes(data)
    weights = resolve_weights(str(path), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "not a whole GGUF file" in weights.reason


def test_damage_anywhere_never_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", experts=True)
    whole = path.read_bytes()
    for position in range(0, 700, 3):
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        resolve_weights(str(path), environment={})


def test_types_that_the_library_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.gguf")
    monkeypatch.delitem(gguf.constants.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q4_K)
    weights = resolve_weights(str(path), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "which the gguf library lacks" in weights.reason


def test_a_vocabulary_is_skipped_and_sizes_agree_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word{n}" for n in range(2000)])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_custom_alignment(64)
    writer.add_block_count(1)
    for name, kind in (("blk.0.a", "Q6_K"), ("output", "Q8_0"), ("token_embd", "Q5_0")):
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        rows = numpy.zeros((7, 512 // elements * size), dtype=numpy.uint8)
        writer.add_tensor(f"{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    by_library = {tensor.name: tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors}
    ours = read_gguf(path)
    assert {tensor.name: tensor.bytes for tensor in ours.tensors} == by_library
    assert ours.layers == 1


def test_a_split_model_needs_all_its_parts(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf")
    weights = resolve_weights(str(first), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "m-00002-of-00002.gguf: this part is missing" in weights.reason


def test_several_models_in_one_directory(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    write(tmp_path / "b.gguf")
    weights = resolve_weights(str(tmp_path), environment={})
    assert isinstance(weights, WeightsUnknown)
    assert "name one of them" in weights.reason
