"""Bytes of real checkpoints, by shapes that the authors publish."""

import json
from pathlib import Path

import pytest
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.resolve import resolve_weights
from tokgauge.model.weights import (
    Streamed,
    WeightsFound,
    WeightsUnknown,
    expected_experts,
)

from tests.model import checkpoints

pytestmark = pytest.mark.socketless


def found(directory: Path | str, **settings: float) -> WeightsFound:
    weights = resolve_weights(str(directory), environment={}, **settings)
    assert isinstance(weights, WeightsFound), weights
    return weights


def streamed(weights: WeightsFound) -> Streamed:
    assert weights.streamed is not None, weights.streamed_unknown_because
    return weights.streamed


def test_an_untied_input_embedding_is_not_streamed(tmp_path: Path) -> None:
    weights = found(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b()))
    assert weights.checkpoint_bytes == 7_615_616_512 * 2
    assert streamed(weights).dense_bytes == (7_615_616_512 - 152_064 * 3584) * 2
    assert weights.basis == "streamed"
    assert weights.streamed_source == f"safetensors:{tmp_path}/model.safetensors.index.json"


def test_a_tied_matrix_is_streamed_because_it_is_the_head(tmp_path: Path) -> None:
    weights = found(checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b()))
    assert weights.checkpoint_bytes == streamed(weights).dense_bytes == 494_032_768 * 2
    assert weights.streamed_source == f"safetensors:{tmp_path}/model.safetensors"


def test_a_tied_checkpoint_that_stores_the_matrix_twice_streams_it_once(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.tensors.append(("lm_head.weight", "BF16", (151936, 896)))
    weights = found(checkpoints.write(tmp_path, model))
    assert streamed(weights).dense_bytes == 494_032_768 * 2


@pytest.mark.parametrize(
    ("form", "checkpoint", "read"),
    [
        ("awq", 5.571e9, 4.481e9),
        ("gptq", 5.575e9, 4.485e9),
        ("fp8", 8.709e9, 7.619e9),
        ("bnb", 5.547e9, 4.457e9),
        ("nvfp4", 5.851e9, 4.761e9),
    ],
)
def test_quantised_formats_by_their_real_bytes(
    tmp_path: Path, form: str, checkpoint: float, read: float
) -> None:
    weights = found(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b(form, shards=2)))
    assert weights.checkpoint_bytes == pytest.approx(checkpoint, abs=0.5e6)
    assert streamed(weights).dense_bytes == pytest.approx(read, abs=0.5e6)
    assert streamed(weights).dequantised is True
    assert streamed(weights).layers == 28


def test_sixteen_bits_are_read_as_they_are(tmp_path: Path) -> None:
    assert streamed(found(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b()))).dequantised is (
        False
    )
    assert streamed(found(tmp_path, streamed_bytes=1e9)).dequantised is None
    assert streamed(found(tmp_path, streamed_bytes=1e9)).layers is None


def test_experts_are_read_as_tokens_need_them(tmp_path: Path) -> None:
    weights = found(checkpoints.write(tmp_path, checkpoints.qwen3_30b_a3b()))
    assert weights.checkpoint_bytes == 30_532_122_624 * 2
    model = streamed(weights)
    assert (model.experts, model.experts_per_token) == (128, 8)
    assert model.expert_bytes == 48 * 3 * 768 * 2048 * 2
    # 3.35 B active parameters, of which the input embedding (0.31 B) is not streamed.
    assert model.bytes_per_step(1) == pytest.approx(3.042e9 * 2, rel=1e-3)
    assert model.bytes_per_step(32) == pytest.approx(
        model.dense_bytes + 111.8 * model.expert_bytes, rel=1e-3
    )
    whole = weights.checkpoint_bytes - 151936 * 2048 * 2
    assert model.bytes_per_step(100_000) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("tokens", "distinct"),
    [(1, 8), (2, 15.5), (8, 51.6), (16, 82.4), (32, 111.8), (64, 125.9)],
)
def test_expected_distinct_experts(tokens: int, distinct: float) -> None:
    assert expected_experts(128, 8, tokens) == pytest.approx(distinct, abs=0.05)
    assert 8 <= expected_experts(128, 8, tokens) <= min(8 * tokens, 128)


def test_shared_experts_are_dense_and_the_drafting_layer_is_left_out(tmp_path: Path) -> None:
    model = checkpoints.deepseek_v3_small()
    weights = found(checkpoints.write(tmp_path, model))
    by_hand = sum(
        checkpoints.size_of(dtype, shape)
        for name, dtype, shape in model.tensors
        if ".experts." not in name
        and not name.startswith("model.layers.27.")
        and name != "model.embed_tokens.weight"
    )
    assert streamed(weights).dense_bytes == by_hand
    assert streamed(weights).expert_bytes == 26 * 3 * 1408 * 2048 * 2


def test_the_drafting_layer_is_known_by_its_parts_too(tmp_path: Path) -> None:
    model = checkpoints.deepseek_v3_small()
    expected = streamed(found(checkpoints.write(tmp_path / "stated", model)))
    model.config["num_hidden_layers"] = 28
    assert streamed(found(checkpoints.write(tmp_path / "counted", model))) == expected


def test_fused_mxfp4_experts(tmp_path: Path) -> None:
    weights = found(checkpoints.write(tmp_path, checkpoints.gpt_oss_20b()))
    assert weights.checkpoint_bytes == 13_761_264_768
    assert streamed(weights).dequantised is True
    # 4.25 bits a weight and 16-bit biases.
    per_expert = 24 * (3 * 2880 * 2880 * 4.25 / 8 + 3 * 2880 * 2)
    assert streamed(weights).expert_bytes == per_expert
    assert streamed(weights).experts == 32


def test_a_vision_tower_is_not_read_while_text_is_decoded(tmp_path: Path) -> None:
    text = found(checkpoints.write(tmp_path / "text", checkpoints.qwen2_5_7b()))
    both = found(checkpoints.write(tmp_path / "both", checkpoints.qwen2_5_vl_7b()))
    assert streamed(both) == streamed(text)
    assert both.checkpoint_bytes is not None
    assert text.checkpoint_bytes is not None
    assert both.checkpoint_bytes > text.checkpoint_bytes + 1.3e9


def test_a_tied_multimodal_model_streams_its_embedding(tmp_path: Path) -> None:
    model = checkpoints.gemma3_4b()
    weights = found(checkpoints.write(tmp_path, model))
    by_hand = sum(
        checkpoints.size_of(dtype, shape)
        for name, dtype, shape in model.tensors
        if name.startswith("language_model.")
    )
    assert streamed(weights).dense_bytes == by_hand


def test_only_what_the_index_names_counts(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    expected = found(directory)
    checkpoints.write_shard(directory / "consolidated.safetensors", [("x", "BF16", (4096, 4096))])
    checkpoints.write_shard(directory / "model-extra.safetensors", [("y", "BF16", (4096, 4096))])
    assert found(directory) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_experts_per_tok": None}, "how many of its experts a token uses"),
        ({"num_experts": 64}, "config.json says 64"),
        ({"num_experts": None}, "how many of its experts a token uses"),
    ],
)
def test_experts_that_do_not_fit_the_config_leave_a_size_only(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    model = checkpoints.qwen3_30b_a3b()
    model.config |= change
    weights = found(checkpoints.write(tmp_path, model))
    assert weights.streamed is None
    assert reason in str(weights.streamed_unknown_because)
    assert weights.checkpoint_bytes == 30_532_122_624 * 2
    assert weights.bytes_per_step() is None
    assert weights.bytes_per_step(basis="streamed") is None


def test_a_config_with_experts_and_no_expert_tensors(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config |= {"num_experts": 8, "num_experts_per_tok": 2}
    weights = found(checkpoints.write(tmp_path, model))
    assert weights.streamed is None
    assert "experts are not recognised" in str(weights.streamed_unknown_because)


def test_without_a_head_nothing_is_claimed(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config["tie_word_embeddings"] = False
    weights = found(checkpoints.write(tmp_path, model))
    assert weights.streamed is None
    assert "output head" in str(weights.streamed_unknown_because)


def test_without_config_only_the_checkpoint_is_known(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b())
    (directory / "config.json").unlink()
    weights = found(directory)
    assert weights.streamed is None
    assert weights.checkpoint_bytes == 494_032_768 * 2
    assert "config.json" in str(weights.streamed_unknown_because)


def test_float32_checkpoints_are_cast_while_loading(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.tensors = [(name, "F32", shape) for name, _, shape in model.tensors]
    weights = found(checkpoints.write(tmp_path, model))
    assert weights.streamed is None
    assert "32 bits" in str(weights.streamed_unknown_because)


def test_settings_win_and_say_so(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    weights = found(directory, streamed_bytes=7.1e9)
    assert (streamed(weights).dense_bytes, weights.streamed_source) == (7.1e9, "settings")
    assert weights.checkpoint_bytes == 15_231_233_024
    assert str(weights.checkpoint_source).startswith("safetensors:")
    only_whole = found("/nowhere", checkpoint_bytes=15e9)
    assert (only_whole.checkpoint_bytes, only_whole.basis) == (15e9, "checkpoint")
    assert "does not exist here" in str(only_whole.streamed_unknown_because)


@pytest.mark.parametrize(
    ("bits", "read", "checkpoint"),
    # Qwen2.5-7B in bf16, FP8 and AWQ with groups of 128, as its files hold it.
    [(16, 14.141e9, 15.231e9), (8, 7.619e9, 8.709e9), (4, 4.481e9, 5.571e9)],
)
def test_parameters_and_bits_estimate_both_bases(
    bits: float, read: float, checkpoint: float
) -> None:
    weights = estimate_weights(7.616e9, bits)
    assert weights.bytes_per_step() == pytest.approx(read, rel=0.02)
    assert weights.checkpoint_bytes == pytest.approx(checkpoint, rel=0.02)
    assert str(weights.checkpoint_source).startswith("estimate")
    assert str(weights.streamed_source).startswith("estimate")
    assert streamed(weights).dequantised is (bits < 16)
    assert streamed(weights).layers is None


@pytest.mark.parametrize("parameters", [1e3, 1e6, 0.5e9, 3.99e9, 4e9, 480e9, 1e18])
def test_an_estimate_reads_no_more_than_there_is(parameters: float) -> None:
    for bits in (1, 4, 8, 16, 32):
        weights = estimate_weights(parameters, bits)
        assert 0 < (weights.bytes_per_step() or 0) <= (weights.checkpoint_bytes or 0)


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path / "models" / "tiny", checkpoints.qwen2_5_half_b())
    monkeypatch.chdir(tmp_path)
    for root in ("models/tiny", "./models/tiny", "models/../models/tiny/"):
        assert found(root).checkpoint_bytes == 494_032_768 * 2


def test_one_safetensors_file(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b())
    assert found(directory / "model.safetensors").streamed == found(directory).streamed


def cached(home: Path, name: str = "models--Qwen--Qwen2.5-0.5B") -> Path:
    """A hub cache as its library writes it: snapshots hold links to nameless blobs."""
    folder = home / "hub" / name
    commit = "a" * 40
    blobs = checkpoints.write(folder / "blobs", checkpoints.qwen2_5_half_b())
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(blobs.iterdir())):
        blob = file.rename(blobs / f"{number:064}")
        (snapshot / file.name).symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    return folder


def test_a_repository_in_the_local_cache(tmp_path: Path) -> None:
    folder = cached(tmp_path)
    for environment in (
        {"HF_HOME": str(tmp_path)},
        {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/nowhere"},
    ):
        weights = resolve_weights("Qwen/Qwen2.5-0.5B", environment=environment)
        assert isinstance(weights, WeightsFound)
        assert weights.checkpoint_bytes == 494_032_768 * 2
        assert weights.streamed is not None
    missing = resolve_weights("Qwen/Qwen2.5-7B", environment={"HF_HOME": str(tmp_path)})
    assert isinstance(missing, WeightsUnknown)
    assert "not in the local cache" in missing.reason
    (folder / "refs" / "main").write_text("b" * 40)
    stale = resolve_weights("Qwen/Qwen2.5-0.5B", environment={"HF_HOME": str(tmp_path)})
    assert isinstance(stale, WeightsUnknown)
    (folder / "refs" / "main").unlink()
    only = resolve_weights("Qwen/Qwen2.5-0.5B", environment={"HF_HOME": str(tmp_path)})
    assert isinstance(only, WeightsFound)
    (folder / "snapshots" / ("c" * 40)).mkdir()
    which = resolve_weights("Qwen/Qwen2.5-0.5B", environment={"HF_HOME": str(tmp_path)})
    assert isinstance(which, WeightsUnknown)
    assert "several snapshots" in which.reason


def test_an_index_whose_total_size_lies_is_not_believed(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, checkpoints.qwen2_5_7b())
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 1
    assert found(directory).checkpoint_bytes == 15_231_233_024
