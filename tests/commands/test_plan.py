"""`tokgauge plan` as a person runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.commands.plan import command
from tests.model import checkpoints


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def only(*arguments: str) -> dict[str, Any]:
    formats = document(*arguments)["formats"]
    assert len(formats) == 1
    found: dict[str, Any] = formats[0]
    return found


def test_the_founding_memory() -> None:
    formats = document("--params", "480B")["formats"]
    assert [f["label"] for f in formats] == ["16 bit", "8 bit", "4 bit"]
    assert [f["weights_bytes"] / 1e9 for f in formats] == pytest.approx([1152, 576, 288])
    assert [f["cards"] for f in formats] == [15, 8, 4]
    assert [f["nodes"] for f in formats] == [2, 1, 1]
    assert [(f["tensor_parallel"], f["pipeline_parallel"]) for f in formats] == [
        (8, 2),
        (8, 1),
        (4, 1),
    ]
    text = run("--params", "480B").output
    for figure in ("1,152 GB", "576 GB", "288 GB"):
        assert figure in text


def test_an_unknown_cache_is_unknown_and_not_nothing() -> None:
    found = document("--params", "480B", "--bits", "8")
    assert found["formats"][0]["kv_bytes"] is None
    assert found["assumptions"]["kv_bytes_per_token"] is None
    text = run("--params", "480B").output
    assert "unknown" in text
    assert "The KV cache is not in the memory above" in text


def test_the_cache_of_many_users_needs_cards_too() -> None:
    without = only("--params", "70B", "--bits", "8")
    with_cache = only(
        "--params", "70B", "--bits", "8", "--users", "50", "--context", "16384",
        "--kv-bytes-per-token", "327680",
    )  # fmt: skip
    assert without["cards"] == 2
    assert with_cache["kv_bytes"] == 50 * 16384 * 327680
    assert with_cache["needed_bytes"] == pytest.approx(70e9 * 1.2 + 50 * 16384 * 327680)
    assert (with_cache["cards"], with_cache["tensor_parallel"]) == (5, 8)


def test_a_local_model_brings_bytes_cache_and_heads(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b()))
    found = document("--model", directory, "--users", "100", "--context", "8192")
    plan = found["formats"][0]
    assert plan["weights_bytes"] == pytest.approx(15_231_233_024 * 1.2)
    assert plan["kv_bytes"] == 100 * 8192 * 57_344
    assert found["assumptions"]["attention_heads"] == 28
    fp8 = document("--model", directory, "--users", "100", "--kv-cache-dtype", "fp8")
    assert fp8["formats"][0]["kv_bytes"] == 100 * 8192 * 28_672
    assert "--kv-cache-dtype fp8" in fp8["formats"][0]["command"]


def test_tensor_parallel_divides_the_heads(tmp_path: Path) -> None:
    assert only("--params", "480B", "--bits", "8", "--heads", "28")["tensor_parallel"] == 4
    odd = only("--params", "480B", "--bits", "8", "--heads", "7")
    assert (odd["tensor_parallel"], odd["pipeline_parallel"]) == (1, 8)
    directory = str(checkpoints.write(tmp_path, checkpoints.qwen2_5_half_b()))
    small = only("--model", directory, "--users", "1", "--card-memory", "1GB")
    assert (small["tensor_parallel"], small["cards"]) == (2, 2)


def test_more_cards_than_kv_heads_keep_the_cache_more_than_once(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.deepseek_v3_small()))
    one = only("--model", directory, "--users", "10", "--card-memory", "80GB")
    many = only("--model", directory, "--users", "10", "--card-memory", "24GB")
    assert (one["tensor_parallel"], many["tensor_parallel"]) == (1, 2)
    assert many["kv_bytes"] == pytest.approx(2 * one["kv_bytes"], rel=1e-6)


def test_the_line_for_vllm() -> None:
    found = only("--params", "480B", "--bits", "16", "--users", "20", "--context", "4096")
    assert found["command"] == (
        "vllm serve MODEL --tensor-parallel-size 8 --pipeline-parallel-size 2 "
        "--max-model-len 4096 --max-num-seqs 20"
    )


def test_a_name_with_a_space_is_quoted(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path / "my model", checkpoints.qwen2_5_half_b())
    assert f"vllm serve '{directory}' --tensor" in only("--model", str(directory))["command"]


def test_a_card_by_name() -> None:
    found = document("--params", "70B", "--bits", "4", "--gpu", "L40S")
    assert found["assumptions"]["card_memory_bytes"] == 48e9
    assert found["formats"][0]["cards"] == 1
    assert run("--params", "70B", "--gpu", "L400").exit_code == 2
    assert run("--params", "70B", "--gpu", "L40S", "--card-memory", "1GB").exit_code == 2


MONEY = [
    "--params", "480B", "--bits", "8", "--purchase", "360000", "--card-watts", "1000",
    "--pue", "1.25", "--electricity", "0.2", "--people", "8540", "--api-price", "2",
]  # fmt: skip


def test_break_even_by_hand() -> None:
    cost = only(*MONEY)["money"]
    power = 8 * 1.0 * 1.25 * 730 * 0.2
    assert cost["power_per_month"] == pytest.approx(power) == pytest.approx(1460)
    assert cost["fixed_per_month"] == pytest.approx(10_000 + 1460 + 8540)
    assert cost["break_even_tokens_per_month"] == pytest.approx(10e9)
    assert cost["break_even_tokens_per_second"] == pytest.approx(10e9 / (730 * 3600))
    assert cost["api_bill_per_month"] is None
    assert cost["break_even_months"] is None


def test_months_until_the_purchase_is_back() -> None:
    cost = only(*MONEY, "--tokens-per-month", "20B")["money"]
    assert cost["api_bill_per_month"] == pytest.approx(40_000)
    assert cost["break_even_months"] == pytest.approx(360_000 / (40_000 - 10_000))
    # At the break-even volume the purchase is back when it is written off.
    even = only(*MONEY, "--tokens-per-month", "10B")["money"]
    assert even["break_even_months"] == pytest.approx(36)
    never = only(*MONEY, "--tokens-per-month", "5B")["money"]
    assert never["break_even_months"] is None
    text = run(*MONEY, "--tokens-per-month", "5B").output
    assert "never" in text
    assert "12.0 months" in run(*MONEY, "--tokens-per-month", "20B").output


def test_the_purchase_follows_from_the_cards() -> None:
    cost = only("--params", "480B", "--bits", "16", "--card-price", "30000")["money"]
    assert cost["purchase"] == 16 * 30_000


def test_every_assumption_is_shown() -> None:
    found = document("--params", "480B")
    text = run("--params", "480B", "--currency", "EUR").output
    for name in found["assumptions"]:
        assert name.replace("_", " ") in text
    assert "Money [EUR]" in text


@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e400", "many", ""])
@pytest.mark.parametrize(
    "option",
    ["--params", "--context", "--card-price", "--purchase", "--months", "--api-price", "--pue",
     "--tokens-per-month", "--kv-bytes-per-token", "--users", "--overhead", "--card-memory"],
)  # fmt: skip
def test_nonsense_is_refused_by_name(option: str, number: str) -> None:
    result = run("--params", "7B", option, number)
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.parametrize("option", ["--params", "--months", "--api-price", "--users", "--context"])
def test_zero_where_it_makes_no_sense(option: str) -> None:
    assert run("--params", "7B", option, "0").exit_code == 2


def test_nothing_has_to_cost_anything() -> None:
    free = only(
        "--params", "7B", "--bits", "8", "--purchase", "0", "--people", "0", "--electricity", "0"
    )["money"]
    assert free["fixed_per_month"] == free["break_even_tokens_per_month"] == 0


def test_what_is_missing_is_said() -> None:
    assert run().exit_code == 2
    assert "--params" in run().output
    assert run("--model", "/nowhere").exit_code == 1
    assert run("--model", "/nowhere", "--bits", "4").exit_code == 2


def test_extremes_stay_finite() -> None:
    found = document(
        "--params", "1e18", "--bits", "64", "--users", "1000000", "--context", "1e18",
        "--kv-bytes-per-token", "1e18", "--card-memory", "1", "--card-price", "1e18",
    )  # fmt: skip
    assert found["formats"][0]["needed_bytes"] > 0


def test_as_a_real_process() -> None:
    code = "from proxy.commands.plan import command; command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--params", "480B"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "1,152 GB" in done.stdout
