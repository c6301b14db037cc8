"""`Content-Encoding` → a decoder for the measuring copy; the client's bytes stay encoded.

A few bytes can stand for gigabytes. No call makes more than `CALL_LIMIT` of them, which takes a few
milliseconds, and a decoder gives up at the limit that it was made with.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Protocol

CALL_LIMIT = 2 * 1024 * 1024
"""Most bytes that one call may decode to: eight times what one read of a socket brings."""

_ZLIB_HEADER = 2

_BROTLI_BLOCK = 32 * 1024
"""Up to here the library keeps to the limit that it is given; above, it makes far more."""

_ZSTD_WINDOW = 8 * 1024 * 1024
"""Largest window of the content coding zstd (RFC 9659)."""


class UndecodableError(Exception):
    """The encoded bytes are damaged."""


class TooLargeError(Exception):
    """The encoded bytes stand for more than is decoded."""


class Decoder(Protocol):
    """Decodes a stream piece by piece."""

    def decode(self, data: bytes) -> bytes:
        """Decode the next piece. Raises `UndecodableError` and `TooLargeError`; then it is over."""


class _Identity:
    def decode(self, data: bytes) -> bytes:
        return data


class _Zlib:
    """gzip and deflate (RFC 9110 §8.4.1; some servers send deflate without its zlib header)."""

    def __init__(self, limit: int, *, raw_deflate_allowed: bool) -> None:
        self._object = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._head: bytes | None = b"" if raw_deflate_allowed else None
        """What has come so far, while it may still turn out to have no header."""
        self._left = limit
        self._ended = False

    def decode(self, data: bytes) -> bytes:
        if self._ended and data:
            raise UndecodableError("there is something after the end")
        allowed = min(self._left, CALL_LIMIT)
        try:
            decoded = self._decompress(data, allowed + 1)
        except zlib.error as error:
            raise UndecodableError(str(error)) from error
        if len(decoded) > allowed:
            raise TooLargeError
        if self._object.unused_data:
            raise UndecodableError("there is something after the end")
        self._ended = self._object.eof
        self._left -= len(decoded)
        return decoded

    def _decompress(self, data: bytes, limit: int) -> bytes:
        if self._head is None:
            return self._object.decompress(data, limit)
        self._head += data
        try:
            decoded = self._object.decompress(data, limit)
        except zlib.error:
            self._object = zlib.decompressobj(-zlib.MAX_WBITS)
            decoded = self._object.decompress(self._head, limit)
            self._head = None
        else:
            if len(self._head) >= _ZLIB_HEADER:
                self._head = None
        return decoded


class _Brotli:
    """br through the library of the extra `zstd`."""

    def __init__(self, limit: int) -> None:
        module = importlib.import_module("brotli")
        self._object = module.Decompressor()
        self._error: type[Exception] = module.error
        self._left = limit

    def decode(self, data: bytes) -> bytes:
        allowed = min(self._left, CALL_LIMIT)
        decoded = bytearray()
        try:
            while True:
                block = self._object.process(data, output_buffer_limit=_BROTLI_BLOCK)
                decoded += block
                if len(decoded) > allowed:
                    raise TooLargeError
                if len(block) < _BROTLI_BLOCK:
                    break
                data = b""  # it has the rest of the input, or only output is left
        except self._error as error:
            raise UndecodableError(str(error)) from error
        self._left -= len(decoded)
        return bytes(decoded)


class _Zstd:
    """zstd through the library of the extra `zstd`.

    Its writer is the one interface that gives out no more than a block (128 KiB) at a time.
    """

    def __init__(self, limit: int) -> None:
        module = importlib.import_module("zstandard")
        self._decoded = bytearray()
        self._allowed = 0
        self._left = limit
        decompressor = module.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._writer = decompressor.stream_writer(self)
        self._error: type[Exception] = module.ZstdError

    def write(self, block: bytes) -> int:
        """Take a block of the writer. Raises TooLargeError, which passes through the writer."""
        if len(self._decoded) + len(block) > self._allowed:
            raise TooLargeError
        self._decoded += block
        return len(block)

    def decode(self, data: bytes) -> bytes:
        self._allowed = min(self._left, CALL_LIMIT)
        try:
            self._writer.write(data)
        except self._error as error:
            raise UndecodableError(str(error)) from error
        decoded = bytes(self._decoded)
        self._decoded.clear()
        self._left -= len(decoded)
        return decoded


def decoder_for(content_encoding: str, limit: int) -> Decoder | None:
    """A decoder for the header's value; None when the coding is unknown or its library missing.

    limit: bytes that it decodes to at most; what is not encoded has no limit here.
    """
    coding = content_encoding.strip().lower()
    if coding in ("", "identity"):
        return _Identity()
    if coding in ("gzip", "x-gzip", "deflate"):
        return _Zlib(limit, raw_deflate_allowed=coding == "deflate")
    try:
        if coding == "br":
            return _Brotli(limit)
        if coding == "zstd":
            return _Zstd(limit)
    except ImportError:
        return None
    return None
