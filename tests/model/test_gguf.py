"""GGUF checkpoints, tensor by tensor."""

from pathlib import Path

import pytest

from proxy.model.gguf import read_gguf
from proxy.model.resolve import resolve_weights
from proxy.model.weights import WeightsFound, WeightsUnknown

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
