"""Where the `channel` backend hooks in, and where frames are seen. A pass-through by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from testbed_runtime.core.exchange.frames import Frame


class FrameInterceptor(Protocol):
    """Sees every frame between machine and wire. Calls `forward` now, later, or never (then with `drop`, so that
    buffers are given back). Order within a channel is the interceptor's promise to keep."""

    def outgoing(
        self, link: str, frame: Frame, forward: Callable[[], None], drop: Callable[[], None]
    ) -> None: ...

    @property
    def active(self) -> bool:
        """False: the pump does not even call it (the fast path)."""


class FrameTap(Protocol):
    """Sees frames before the interceptor (`sent`) and after receipt (`received`); adds nothing to the wire."""

    def seen(self, side: str, link: str, frame: Frame) -> None: ...


class CallInterceptor(Protocol):
    """Sees Rpc messages. `link` is `caller->callee` by logical process name."""

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        """False: the message is swallowed (the ask times out)."""

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        """In the callee's mailbox, so a delay here delays what is queued behind it. False: swallowed."""


class PartitionRegistrationHook(Protocol):
    """Called by the TaskExecutor around partition registration, with the text of the ResultPartitionID. Not called while inactive."""

    @property
    def active(self) -> bool: ...

    async def before_registration(self, vertex: str, partition: str) -> None:
        """Return when the partition of a task that is being deployed may be registered. Cancellation passes through."""

    def request_seen(self, partition: str) -> None:
        """A request named a partition that is not registered: it was answered with `not found`, or waits (from 1.19 on)."""


class NoRegistrationDelay:
    """The hook of a process without faults."""

    active = False

    async def before_registration(self, vertex: str, partition: str) -> None:
        del vertex, partition

    def request_seen(self, partition: str) -> None:
        del partition
