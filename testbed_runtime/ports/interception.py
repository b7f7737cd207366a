"""Hooks for the `channel` fault backend and for frame taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from testbed_runtime.core.exchange.frames import Frame


class FrameInterceptor(Protocol):
    """Intercepts every frame between state machine and wire. Calls `forward` now or later, or `drop` to recycle the
    buffer. The interceptor must keep the order within a channel."""

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None: ...

    @property
    def active(self) -> bool:
        """Whether the pump calls the interceptor at all. False is the fast path."""


class FrameTap(Protocol):
    """Observes frames before the interceptor (`sent`) and after receipt (`received`), without changing them."""

    def seen(self, side: str, link: str, frame: Frame) -> None: ...


class FrameSampler(Protocol):
    """Records some of the frames that a tap has numbered."""

    def wants(self, number: int) -> bool:
        """Return whether to record a frame with this number, and count it if so."""

    def record(
        self, *, side: str, link: str, frame_class: str, channel: bytes, number: int, size: int
    ) -> None: ...


class CallInterceptor(Protocol):
    """Intercepts RPC messages. `link` is `caller->callee`, with logical process names."""

    @property
    def active(self) -> bool:
        """Whether messages are intercepted at all. False is the fast path."""

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        """Return False to drop the message, so that the ask times out."""

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        """Called in the callee's mailbox, so a delay here also delays the messages behind it. Return False to drop it."""


class PartitionRegistrationHook(Protocol):
    """The TaskExecutor calls this hook, while it is active, when it registers partitions. It passes the text of the ResultPartitionID."""

    @property
    def active(self) -> bool: ...

    async def before_registration(self, vertex: str, partition: str) -> None:
        """Return when the partition of a task that is being deployed may be registered. Cancellation passes through."""

    def request_seen(self, partition: str) -> None:
        """Called for a request of an unregistered partition: it was refused as not found, or waits (from 1.19 on)."""


class NoRegistrationDelay:
    """The hook of a process without faults."""

    active = False

    async def before_registration(self, vertex: str, partition: str) -> None:
        del vertex, partition

    def request_seen(self, partition: str) -> None:
        del partition


class Interception(Struct, frozen=True):
    """The hooks that intercept and observe the data exchange of a TaskManager; none by default."""

    frames: FrameInterceptor | None = None
    tap: FrameTap | None = None
    registration: PartitionRegistrationHook = NoRegistrationDelay()


NO_INTERCEPTION = Interception()
