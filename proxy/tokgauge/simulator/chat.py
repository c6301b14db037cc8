"""/v1/chat/completions as vLLM 0.32 speaks it: events, key order, where usage goes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tokgauge.simulator import errors, tokens
from tokgauge.simulator.connection import EventStream
from tokgauge.simulator.engine import FINGERPRINT, Engine, Job, Watched, hex_id
from tokgauge.simulator.scheduler import Output

_encode = msgspec.json.encode


def render_prompt(messages: object) -> str:
    """The chat template: Qwen's, without a default system message."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        found = f"'input': '<{type(messages).__name__}>'"
        text = "Input should be a valid list"
        raise errors.validation("list_type", "body.messages", text, found)
    if not messages:
        text = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise errors.ApiError(text)
    turns = (f"<|im_start|>{m.get('role')}\n{text_of(m)}<|im_end|>\n" for m in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def text_of(message: dict[str, Any]) -> str:
    """The text of a message whose content is a string, a list of parts, or absent."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def wants_korean(messages: list[Any]) -> bool:
    return bool(messages) and tokens.is_korean(text_of(messages[-1]))


async def handle(engine: Engine, job: Job) -> None:
    body = job.body
    if "messages" not in body:
        raise errors.missing("messages", body)
    engine.check_model(body)
    messages = body["messages"]
    limit = body.get("max_completion_tokens")
    engine.start(
        job,
        [render_prompt(messages)],
        requested_tokens=body.get("max_tokens") if limit is None else limit,
        choices=int(body.get("n") or 1),
        korean=wants_korean(messages),
        reasoning=(
            engine.profile.reasoning_tokens
            if job.faults.reasoning is None
            else job.faults.reasoning
        ),
        tools=_called_tools(job),
    )
    async with Watched(job):
        if job.stream:
            await _Stream(engine, job).run()
        else:
            await _answer_whole(engine, job)


def _called_tools(job: Job) -> list[dict[str, Any]]:
    """The functions that the answer calls: when forced to, or asked by x-simulate."""
    functions = [tool["function"] for tool in job.body.get("tools") or [] if "function" in tool]
    choice = job.body.get("tool_choice")
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise errors.ApiError(text)
    elif choice != "required" and job.faults.tool_calls is None:
        return []
    count = 1 if job.faults.tool_calls is None else job.faults.tool_calls
    return [functions[number % len(functions)] for number in range(count)] if functions else []


def whole_usage(engine: Engine, job: Job) -> dict[str, Any]:
    """`usage` of an answer that is not streamed."""
    prompt = completion = None
    if engine.profile.prompt_tokens_details:
        prompt = {
            "cached_tokens": job.cached_tokens,
            "created_cache_tokens": 0,
            "multimodal_tokens": None,
        }
    if job.reasoning:
        completion = {"reasoning_tokens": job.reasoning_tokens}
    return {
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + job.completion_tokens,
        "completion_tokens": job.completion_tokens,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": completion,
    }


def final_usage(engine: Engine, job: Job) -> dict[str, Any]:
    """`usage` of a stream's usage event: without the keys that are null."""
    usage = whole_usage(engine, job)
    if usage["prompt_tokens_details"] is not None:
        del usage["prompt_tokens_details"]["multimodal_tokens"]
    return {key: value for key, value in usage.items() if value is not None}


class UsageOptions:
    """What `stream_options` asks for."""

    def __init__(self, body: dict[str, Any]) -> None:
        options = body.get("stream_options") or {}
        self.include = bool(options.get("include_usage"))
        self.continuous = self.include and bool(options.get("continuous_usage_stats"))


class _Stream:
    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._options = UsageOptions(job.body)
        model = _encode(engine.profile.model).decode()
        identity = _encode(job.request_id("chatcmpl")).decode()
        self._head = (
            f'data: {{"id":{identity},"object":"chat.completion.chunk","created":{job.created},'
            f'"model":{model},"choices":['
        )
        self._counts = [0] * job.choices
        self._open = job.choices
        self._calls: set[tuple[int, int]] = set()

    async def run(self) -> None:
        stream = EventStream(self._job.connection, self._job.faults)
        await stream.start()
        first = True
        async for output in self._job.generation.outputs():
            if first:
                first = False
                for index in range(self._job.choices):
                    await stream.event(self._role_event(index))
            self._counts[output.choice] = output.completion_tokens
            await stream.event(self._token_event(output))
        if self._job.generation.aborted:
            return
        if self._options.include:
            usage = _encode(final_usage(self._engine, self._job)).decode()
            tail = f'"system_fingerprint":"{FINGERPRINT}"}}\n\n'
            await stream.event(f'{self._head}],"usage":{usage},{tail}'.encode())
        await stream.finish()

    def _usage(self) -> str:
        if not self._options.continuous:
            return ""
        prompt, made = self._job.prompt_tokens, sum(self._counts)
        details = "null"
        if self._job.reasoning:
            thought = sum(min(self._job.reasoning, count) for count in self._counts)
            details = f'{{"reasoning_tokens":{thought}}}'
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + made},'
            f'"completion_tokens":{made},"completion_tokens_details":{details}}}'
        )

    def _role_event(self, index: int) -> bytes:
        return (
            f'{self._head}{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}]{self._usage()},'
            '"prompt_token_ids":null,"prompt_text":null}\n\n'
        ).encode()

    def _token_event(self, output: Output) -> bytes:
        delta = self._delta(output)
        if output.finish_reason is None:
            return (
                f'{self._head}{{"index":{output.choice},"delta":{delta},"logprobs":null,'
                f'"finish_reason":null,"token_ids":null}}]{self._usage()}}}\n\n'
            ).encode()
        self._open -= 1
        fingerprint = ""
        if self._open == 0 and not self._options.include:
            fingerprint = f',"system_fingerprint":"{FINGERPRINT}"'
        stop = _encode(output.stop_reason).decode()
        return (
            f'{self._head}{{"index":{output.choice},"delta":{delta},"logprobs":null,'
            f'"finish_reason":"{finish_reason(self._job, output)}","stop_reason":{stop},'
            f'"token_ids":null}}]{self._usage()}{fingerprint}}}\n\n'
        ).encode()

    def _delta(self, output: Output) -> str:
        text = _encode(output.text).decode()
        if output.kind == "reasoning":
            return f'{{"{self._engine.profile.reasoning_field}":{text}}}'
        if output.kind == "text":
            return f'{{"content":{text}}}'
        if (output.choice, output.call) in self._calls:
            function = f'{{"arguments":{text}}}'
            return f'{{"tool_calls":[{{"index":{output.call},"function":{function}}}]}}'
        self._calls.add((output.choice, output.call))
        name = _encode(self._job.tool_names[output.call]).decode()
        function = f'{{"name":{name},"arguments":{text}}}'
        return (
            f'{{"tool_calls":[{{"id":"chatcmpl-tool-{hex_id()}","type":"function",'
            f'"index":{output.call},"function":{function}}}]}}'
        )


def finish_reason(job: Job, output: Output) -> str | None:
    if output.finish_reason == "stop" and job.tool_names:
        return "tool_calls"
    return output.finish_reason


async def _answer_whole(engine: Engine, job: Job) -> None:
    texts: defaultdict[tuple[int, str, int], str] = defaultdict(str)
    last: dict[int, Output] = {}
    async for output in job.generation.outputs():
        texts[output.choice, output.kind, output.call] += output.text
        last[output.choice] = output
    if job.generation.aborted:
        return
    choices = []
    for index in range(job.choices):
        calls = [
            {
                "id": f"chatcmpl-tool-{hex_id()}",
                "type": "function",
                "function": {"name": name, "arguments": texts[index, "tool", call]},
            }
            for call, name in enumerate(job.tool_names)
            if (index, "tool", call) in texts
        ]
        message: dict[str, object] = {
            "role": "assistant",
            "content": None if calls else texts[index, "text", 0],
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if calls:
            message["tool_calls"] = calls
        message[engine.profile.reasoning_field] = texts.get((index, "reasoning", 0))
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": None,
                "finish_reason": finish_reason(job, last[index]),
                "stop_reason": last[index].stop_reason,
                "token_ids": None,
                "routed_experts": None,
            }
        )
    await job.connection.answer(
        {
            "id": job.request_id("chatcmpl"),
            "object": "chat.completion",
            "created": job.created,
            "model": engine.profile.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": whole_usage(engine, job),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        },
        job.faults,
    )
