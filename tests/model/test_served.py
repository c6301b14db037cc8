"""The list of /v1/models."""

import json
from typing import Any

import pytest
from tokgauge.model.served import ServedModel, served_models

pytestmark = pytest.mark.socketless

VLLM_0_32 = (
    '{"object":"list","data":[{"id":"qwen","object":"model","created":1796021626,'
    '"owned_by":"vllm","root":"/models/tiny-q","parent":null,"max_model_len":512,'
    '"permission":[{"id":"modelperm-a6916cb563638d48","object":"model_permission"}]}]}'
)


def test_the_answer_of_a_real_engine() -> None:
    assert served_models(json.loads(VLLM_0_32)) == (
        ServedModel("qwen", "/models/tiny-q", None, 512, "vllm"),
    )


def test_adapters_name_the_model_whose_weights_they_use() -> None:
    payload = {
        "object": "list",
        "data": [
            {"id": "sql", "root": "/adapters/sql", "parent": "qwen"},
            {"id": "qwen", "root": "Qwen/Qwen2.5-7B-Instruct", "parent": None},
        ],
    }
    assert served_models(payload) == (
        ServedModel("sql", "/adapters/sql", "qwen", None),
        ServedModel("qwen", "Qwen/Qwen2.5-7B-Instruct", None, None),
    )


@pytest.mark.parametrize(
    "payload", [None, [], "x", {}, {"data": None}, {"data": [None, 1, {}, {"id": 5}]}]
)
def test_other_answers_hold_no_models(payload: Any) -> None:
    assert served_models(payload) == ()


def test_odd_fields_are_absent() -> None:
    card = {"id": "a", "root": 5, "parent": "", "max_model_len": True}
    assert served_models({"data": [card]}) == (ServedModel("a", None, None, None),)
