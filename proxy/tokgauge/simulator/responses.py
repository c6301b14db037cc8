"""/v1/responses as vLLM 0.32 speaks it: text only, `event:` lines, no [DONE]."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.simulator import errors
from tokgauge.simulator.chat import render_prompt, wants_korean
from tokgauge.simulator.connection import EventStream
from tokgauge.simulator.engine import Engine, Job, Watched, hex_id


async def handle(engine: Engine, job: Job) -> None:
    body = job.body
    if "input" not in body:
        raise errors.missing("input", body)
    engine.check_model(body)
    messages = _messages(body)
    engine.start(
        job,
        [render_prompt(messages)],
        requested_tokens=body.get("max_output_tokens"),
        korean=wants_korean(messages),
    )
    async with Watched(job):
        if job.stream:
            await _Stream(engine, job).run()
        else:
            await _answer_whole(engine, job)


def _messages(body: dict[str, Any]) -> list[Any]:
    given = body["input"]
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if body.get("instructions"):
        turns.insert(0, {"role": "system", "content": body["instructions"]})
    return turns


def _response(engine: Engine, job: Job, identity: str) -> dict[str, Any]:
    """The response object as it is before any token."""
    body = job.body
    limit = body.get("max_output_tokens")
    if limit is None:
        limit = engine.profile.max_model_len - job.prompt_tokens
    return {
        "id": identity,
        "created_at": job.created,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": engine.profile.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": float(body.get("temperature", 1.0)),
        "tool_choice": body.get("tool_choice", "none"),
        "tools": body.get("tools", []),
        "top_p": float(body.get("top_p", 1.0)),
        "background": False,
        "max_output_tokens": limit,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "in_progress",
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None,
        "user": body.get("user"),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _message(identity: str, text: str) -> dict[str, Any]:
    return {
        "id": identity,
        "content": [_part(text)],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _complete(response: dict[str, Any], job: Job, item: str, text: str, reason: str | None) -> None:
    made = job.completion_tokens
    response["output"] = [_message(item, text)]
    if reason == "length":
        response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["status"] = "incomplete"
    else:
        response["status"] = "completed"
    response["usage"] = {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": job.cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": made,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": job.prompt_tokens + made,
    }


class _Stream:
    def __init__(self, engine: Engine, job: Job) -> None:
        self._job = job
        self._stream = EventStream(job.connection, job.faults)
        self._response = _response(engine, job, job.request_id("resp").replace("-", "_", 1))
        self._number = 0
        self._item = f"msg_{hex_id()}"

    async def _send(self, kind: str, **fields: object) -> None:
        # vLLM writes the keys in alphabetical order.
        fields |= {"sequence_number": self._number, "type": kind}
        self._number += 1
        data = msgspec.json.encode(dict(sorted(fields.items())))
        await self._stream.event(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))

    async def run(self) -> None:
        await self._stream.start()
        place: dict[str, object] = {
            "content_index": 0, "item_id": self._item, "output_index": 0,
        }  # fmt: skip
        await self._send("response.created", response=self._response)
        await self._send("response.in_progress", response=self._response)
        text, started, reason = "", False, None
        async for output in self._job.generation.outputs():
            if not started:
                started = True
                opened = {**_message(self._item, ""), "content": [], "status": "in_progress"}
                await self._send("response.output_item.added", item=opened, output_index=0)
                part = {**_part(""), "logprobs": []}
                await self._send("response.content_part.added", **place, part=part)
            text += output.text
            reason = output.finish_reason
            if output.text or reason is None:
                await self._send(
                    "response.output_text.delta", **place, delta=output.text, logprobs=[]
                )
        if self._job.generation.aborted:
            return
        await self._send("response.output_text.done", **place, logprobs=[], text=text)
        await self._send("response.content_part.done", **place, part=_part(text))
        item = _message(self._item, text)
        await self._send("response.output_item.done", item=item, output_index=0)
        _complete(self._response, self._job, self._item, text, reason)
        await self._send("response.completed", response=self._response)
        await self._stream.finish(done=False)


async def _answer_whole(engine: Engine, job: Job) -> None:
    text, reason = "", None
    async for output in job.generation.outputs():
        text += output.text
        reason = output.finish_reason
    if job.generation.aborted:
        return
    response = _response(engine, job, job.request_id("resp").replace("-", "_", 1))
    _complete(response, job, f"msg_{hex_id()}", text, reason)
    await job.connection.answer(response, job.faults)
