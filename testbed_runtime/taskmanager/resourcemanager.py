"""A TaskExecutor's connection to the ResourceManager: registration with retry, the watch over its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from testbed_runtime.core.job.heartbeat import HeartbeatConfig
from testbed_runtime.core.job.messages import RegisterTaskManager, RegistrationResult
from testbed_runtime.core.job.registration import Attempt, RegistrationConfig, RetryingRegistration
from testbed_runtime.core.options import Options
from testbed_runtime.ports.network import Address
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure, Rpc
from testbed_runtime.taskmanager.gateway import JOBMANAGER
from testbed_runtime.taskmanager.heartbeats import PeerWatch

RESOURCEMANAGER = "resourcemanager"
LEADER_PROBE_S = 0.5
"""Pause while nobody answers at the JobManager's address. Flink is told by its leader election when there is a leader again;
here its address is probed instead, and the error delay is kept for errors of a leader that is there."""


class ResourceManagerConnection:
    """Keeps this TaskManager registered until it is closed. `on_fatal` when the registration duration is over."""

    def __init__(
        self,
        rpc: Rpc,
        address: Address,
        options: Options,
        *,
        message: Callable[[], RegisterTaskManager],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._rpc = rpc
        self._address = address
        self._config = RegistrationConfig.of(options)
        self._limit_s = options.duration("taskmanager.registration.timeout")
        self._limit_text = options.text("taskmanager.registration.timeout")
        self._message = message
        self._on_fatal = on_fatal
        self._watch = PeerWatch(HeartbeatConfig.of(options), self._on_silence)
        self._worker: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self.leader = ""

    def connect(self) -> None:
        """Start registering. Harmless while that is under way."""
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(
                self._register(), name="register-at-resourcemanager"
            )

    async def registered(self) -> None:
        """Until the ResourceManager knows this TaskManager."""
        await self._registered.wait()

    @property
    def is_registered(self) -> bool:
        return self._registered.is_set()

    def on_heartbeat(self) -> None:
        self._watch.on_heartbeat()

    def extend(self, seconds: float) -> None:
        self._watch.extend(seconds)

    def _on_silence(self) -> None:
        self.leader = ""
        self._registered.clear()
        self.connect()

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        registration = RetryingRegistration(self._config)
        attempt, deadline = registration.first(), loop.time() + self._limit_s
        while loop.time() < deadline:
            await asyncio.sleep(attempt.delay_s)
            answer = await self._attempt(registration, attempt)
            if isinstance(answer, Attempt):
                attempt = answer
                continue
            self._worker = None
            self._on_answer(answer)
            return
        self._worker = None
        self._on_fatal(
            "Could not register at the ResourceManager within the specified maximum registration duration "
            f"{self._limit_text}. This indicates a problem with this instance. Terminating now."
        )

    async def _attempt(
        self, registration: RetryingRegistration, attempt: Attempt
    ) -> RegistrationResult | Attempt:
        """The answer that ends the registration, or what to do next."""
        try:
            answer: RegistrationResult = await self._rpc.ask(
                JOBMANAGER, self._address, RESOURCEMANAGER, self._message(), timeout_s=attempt.timeout_s
            )
        except AskTimeout:
            return registration.on_timeout()
        except RecipientUnreachable:
            return Attempt(LEADER_PROBE_S, registration.first().timeout_s)
        except RemoteFailure:
            return registration.on_error()
        return registration.on_refused() if answer.outcome == "failure" else answer

    def _on_answer(self, answer: RegistrationResult) -> None:
        if answer.outcome != "success":
            self._on_fatal(f"The ResourceManager rejected this TaskManager: {answer.reason}")
            return
        self.leader = answer.leader
        self._watch.start()
        self._registered.set()

    async def close(self) -> None:
        self._watch.stop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
            self._worker = None
