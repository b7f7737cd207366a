"""The default for the pump's hooks in ports.interception: do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from testbed_runtime.core.exchange.frames import Frame


class PassThrough:
    """A FrameInterceptor that is never active, so the pump does not call it."""

    active: ClassVar = False

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        del link, frame, drop
        forward()
