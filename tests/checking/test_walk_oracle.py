"""The walk over the waits of a recovery against a model of that recovery, which only knows how long each step takes."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.checking.criticalpath import attribute
from testbed_runtime.checking.pieces import owner_text
from testbed_runtime.core.judgement.recovery import Segment
from testbed_runtime.core.waits import REPLACE_LOST, RM_NAME, Outcome, Wait
from tests.checking.test_recovery_path import SECOND, wait

OPTIONS = {"heartbeat": "heartbeat.timeout", "restart-delay": "restart-strategy.fixed-delay.delay", "replacement": REPLACE_LOST}  # fmt: skip
"""The steps that an option ends."""
STEPS = (
    *OPTIONS, "cancellation", "start", "registration", "slot", "deployment", "restore", "partition", "first-record", "catch-up",
)  # fmt: skip
Lengths = Mapping[str, float]


def slots_needed(took: Lengths) -> float:
    """When the region is cancelled and the delay has passed."""
    return took["heartbeat"] + max(took["restart-delay"], took["cancellation"])


def registered(took: Lengths) -> float:
    """When the TaskManager is back. It is replaced when its process has exited, at 0 s, not when its loss is noticed."""
    return took["replacement"] + took["start"] + took["registration"]


def total(took: Lengths) -> float:
    """How long the recovery takes."""
    deployed = max(slots_needed(took), registered(took)) + took["slot"] + took["deployment"]
    return deployed + max(took["restore"], took["partition"]) + took["first-record"] + took["catch-up"]


def recorded(took: Lengths) -> list[Wait]:
    """The waits of that recovery."""
    begins = dict.fromkeys(("heartbeat", "replacement"), 0.0)
    begins |= dict.fromkeys(("restart-delay", "cancellation"), took["heartbeat"])
    begins |= {"start": took["replacement"], "registration": took["replacement"] + took["start"], "slot": slots_needed(took)}  # fmt: skip
    ends = {kind: begin + took[kind] for kind, begin in begins.items()}
    ends["slot"] = max(ends["slot"], registered(took) + took["slot"])
    begins["deployment"], ends["deployment"] = ends["slot"], ends["slot"] + took["deployment"]
    for kind in ("restore", "partition", "first-record"):
        begins[kind], ends[kind] = ends["deployment"], ends["deployment"] + took[kind]
    ends["first-record"] += max(took["restore"], took["partition"])
    begins["catch-up"], ends["catch-up"] = ends["first-record"], total(took)
    who = {"partition": "sink-0", "restore": "map-0", "registration": "tm-0-2"}
    what = {"heartbeat": "tm-9-1", "replacement": "tm-0-2", "registration": RM_NAME, "partition": "map-1"}
    return [
        wait(
            kind, begins[kind], ends[kind],
            {"heartbeat": Outcome.EXPIRED}.get(kind, Outcome.FIRED if kind in OPTIONS else Outcome.COMPLETED),
            who=who.get(kind, "JobMaster"), what=what.get(kind, ""), option=OPTIONS.get(kind, ""),
        )
        for kind in STEPS
    ]  # fmt: skip


def walked(waits: list[Wait], took: Lengths) -> tuple[Segment, ...]:
    last = next(w for w in waits if w.kind == "catch-up")
    begun = round(last.end_ns - total(took) * SECOND)
    return attribute(
        waits, (), start=begun, end=last.end_ns, last=last, detected=begun + round(took["heartbeat"] * SECOND)
    )


WHOLE = st.integers(1, 9)
TOOK = st.fixed_dictionaries(
    dict.fromkeys(STEPS, WHOLE)
    | {"cancellation": st.integers(0, 9), "slot": st.sampled_from([0, 0.125])}
    | {"replacement": st.integers(0, 9).map(lambda n: n + 0.5), "first-record": st.sampled_from([0.25, 0.75])}
)


def without_ties(took: Lengths) -> bool:
    """Whether it is clear which of two branches is longer."""
    return all(took[a] != took[b] for a, b in (("restart-delay", "cancellation"), ("restore", "partition")))


def deciding(took: Lengths) -> list[str]:
    """The steps with which the recovery takes longer if they do. A hundredth of a second is less than any difference between branches."""
    return [kind for kind in STEPS if total({**took, kind: took[kind] + 0.01}) > total(took) + 0.005]


@given(took=TOOK)
def test_a_step_owns_its_seconds_if_the_recovery_takes_longer_when_the_step_does(took: Lengths):
    """More time for any other step changes nothing, so it owns none."""
    assume(without_ties(took))
    found = dict.fromkeys((kind for kind in deciding(took) if took[kind]), 0.0)
    for one in walked(recorded(took), took):
        found[one.kind] += one.seconds
    assert found == {kind: took[kind] for kind in found}


@given(took=TOOK)
def test_the_slack_of_an_option_is_what_a_lower_value_would_save(took: Lengths):
    """If all of its time would be saved, nothing else takes over. A step that begins later is expected to come earlier then, and missing
    heartbeats come before all others."""
    assume(without_ties(took))
    waits = {w.kind: w for w in recorded(took)}
    for one in walked(list(waits.values()), took):
        own = waits[one.kind]
        if one.kind not in ("restart-delay", "replacement") or waits["registration"].start_ns >= own.end_ns:
            continue
        at_once = {**took, one.kind: 0}
        saved = round((total(took) - total(at_once)) * SECOND)
        assert one.slack_ns == (saved if saved < own.end_ns - own.start_ns else -1)
        assert one.slack_ns < 0 or one.next in [owner_text(waits[kind]) for kind in deciding(at_once)]


NOTHING_FOLLOWS = st.lists(
    st.builds(
        lambda kind, begin, lasted: wait(*kind, begin, begin + lasted) if len(kind) == 1 else wait(kind[0], begin, begin + lasted, kind[1]),
        st.sampled_from([
            ("alignment",), ("credit",), ("final-checkpoint",), ("heartbeat",), ("lease",), ("checkpoint",), ("slot", Outcome.CANCELLED),
            ("slot", Outcome.EXPIRED), ("partition", Outcome.FAILED), ("deployment", Outcome.OPEN), ("registration", Outcome.CANCELLED),
            ("replacement", Outcome.OPEN), ("cancellation", Outcome.FAILED), ("first-record", Outcome.CANCELLED),
        ]),
        st.integers(-5, 30),
        st.integers(0, 20),
    ),
    max_size=6,
)  # fmt: skip


@given(took=TOOK, more=NOTHING_FOLLOWS, later=st.integers(-1000, 1000), data=st.data())
def test_waits_from_which_nothing_follows_the_clock_and_the_order_change_no_owner(
    took: Lengths, more: list[Wait], later: int, data: st.DataObject
):
    """Nothing follows from a checkpoint that completes, or from a wait that a failure cancels."""
    assume(without_ties(took))
    every = data.draw(
        st.permutations([*recorded(took), *(replace(w, wait=f"more/{n}") for n, w in enumerate(more))])
    )
    moved = [
        replace(w, start_ns=w.start_ns + later * SECOND, end_ns=w.end_ns + later * SECOND) for w in every
    ]
    found = [
        replace(s, start_ns=s.start_ns - later * SECOND, end_ns=s.end_ns - later * SECOND)
        for s in walked(moved, took)
    ]
    assert found == list(walked(recorded(took), took))
