"""What drafting reads, by vLLM's speculative_config."""

from pathlib import Path
from typing import Any

import pytest
from tokgauge.model.draft import DraftUnknown, with_draft
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.kv import KvCache, KvGroup, kv_from_bytes_per_token
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound

from tests.model import checkpoints
from tests.model.checkpoints import Model, linear

HEAD = 152_064 * 3584 * 2


def resolved(directory: str) -> tuple[WeightsFound, KvCache]:
    weights, kv = (
        resolve_weights(directory, environment={}),
        resolve_kv(directory, environment={}),
    )
    assert isinstance(weights, WeightsFound)
    assert isinstance(kv, KvCache)
    return weights, kv


def drafted(directory: str, config: dict[str, Any]) -> tuple[WeightsFound, KvCache]:
    found = with_draft(*resolved(directory), config, directory, {})
    assert not isinstance(found, DraftUnknown), found
    assert found[1] is not None
    return found[0], found[1]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoints.write(tmp_path_factory.mktemp("target"), checkpoints.qwen2_5_7b()))


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_what_copies_from_the_prompt_reads_nothing(target: str, method: str) -> None:
    weights, kv = drafted(target, {"method": method, "num_speculative_tokens": 4})
    assert weights.bytes_per_step(5) == 14_141_238_272
    assert kv.bytes_read(1000) == 57_344 * 1000


def test_a_model_that_drafts_is_read_once_for_each_token(target: str, tmp_path: Path) -> None:
    # Qwen2.5-0.5B, tied: all 494,032,768 parameters; its cache is 24 x 2 x 128 values a token.
    small = str(checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b()))
    weights, kv = drafted(target, {"model": small, "num_speculative_tokens": 5})
    assert weights.bytes_per_step(6) == 14_141_238_272 + 5 * 494_032_768 * 2
    assert kv.bytes_read(1000) == 57_344 * 1000 + 5 * 24 * 2 * 128 * 2 * 1000
    # It is not the checkpoint that is larger: the rule of thumb stays.
    assert weights.bytes_per_step(basis="checkpoint") == 15_231_233_024


def test_a_drafting_head_without_a_head_of_its_own_uses_the_models(
    target: str, tmp_path: Path
) -> None:
    layer = [
        *linear("layers.0.self_attn.qkv_proj", 3 * 3584, 3584),
        *linear("layers.0.mlp.gate_up_proj", 2 * 18944, 3584),
        *linear("fc", 3584, 2 * 3584),
    ]
    table = [("embed_tokens.weight", "BF16", (152_064, 3584))]
    eagle = str(checkpoints.write(tmp_path / "a", Model({}, [*layer, *table])))
    own = 2 * (3 * 3584 * 3584 + 2 * 18944 * 3584 + 2 * 3584 * 3584)
    config = {"method": "eagle", "model": eagle, "num_speculative_tokens": 3}
    weights, kv = drafted(target, config)
    assert weights.bytes_per_step(4) == 14_141_238_272 + 3 * (own + HEAD)
    assert kv.bytes_read(1000) == (28 + 3) * 2048 * 1000
    small_head = [("lm_head.weight", "BF16", (32_000, 3584))]
    third = str(checkpoints.write(tmp_path / "b", Model({}, [*layer, *table, *small_head])))
    weights, _ = drafted(target, config | {"method": "eagle3", "model": third})
    assert weights.bytes_per_step(4) == 14_141_238_272 + 3 * (own + 32_000 * 3584 * 2)
    at_once, _ = drafted(target, config | {"model": third, "parallel_drafting": True})
    assert at_once.bytes_per_step(4) == 14_141_238_272 + own + 32_000 * 3584 * 2


def test_multi_token_layers_are_in_the_models_own_files(tmp_path: Path) -> None:
    model = checkpoints.deepseek_v3_small()
    directory = str(checkpoints.write(tmp_path, model))
    plain, _ = resolved(directory)
    weights, kv = drafted(directory, {"method": "deepseek_mtp", "num_speculative_tokens": 2})
    # The layer that predicts: attention as in the others, its two norms, the router, two shared
    # experts, eh_proj 2048 x 4096 and a head of its own; 6 of 64 experts for one sequence.
    layer = 2 * (
        3072 * 2048 + 576 * 2048 + 512 + 4096 * 512 + 2048 * 2048 + 2 * 2048
        + 64 * 2048 + 3 * 2816 * 2048 + 6 * 3 * 1408 * 2048 + 2 * 2048 * 2048 + 102400 * 2048
    )  # fmt: skip
    assert weights.bytes_per_step(3) == pytest.approx((plain.bytes_per_step(3) or 0) + 2 * layer)
    assert kv.bytes_read(1000) == (27 + 2) * 576 * 2 * 1000


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"method": "ngram"}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 10**9}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 3}, "names no model"),
        ({"method": "eagle", "num_speculative_tokens": 3}, "names no model"),
        ({"method": "mtp", "num_speculative_tokens": 1}, "no multi-token layers"),
        ({"method": "dflash", "model": "x", "num_speculative_tokens": 3}, "'dflash'"),
        ({"model": "/nowhere", "num_speculative_tokens": 3}, "does not exist here"),
        ({"method": "eagle", "model": "/nowhere", "num_speculative_tokens": 3}, "does not exist"),
    ],
)
def test_what_is_not_known_says_so(target: str, config: dict[str, Any], reason: str) -> None:
    found = with_draft(*resolved(target), config, target, {})
    assert isinstance(found, DraftUnknown)
    assert reason in found.reason


def test_a_drafting_head_may_not_share_what_is_not_known(target: str, tmp_path: Path) -> None:
    """Bytes by settings or by an estimate tell neither the output head nor experts nor layers."""
    layer = linear("layers.0.self_attn.qkv_proj", 3 * 3584, 3584)
    eagle = str(checkpoints.write(tmp_path, Model({}, layer)))
    config = {"method": "eagle", "model": eagle, "num_speculative_tokens": 3}
    _, kv = resolved(target)
    stated = resolve_weights(target, streamed_bytes=14.1e9, environment={})
    assert isinstance(stated, WeightsFound)
    for weights in (stated, estimate_weights(7.62e9, 16.0)):
        found = with_draft(weights, kv, config, target, {})
        assert isinstance(found, DraftUnknown)
        assert "output head" in found.reason


def test_multi_token_layers_with_experts_need_the_models_experts(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.deepseek_v3_small()))
    _, kv = resolved(directory)
    stated = resolve_weights(directory, streamed_bytes=5e9, environment={})
    assert isinstance(stated, WeightsFound)
    config = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
    found = with_draft(stated, kv, config, directory, {})
    assert isinstance(found, DraftUnknown)
    assert "experts" in found.reason


@pytest.mark.parametrize(
    "kv",
    [kv_from_bytes_per_token(57_344), KvCache((KvGroup(28, 2048, "sliding", 4096),), 4, "test")],
    ids=["all layers together", "windows only"],
)
def test_the_cache_of_one_more_layer_is_not_guessed(kv: KvCache, tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.deepseek_v3_small()))
    weights, _ = resolved(directory)
    config = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
    found = with_draft(weights, kv, config, directory, {})
    assert isinstance(found, DraftUnknown)
    assert "KV cache" in found.reason
