"""Rpc with actor semantics: one FIFO mailbox per endpoint; an ask timeout does not cancel the callee."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from testbed_runtime.core.errors import FlinkError, HeadgateError
from testbed_runtime.ports.network import Address

Handler: TypeAlias = "Callable[[Any], Awaitable[Any]]"
"""Takes one message (a Struct of core.job.messages). Returns a Struct, None, or a future of either. A FlinkError that it raises is sent
to the caller."""


class NoAnswer(HeadgateError):
    """An ask was not answered."""


class RecipientUnreachable(NoAnswer):
    """The connection was refused, or the endpoint does not exist. As in Flink, this is not raised for an ask that was
    sent before its connection broke: its answer is lost, and the ask times out."""


class AskTimeout(NoAnswer):
    """No answer in time. The callee continues its work. `class_name` is Flink's class, which depends on its version."""

    def __init__(self, text: str, class_name: str = "TimeoutException") -> None:
        super().__init__(text)
        self.class_name = class_name


class RemoteFailure(FlinkError):
    """The callee's handler raised a FlinkError."""


ASK_FAILURES = (NoAnswer, RemoteFailure)
"""Every error of `Rpc.ask`."""


class Rpc(Protocol):
    """One per process. Endpoints: `dispatcher`, `resourcemanager`, `jobmaster`, `taskexecutor`."""

    @property
    def address(self) -> Address:
        """The address that this process advertises; valid after `start`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def serve(
        self, endpoint: str, handlers: Mapping[type[Any], Handler], *, service_time_s: float = 0.0
    ) -> None:
        """Open the endpoint's mailbox: one message at a time, in order of arrival, each first spending
        `service_time_s` through the Cpu port. A handler that has to wait for long starts a task and returns."""

    async def stop(self, endpoint: str) -> None:
        """Close an endpoint, as an actor that is stopped: the asks in its mailbox become unreachable, and so do later ones until
        it is served again. Does nothing if it is not open."""

    def post(self, endpoint: str, message: Any) -> None:
        """Put a message into a mailbox of this process, without an answer. Timers and task callbacks use it. The message is dropped if
        the endpoint is not open."""

    def busy_s(self, endpoint: str) -> float:
        """Return for how long an endpoint of this process has handled one message after the other. 0 while its mailbox is empty."""

    async def ask(
        self, peer: str, address: Address, endpoint: str, message: Any, *, timeout_s: float, call_id: str = ""
    ) -> Any:
        """Ask `endpoint` at `peer` (logical id, for the resolver and the faults; `address` is what it advertised).
        `call_id` makes a repeated call idempotent: the callee answers the recorded result.
        Raises ASK_FAILURES."""
