"""How a task reports to its JobMaster, how an iteration is closed, and how a new leader is found."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.leaderelection import HIGH_AVAILABILITY, INFORMATION_KEY
from testbed_runtime.core.job.messages import Acknowledge, CommitRecords, SinkCommit, UpdateTaskExecutionState
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.backchannel import IterationBroker
from testbed_runtime.taskmanager.gateway import (
    COMMIT_GRACE_S,
    MAX_WAITING_COMMITS,
    JobMasterGateway,
    RecordCommitter,
    StateReports,
)
from testbed_runtime.taskmanager.leaderretrieval import LeaderRetrieval
from testbed_runtime.workload.records import latency_marker
from tests.taskmanager.rows import KeptRows

T0_S = 1000.0
"""The time at which a virtual loop begins."""
LATE, DOWN = AskTimeout("late", "AskTimeoutException"), RecipientUnreachable("refused")
BROKEN, REFUSED = (
    RemoteFailure("IllegalStateException", "no job"),
    Acknowledge(accepted=False, reason="unknown"),
)


class JobMaster(KeptRows):
    """Answers after some time, with these answers and then with yes; keeps what it was asked, with the time."""

    def __init__(self, *answers: Any, after_s: float = 0.0) -> None:
        self.answers = deque(answers)
        self.after_s = after_s
        self.asked: list[tuple[Any, float, str]] = []
        self.rows: list[dict[str, Any]] = []
        given: Any = self
        self.gateway = JobMasterGateway(given, ("jobmanager", 1), "job", "leader", "tm-0-1", 0.5)
        self.log = WaitLog(self, "tm-0-1", asyncio.get_running_loop().time)

    async def ask(self, *_: Any, timeout_s: float, call_id: str) -> Any:
        self.asked.append((_[3], round(asyncio.get_running_loop().time() - T0_S, 3), call_id))
        answer = self.answers.popleft() if self.answers else Acknowledge()
        await asyncio.sleep(timeout_s if isinstance(answer, AskTimeout) else self.after_s)
        if isinstance(answer, Exception):
            raise answer
        return answer


# ---- states


def reported(
    state: str, answer: Any = None, *, after_s: float = 0.0
) -> tuple[list[tuple[str, str, float]], list[FlinkError]]:
    """The waits (kind, outcome, seconds) of a report of this state, and the errors with which the task fails."""
    failed: list[FlinkError] = []

    async def main() -> list[tuple[str, str, float]]:
        master = JobMaster(*([] if answer is None else [answer]), after_s=after_s)
        reports = StateReports(
            master.gateway, failed.append, lambda kind, state: master.log.begin(kind, "map-0", state)
        )
        reports.send(UpdateTaskExecutionState("attempt", state, "tm-0-1"))
        await reports.drained()
        return [
            (row["kind"], row["outcome"], round((row["t_ns"] - row["start_ns"]) / 1e9, 3))
            for row in master.rows
        ]

    return run_virtual(main()), failed


@pytest.mark.parametrize(
    ("state", "after_s", "waits"),
    [
        ("RUNNING", 0.09, []),
        ("RUNNING", 0.11, [("jobmanager", "completed", 0.11)]),
        ("FAILED", 0.01, [("failure-report", "completed", 0.01)]),
    ],
)
def test_a_jobmaster_that_answers_soon_is_waited_for_only_by_a_failure(
    state: str, after_s: float, waits: list[tuple[str, str, float]]
):
    """0.1 s; a failure is not known before it is reported, however soon."""
    assert reported(state, after_s=after_s) == (waits, [])


@pytest.mark.parametrize(
    ("answer", "outcome", "class_name", "wait"),
    [
        (LATE, "expired", "AskTimeoutException", "jobmanager"),
        (DOWN, "failed", "RecipientUnreachableException", "jobmanager"),
        (BROKEN, "failed", "IllegalStateException", ""),
        (REFUSED, "", "ExecutionGraphException", ""),
    ],
    ids=["late", "down", "broken", "refused"],
)
def test_a_report_that_is_not_accepted_fails_the_task_unless_it_has_ended(
    answer: Any, outcome: str, class_name: str, wait: str
):
    """With the error of the call. The wait says how it ended."""
    waits, failed = reported("RUNNING", answer)
    assert [(error.class_name, error.wait) for error in failed] == [(class_name, wait)]
    assert [found for _, found, _ in waits] == ([outcome] if outcome else [])
    for state in ("FINISHED", "CANCELED", "FAILED"):
        assert reported(state, answer)[1] == []


def test_reports_that_are_not_answered_can_be_given_up():
    """The process ends."""

    async def main() -> float:
        master = JobMaster(after_s=60.0)
        reports = StateReports(
            master.gateway, lambda _: None, lambda kind, _: master.log.begin(kind, "map-0")
        )
        reports.send(UpdateTaskExecutionState("attempt", "RUNNING", "tm-0-1"))
        await asyncio.sleep(1.0)
        await reports.close()
        return asyncio.get_running_loop().time() - T0_S

    assert run_virtual(main()) == 1.0


def test_a_message_whose_loss_does_no_harm_ignores_failures():
    """The JobMaster's own timeouts cover it."""

    async def main() -> int:
        master = JobMaster(LATE, DOWN, BROKEN, REFUSED)
        for _ in range(4):
            await master.gateway.tell("message")
        return len(master.asked)

    assert run_virtual(main()) == 4


# ---- commits


def test_a_commit_is_sent_again_until_it_is_answered():
    """With the same id, after a pause; the next one waits for it. A refusal is an answer, and is counted."""

    async def main() -> tuple[list[tuple[int, float, str]], int]:
        master = JobMaster(DOWN, LATE, REFUSED, BROKEN)
        committer = RecordCommitter(master.gateway, "attempt", lambda _: None)
        for _ in range(3):
            committer.commit(SinkCommit())
        await committer.handed_over()
        await committer.close()
        return [(message.sequence, at, call) for message, at, call in master.asked], committer.rejected

    asked, rejected = run_virtual(main())
    ids = [f"attempt/commit/{n}" for n in range(3)]
    assert asked == [(0, 0.0, ids[0]), (0, 0.2, ids[0]), (0, 0.9, ids[0]), (1, 0.9, ids[1]), (2, 0.9, ids[2])]
    assert rejected == 2


def test_what_is_committed_later_is_not_waited_for():
    """A checkpoint covers what came before it."""

    async def main() -> float:
        master = JobMaster(after_s=1.0)
        committer = RecordCommitter(master.gateway, "attempt", lambda _: None)
        committer.commit(SinkCommit())
        waiting = asyncio.ensure_future(committer.handed_over())
        await asyncio.sleep(0)
        committer.commit(SinkCommit())
        await waiting
        took = asyncio.get_running_loop().time() - T0_S
        await committer.close()
        assert isinstance(master.asked[1][0], CommitRecords)
        return took

    assert run_virtual(main()) == 1.0


def test_a_sink_whose_commits_are_not_taken_fails_when_too_many_wait():
    """They are in memory. A task that ends waits for them for some seconds only."""
    failed: list[FlinkError] = []

    async def main() -> float:
        committer = RecordCommitter(JobMaster(after_s=1e9).gateway, "attempt", failed.append)
        for number in range(MAX_WAITING_COMMITS + 2):
            committer.commit(SinkCommit())
            assert len(failed) == max(0, number - MAX_WAITING_COMMITS + 1)
        await committer.close()
        return asyncio.get_running_loop().time() - T0_S

    assert run_virtual(main()) == COMMIT_GRACE_S
    assert failed[0].class_name == "IOException"


# ---- iterations


def records(count: int) -> Any:
    return latency_marker(48, 0, 0, 0).repeat(count)


def test_the_records_of_a_superstep_are_handed_to_its_head_when_it_has_ended():
    """With their count; those of the next superstep are apart."""

    async def main() -> list[tuple[int, int]]:
        back = IterationBroker().join(("job", "head", 0, 0)).back
        back.add(records(2), 1)
        waiting = asyncio.ensure_future(back.result())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        back.add(records(3), 2)
        back.end_superstep()
        back.add(records(1), 1)
        back.end_superstep()
        results = [await waiting, await back.result()]
        return [(sum(len(b) for b in buffer.batches()), count) for buffer, count in results]

    assert run_virtual(main()) == [(5, 3), (1, 1)]


def test_a_loop_lives_while_its_head_or_its_tail_does():
    """Each attempt has its own. The last to leave closes what was not taken."""
    broker = IterationBroker()
    keys = [
        broker.key(SimpleNamespace(job="job", subtask=subtask, attempt_number=attempt), "head")  # type: ignore[arg-type]
        for subtask, attempt in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(set(keys)) == 3
    first = broker.join(keys[0])
    assert broker.join(keys[0]) is first
    assert broker.join(keys[1]) is not first
    assert len(broker.loops) == 2
    first.back.add(records(1), 1)
    first.back.end_superstep()
    (result, _), *_ = first.back._ended
    broker.leave(keys[0])
    assert (len(broker.loops), list(result.batches()) != []) == (2, True)
    broker.leave(keys[0])
    assert (len(broker.loops), list(result.batches())) == (1, [])
    assert broker.join(keys[0]) is not first


# ---- leaders


def leaders(*steps: tuple[float, bytes], options: dict[str, str]) -> list[tuple[str, float]]:
    """The leaders that are found, with the seconds. `steps`: when an object is stored."""
    found: list[tuple[str, float]] = []

    async def main() -> None:
        loop, store = asyncio.get_running_loop(), MemoryBlobStore()
        retrieval = LeaderRetrieval(
            Options(options), store, lambda name: found.append((name, round(loop.time() - T0_S, 3)))
        )
        retrieval.start()
        for at, stored in steps:
            await asyncio.sleep(T0_S + at - loop.time())
            await store.put(INFORMATION_KEY, stored)
        await asyncio.sleep(1.0)
        await retrieval.close()
        await retrieval.close()
        await store.put(INFORMATION_KEY, information("late"))
        await asyncio.sleep(1.0)

    run_virtual(main())
    return found


def information(leader: str) -> bytes:
    return msgspec.json.encode({"leader": leader, "address": ["jobmanager", 1]})


def test_a_new_leader_is_found_once():
    """The store is looked at five times a second; a damaged object, or none, is no leader. Without high availability no leader is looked for."""
    steps = [(0.5, b"{"), (1.1, information("a")), (1.9, information("a")), (2.3, information("b"))]
    available = {HIGH_AVAILABILITY: "kubernetes"}
    assert leaders(*steps, options=available) == [("a", 1.2), ("b", 2.4)]
    assert leaders(*steps, options={}) == []
