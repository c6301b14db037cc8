"""/v1/completions as vLLM 0.32 speaks it, with one prompt or a list of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tokgauge.simulator import errors, tokens
from tokgauge.simulator.chat import UsageOptions, final_usage, whole_usage
from tokgauge.simulator.connection import EventStream
from tokgauge.simulator.engine import FINGERPRINT, Engine, Job, Watched
from tokgauge.simulator.scheduler import Output

_encode = msgspec.json.encode
_DEFAULT_MAX_TOKENS = 16


async def handle(engine: Engine, job: Job) -> None:
    body = job.body
    if "prompt" not in body:
        raise errors.missing("prompt", body)
    engine.check_model(body)
    prompts = _prompts(body["prompt"])
    engine.start(
        job,
        prompts,
        requested_tokens=body.get("max_tokens", _DEFAULT_MAX_TOKENS),
        choices=int(body.get("n") or 1),
        korean=tokens.is_korean(prompts[0]),
    )
    async with Watched(job):
        if job.stream:
            await _stream(engine, job)
        else:
            await _answer_whole(engine, job)


def _prompts(prompt: Any) -> list[str]:
    """The prompts as text; token ids, which have no text here, become one word each."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise errors.ApiError("Please provide at least one prompt")
    if isinstance(prompt[0], int):
        return [" id" * len(prompt)]
    return [text if isinstance(text, str) else " id" * len(text) for text in prompt]


def _echo(job: Job, index: int) -> str:
    return job.prompts[index // job.choices] if job.body.get("echo") else ""


async def _stream(engine: Engine, job: Job) -> None:
    options = UsageOptions(job.body)
    identity = _encode(job.request_id("cmpl")).decode()
    model = _encode(engine.profile.model).decode()
    head = (
        f'data: {{"id":{identity},"object":"text_completion","created":{job.created},'
        f'"model":{model},"choices":['
    )
    counts = [0] * len(job.generation.sequences)
    finished = 0
    stream = EventStream(job.connection, job.faults)
    await stream.start()
    async for output in job.generation.outputs():
        text, ids = output.text, "null"
        if counts[output.choice] == 0 and job.body.get("echo"):
            text = _echo(job, output.choice) + text
            ids = _encode(job.prompt_ids[output.choice // job.choices]).decode()
        counts[output.choice] = output.completion_tokens
        usage = fingerprint = ""
        if options.continuous:
            # Of the one choice that the event belongs to, unlike the chat's running sum.
            prompt = len(job.prompt_ids[output.choice // job.choices])
            made = output.completion_tokens
            usage = (
                f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + made},'
                f'"completion_tokens":{made}}}'
            )
        if output.finish_reason is not None:
            finished += 1
            if finished == len(counts) and not options.include:
                fingerprint = f',"system_fingerprint":"{FINGERPRINT}"'
        await stream.event(
            (
                f'{head}{{"index":{output.choice},"text":{_encode(text).decode()},"logprobs":null,'
                f'"finish_reason":{_encode(output.finish_reason).decode()},'
                f'"stop_reason":{_encode(output.stop_reason).decode()},'
                f'"prompt_token_ids":{ids},"token_ids":null}}]{usage}{fingerprint}}}\n\n'
            ).encode()
        )
    if job.generation.aborted:
        return
    if options.include:
        total = _encode(final_usage(engine, job)).decode()
        await stream.event(
            f'{head}],"usage":{total},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()
        )
    await stream.finish()


async def _answer_whole(engine: Engine, job: Job) -> None:
    texts: defaultdict[int, str] = defaultdict(str)
    last: dict[int, Output] = {}
    async for output in job.generation.outputs():
        texts[output.choice] += output.text
        last[output.choice] = output
    if job.generation.aborted:
        return
    choices = [
        {
            "index": index,
            "text": _echo(job, index) + texts[index],
            "logprobs": None,
            "finish_reason": last[index].finish_reason,
            "stop_reason": last[index].stop_reason,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        for index in sorted(last)
    ]
    await job.connection.answer(
        {
            "id": job.request_id("cmpl"),
            "object": "text_completion",
            "created": job.created,
            "model": engine.profile.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": whole_usage(engine, job),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
        job.faults,
    )
