"""The hooks of ports.interception in the pump: nothing by default, several taps in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed_runtime.core.exchange.frames import Frame
from testbed_runtime.ports.interception import FrameTap


class PassThrough:
    """A FrameInterceptor that is never active: the pump does not even call it."""

    @property
    def active(self) -> bool:
        return False

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        del link, frame, drop
        forward()


class Taps:
    """One FrameTap that shows each frame to several, in order."""

    def __init__(self, taps: Sequence[FrameTap]) -> None:
        self._taps = tuple(taps)

    def seen(self, side: str, link: str, frame: Frame) -> None:
        for tap in self._taps:
            tap.seen(side, link, frame)
