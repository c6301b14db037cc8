"""The body of one request, as far as it is in memory."""

from __future__ import annotations

from tokgauge.relay.room import Room


class RequestBody:
    """received: bytes that have come. is_complete: that is all of it. is_here: none of it has gone
    up without being kept.
    """

    __slots__ = ("_pieces", "_reserved", "_room", "is_complete", "is_here", "received")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pieces: list[bytes] = []
        self._reserved = 0
        self.received = 0
        self.is_complete = False
        self.is_here = True

    def keep(self, piece: bytes) -> None:
        """Keep a part that must be kept, whatever room there is."""
        self._pieces.append(piece)

    def reserve(self, size: int) -> bool:
        """Whether there is room for so many bytes; they count as held then."""
        if not self._room.reserve(size):
            return False
        self._reserved += size
        return True

    def whole(self) -> bytes:
        """All that is kept."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def complete(self) -> None:
        """The last part is here: it holds nothing any more that could grow."""
        self.is_complete = True
        self._release()

    def drop(self) -> None:
        """Keep nothing of it: it goes up as it comes, or nobody wants it any longer."""
        self.is_here = False
        self._pieces.clear()
        self._release()

    def _release(self) -> None:
        self._room.release(self._reserved)
        self._reserved = 0
