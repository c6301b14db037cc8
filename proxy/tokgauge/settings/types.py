"""What the value of a setting may be: types that check it and say what would be accepted."""

from __future__ import annotations

import itertools
import json
import re
import string
from collections.abc import Mapping
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from tokgauge.quantities import BANDWIDTHS, BYTES, COUNTS, read_quantity


def engine_url(value: str) -> str:
    """An engine's address without the slash at its end. Raises ValueError for anything else."""
    refusal = "accepted: an address such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(value)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(refusal) from None
    usable = parts.scheme in ("http", "https") and parts.hostname and port_is_valid
    if not usable or re.search(r"[\s\x00-\x1f\x7f\\<>^`{|}\"]", value):
        raise ValueError(refusal)
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("accepted: scheme, host, port and path only (no user, query or fragment)")
    _resolvable(parts.hostname)
    without = re.sub(r"/v1(/.*)?$", "", value)
    if without != value:
        raise ValueError(f"accepted: {without} (clients' paths begin with /v1 themselves)")
    return value.rstrip("/")


def _resolvable(name: str | None) -> str:
    """Refuse what cannot be a host's name or address."""
    try:
        (name or "").encode("idna")
    except UnicodeError as error:
        raise ValueError(f"accepted: the name or address of a host ({error})") from error
    return name or ""


def _listening(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    if re.search(r"[\s/\[\]@]", value):
        raise ValueError("accepted: a name or an address such as 127.0.0.1, ::1 or 0.0.0.0")
    return _resolvable(value)


def _host_header(value: str) -> str:
    if not re.fullmatch(r"[\w.~%!$&'()*+,;=:\[\]-]+", value, re.ASCII):
        raise ValueError("accepted: a host with or without a port, such as engine:8000")
    return value


def _key(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError("accepted: printable ASCII without blanks")
    return value


def _trimmed(value: object) -> object:
    """What was pasted or read from a file often has a blank or a line end too many."""
    if isinstance(value, (list, tuple)):
        return [_trimmed(part) for part in value]
    if not isinstance(value, str):
        return value
    text = value.strip(string.whitespace + "\ufeff\u200b\u00a0")
    if not text.isprintable():
        raise ValueError("accepted: one line of printable characters")
    return text


def _from_commas(value: object) -> object:
    """Environment and flags write a list as `a,b,c`."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _rising(value: tuple[float, ...]) -> tuple[float, ...]:
    if not value or any(b <= a for a, b in itertools.pairwise(value)):
        raise ValueError("accepted: one or more numbers, each larger than the one before")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"accepted: a regular expression ({error})") from error
    return value


class Trimming(BaseModel):
    """Trims every text before it is looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _trim(cls, value: object, info: ValidationInfo) -> object:
        trimmed = _trimmed(value)
        is_list = isinstance(cls.model_fields[info.field_name or ""].default, tuple)
        if trimmed == "" and not is_list:
            raise ValueError("accepted: a value; leave the setting out for its default")
        return trimmed


def _json_object(value: str) -> str:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(f"accepted: a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("accepted: a JSON object")
    return value


def _as_quantity(value: object, units: Mapping[str, float]) -> object:
    """Sizes are written as in the commands: 14.14GB, 768 GB/s, 7.07B; or as a plain number."""
    if not isinstance(value, str) or not value.strip()[-1:].isalpha() or value.isalpha():
        return value
    return read_quantity(value, units)


EngineUrl = Annotated[str, AfterValidator(engine_url)]
Seconds = Annotated[float, Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], BeforeValidator(_from_commas)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
JsonObject = Annotated[str, AfterValidator(_json_object)]
ByteSize = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=BYTES))]
ByteRate = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=BANDWIDTHS))]
Count = Annotated[Positive, BeforeValidator(partial(_as_quantity, units=COUNTS))]
Pid = Annotated[int, Field(gt=0)]
Pids = Annotated[tuple[Pid, ...], BeforeValidator(_from_commas)]
Host = Annotated[str, AfterValidator(_listening)]
HostHeader = Annotated[str, AfterValidator(_host_header)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Buckets = Annotated[tuple[Positive, ...], BeforeValidator(_from_commas), AfterValidator(_rising)]
