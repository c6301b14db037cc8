"""`tokgauge plan` as a person runs it."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokgauge.commands.plan import command

from tests.model import checkpoints, zoo


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
    rules = [f["rule_of_thumb"] for f in formats]
    assert [rule["bytes"] / 1e9 for rule in rules] == pytest.approx([1152, 576, 288])
    assert [rule["cards"] for rule in rules] == [f["cards"] for f in formats] == [15, 8, 4]
    assert [rule["nodes"] for rule in rules] == [f["nodes"] for f in formats] == [2, 1, 1]
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
    assert found["formats"][0]["by"] == "rule of thumb"
    assert found["assumptions"]["kv_bytes_per_token"] is None
    text = run("--params", "480B").output
    assert "unknown" in text
    assert "which holds a cache of common size already" in text


KV = ["--users", "50", "--context", "16k", "--kv-bytes-per-token", "327680"]


def test_the_cache_of_many_users_needs_cards_too() -> None:
    without = only("--params", "70B", "--bits", "16")
    with_cache = only("--params", "70B", "--bits", "16", *KV)
    assert without["cards"] == 3
    cache = 50 * 16384 * 327680
    assert with_cache["kv_bytes"] == cache
    # 92 % of 80 GB, less 2 GB for activations and 1 GB for graphs, are left of a card.
    assert with_cache["cards"] == -(-(140e9 + cache) // (80e9 * 0.92 - 3e9)) == 6
    assert with_cache["tensor_parallel"] == 8
    assert with_cache["needed_bytes"] == pytest.approx(140e9 + cache + 8 * 3e9)


def test_the_rule_of_thumb_and_the_cache_are_never_added() -> None:
    found = only("--params", "70B", "--bits", "16", *KV)
    assert found["rule_of_thumb"] == {
        "bytes": pytest.approx(168e9), "cards": 3, "nodes": 1,
    }  # fmt: skip
    assert found["weights_bytes"] == pytest.approx(140e9)
    assert "it is another answer, nothing to add" in run("--params", "70B", *KV).output


def test_what_fits_by_cards() -> None:
    fits = only("--params", "70B", "--bits", "16", *KV)["fits"]
    assert [fit["cards"] for fit in fits] == [1, 2, 4, 8]
    assert [fit["users"] > 0 for fit in fits] == [False, False, True, True]
    usable = 80e9 * 0.92 - 3e9
    assert fits[2]["cache_bytes"] == pytest.approx(4 * usable - 140e9)
    assert fits[2]["users"] == (4 * usable - 140e9) // (16384 * 327680)
    assert fits[2]["context"] == (4 * usable - 140e9) // (50 * 327680)
    text = run("--params", "70B", "--bits", "16", *KV).output
    assert "users with 16,384 tokens each" in text
    assert "weights do not fit" in text


def test_more_users_or_contexts_never_need_fewer_cards() -> None:
    for option, values in (("--users", [1, 8, 64, 512]), ("--context", [1024, 8192, 65536])):
        cards = [
            only("--params", "70B", "--bits", "8", *KV, option, str(value))["cards"]
            for value in values
        ]
        assert cards == sorted(cards)


def test_a_card_without_room_is_refused() -> None:
    result = run("--params", "7B", *KV, "--card-memory", "3GB")
    assert result.exit_code == 1
    assert "nothing left for weights" in result.output


def test_a_local_model_brings_bytes_cache_and_heads(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b()))
    found = document("--model", directory, "--users", "100", "--context", "8192")
    stored, eight, four = found["formats"]
    assert stored["weights_bytes"] == 15_231_233_024
    assert eight["weights_bytes"] == pytest.approx(8.709e9, rel=0.01)
    assert four["weights_bytes"] == pytest.approx(5.571e9, rel=0.01)
    assert stored["kv_bytes"] == 100 * 8192 * 57_344
    assert found["assumptions"]["attention_heads"] == 28
    fp8 = document("--model", directory, "--users", "100", "--kv-cache-dtype", "fp8")
    assert fp8["formats"][0]["kv_bytes"] == 100 * 8192 * 28_672
    assert "--kv-cache-dtype fp8" in fp8["formats"][0]["command"]
    assert "--quantization fp8" in fp8["formats"][1]["command"]
    assert fp8["formats"][2]["command"].startswith("vllm serve MODEL_IN_4_BIT ")
    quantised = str(checkpoints.write(tmp_path / "awq", checkpoints.qwen2_5_7b("awq")))
    assert only("--model", quantised)["label"] == "as stored"
    assert run("--model", quantised, "--bits", "8").exit_code == 2


def test_a_precision_that_nothing_tells_is_not_taken_for_16_bits(tmp_path: Path) -> None:
    """As old checkpoints are: 32 bits a weight, and no dtype in the config."""
    model = checkpoints.qwen2_5_half_b()
    config = {name: value for name, value in model.config.items() if "dtype" not in name}
    directory = str(checkpoints.write(tmp_path, replace(model, config=config)))
    assert only("--model", directory)["label"] == "as stored"
    refused = run("--model", directory, "--bits", "8")
    assert refused.exit_code == 2
    assert "stored in 16 bits" in refused.output


def test_windows_and_states_take_the_memory_that_they_keep(tmp_path: Path) -> None:
    gemma = str(checkpoints.write(tmp_path / "gemma", checkpoints.gemma3_4b()))
    found = document("--model", gemma, "--users", "10", "--context", "32k")["formats"][0]
    assert found["kv_bytes"] == 10 * 4096 * (5 * 32768 + 29 * 1024)
    # Twice the memory holds more than twice the context, since windows end.
    assert found["fits"][0]["context"] > 2 * 32768
    mamba = str(checkpoints.write(tmp_path / "mamba", zoo.CASES["MambaForCausalLM"].build()))
    state = document("--model", mamba, "--users", "10")["formats"][0]
    assert state["kv_bytes"] == 10 * zoo.CASES["MambaForCausalLM"].state


def test_tensor_parallel_divides_the_heads(tmp_path: Path) -> None:
    assert only("--params", "480B", "--bits", "8", "--heads", "28")["tensor_parallel"] == 4
    odd = only("--params", "480B", "--bits", "8", "--heads", "7")
    assert (odd["tensor_parallel"], odd["pipeline_parallel"]) == (1, 8)


def test_more_cards_than_kv_heads_keep_the_cache_more_than_once(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.deepseek_v3_small()))
    one = document("--model", directory, "--users", "10", "--card-memory", "80GB")["formats"][0]
    many = document("--model", directory, "--users", "10", "--card-memory", "28GB")["formats"][0]
    assert (one["tensor_parallel"], many["tensor_parallel"]) == (1, 2)
    assert many["kv_bytes"] == pytest.approx(2 * one["kv_bytes"], rel=1e-6)


def test_the_line_for_vllm() -> None:
    found = only("--params", "480B", "--bits", "16", "--users", "20", "--context", "4096")
    assert found["command"] == (
        "vllm serve MODEL --served-model-name MODEL --tensor-parallel-size 8 "
        "--pipeline-parallel-size 2 --dtype bfloat16 --gpu-memory-utilization 0.92 "
        "--max-model-len 4096 --max-num-seqs 20 --host 127.0.0.1 --port 8000"
    )


# vllm serve of 0.32.0 takes these (vllm/engine/arg_utils.py and
# vllm/entrypoints/launchers/cli_args.py), with these values where they are choices.
RECORDED: dict[str, set[str] | type] = {
    "--served-model-name": str,
    "--tensor-parallel-size": int,
    "--pipeline-parallel-size": int,
    "--dtype": {"auto", "bfloat16", "float", "float16", "float32", "half"},
    "--quantization": {"awq", "fp8", "gptq", "auto_awq", "auto_gptq", "compressed-tensors"},
    "--gpu-memory-utilization": float,
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--kv-cache-dtype": {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"},
    "--host": str,
    "--port": int,
}

LINES = [
    ["--params", "480B"],
    ["--params", "7B", "--bits", "8", *KV, "--kv-cache-dtype", "fp8", "--utilization", "0.8"],
    ["--params", "70B", "--gpu", "A100 80GB", *KV],
]


@pytest.mark.parametrize("arguments", LINES, ids=" ".join)
def test_the_line_is_one_that_vllm_takes(arguments: list[str]) -> None:
    for line in (form["command"] for form in document(*arguments)["formats"]):
        vllm, serve, model, *rest = shlex.split(line)
        assert (vllm, serve) == ("vllm", "serve")
        assert not model.startswith("-")
        for flag, value in zip(rest[::2], rest[1::2], strict=True):
            takes = RECORDED[flag]
            if isinstance(takes, set):
                assert value in takes
            else:
                takes(value)
        assert len(set(rest[::2])) == len(rest[::2])


PARSE = """
import json, shlex, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parsed = [parser.parse_args(shlex.split(line)[2:]) for line in json.loads(sys.argv[1])]
print(json.dumps([[a.model_tag, a.max_model_len, a.port] for a in parsed]))
"""


def vllm_python() -> str | None:
    """The interpreter of an installed vLLM: this one, or that of tests/real_vllm.sh."""
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    venv = os.environ.get("REAL_VLLM_VENV")
    return f"{venv}/bin/python" if venv else None


@pytest.mark.skipif(vllm_python() is None, reason="vLLM is not installed (set REAL_VLLM_VENV)")
def test_vllm_itself_parses_the_lines() -> None:
    lines = [form["command"] for one in LINES for form in document(*one)["formats"]]
    done = subprocess.run(
        [str(vllm_python()), "-c", PARSE, json.dumps(lines)],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout.splitlines()[-1])
    assert [one[0] for one in parsed] == ["MODEL"] * len(lines)
    assert [one[1] for one in parsed] == [8192] * 3 + [16384] * 4
    assert {one[2] for one in parsed} == {8000}


def test_a_context_that_the_model_has(tmp_path: Path) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config["max_position_embeddings"] = 32768
    directory = str(checkpoints.write(tmp_path, model))
    found = document("--model", directory, "--context", "128k")["formats"][0]
    assert "--max-model-len 32768 " in found["command"]
    assert "positions end at 32,768" in run("--model", directory, "--context", "128k").output


def test_a_name_with_a_space_is_quoted(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path / "my model", checkpoints.qwen2_5_half_b())
    line = document("--model", str(directory))["formats"][0]["command"]
    assert line.startswith(f"vllm serve '{directory}' --served-model-name 'my model' --tensor")


def test_a_card_by_name() -> None:
    found = document("--params", "70B", "--bits", "4", "--gpu", "L40S")
    assert found["assumptions"]["card_memory_bytes"] == 48e9
    assert found["formats"][0]["cards"] == 1
    assert run("--params", "70B", "--gpu", "L400").exit_code == 2
    assert run("--params", "70B", "--gpu", "L40S", "--card-memory", "1GB").exit_code == 2
    assert document("--params", "70B", "--gpu", "A100 80GB")["assumptions"]["card"] == (
        "NVIDIA A100 80GB PCIe"
    )
    assert run("--params", "70B", "--gpu", "A100").exit_code == 2


def test_no_price_is_made_up_for_a_named_card() -> None:
    found = document("--params", "70B", "--bits", "8", "--gpu", "H200")["formats"][0]["money"]
    assert (found["purchase"], found["power_per_month"], found["fixed_per_month"]) == (None,) * 3
    text = run("--params", "70B", "--gpu", "H200").output
    assert "No price of this card is assumed: give --card-price" in text
    assert "Money" not in text
    priced = run("--params", "70B", "--gpu", "H200", "--card-price", "30000").output
    assert "give --card-watts" in priced


MONEY = [
    "--params", "480B", "--bits", "8", "--purchase", "360000", "--card-watts", "1000",
    "--pue", "1.25", "--electricity", "0.2", "--people", "8560", "--api-price", "2",
]  # fmt: skip


def test_break_even_by_hand() -> None:
    cost = only(*MONEY)["money"]
    power = 8 * 1.0 * 1.25 * 720 * 0.2
    assert cost["power_per_month"] == pytest.approx(power) == pytest.approx(1440)
    assert cost["fixed_per_month"] == pytest.approx(10_000 + 1440 + 8560)
    assert cost["break_even_tokens_per_month"] == pytest.approx(10e9)
    assert cost["break_even_tokens_per_second"] == pytest.approx(10e9 / (720 * 3600))
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


def test_the_founding_month() -> None:
    """280,000 over 36 months, 8 cards of 1 kW x 1.3 at 0.20, and 5,000 for people."""
    cost = only("--params", "480B", "--bits", "8", "--hours", "730")["money"]
    assert cost["fixed_per_month"] == pytest.approx(280_000 / 36 + 8 * 1.3 * 730 * 0.2 + 5000)
    assert round(cost["fixed_per_month"]) == 14_296
    # At 1.00 for a million tokens: 14.3 billion of them, 5,440 in every second of the month.
    assert cost["break_even_tokens_per_month"] == pytest.approx(14.296e9, rel=1e-4)
    assert cost["break_even_tokens_per_second"] == pytest.approx(5440, abs=1)
    assert "14,296" in run("--params", "480B", "--bits", "8", "--hours", "730").output


def test_input_output_and_cached_tokens_have_their_own_prices() -> None:
    cost = only(
        *MONEY, "--tokens-per-month", "1B", "--input-tokens-per-month", "10B",
        "--cached-tokens-per-month", "4B", "--api-input-price", "3", "--api-output-price", "15",
        "--api-cached-price", "0.3",
    )["money"]  # fmt: skip
    bill = 6000 * 3 + 4000 * 0.3 + 1000 * 15
    assert cost["api_bill_per_month"] == pytest.approx(bill)
    assert cost["break_even_tokens_per_month"] == pytest.approx(20_000 / (bill / 11e9))
    wrong = run(*MONEY, "--input-tokens-per-month", "1B", "--cached-tokens-per-month", "2B")
    assert wrong.exit_code == 2


def test_against_rent_by_the_hour_and_by_token() -> None:
    cost = only(*MONEY, "--rent", "2.5", "--speed", "4000")["money"]
    rent = 8 * 2.5 * 720
    assert cost["rent_per_month"] == pytest.approx(rent)
    assert cost["rent_break_even_months"] == pytest.approx(360_000 / (rent - 1440))
    made = 4000 * 720 * 3600 / 1e6
    assert cost["cost_per_million_tokens"] == pytest.approx(20_000 / made)
    assert cost["rent_per_million_tokens"] == pytest.approx((rent + 8560) / made)
    assert (cost["tokens_per_second"], cost["speed_source"]) == (4000, "measured")
    cheap = only(*MONEY, "--rent", "0.1")["money"]
    assert cheap["rent_break_even_months"] is None
    assert "never" in run(*MONEY, "--rent", "0.1").output


def test_the_planned_speed_is_a_share_of_the_ceiling(tmp_path: Path) -> None:
    directory = str(checkpoints.write(tmp_path, checkpoints.qwen2_5_7b()))
    cost = document(
        "--model", directory, "--gpu", "A6000", "--users", "32", "--context", "2048",
        "--card-price", "5000", "--card-watts", "300",
    )["formats"][0]["money"]  # fmt: skip
    # 32 users with 2,048 tokens: 1,373 tok/s at best.
    assert cost["tokens_per_second"] == pytest.approx(0.7 * 1373, rel=1e-3)
    assert cost["speed_source"].startswith("planned: 70% of the ceiling")


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
     "--tokens-per-month", "--kv-bytes-per-token", "--users", "--utilization", "--card-memory"],
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
    assert run("--model", "/nowhere", "--bits", "4").exit_code == 1


def test_extremes_stay_finite() -> None:
    found = document(
        "--params", "1e18", "--bits", "64", "--users", "1000000", "--context", "1e18",
        "--kv-bytes-per-token", "1e18", "--card-memory", "4GB", "--card-price", "1e18",
    )  # fmt: skip
    assert found["formats"][0]["needed_bytes"] > 0


def test_as_a_real_process() -> None:
    code = "from tokgauge.commands.plan import command; command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--params", "480B"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "1,152 GB" in done.stdout
