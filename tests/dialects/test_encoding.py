"""The decoder of the measuring copy: right for what is right, bounded for what is not."""

import gzip
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from tokgauge.dialects.encoding import CALL_LIMIT, TooLargeError, UndecodableError, decoder_for

CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw-deflate": ("deflate", lambda data: zlib.compress(data)[2:-4]),
    "br": ("br", lambda data: brotli.compress(data, quality=4)),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "zstd-frames": (
        "zstd",
        lambda data: b"".join(
            zstandard.ZstdCompressor().compress(data[at : at + 1000])
            for at in range(0, len(data), 1000)
        ),
    ),
}
LIMIT = 16 * 1024 * 1024
EVENTS = b"".join(
    b'data: {"choices":[{"index":0,"delta":{"content":"word %d"}}]}\n\n' % number
    for number in range(2000)
)
EVERY = pytest.mark.parametrize("coding", CODINGS)


@EVERY
@pytest.mark.parametrize("step", [1, 7, 1000, len(EVENTS)])
def test_any_cutting_gives_the_same(coding: str, step: int) -> None:
    name, encode = CODINGS[coding]
    encoded = encode(EVENTS)
    decoder = decoder_for(name, LIMIT)
    assert decoder is not None
    pieces = [decoder.decode(encoded[at : at + step]) for at in range(0, len(encoded), step)]
    assert b"".join(pieces) == EVENTS


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_flushed_events_come_at_once(coding: str) -> None:
    """As a server that compresses a stream sends it: an event is whole after its flush."""
    if coding == "gzip":
        compressor = zlib.compressobj(wbits=31)
        flushed = [
            compressor.compress(b"event %d\n\n" % number) + compressor.flush(zlib.Z_SYNC_FLUSH)
            for number in range(50)
        ]
    elif coding == "br":
        br = brotli.Compressor()
        flushed = [br.process(b"event %d\n\n" % number) + br.flush() for number in range(50)]
    else:
        zstd = zstandard.ZstdCompressor().compressobj()
        flushed = [
            zstd.compress(b"event %d\n\n" % number) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
            for number in range(50)
        ]
    decoder = decoder_for(coding, LIMIT)
    assert decoder is not None
    for number, piece in enumerate(flushed):
        assert decoder.decode(piece) == b"event %d\n\n" % number


@EVERY
def test_the_limit_is_the_last_byte(coding: str) -> None:
    name, encode = CODINGS[coding]
    encoded = encode(EVENTS)
    exact, less = decoder_for(name, len(EVENTS)), decoder_for(name, len(EVENTS) - 1)
    assert exact is not None
    assert less is not None
    assert exact.decode(encoded) == EVENTS
    with pytest.raises(TooLargeError):
        less.decode(encoded)


@EVERY
def test_what_is_damaged_or_goes_on_after_its_end_is_undecodable(coding: str) -> None:
    name, encode = CODINGS[coding]
    decoder = decoder_for(name, LIMIT)
    assert decoder is not None
    decoder.decode(encode(EVENTS))
    with pytest.raises(UndecodableError):
        decoder.decode(b"\xff" * 64)
    decoder = decoder_for(name, LIMIT)
    assert decoder is not None
    with pytest.raises(UndecodableError):
        decoder.decode(b"\xff" * 64)


def bombs() -> dict[str, bytes]:
    """64 MiB of one byte: 2 kB of zstd, 60 bytes of br."""
    zeros = bytes(1024 * 1024)
    compressors = {
        "gzip": zlib.compressobj(9, wbits=31),
        "deflate": zlib.compressobj(9),
        "br": brotli.Compressor(quality=1, lgwin=24),
        "zstd": zstandard.ZstdCompressor(level=1).compressobj(),
    }
    made = {}
    for name, compressor in compressors.items():
        feed = compressor.process if name == "br" else compressor.compress
        pieces = [feed(zeros) for _ in range(64)]
        made[name] = b"".join(pieces) + (
            compressor.finish() if name == "br" else compressor.flush()
        )
    return made


def defuse(coding: str, bomb: bytes, step: int) -> tuple[int, float]:
    """Feed a bomb until it is given up: bytes that came out, and the longest call in seconds."""
    decoder = decoder_for(coding, LIMIT)
    assert decoder is not None
    total, longest = 0, 0.0
    for at in range(0, len(bomb), step):
        began = time.thread_time()
        try:
            total += len(decoder.decode(bomb[at : at + step]))
        except TooLargeError:
            return total, max(longest, time.thread_time() - began)
        longest = max(longest, time.thread_time() - began)
    raise AssertionError("all of it was decoded")


def measure() -> None:
    """Print for each bomb and size of pieces what `defuse` finds, then the memory in KiB."""
    made = bombs()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for coding, bomb in made.items():
        for step in (64, len(bomb)):
            found = [defuse(coding, bomb, step) for _ in range(3)]
            print(found[0][0], min(longest for _, longest in found))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def test_a_bomb_costs_neither_memory_nor_time() -> None:
    code = "from tests.dialects.test_encoding import measure; measure()"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    *calls, grown = ended.stdout.splitlines()
    assert len(calls) == 8
    for call in calls:
        total, longest = call.split()
        assert int(total) <= LIMIT
        # On an idle machine it is about 5 ms; one call used to take a second.
        assert float(longest) < 0.05
    assert int(grown) < 64 * 1024, f"{grown} KiB"  # br's window has 16 MiB, zstd's 8 MiB


def test_a_call_is_bounded_however_high_the_limit() -> None:
    decoder = decoder_for("gzip", 1 << 40)
    assert decoder is not None
    assert len(decoder.decode(gzip.compress(bytes(CALL_LIMIT)))) == CALL_LIMIT
    decoder = decoder_for("gzip", 1 << 40)
    assert decoder is not None
    with pytest.raises(TooLargeError):
        decoder.decode(gzip.compress(bytes(CALL_LIMIT + 1)))


def test_a_zstd_window_beyond_the_content_coding_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    encoded = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    decoder = decoder_for("zstd", LIMIT)
    assert decoder is not None
    with pytest.raises(UndecodableError):
        decoder.decode(encoded.compress(b"a" * 1000) + encoded.flush())
