"""JSON → msgspec structs, where a member of an unexpected kind costs only itself."""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

_T = TypeVar("_T", bound=msgspec.Struct)


class PartlyReadError(Exception):
    """A list that says what the object is about is wrong; `rest` is the object without that."""

    def __init__(self, rest: msgspec.Struct) -> None:
        super().__init__("a list of objects was expected")
        self.rest = rest


class LenientDecoder(Generic[_T]):
    """Decodes an object into `kind`, whose members are `Any`, structs or lists of structs.

    Of what `strict` refuses, `salvage` takes a member as absent that should be an object and is
    not.
    """

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self.strict = msgspec.json.Decoder(kind).decode
        """As good as free, which counts for each event. Raises `msgspec.MsgspecError`."""

    def salvage(self, data: bytes) -> _T:
        """Raises `msgspec.MsgspecError` for what is no JSON object, and `PartlyReadError`."""
        value = msgspec.json.decode(data)
        if not isinstance(value, dict):
            raise msgspec.ValidationError("an object was expected")
        lost: list[Any] = []
        fitted = _fitted(self._kind, value, lost)
        if lost:
            raise PartlyReadError(fitted)
        return fitted


def _fitted(kind: type[_T], value: dict[str, Any], lost: list[Any]) -> _T:
    """What does not fit in a list of structs is added to `lost`."""
    members: dict[str, Any] = {}
    for name, inner, many in _members(kind):
        member = value.get(name)
        if inner is None:
            if name in value:
                members[name] = member
        elif not many:
            members[name] = _fitted(inner, member, lost) if isinstance(member, dict) else None
        elif member is not None:
            items = member if isinstance(member, list) else [member]
            lost += [item for item in items if not isinstance(item, dict)]
            members[name] = [_fitted(inner, item, lost) for item in items if isinstance(item, dict)]
    return kind(**members)


@cache
def _members(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any, bool], ...]:
    """Name of each member, the struct in it (None: anything) and whether there is a list of it."""
    found = []
    for member in msgspec.structs.fields(kind):
        inner, many = None, False
        for part in get_args(member.type):
            if get_origin(part) is list:
                inner, many = get_args(part)[0], True
            elif part is not type(None):
                inner = part
        found.append((member.encode_name, inner, many))
    return tuple(found)
