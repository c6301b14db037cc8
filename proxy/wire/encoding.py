"""`Content-Encoding` → a decoder for the measuring copy; the client's bytes stay encoded."""

from __future__ import annotations

import importlib
import zlib
from typing import Protocol

OUTPUT_LIMIT = 32 * 1024 * 1024
"""Decoded bytes of one answer beyond which a decoder gives up (a decompression bomb)."""


class UndecodableError(Exception):
    """The encoded bytes are damaged or grow beyond `OUTPUT_LIMIT`."""


class Decoder(Protocol):
    """Decodes a stream piece by piece."""

    def decode(self, data: bytes) -> bytes:
        """Decode the next piece. Raises `UndecodableError`."""


class _Identity:
    def decode(self, data: bytes) -> bytes:
        return data


class _Zlib:
    """gzip and deflate (RFC 9110 §8.4.1; some servers send deflate without its zlib header)."""

    def __init__(self, *, raw_deflate_allowed: bool) -> None:
        self._object = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._raw_allowed = raw_deflate_allowed
        self._total = 0

    def decode(self, data: bytes) -> bytes:
        try:
            decoded = self._decompress(data)
        except zlib.error as error:
            if not self._raw_allowed or self._total:
                raise UndecodableError(str(error)) from error
            self._object = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                decoded = self._decompress(data)
            except zlib.error as again:
                raise UndecodableError(str(again)) from again
        self._raw_allowed = False
        return decoded

    def _decompress(self, data: bytes) -> bytes:
        decoded = self._object.decompress(data, OUTPUT_LIMIT - self._total + 1)
        self._total += len(decoded)
        if self._total > OUTPUT_LIMIT:
            raise UndecodableError("decoded answer is too large to measure")
        return decoded


class _Library:
    """zstd and br through the libraries of the extra `zstd`."""

    def __init__(self, coding: str) -> None:
        if coding == "zstd":
            module = importlib.import_module("zstandard")
            self._decode = module.ZstdDecompressor().decompressobj().decompress
        else:
            module = importlib.import_module("brotli")
            self._decode = module.Decompressor().process
        self._error: type[Exception] = getattr(module, "ZstdError", None) or module.error
        self._total = 0

    def decode(self, data: bytes) -> bytes:
        try:
            decoded: bytes = self._decode(data)
        except self._error as error:
            raise UndecodableError(str(error)) from error
        self._total += len(decoded)
        if self._total > OUTPUT_LIMIT:
            raise UndecodableError("decoded answer is too large to measure")
        return decoded


def decoder_for(content_encoding: str) -> Decoder | None:
    """A decoder for the header's value; None when the coding is unknown or its library missing."""
    coding = content_encoding.strip().lower()
    if coding in ("", "identity"):
        return _Identity()
    if coding in ("gzip", "x-gzip", "deflate"):
        return _Zlib(raw_deflate_allowed=coding == "deflate")
    if coding in ("zstd", "br"):
        try:
            return _Library(coding)
        except ImportError:
            return None
    return None
