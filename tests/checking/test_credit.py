"""Credit: no producer sends more than was announced, and both sides agree."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.credit import CREDIT, by_channel, check_credit
from testbed_runtime.history.schema import Trial


def broken(history: Any, *, side: str, step: int, **change: int) -> Any:
    """The good history with one sample of the remote channel changed."""
    counter = {"producer": -1, "consumer": -1}

    def edit(table: str, row: dict[str, Any]) -> dict[str, Any]:
        if table == "channels" and not row.get("local"):
            counter[row["side"]] += 1
            if row["side"] == side and counter[side] == step:
                return row | {k: row.get(k, 0) + v for k, v in change.items()}
        return row

    return check_credit(history.good(edit))


def test_a_good_exchange_is_accepted(history: Any):
    """Local channels are left out, they have no credit."""
    found = check_credit(history.good())
    assert (found.violations, found.samples, found.detail, found.only_local) == (0, 100, "", False)


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_using_more_than_was_announced_is_found_on_either_side(history: Any, side: str):
    """A single buffer too many is found."""
    found = broken(history, side=side, step=49, used=11)
    assert found.violations >= 1
    assert "more buffers than announced credit" in found.detail


def test_exactly_all_the_credit_is_no_violation(history: Any):
    """The boundary."""
    assert broken(history, side="producer", step=49, used=10, credit=-10).violations == 0


def test_counters_that_shrink_are_found(history: Any):
    """Counters are cumulative, so they cannot decrease."""
    assert "decreased" in broken(history, side="producer", step=20, used=-5).detail
    assert "shrank" in broken(history, side="consumer", step=20, announced=-4).detail


def test_negative_credit_is_found(history: Any):
    """The producer's counters contradict its balance."""
    assert "negative credit" in broken(history, side="producer", step=3, credit=-100).detail

    def edit(table: str, row: dict[str, Any]) -> dict[str, Any]:
        low = table == "channels" and row["side"] == "producer" and not row.get("local") and row["used"] < 5
        return row | {"credit": row["used"] - 1} if low else row

    assert check_credit(history.good(edit)).violations == 1, (
        "one sample has a credit of -1, and the next one of 0"
    )


def test_a_buffer_from_nowhere_is_found(history: Any):
    """The consumer got more than the producer had sent by its next sample."""
    assert "received more buffers than were sent" in broken(history, side="consumer", step=20, used=5).detail


def test_credit_from_nowhere_is_found(history: Any):
    """The producer knows of more than the consumer had announced by its next sample."""
    assert "more credit arrived" in broken(history, side="producer", step=20, announced=5).detail


def test_clocks_of_two_machines_are_not_compared(history: Any):
    """Without a common boot id the order of samples is unknown."""
    memory = history.empty().memory
    here = memory.sink("tm-0-1", lambda: 0)
    memory.boot_id = "another"
    there = memory.sink("tm-1-1", lambda: 0)
    common = {"attempt": 0, "announced": 10}
    here.append("channels", t_ns=2, side="producer", task="a-0", peer="b-0", used=1, **common)
    there.append("channels", t_ns=1, side="consumer", task="b-0", peer="a-0", used=9, **common)
    assert check_credit(memory.trial()).violations == 0


def test_nothing_recorded_is_no_evidence(history: Any):
    """Zero samples, not zero violations."""
    assert check_credit(history.empty().trial()).samples == 0


@pytest.mark.parametrize(("samples", "median"), [(1, None), (2, 1.0), (3, 2.0), (4, 3.0), (5, 6.0)])
def test_the_buffers_in_flight_are_the_median_over_the_consumers_samples(
    history: Any, samples: int, median: float | None
):
    """Sent 5, 9 and 20 by the last sample before the consumer had received 4, 6, 10 and 11: 1, 3, 10 and 9 were in flight."""
    memory = history.empty().memory
    here, there = memory.sink("tm-0-1", lambda: 0), memory.sink("tm-1-1", lambda: 0)
    for t_ns, used in ((10, 5), (20, 9), (30, 20)):
        here.append("channels", t_ns=t_ns, side="producer", task="a-0", peer="b-0", attempt=0, announced=99, used=used)  # fmt: skip
    for t_ns, used in ((5, 0), (11, 4), (21, 6), (31, 10), (41, 11))[:samples]:
        there.append("channels", t_ns=t_ns, side="consumer", task="b-0", peer="a-0", attempt=0, announced=99, used=used)  # fmt: skip
    assert check_credit(memory.trial()).in_flight == median


def test_nothing_is_known_of_the_buffers_in_flight_before_the_producer_was_sampled(history: Any):
    """Nor without samples."""
    assert check_credit(history.empty().trial()).in_flight is None
    early = history.empty()
    early.add(
        "tm-1-1", "channels", 1, side="consumer", task="b-0", peer="a-0", attempt=0, announced=9, used=0
    )
    early.add(
        "tm-0-1", "channels", 2, side="producer", task="a-0", peer="b-0", attempt=0, announced=9, used=1
    )
    assert check_credit(early.trial()).in_flight is None


def test_the_channels_are_reported_in_one_order(history: Any):
    """Parts of a large trial are judged in any order."""
    built = history.record()
    for peer in ("count-2", "count-3"):
        built.add("tm-0-1", "channels", 1, side="producer", task="source-1", attempt=0, peer=peer, credit=-1, announced=1, used=2)  # fmt: skip
    judged = by_channel(built.trial().table("channels"))
    backwards = judged.take(list(reversed(range(len(judged)))))
    found, other = (check_credit(Trial("r", "t", {CREDIT: table})) for table in (judged, backwards))
    assert found == other
    assert found.detail.index("count-2") < found.detail.index("count-3")
