"""Record waits of one process in the history. A wait costs one row when it ends, and nothing while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from testbed_runtime.core.values import NS
from testbed_runtime.core.waits import KINDS, NO_LIMIT, STALL_TICK_S, Limit, Outcome
from testbed_runtime.ports.storage import HistorySink

INT64_MAX = 2**63 - 1
"""The largest budget that a row can hold. Options may be longer."""


@dataclass(slots=True)
class OpenWait:
    """A wait that has begun. `end` records it once; later calls do nothing."""

    log: WaitLog
    wait: str
    kind: str
    who: str
    what: str
    start_s: float
    attempt: int
    limit: Limit
    after: tuple[str, ...]
    cause: str

    @property
    def ended(self) -> bool:
        return self.wait not in self.log.waiting

    def end(
        self,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cause: str = "",
        at_s: float | None = None,
        at_least_s: float = 0.0,
    ) -> None:
        """Record the wait. `at_s` (loop time) defaults to now. A wait shorter than `at_least_s` is dropped."""
        now_s = self.log.now()
        dropped = at_least_s > 0 and now_s - self.start_s < at_least_s
        if self.log.waiting.pop(self.wait, None) is not None and not dropped:
            self.log.record(self, outcome, cause or self.cause, now_s if at_s is None else at_s)


@dataclass(slots=True)
class WaitLog:
    """The waits of one process; owned by its shell. `now` is the loop's time in seconds."""

    history: HistorySink
    process: str
    now: Callable[[], float]
    _number: int = 0
    waiting: dict[str, OpenWait] = field(default_factory=dict)
    """The waits that have not ended, by their ids."""

    def begin(
        self,
        kind: str,
        who: str,
        what: str = "",
        *,
        attempt: int = -1,
        limit: Limit = NO_LIMIT,
        after: tuple[OpenWait, ...] = (),
        cause: str = "",
        since_s: float | None = None,
    ) -> OpenWait:
        """Begin a wait of a kind in core.waits.KINDS. `since_s` (loop time) defaults to now. Raises KeyError for an
        unknown kind, which is a bug of the caller."""
        declared = KINDS[kind]
        self._number += 1
        wait = OpenWait(
            log=self,
            wait=f"{self.process}/{self._number}",
            kind=declared.name,
            who=who,
            what=what,
            start_s=self.now() if since_s is None else since_s,
            attempt=attempt,
            limit=limit,
            after=tuple(w.wait for w in after),
            cause=cause,
        )
        self.waiting[wait.wait] = wait
        return wait

    def longest(self, who: str) -> str:
        """Describe the wait of this component that has lasted longest. Empty if it waits for nothing."""
        waits = [w for w in self.waiting.values() if w.who == who]
        if not waits:
            return ""
        first = min(waits, key=lambda w: w.start_s)
        limit = f", {first.limit.option} = {first.limit.value}" if first.limit.option else ""
        what = f": {first.what}" if first.what else ""
        return f"{KINDS[first.kind].doc}{what} (for {self.now() - first.start_s:.1f} s{limit})"

    def stalled(self, process: str, seconds: float) -> None:
        """Record that a process did not run for the last `seconds`. A StallMeter measured them from the tick
        that it missed, so the process stopped at some time in the interval before that tick."""
        self.begin("stalled", process, "event loop", since_s=self.now() - seconds - STALL_TICK_S / 2).end()

    def record(self, wait: OpenWait, outcome: Outcome, cause: str, end_s: float) -> None:
        """Write the row of a wait that ends. Called by `OpenWait.end`."""
        self.history.append(
            "waits",
            t_ns=int(end_s * NS),
            wait=wait.wait,
            kind=wait.kind,
            who=wait.who,
            what=wait.what,
            attempt=wait.attempt,
            start_ns=int(wait.start_s * NS),
            option=wait.limit.option,
            value=wait.limit.value,
            budget_ns=-1 if wait.limit.seconds is None else min(int(wait.limit.seconds * NS), INT64_MAX),
            outcome=str(outcome),
            cause=cause,
            after=" ".join(wait.after),
        )

    def cancel(self) -> None:
        """End every open wait as cancelled, because its owner has stopped."""
        for wait in list(self.waiting.values()):
            wait.end(Outcome.CANCELLED)

    def drop(self, wait: OpenWait) -> None:
        """Forget a wait that is not worth a row."""
        self.waiting.pop(wait.wait, None)

    def close(self) -> None:
        """Record every wait that has not ended as open. Call it before the history is flushed for the last time."""
        for wait in list(self.waiting.values()):
            wait.end(Outcome.OPEN)
