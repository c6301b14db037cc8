"""What a response says that it is."""

from __future__ import annotations

from collections.abc import Mapping


def media_type(content: Mapping[str, str]) -> str:
    """Its Content-Type in lower case, without parameters; empty when it has none.

    content: content headers, names in lower case.
    """
    return content.get("content-type", "").partition(";")[0].strip().lower()
