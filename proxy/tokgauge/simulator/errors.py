"""The error responses of vLLM 0.32, in its words and its four shapes."""

from __future__ import annotations

import msgspec

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class ApiError(Exception):
    """Becomes `{"error":{...}}`, or Anthropic's shape on /v1/messages."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        }  # fmt: skip
        return msgspec.json.encode({"error": error})

    def messages_body(self) -> bytes:
        error = {"type": self.kind, "message": self.message}
        return msgspec.json.encode({"type": "error", "error": error})


class DetailError(Exception):
    """Becomes `{"detail":"..."}`: what the web framework says before vLLM's code runs."""

    def __init__(self, status: int, detail: str, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers

    def body(self) -> bytes:
        return msgspec.json.encode({"detail": str(self)})


def validation(kind: str, loc: str, text: str, extra: str) -> ApiError:
    message = (
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}', {extra}}}"
    )
    return ApiError(message, kind="Bad Request", param=loc)


def missing(field: str, body: dict[str, object]) -> ApiError:
    loc = f"body.{field}"
    found = f"'input': '<dict of {len(body)} items>'"
    return validation("missing", loc, "Field required", found)


def parameter(message: str, name: str, value: object = None) -> ApiError:
    shown = "" if value is None else f", value={value}"
    return ApiError(f"{message} (parameter={name}{shown})", param=name)


def unknown_model(model: object, known: str) -> ApiError:
    return ApiError(
        f"The model `{model}` does not exist. Valid aliases: {known}.",
        status=404,
        kind="NotFoundError",
        param="model",
    )


def engine_dead() -> ApiError:
    return ApiError(ENGINE_DEAD, status=500, kind="InternalServerError")


ENGINE_DEAD_EVENT = (
    f'data: {{"error": {{"message": "{ENGINE_DEAD}", '
    '"type": "InternalServerError", "param": null, "code": 500}}\n\n'
).encode()
"""What a stream says when the engine process dies: spaced JSON, unlike every other event."""
