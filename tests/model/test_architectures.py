"""A decode step's bytes for many architectures, ours against sums made by hand (see `zoo`)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.model.architectures import CHANGES_READING, known_architectures
from tokgauge.model.ceiling import step_bytes
from tokgauge.model.config import parse_config
from tokgauge.model.kv import KvCache, KvUnknown, kv_from_config
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import Streamed, WeightsFound

from tests.model import checkpoints, zoo

pytestmark = pytest.mark.socketless


@pytest.mark.parametrize("name", zoo.CASES)
def test_ours_is_the_sum_by_hand(tmp_path: Path, name: str) -> None:
    case = zoo.CASES[name]
    directory = str(checkpoints.write(tmp_path, case.build()))
    weights = resolve_weights(directory, environment={})
    assert isinstance(weights, WeightsFound), weights
    assert weights.bytes_per_step() == pytest.approx(case.weights, rel=1e-3), weights
    kv = resolve_kv(directory, environment={})
    assert isinstance(kv, KvCache), kv
    assert kv.bytes_per_token == case.token
    assert kv.state_bytes == case.state
    context, read = case.read or (1000, kv.bytes_per_token * 1000)
    assert kv.bytes_read(context) == read + 2 * case.state


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Qwen2ForCausalLM", 28),
        ("Qwen3MoeForCausalLM", 48),
        # The 28th layer only drafts.
        ("DeepseekV3ForCausalLM", 27),
        ("GptOssForCausalLM", 24),
        # Towers have layers too.
        ("Gemma3nForConditionalGeneration", 35),
        # 24 layers four times; 8 twice; two stacks of 16, one six times and one twice.
        ("OuroForCausalLM", 96),
        ("IQuestLoopCoderForCausalLM", 16),
        ("HrmTextForCausalLM", 128),
        # Two shared blocks are parts of layers that are counted.
        ("Zamba2ForCausalLM", 10),
    ],
)
def test_a_token_passes_every_layer_as_often_as_it_runs(
    tmp_path: Path, name: str, layers: int
) -> None:
    directory = checkpoints.write(tmp_path, zoo.CASES[name].build())
    weights = resolve_weights(str(directory), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.streamed is not None
    assert weights.streamed.layers == layers


def test_there_are_enough_of_them() -> None:
    assert len(zoo.CASES) >= 40


def test_every_case_is_in_the_table_and_understood() -> None:
    rules = {line.name: line.rule for line in known_architectures()}
    assert all(rules[name] != "unknown" for name in zoo.CASES)
    assert set(rules.values()) - {rules[name] for name in zoo.CASES} == {"unknown"}


NOT_UNDERSTOOD = [line for line in known_architectures() if line.rule == "unknown"]


@pytest.mark.parametrize("line", NOT_UNDERSTOOD, ids=lambda line: line.name)
def test_a_class_that_is_not_understood_has_no_figure(line: Any) -> None:
    config = checkpoints.qwen2_5_half_b().config | {"architectures": [line.name]}
    parsed = parse_config(config)
    assert parsed.not_understood == f"{line.name} is not understood: {line.note}"
    found = kv_from_config(parsed, "test")
    assert isinstance(found, KvUnknown)
    assert not found.negligible_when_short
    assert line.note


def test_no_basis_judges_a_class_that_is_not_understood(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config["architectures"] = ["NewcomerForCausalLM"]
    weights = resolve_weights(str(checkpoints.write(tmp_path, model)), environment={})
    assert isinstance(weights, WeightsFound)
    assert weights.checkpoint_bytes == 494_032_768 * 2
    assert (weights.bytes_per_step(), weights.bytes_per_step(basis="streamed")) == (None, None)
    assert "the architecture NewcomerForCausalLM is not among" in str(
        weights.streamed_unknown_because
    )


@pytest.mark.parametrize("member", sorted(CHANGES_READING))
def test_a_member_that_changes_reading_is_not_read_over(member: str) -> None:
    config = checkpoints.qwen2_5_half_b().config
    assert parse_config(config).not_understood is None
    assert member in str(parse_config(config | {member: 4}).not_understood)
    assert parse_config(config | {member: None}).not_understood is None


@pytest.mark.parametrize(("listed", "found"), [([8] * 4, 8), ([8, 8, 4, 8], None), ([], None)])
def test_experts_of_a_token_may_be_listed_by_layer(listed: list[int], found: int | None) -> None:
    config = {"architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": 64, "moe_topk": listed}
    assert parse_config(config).experts_per_token == found


def test_wrappers_are_read_as_their_text_model() -> None:
    text = checkpoints.qwen2_5_half_b().config
    outer = {"architectures": ["Glm4vForConditionalGeneration"], "model_type": "glm4v"}
    for kind, understood in (("glm4v_text", True), ("llama", True), ("newcomer_text", False)):
        inner = {k: v for k, v in text.items() if k != "architectures"} | {"model_type": kind}
        parsed = parse_config(outer | {"text_config": inner})
        assert (parsed.not_understood is None) == understood
    listed = parse_config(outer | {"text_config": text | {"architectures": ["MambaForCausalLM"]}})
    assert listed.architecture is not None
    assert listed.architecture.rule == "mamba1"


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_neither_basis_judges_what_engines_cast_while_loading(tmp_path: Path, dtype: str) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.tensors = [(name, dtype, shape) for name, _, shape in model.tensors]
    weights = resolve_weights(str(checkpoints.write(tmp_path, model)), environment={})
    assert isinstance(weights, WeightsFound)
    judges = [weights.bytes_per_step(basis=basis) for basis in ("streamed", "checkpoint")]
    assert [found is not None for found in judges] == [dtype == "BF16"] * 2


def test_the_rule_of_thumb_says_nothing_of_a_mixture_or_of_loops(tmp_path: Path) -> None:
    for name in ("OlmoeForCausalLM", "OuroForCausalLM"):
        model = zoo.CASES[name].build()
        weights = resolve_weights(str(checkpoints.write(tmp_path / name, model)), environment={})
        assert isinstance(weights, WeightsFound)
        assert weights.bytes_per_step(basis="checkpoint") is None
        assert weights.checkpoint_bytes
        assert weights.rule_of_thumb_fails_because


@pytest.mark.parametrize("form", ["bf16", "awq", "gptq", "fp8"])
def test_silent_configurations_are_told_by_shapes_and_types(tmp_path: Path, form: str) -> None:
    model = checkpoints.qwen2_5_7b(form)
    del model.config["num_key_value_heads"], model.config["torch_dtype"]
    directory = checkpoints.write(tmp_path, model)
    found = resolve_kv(str(directory), environment={})
    assert isinstance(found, KvCache), found
    assert found.bytes_per_token == 57_344
    assert "shapes" in found.source


def test_a_compressed_cache_is_projected_up_in_16_bits_or_in_8(tmp_path: Path) -> None:
    model = checkpoints.deepseek_v3_small()
    half = resolve_weights(str(checkpoints.write(tmp_path / "bf16", model)), environment={})
    model.tensors = [
        (name, "F8_E4M3" if ".kv_b_proj." in name else dtype, shape)
        for name, dtype, shape in model.tensors
    ]
    eight = resolve_weights(str(checkpoints.write(tmp_path / "fp8", model)), environment={})
    assert isinstance(half, WeightsFound)
    assert isinstance(eight, WeightsFound)
    saved = (half.bytes_per_step() or 0) - (eight.bytes_per_step() or 0)
    assert saved == 27 * 4096 * 512 * (2 - 1.5)


NAMES = [
    "LlamaForCausalLM", "Gemma3ForConditionalGeneration", "DeepseekV3ForCausalLM",
    "JambaForCausalLM", "Qwen3NextForCausalLM", "IQuestLoopCoderForCausalLM",
    "Gemma3nForConditionalGeneration", "LongcatFlashForCausalLM", "MambaForCausalLM",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_step_never_reads_less_with_more_to_do(name: str) -> None:
    """More sequences or longer contexts never make the bytes of a step fall.

    Chunked attention is left out: at the end of a chunk its layers begin anew.
    """
    model = zoo.CASES[name].build()
    config = parse_config(json.loads(json.dumps(model.config)))
    kv = kv_from_config(config, "test")
    assert isinstance(kv, KvCache)
    experts = config.experts or 0
    weights = Streamed(1e9, 1e7, experts, config.experts_per_token or 0, config.choices)

    @given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(0, 10**6))
    @settings(max_examples=50, deadline=None)
    def check(contexts: list[int], more: int) -> None:
        now = step_bytes(weights.bytes_per_step(len(contexts)), kv, contexts)
        longer = step_bytes(
            weights.bytes_per_step(len(contexts)), kv, [contexts[0] + more, *contexts[1:]]
        )
        larger = step_bytes(weights.bytes_per_step(len(contexts) + 1), kv, [*contexts, more])
        assert now <= longer * (1 + 1e-12)
        assert now <= larger * (1 + 1e-12)

    check()
