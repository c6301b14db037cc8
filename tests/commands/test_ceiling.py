"""`tokgauge ceiling` as a person runs it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokgauge.commands.ceiling import command

from tests.model import checkpoints


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def speed(row: dict[str, Any], basis: str) -> float:
    found: float = row["ceiling"][basis]["tokens_per_second_per_stream"]
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    checkpoints.write(directory / "Qwen2.5-7B", checkpoints.qwen2_5_7b())
    checkpoints.write(directory / "Qwen2.5-7B-AWQ", checkpoints.qwen2_5_7b("awq", shards=2))
    checkpoints.write(directory / "Qwen3-30B-A3B", checkpoints.qwen3_30b_a3b())
    return directory


def test_the_founding_table(models: Path) -> None:
    found = document(
        "--gpu", "A6000", "--gpu", "NVIDIA A100-SXM4-80GB", "--gpu", "NVIDIA H100 80GB HBM3",
        "--model", str(models / "Qwen2.5-7B"), "--model", str(models / "Qwen2.5-7B-AWQ"),
    )  # fmt: skip
    table = {
        (row["gpu"], row["variant"]): (speed(row, "checkpoint"), speed(row, "streamed"))
        for row in found["rows"]
    }
    assert table["NVIDIA RTX A6000", "Qwen2.5-7B"] == pytest.approx((50.4, 54.3), abs=0.05)
    assert table["NVIDIA RTX A6000", "Qwen2.5-7B-AWQ"] == pytest.approx((137.9, 171.4), abs=0.05)
    assert table["NVIDIA A100-SXM4-80GB", "Qwen2.5-7B"] == pytest.approx((134, 144), abs=0.5)
    assert table["NVIDIA H100 80GB HBM3", "Qwen2.5-7B"] == pytest.approx((220, 237), abs=0.5)
    variant = found["variants"][0]
    assert variant["streamed_bytes"] == 14_141_238_272
    assert variant["streamed_source"].startswith("safetensors:")
    assert variant["ratio_basis"] == "streamed"


def test_the_founding_share_on_both_bases(models: Path) -> None:
    result = run("--gpu", "A6000", "--model", str(models / "Qwen2.5-7B"), "--measured", "40.58")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.output.splitlines() if line.startswith("RTX A6000"))
    assert [cell.strip() for cell in row.split("|")] == [
        "RTX A6000", "768", "yes", "54.3", "75%", "50.4", "80%", "70-89%", "healthy",
    ]  # fmt: skip
    assert "streamed 14.14 GB a step" in result.output
    assert "checkpoint 15.23 GB a step" in result.output


def test_several_models_show_their_bytes(models: Path) -> None:
    result = run(
        "--gpu", "A6000",
        "--model", str(models / "Qwen2.5-7B"), "--model", str(models / "Qwen2.5-7B-AWQ"),
    )  # fmt: skip
    rows = [line for line in result.output.splitlines() if line.startswith("RTX A6000")]
    assert [[cell.strip() for cell in row.split("|")] for row in rows] == [
        ["RTX A6000", "768", "Qwen2.5-7B", "yes", "14.14", "54.3", "15.23", "50.4"],
        ["RTX A6000", "768", "Qwen2.5-7B-AWQ", "yes", "4.48", "171.4", "5.57", "137.9"],
    ]


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path / "[bold]a:smile:", checkpoints.qwen2_5_half_b())
    result = run("--model", str(directory), "--model", str(directory), "--gpu", "A6000")
    assert result.exit_code == 0
    assert result.output.count("[bold]a:smile:") >= 4


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [("60", "above"), ("40", "healthy"), ("30", "watch"), ("20", "suspect")],
)
def test_verdicts(models: Path, measured: str, verdict: str) -> None:
    model = str(models / "Qwen2.5-7B")
    found = document("--gpu", "A6000", "--model", model, "--measured", measured)
    assert found["rows"][0]["verdict"] == verdict


def test_what_is_normal_depends_on_model_card_and_batch(tmp_path: Path) -> None:
    """A small model on a fast card at 45 % is healthy; nothing known of it, nothing is judged."""
    directory = checkpoints.write(tmp_path / "small", checkpoints.qwen2_5_half_b())
    card = "NVIDIA H100 80GB HBM3"
    known = document("--gpu", card, "--model", str(directory), "--measured", "700")
    row = known["rows"][0]
    assert row["share"]["streamed"] < 0.3
    assert row["verdict"] == "healthy"
    assert row["normal"]["low"] < 0.2
    stated = document("--gpu", card, "--weights-bytes", "1GB", "--measured", "700")
    assert stated["rows"][0]["normal"] is None
    assert stated["rows"][0]["verdict"] is None


def test_parameters_give_both_bases_labelled_as_estimates() -> None:
    found = document("--params", "7.62e9", "--bits", "16", "--bits", "4", "--gpu", "a6000")
    sixteen, four = found["rows"]
    assert speed(sixteen, "checkpoint") == pytest.approx(50.4, abs=0.05)
    assert speed(sixteen, "streamed") == pytest.approx(54.3, abs=0.1)
    # Scales, zeros and a head in 16 bits: as AWQ has them, 4.48 GB and not 3.81.
    assert speed(four, "streamed") == pytest.approx(171.4, rel=0.005)
    assert speed(four, "checkpoint") == pytest.approx(137.9, rel=0.01)
    for variant in found["variants"]:
        assert variant["checkpoint_source"].startswith("estimate")
        assert variant["streamed_source"].startswith("estimate")
    assert "estimate" in run("--params", "7.62B").output


def test_without_bits_and_cards_there_is_a_choice() -> None:
    found = document("--params", "7.62B")
    assert [v["name"] for v in found["variants"]] == ["16 bit", "8 bit", "4 bit"]
    cards = {row["gpu"] for row in found["rows"]}
    assert {"NVIDIA RTX A6000", "NVIDIA L4", "NVIDIA B200"} <= cards
    assert len(cards) == 9


def test_stated_bytes() -> None:
    found = document("--weights-bytes", "14.14GB", "--gpu", "A6000")
    assert speed(found["rows"][0], "streamed") == pytest.approx(54.3, abs=0.05)
    assert found["variants"][0]["streamed_source"] == "settings"
    both = document("--weights-bytes", "14.14GB", "--checkpoint-bytes", "15.23GB")
    assert set(both["rows"][0]["ceiling"]) == {"streamed", "checkpoint"}


def test_context_and_batch_by_the_models_own_config(models: Path) -> None:
    model = ["--gpu", "A6000", "--model", str(models / "Qwen2.5-7B")]
    alone = document(*model, "--context", "32768")
    assert speed(alone["rows"][0], "streamed") == pytest.approx(47.9, abs=0.05)
    many = document(*model, "--context", "2048", "--batch", "256")
    step = many["rows"][0]["ceiling"]["streamed"]
    assert step["tokens_per_second"] == pytest.approx(4448, abs=1)
    assert step["tokens_per_second_per_stream"] == pytest.approx(17.4, abs=0.05)
    assert many["variants"][0]["kv_bytes_per_token"] == 57_344
    half = document(*model, "--context", "2048", "--kv-cache-dtype", "fp8")
    assert half["variants"][0]["kv_bytes_per_token"] == 28_672
    text = run(*model, "--context", "2048", "--batch", "256").output
    assert "tok/s all" in text
    assert "4448" in text


def test_context_without_a_known_cache_is_refused_not_ignored() -> None:
    result = run("--params", "7B", "--context", "2048")
    assert result.exit_code == 2
    assert "--kv-bytes-per-token" in result.output
    found = document(
        "--params", "7.62B", "--context", "2048", "--kv-bytes-per-token", "57344",
        "--bits", "16", "--bandwidth", "768GB/s",
    )  # fmt: skip
    assert speed(found["rows"][0], "checkpoint") == pytest.approx(768 / (15.24 + 0.1174), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("A100 80GB", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"]),
        ("a100-80gb", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"]),
        ("H100 SXM", ["NVIDIA H100 80GB HBM3"]),
        ("RTX4090", ["NVIDIA GeForce RTX 4090"]),
        ("A6000", ["NVIDIA RTX A6000"]),
    ],
)
def test_the_name_that_people_write_gives_that_card(text: str, cards: list[str]) -> None:
    found = document("--params", "7B", "--bits", "16", "--gpu", text)
    assert [row["gpu"] for row in found["rows"]] == cards


def test_a_large_batch_is_limited_by_computing(models: Path) -> None:
    model = ["--model", str(models / "Qwen2.5-7B"), "--batch", "1000", "--context", "512"]
    limits = document(*model, "--gpu", "A6000", "--gpu", "A2")["rows"]
    found, silent = (row["ceiling"]["streamed"] for row in limits)
    # 154.8e12 / (2 x 7.071e9): the head is multiplied, the input embedding is not.
    assert found["tokens_per_second"] == pytest.approx(154.8e12 / 2 / 7_070_619_136, rel=1e-3)
    assert found["tokens_per_second"] == pytest.approx(10_949, rel=1e-3)
    assert found["limited_by"] == "computing"
    assert silent["limited_by"] == "reading"
    text = run(*model, "--gpu", "A6000", "--gpu", "A2").output
    assert "10947*" in text
    assert "what it can compute is not known: NVIDIA A2" in text


def test_contexts_are_powers_of_two(models: Path) -> None:
    model = ["--gpu", "A6000", "--model", str(models / "Qwen2.5-7B")]
    assert document(*model, "--context", "16k")["assumptions"]["context_tokens"] == 16_384
    assert document(*model, "--context", "1M")["assumptions"]["context_tokens"] == 1_048_576


def test_a_class_that_is_not_understood_has_a_reason_instead_of_a_figure(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config["total_ut_steps"] = 4
    directory = str(checkpoints.write(tmp_path, model))
    result = run("--gpu", "A6000", "--model", directory, "--measured", "20")
    assert result.exit_code == 0, result.output
    assert "not judged" in result.output
    assert "total_ut_steps in its configuration is not understood" in result.output


def test_a_batch_of_a_mixture_reads_more_experts(models: Path) -> None:
    model = ["--gpu", "A6000", "--model", str(models / "Qwen3-30B-A3B")]
    one = document(*model)["variants"][0]["streamed_bytes"]
    many = document(*model, "--batch", "32")["variants"][0]["streamed_bytes"]
    assert one == pytest.approx(6.084e9, rel=1e-3)
    assert many == pytest.approx(53.1e9, rel=1e-2)


def test_cards_that_read_together_and_memory_that_is_too_small(models: Path) -> None:
    model = ["--gpu", "NVIDIA L4", "--model", str(models / "Qwen3-30B-A3B")]
    one, four = document(*model)["rows"][0], document(*model, "--tensor-parallel", "4")["rows"][0]
    assert (one["fits"], four["fits"]) == (False, True)
    assert speed(four, "streamed") == pytest.approx(4 * speed(one, "streamed"))


def test_a_card_is_never_the_most_similar_one() -> None:
    unknown = run("--params", "7B", "--gpu", "A600")
    assert unknown.exit_code == 2
    assert "not in the table" in unknown.output
    assert "NVIDIA RTX A6000" in unknown.output
    many = run("--params", "7B", "--gpu", "RTX")
    assert many.exit_code == 2
    assert "can mean many cards" in many.output
    exact = document("--params", "7B", "--bits", "8", "--gpu", "nvidia a100 80gb pcie")
    assert [row["bandwidth_bytes_per_second"] for row in exact["rows"]] == [1935e9]


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1e400", "seven", "", "1e-400", "7Q"])
@pytest.mark.parametrize(
    "option", ["--params", "--weights-bytes", "--bandwidth", "--measured", "--context"]
)
def test_nonsense_is_refused_by_name(option: str, number: str) -> None:
    result = run("--params", "7B", option, number)
    assert result.exit_code == 2
    assert option in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--params", "7B", "--model", "x"],
        ["--params", "7B", "--weights-bytes", "7GB"],
        ["--bits", "4", "--weights-bytes", "7GB"],
        ["--params", "7B", "--gpu", "A6000", "--bandwidth", "1e12"],
        ["--params", "7B", "--batch", "0"],
        ["--params", "7B", "--bits", "0"],
        ["--params", "7B", "--tensor-parallel", "-2"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_model_that_cannot_be_sized_says_why(tmp_path: Path) -> None:
    result = run("--model", "/nowhere/qwen")
    assert result.exit_code == 1
    assert "/nowhere/qwen does not exist here" in result.output
    assert "--weights-bytes" in result.output
    adapter = run("--model", str(checkpoints.write_lora(tmp_path)))
    assert adapter.exit_code == 1
    assert "LoRA adapter" in adapter.output


def test_extremes_stay_finite() -> None:
    found = document(
        "--params", "1e18", "--bits", "64", "--batch", "100000", "--context", "1e18",
        "--kv-bytes-per-token", "1e18", "--bandwidth", "1",
    )  # fmt: skip
    assert speed(found["rows"][0], "checkpoint") > 0


def test_as_a_real_process_prints_plain_text(models: Path) -> None:
    code = "from tokgauge.commands.ceiling import command; command()"
    arguments = ["--model", str(models / "Qwen2.5-7B"), "--gpu", "A6000", "--measured", "40.58"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "54.3" in done.stdout
    assert "50.4" in done.stdout
    as_json = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(as_json.stdout)["rows"][0]["verdict"] == "healthy"


def test_a_state_of_unknown_size_leaves_no_ceiling(tmp_path: Path) -> None:
    """It is moved in every step, however short the context: without it a ceiling is a guess."""
    model = checkpoints.qwen2_5_7b()
    config = model.config | {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    }  # fmt: skip
    directory = str(checkpoints.write(tmp_path, replace(model, config=config)))
    found = document("--gpu", "A6000", "--model", directory)
    (row,) = found["rows"]
    assert (row["ceiling"], row["share"], row["fits"], row["verdict"]) == ({}, {}, None, None)
    reason = "the recurrent state of its layers is not told"
    assert found["variants"][0]["kv_unknown_because"] == reason
    table = run("--gpu", "A6000", "--model", directory)
    assert table.exit_code == 0
    assert f"no ceiling: {reason}" in table.output
