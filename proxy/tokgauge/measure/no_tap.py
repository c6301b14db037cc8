"""What measures nothing: for exchanges that are the proxy's own."""

from __future__ import annotations

from tokgauge.measure.tap import Tap


class NoTap(Tap):
    """A tap that has never been entered: no method does anything but pass bytes on."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None, "", "", "other", 0.0)  # type: ignore[arg-type]

    def enter(self) -> None: ...
