"""Requests for slots that expired: where they come from, and which seconds of a wait for slots they own."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.unrecorded import expired_slot_requests, is_slot_request
from testbed_runtime.checking.waits import read_waits
from testbed_runtime.core.waits import RM_NAME, Outcome, Wait
from tests.checking.test_recovery_path import segments, wait
from tests.manifests import trial_entry

ASK = {"option": "pekko.ask.timeout", "value": "2 s", "who": RM_NAME}


def request(start: float, end: float, what: str = "tm-4") -> Wait:
    return wait("slot", start, end, Outcome.EXPIRED, what=what, wait=f"request/{start:g}/{what}", **ASK)


@pytest.mark.parametrize(("version", "option"), [("2.x", "pekko.ask.timeout"), ("1.15", "akka.ask.timeout")])
def test_only_requests_for_slots_are_waits_for_slots(history: Any, version: str, option: str):
    """Both calls expired after 2 s. The wait ends with the event."""
    built = history.empty()
    for t, method in ((5.0, "RequestSlot"), (6.0, "CancelTask")):
        call = {"method": method, "timeout_s": 2.0, "peer": "tm-4"}
        built.event("rpc.timeout", "taskexecutor", t, data=call)
    configuration = {"pekko.ask.timeout": "2 s"}
    entry = trial_entry({"configuration": configuration, "flinkVersion": version})
    (found,) = expired_slot_requests(built.trial(), entry)
    assert [w.wait for w in read_waits(built.trial(), entry, [], history.at(9))] == [found.wait]
    assert (found.start_ns, found.end_ns) == (history.at(3), history.at(5))
    assert (found.option, found.value, found.what, found.outcome) == (option, "2 s", "tm-4", Outcome.EXPIRED)
    assert is_slot_request(found)
    assert not is_slot_request(wait("slot", 0, 1))


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([], [("", 6)]),
        ([request(0, 2), request(3, 5)], [("pekko.ask.timeout", 2), ("", 1), ("pekko.ask.timeout", 2), ("", 1)]),
        # two TaskManagers were asked at the same time, one of them a little later
        ([request(0, 2), request(1, 3, "tm-5")], [("pekko.ask.timeout", 1), ("pekko.ask.timeout", 2), ("", 3)]),
        ([request(5, 7)], [("", 6)]),  # it did not hold up these slots
        ([request(-1, 1)], [("", 6)]),  # for a job before
    ],
)  # fmt: skip
def test_a_request_that_expired_belongs_to_the_ask_timeout(
    requests: list[Wait], expected: list[tuple[str, float]]
):
    """The job waited for its slots from 0 to 6 s. The ResourceManager asks again when a request has expired."""
    found = segments([wait("slot", 0, 6), *requests], 6)
    assert [(s.option, s.seconds) for s in found] == expected
    assert {s.phase for s in found} == {"slots"}


def test_a_request_that_expired_while_no_taskmanager_had_a_slot_owns_nothing():
    """The slots came with a TaskManager that was replaced, however soon the request expired."""
    waits = [
        wait("slot", 0, 6),
        request(1, 3),
        wait("replacement", 0, 6, Outcome.FIRED, option="replaceLost", what="tm-2"),
    ]
    assert [s.option for s in segments(waits, 6)] == ["replaceLost"]


@pytest.mark.parametrize(("came", "owns"), [(7, True), (7.055, True), (7.056, False)])
def test_slots_are_put_off_by_an_option_unless_a_process_came_later(came: float, owns: bool):
    """The request is put off until 7.05 s, and clocks differ by 5 ms."""
    delay = {"option": "slotmanager.requirement-check.delay", "value": "50 ms", "who": RM_NAME}
    waits = [wait("slot-request", 7, 7.05, Outcome.FIRED, **delay), wait("start", 1, came), wait("slot", 0, 7.07)]  # fmt: skip
    assert ("slot-request" in [s.kind for s in segments(waits, 7.07)]) is owns
