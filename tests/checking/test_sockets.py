"""TCP as flow control: the steps from the reader that stops to the source that waits."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.checking.metrics import trial_metrics
from testbed_runtime.checking.sockets import push_backs

QUIET = {"reading": True, "writable": True, "receive_queue": 0, "send_queue": 0, "receive_window": 65536, "peer_window": 65536, "probes": 0, "limited_s": 0.0}  # fmt: skip


def sample(built: Any, t: float, side: str, **changed: Any) -> None:
    """A sample of the connection from tm-0 to its consumer tm-1."""
    subject, peer = ("tm-1-1", "tm-0") if side == "consumer" else ("tm-0-1", "tm-1")
    more = {"side": side, "peer": peer, "connection": 4000, **QUIET, **changed}
    built.event("socket.state", subject, t, data=more)


def recorded(history: Any) -> Any:
    """The reader stops at 3 s; its window is closed at 3.2 s, the sender's queue is full at 4 s, it is blocked at 4.1 s. Its window limited the
    connection for 2 s before, and for 0.6 s of these 1.2 s."""
    built = history.empty()
    for t, changed in (
        (2.9, {}),
        (3.0, {"reading": False, "receive_queue": 90}),
        (3.1, {"reading": False, "receive_queue": 100}),
        (3.2, {"reading": False, "receive_queue": 100, "receive_window": 0}),
    ):
        sample(built, t, "consumer", **changed)
    for t, changed in (
        (2.9, {}),
        (3.2, {"peer_window": 0, "send_queue": 50}),
        (4.0, {"peer_window": 0, "send_queue": 950, "probes": 2}),
        (4.1, {"peer_window": 0, "send_queue": 1000, "writable": False, "limited_s": 2.6}),
    ):
        sample(built, t, "producer", **{"limited_s": 2.0} | changed)
    return built


def test_each_step_has_its_time_from_the_reader_to_the_socket_of_the_sender(history: Any):
    """No source has waited yet, so the chain is not complete."""
    (found,) = push_backs(recorded(history).trial())
    assert found.link == "tm-0 → tm-1"
    assert dict(found.steps) == pytest.approx(
        {"reader stops": 0, "receive queue full": 0.1, "window 0": 0.2, "send queue full": 1.0, "not writable": 1.1}
    )  # fmt: skip
    assert (found.complete, found.probes, found.limited) == (False, 2, pytest.approx(0.5))


def test_the_whole_chain_is_the_push_back(history: Any):
    """The source's sample at 5 s has waited for 0.4 s. Of two connections the longer chain counts, here that of the one that began first."""
    built = recorded(history)
    sample(built, 3.5, "consumer", connection=4001, reading=False, receive_queue=9, receive_window=0)
    sample(built, 3.6, "producer", connection=4001, peer_window=0, send_queue=9)
    sample(built, 4.1, "producer", connection=4001, peer_window=0, send_queue=9, writable=False)
    built.add("tm-0-1", "tasks", 5.0, task="source-0", role="source", backpressured_ns=400_000_000)
    rows = {r.metric: r for r in trial_metrics(built.trial(), history.entry())}
    assert rows["network.push-back"].value == pytest.approx(1.6)
    assert rows["network.push-back"].text.split("; ")[0].endswith("not writable 1.10 s, source waits 1.60 s")
    assert rows["network.push-back"].text.endswith("not writable 600 ms, source waits 1.10 s")
    assert rows["network.window-probes"].value == 2


def test_without_samples_nothing_is_known(history: Any):
    """Virtual time, credit, or another kernel. A reader that never stopped has no steps either."""
    rows = {r.metric: r for r in trial_metrics(history.good(), history.entry())}
    for metric in ("network.push-back", "network.window-limited", "network.window-probes"):
        assert (rows[metric].value, rows[metric].reason) == (None, "NoData")
    built = history.empty()
    sample(built, 3.0, "consumer")
    assert push_backs(built.trial()) == []


def test_what_a_connection_did_before_its_reader_stopped_is_no_step(history: Any):
    """Neither a window that was closed for a moment, nor a source that waited before the sender was blocked."""
    built = recorded(history)
    sample(built, 1.0, "consumer", receive_queue=100, receive_window=0)
    sample(built, 1.0, "producer", peer_window=0, send_queue=1000, writable=False)
    built.add("tm-0-1", "tasks", 2.0, task="source-0", role="source", backpressured_ns=1_000_000_000)
    built.add("tm-0-1", "tasks", 5.0, task="source-0", role="source", backpressured_ns=1_400_000_000)
    (found,) = push_backs(built.trial())
    assert dict(found.steps) == pytest.approx(
        {"reader stops": 0, "receive queue full": 0.1, "window 0": 0.2, "send queue full": 1.0, "not writable": 1.1, "source waits": 1.6}
    )  # fmt: skip


def test_a_step_that_was_not_seen_is_missing(history: Any):
    """Another connection of the same two processes is another link. A window that closes with an empty queue had none that was full."""
    built = history.empty()
    sample(built, 3.0, "consumer", reading=False)
    sample(built, 3.2, "consumer", reading=False, receive_window=0)
    sample(built, 3.1, "producer", connection=4001, peer_window=0, probes=3, limited_s=9.0)
    (found,) = push_backs(built.trial())
    assert (found.steps, found.limited, found.probes, found.complete) == (
        (("reader stops", 0.0),),
        0.0,
        0,
        False,
    )
    assert found.text == "tm-0 → tm-1: reader stops 0 s"
    sample(built, 3.4, "producer", peer_window=0, probes=1, limited_s=0.5)
    (found,) = push_backs(built.trial())
    assert (dict(found.steps)["window 0"], found.limited, found.probes) == (pytest.approx(0.4), 0.0, 1)
    sample(built, 3.5, "producer", peer_window=0, probes=1, limited_s=0.61)
    (found,) = push_backs(built.trial())
    assert found.limited == 1.0, "the kernel read its counter a little later than the sampler its clock"


def test_queues_are_full_from_95_percent_of_what_they_had_at_the_next_step(history: Any):
    """94 of 100 bytes are not enough, 95 are."""
    built = history.empty()
    for t, queued in ((3.0, 94), (3.1, 95), (3.2, 100)):
        sample(built, t, "consumer", reading=False, receive_queue=queued, receive_window=0 if t == 3.2 else 1)
    (found,) = push_backs(built.trial())
    assert dict(found.steps)["receive queue full"] == pytest.approx(0.1)


def test_the_connection_that_was_held_up_most_counts(history: Any):
    """One was limited for half of the time with one probe, the other for a fifth of it with three."""
    built = history.empty()
    for connection, limited, probes in ((1, 0.5, 1), (2, 0.2, 3), (3, 0.1, 0)):
        sample(built, 3.0, "consumer", connection=connection, reading=False)
        sample(built, 3.0, "producer", connection=connection)
        sample(built, 4.0, "producer", connection=connection, limited_s=limited, probes=probes)
    rows = {r.metric: r.value for r in trial_metrics(built.trial(), history.entry())}
    assert (rows["network.window-limited"], rows["network.window-probes"]) == (pytest.approx(0.5), 3)


def test_a_window_that_closes_in_the_sample_in_which_the_reader_stops_counts(history: Any):
    """Both were seen at one moment, with data in the queue of the reader."""
    built = history.empty()
    sample(built, 2.9, "producer")
    sample(built, 3.0, "consumer", reading=False, receive_window=0, receive_queue=1000)
    sample(built, 3.5, "producer", peer_window=0)
    (found,) = push_backs(built.trial())
    assert [(name, pytest.approx(at)) for name, at in found.steps][:3] == [
        ("reader stops", 0.0), ("receive queue full", 0.0), ("window 0", 0.5),
    ]  # fmt: skip
