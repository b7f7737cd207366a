"""The FIFO mailbox of an endpoint, and the texts of asks that fail.

An ask that timed out at the caller stays in the queue and is still processed, as in an actor system.
"""

from __future__ import annotations

import asyncio
import json
import types
from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from testbed_runtime.core.errors import FlinkError, HeadgateError
from testbed_runtime.core.job.rpcnames import METHODS
from testbed_runtime.core.versions import ASK_NAMES_INVOCATION, PEKKO, has
from testbed_runtime.ports.execution import Cpu
from testbed_runtime.ports.interception import CallInterceptor
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, Handler, RecipientUnreachable
from testbed_runtime.ports.storage import HistorySink

MAX_QUEUED_MESSAGES = 100_000
"""Maximum messages in one mailbox: ten times the acknowledgements of a job of 4,330 subtasks."""

QUIET = ("Heartbeat", "RegisterTaskManager", "RegisterAtJobMaster", "RemoteHandshakeMessage")
"""Messages whose timeouts are part of normal operation (heartbeats, doubling retries). They write no `rpc.timeout` event."""

_UNREACHABLE = (
    "Could not send message [{0}] from sender [{1}] to recipient [{2}], because the recipient is unreachable. "
    "This can either mean that the recipient has been terminated or that the remote RpcService is currently not reachable."
)
_TIMED_OUT = (
    "Invocation of [{0}] at recipient [{1}] timed out. This is usually caused by: 1) Pekko failed sending the message "
    "silently, due to problems like oversized payload or serialization failures. In that case, you should find detailed "
    "error information in the logs. 2) The recipient needs more time for responding, due to problems like slow machines "
    "or network jitters. In that case, you can try to increase pekko.ask.timeout."
)


def invocation(message: Any) -> str:
    """How Flink prints a message: `RemoteRpcInvocation(<gateway>.<method>(…))`."""
    name = type(message).__name__
    return f"RemoteRpcInvocation({METHODS.get(name, name[:1].lower() + name[1:] + '()')})"


class Ask(NamedTuple):
    """One ask, as its caller sees it."""

    sender: str
    peer: str
    address: Address
    endpoint: str
    message: Any
    timeout_s: float

    @property
    def recipient(self) -> str:
        """The actor as Flink prints it, prefixed with the logical id because ports change."""
        return f"{self.peer}@pekko.tcp://flink@{self.address[0]}:{self.address[1]}/user/rpc/{self.endpoint}"


def timeout_text(flink_version: str, ask: Ask) -> str:
    """Flink's text of an ask timeout, by version."""
    if not has(flink_version, ASK_NAMES_INVOCATION):
        limit_ms = round(ask.timeout_s * 1000)
        return f"Ask timed out on [Actor[akka://flink/user/rpc/{ask.endpoint}]] after [{limit_ms} ms]"
    text = _TIMED_OUT.format(invocation(ask.message), ask.recipient)
    return text if has(flink_version, PEKKO) else text.replace("Pekko", "Akka").replace("pekko", "akka")


def timed_out(history: HistorySink | None, flink_version: str, ask: Ask) -> AskTimeout:
    """Return the timeout with Flink's text, and record an `rpc.timeout` event unless the message is QUIET."""
    text = timeout_text(flink_version, ask)
    name = type(ask.message).__name__
    if history is not None and name not in QUIET:
        data = {"method": name, "timeout_s": ask.timeout_s, "peer": ask.peer}
        history.append(
            "events",
            kind="rpc.timeout",
            subject=ask.endpoint,
            text=text,
            data=json.dumps(data, sort_keys=True),
        )
    named = has(flink_version, ASK_NAMES_INVOCATION)
    return AskTimeout(text, "TimeoutException" if named else "AskTimeoutException")


def unreachable(ask: Ask) -> RecipientUnreachable:
    """Return the error with Flink's text."""
    return RecipientUnreachable(_UNREACHABLE.format(invocation(ask.message), ask.sender, ask.recipient))


class SleepingCpu:
    """A Cpu that sleeps: service time keeps the mailbox busy, not the machine."""

    async def spend(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def yield_control(self) -> None:
        await _turn()


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Let the loop run the other callbacks, as `asyncio.sleep(0)` does."""
    yield


class NoInterception:
    """The CallInterceptor of a process without faults."""

    active = False

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        return True

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        return True


class _Letter(NamedTuple):
    message: Any
    answer: asyncio.Future[Any] | None


class Mailbox:
    """Processes one message at a time, in order of arrival. Each message first spends the service time.

    `handlers` is looked up for each message, so its owner may change it. `put` never waits. The owner of the mailbox runs `run` in a task."""

    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[type[Any], Handler],
        *,
        service_time_s: float,
        cpu: Cpu,
        interceptor: CallInterceptor,
    ) -> None:
        self.endpoint = endpoint
        self._handlers = handlers
        self._service_time_s = service_time_s
        self._cpu = cpu
        self._interceptor = interceptor
        self._queue: deque[_Letter] = deque()
        self._current: _Letter | None = None
        self._empty: asyncio.Future[None] | None = None
        """Set while `run` waits for a message."""
        self._busy_since: float | None = None

    def busy_s(self) -> float:
        """Return for how long one message has followed the other. 0 while none is processed."""
        return 0.0 if self._busy_since is None else asyncio.get_running_loop().time() - self._busy_since

    def __len__(self) -> int:
        """Number of queued messages."""
        return len(self._queue)

    def put(self, message: Any, answer: asyncio.Future[Any] | None) -> None:
        """Queue a message. Raises HeadgateError when the mailbox is full."""
        if len(self._queue) >= MAX_QUEUED_MESSAGES:
            raise HeadgateError(
                f"the mailbox of {self.endpoint} holds {MAX_QUEUED_MESSAGES} messages already"
            )
        self._queue.append(_Letter(message, answer))
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def run(self) -> None:
        """Process messages until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            while self._queue:
                if self._busy_since is None:
                    self._busy_since = loop.time()
                self._current = self._queue.popleft()
                await self._handle(self._current)
                self._current = None
            self._busy_since = None
            self._empty = loop.create_future()
            await self._empty

    def drop(self) -> None:
        """Cancel the answers of the messages that are not processed. Call it when `run` has ended."""
        for letter in (self._current, *self._queue):
            if letter is not None and letter.answer is not None:
                letter.answer.cancel()
        self._queue.clear()

    async def _handle(self, letter: _Letter) -> None:
        if self._service_time_s > 0:
            await self._cpu.spend(self._service_time_s)
        interceptor = self._interceptor
        if interceptor.active and not await interceptor.before_handle(self.endpoint, letter.message):
            return  # a fault has dropped the message: the ask times out
        try:
            handler = self._handlers.get(type(letter.message))
            if handler is None:
                raise FlinkError(  # noqa: TRY301
                    "RpcInvalidStateException",
                    f"The endpoint {self.endpoint} does not handle {type(letter.message).__name__}.",
                )
            result = await handler(letter.message)
        except FlinkError as error:
            self._fail(letter, error)
        except Exception as error:  # a bug in one handler must not end the endpoint
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{self.endpoint} failed on {type(letter.message).__name__}", "exception": error}
            )
            self._fail(letter, FlinkError("RuntimeException", f"{type(error).__name__}: {error}"))
        else:
            if letter.answer is not None and isinstance(result, asyncio.Future):
                result.add_done_callback(partial(_pass_on, letter.answer))
            elif letter.answer is not None and not letter.answer.done():
                letter.answer.set_result(result)

    def _fail(self, letter: _Letter, error: FlinkError) -> None:
        if letter.answer is not None:
            if not letter.answer.done():
                letter.answer.set_result(error)
            return
        asyncio.get_running_loop().call_exception_handler(
            {
                "message": f"{self.endpoint}: a posted {type(letter.message).__name__} failed",
                "exception": error,
            }
        )


def _pass_on(answer: asyncio.Future[Any], later: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_result(later.result())


def when_answered(
    answer: asyncio.Future[Any], tell: Callable[[Any], None], unreachable: Callable[[], None]
) -> None:
    """Call `tell` when there is an answer, or `unreachable` when the endpoint was stopped. Call neither if there is never an answer."""

    def done(future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            unreachable()
        else:
            tell(future.result())

    answer.add_done_callback(done)
