"""The limits of the rules for samples of channels: the smallest damage is found, and the largest value that is no damage is not."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.history.contradictions.channels import (
    check_balance,
    check_credit,
    check_samples,
)
from tests.checking.written import Written, checked, sample, state, texts, wait, wrote

Row = dict[str, Any]
UNLIMITED = 2**31 - 1
"""The credit of a producer without flow control: the largest int."""


def channel(side: str = "producer", **more: Any) -> Written:
    return "channels", {"side": side, "task": "a-0", "peer": "b-0"} | more


def consumer(credit: int, announced: int, used: int, floating: int, exclusive: int, **more: Any) -> Written:
    row = {
        "credit": credit,
        "announced": announced,
        "used": used,
        "floating": floating,
        "exclusive": exclusive,
    }
    return channel("consumer", **row | more)


CREDIT = "channels.parquet, column credit, row 1: is {}, but 10 were announced and 6 used (announced, used)"
FREE = (
    "channels.parquet, column announced, row 1: is 10 and 1 are not announced, but 6 were used and {} are free "
    "(credit, used, floating, exclusive)"
)


@pytest.mark.parametrize(
    ("row", "inexact", "exact"),
    [
        (channel(credit=4, announced=10, used=6), "", ""),
        (channel(credit=5, announced=10, used=6), CREDIT.format(5), CREDIT.format(5)),
        (channel(credit=3, announced=10, used=6), "", CREDIT.format(3)),
        (channel(credit=5, announced=10, used=6, local=True), "", ""),
        (channel(credit=1, announced=0, used=0), "", ""),
        (channel(credit=1, announced=1, used=6), "channels.parquet, column credit, row 1: is 1, but 1 were announced and 6 used (announced, used)", "same"),
        (channel(credit=UNLIMITED, announced=10, used=6), "", ""),
        (channel(credit=UNLIMITED - 1, announced=10, used=6), CREDIT.format(UNLIMITED - 1), CREDIT.format(UNLIMITED - 1)),
        (consumer(1, 10, 6, 2, 3), "", ""),
        (consumer(1, 10, 6, 2, 4), FREE.format(6), FREE.format(6)),
        (consumer(1, 10, 6, 1, 3), "", ""),  # one buffer has arrived in part
        (consumer(1, 10, 6, 1, 2), "", FREE.format(3)),
        (consumer(1, 10, 6, 2, 4, local=True), "", ""),
        (consumer(0, 10, 10, 1, 0), "channels.parquet, column announced, row 1: is 10 and 0 are not announced, but 10 were used and 1 are free (credit, used, floating, exclusive)", "same"),
        (consumer(0, 10, 11, 9, 0), "", ""),
        (consumer(1, 0, 0, 9, 9), "", ""),
    ],
)  # fmt: skip
def test_credit_is_what_was_announced_and_not_used(row: Written, inexact: str, exact: str):
    """Less is damage only if the channel has exclusive buffers, and a partial buffer holds one segment."""
    trial = wrote(channel(credit=4, announced=10, used=6), row)
    found = texts(check_credit(trial.table("channels")))
    assert found == ([inexact] if inexact else [])
    assert texts(check_balance(checked(trial, {}))) == (
        found if exact == "same" else [exact] if exact else []
    )
    assert texts(check_balance(checked(wrote(row), {}))) == [
        text.replace("row 1", "row 0") for text in texts(check_balance(checked(trial, {})))
    ]
    assert texts(check_credit(wrote(row).table("channels"))) == [
        text.replace("row 1", "row 0") for text in found
    ]
    few = {"configuration": {"taskmanager.network.memory.buffers-per-channel": "0"}}
    assert check_balance(checked(trial, few)) == []
    one = {"configuration": {"taskmanager.network.memory.buffers-per-channel": "1"}}
    assert texts(check_balance(checked(trial, one))) == texts(check_balance(checked(trial, {})))


SAMPLE = {"credit": 1, "announced": 9, "used": 8, "backlog": 2, "queued": 3, "floating": 4, "exclusive": 5}
TO_B = state("b-0", "SCHEDULED", "DEPLOYING", on="tm-1-1")


@pytest.mark.parametrize("changed", ["", *SAMPLE])
def test_a_sample_differs_from_the_one_before(changed: str):
    """One column is enough. The samples of another channel, attempt or side are others."""
    others = [channel(**SAMPLE, **{k: v}) for k, v in (("side", "consumer"), ("peer", "b-1"), ("attempt", 1), ("process", "tm-2-1"))]  # fmt: skip
    second = channel(**SAMPLE | ({changed: 6} if changed else {}))
    trial = wrote(TO_B, wait("slot"), channel(**SAMPLE), *others, second)
    repeated = "channels.parquet, column seq, row 5: is of a sample of a-0 with b-0 that repeats the one before: they are taken on a change"
    assert texts(check_samples(checked(trial, {}))) == ([] if changed else [repeated])
    assert check_samples(checked(wrote(TO_B, channel(**SAMPLE), second), {})) == []
    assert check_samples(checked(wrote(wait("slot"), channel(**SAMPLE), second), {})) == []


def test_the_first_of_several_repeated_samples_is_named():
    """It is the first row of the file that repeats one."""
    rows = [channel(**SAMPLE, peer="b-9"), *(channel(**SAMPLE, peer=p) for p in ("b-1", "b-0", "b-0", "b-1"))]
    (found,) = check_samples(checked(wrote(TO_B, wait("slot"), *rows), {}))
    assert found.row == 3


@pytest.mark.parametrize(
    ("process", "local", "places", "is_damaged"),
    [
        ("tm-0-1", False, ("tm-1-1",), False),
        ("tm-0-1", True, ("tm-1-1",), True),
        ("tm-1-1", True, ("tm-1-1",), False),
        ("tm-1-1", False, ("tm-1-1",), True),
        ("tm-1-1", False, ("tm-1-1", "tm-0-1"), False),
        ("tm-1-1", True, ("tm-1-1", "tm-0-1"), False),
        ("tm-2-1", True, ("tm-1-1", "tm-0-1"), True),
        ("tm-2-1", False, ("tm-1-1", "tm-0-1"), False),
    ],
)  # fmt: skip
def test_a_channel_is_local_where_its_peer_was_deployed(
    process: str, local: bool, places: tuple[str, ...], is_damaged: bool
):
    """A peer that was deployed to several may be at any of them. A peer that was not deployed is at none."""
    deployed = [state("b-0", "SCHEDULED", "DEPLOYING", attempt=n, on=tm) for n, tm in enumerate(places)]
    rows = [channel(peer="c-0", local=True), channel(peer="c-1"), channel(process=process, local=local)]
    found = texts(check_samples(checked(wrote(*deployed, wait("slot"), *rows), {})))
    there = ", ".join(sorted(places))
    problem = f"channels.parquet, column local, row 2: is {local} in {process}, but b-0 was deployed to {there} (task.state in events)"
    assert found == ([problem] if is_damaged else [])


JOB = {
    "vertices": [{"name": "a", "parallelism": 1}, {"name": "b", "parallelism": 1}],
    "edges": [{"from": "a", "to": "b"}],
}


@pytest.mark.parametrize(
    ("rows", "seconds", "ran", "more", "is_damaged"),
    [
        (20, 5.0, 20, {}, True),
        (19, 5.0, 20, {}, False),
        (20, 4.9, 20, {}, False),
        (20, 5.0, 19, {}, False),
        (20, 5.0, 20, {"local": True}, False),
        (20, 5.0, 20, {"peer": "a-0", "task": "b-0", "side": "consumer", "process": "tm-1-1"}, True),
    ],
)
def test_both_ends_of_a_channel_are_sampled(rows: int, seconds: float, ran: int, more: Row, is_damaged: bool):
    """A few samples of one end prove nothing, nor do those of a job that is too large or reads files. A local channel has no credit, and a
    source may end before its channels are sampled."""
    samples = [channel(t=seconds * n / (rows - 1), used=n, **more) for n in range(rows)]
    ends = [sample(more.get("peer", "b-0"), n / 10) for n in range(ran)]
    trial = wrote(TO_B, state("a-0", "SCHEDULED", "DEPLOYING"), wait("slot"), *samples, *ends)
    side, task = str(more.get("side", "producer")), str(more.get("task", "a-0"))
    peer, other = ("a-0", "producer") if side == "consumer" else ("b-0", "consumer")
    problem = f"channels.parquet, column side: is never {other!r} for {peer}, of whose channel {task} recorded 20 samples ({side})"
    if not more.get("local"):
        assert texts(check_samples(checked(trial, {"job": JOB}))) == ([problem] if is_damaged else [])
    both = wrote(TO_B, wait("slot"), *samples, *ends, channel(other, task=peer, peer=task))
    large = {**JOB, "vertices": [{"name": "a", "parallelism": 128}, {"name": "b", "parallelism": 1}]}
    files = {**JOB, "edges": [{"from": "a", "to": "b", "result": "blocking"}]}
    assert all(
        "is never" not in str(d)
        for found in (
            check_samples(checked(both, {"job": JOB})),
            *(check_samples(checked(trial, {"job": job})) for job in (large, files)),
        )
        for d in found
    )
