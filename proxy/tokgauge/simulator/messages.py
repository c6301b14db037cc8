"""/v1/messages (Anthropic's dialect) as vLLM 0.32 speaks it: text only, no [DONE]."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.simulator import errors, tokens
from tokgauge.simulator.chat import render_prompt, wants_korean
from tokgauge.simulator.connection import Connection, EventStream
from tokgauge.simulator.engine import Engine, Job, Watched
from tokgauge.simulator.scheduler import Output

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


def _prompt(body: dict[str, Any]) -> str:
    if "messages" not in body:
        raise errors.missing("messages", body)
    turns = list(body["messages"])
    if body.get("system"):
        turns.insert(0, {"role": "system", "content": body["system"]})
    return render_prompt(turns)


async def handle(engine: Engine, job: Job) -> None:
    body = job.body
    prompt = _prompt(body)
    if "max_tokens" not in body:
        raise errors.missing("max_tokens", body)
    engine.check_model(body)
    engine.start(
        job,
        [prompt],
        requested_tokens=body["max_tokens"],
        korean=wants_korean(body["messages"]),
    )
    async with Watched(job):
        if job.stream:
            await _stream(engine, job)
        else:
            await _answer_whole(engine, job)


async def count_tokens(engine: Engine, connection: Connection) -> None:
    body = await connection.json_body()
    engine.check_model(body)
    count = len(tokens.token_ids(_prompt(body)))
    await connection.respond_json(
        {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    )


def _stop_reason(output: Output) -> str:
    if output.stop_reason is not None:
        return "stop_sequence"
    return _STOP_REASONS[output.finish_reason or "stop"]


async def _stream(engine: Engine, job: Job) -> None:
    stream = EventStream(job.connection, job.faults)

    async def send(kind: str, **fields: object) -> None:
        data = msgspec.json.encode({"type": kind, **fields})
        await stream.event(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))

    await stream.start()
    last = None
    async for output in job.generation.outputs():
        if last is None:
            message: dict[str, object] = {
                "id": job.request_id("chatcmpl"),
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": engine.profile.model,
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": job.prompt_tokens, "output_tokens": 0},
            }
            await send("message_start", message=message)
            await send("content_block_start", content_block={"type": "text", "text": ""}, index=0)
        last = output
        if output.text or output.finish_reason is None:
            delta = {"type": "text_delta", "text": output.text}
            await send("content_block_delta", delta=delta, index=0)
    if last is None or job.generation.aborted:
        return
    await send("content_block_stop", index=0)
    ended = {"stop_reason": _stop_reason(last), "stop_sequence": last.stop_reason}
    usage = {"input_tokens": job.prompt_tokens, "output_tokens": job.completion_tokens}
    await send("message_delta", delta=ended, usage=usage)
    await send("message_stop")
    await stream.finish(done=False)


async def _answer_whole(engine: Engine, job: Job) -> None:
    text, last = "", None
    async for output in job.generation.outputs():
        text += output.text
        last = output
    if last is None or job.generation.aborted:
        return
    await job.connection.answer(
        {
            "id": job.request_id("chatcmpl"),
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": engine.profile.model,
            "stop_reason": _stop_reason(last),
            "usage": {"input_tokens": job.prompt_tokens, "output_tokens": job.completion_tokens},
        },
        job.faults,
    )
