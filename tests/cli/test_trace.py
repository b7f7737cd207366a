"""`headgate trace`: one buffer as a table and as JSON."""

from __future__ import annotations

import json

import pytest


def test_the_steps_are_printed_in_order(headgate):
    """Eight steps behind two lines of headings."""
    said = headgate("trace", "--buffer", "2")
    places = [line.split()[2] for line in said.stdout.splitlines()[2:]]
    assert said.returncode == 0
    assert places == ["builder", "subpartition", "wire", "channel", "reader", "recycle", "credit", "credit"]


def test_json_has_the_state_of_the_channel_at_each_step(headgate):
    """Sequence number, credit and backlog."""
    steps = json.loads(headgate("trace", "--buffer", "2", "--latency", "5 ms", "--json").stdout)["steps"]
    assert steps[3]["at_s"] - steps[2]["at_s"] == pytest.approx(0.005)
    assert {"credit", "backlog", "unannounced"} <= set(steps[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--buffer", "-1"], "--buffer: -1 is not a sequence number (choose 0 to 10000)"),
        (["--latency", "soon"], "--latency: 'soon' is not a duration"),
        (["-D", "taskmanager.network.credit-model=false"], "legacy mode has no credits to trace"),
    ],
)
def test_bad_input_is_refused(headgate, arguments, text):
    """Exit 2 with the option."""
    said = headgate("trace", *arguments)
    assert (said.returncode, text in said.stderr) == (2, True), said.stderr


def test_what_is_sent_is_listed_with_the_reason(headgate):
    """1,000 records/s: the flusher sends every 100 ms, and the last line counts."""
    arguments = ["trace", "--sent", "--buffer", "4", "--rate", "1000", "--service-time", "0 ms"]
    lines = headgate(*arguments).stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:-1]] == ["timeout", "timeout", "timeout", "full", "timeout"]
    assert lines[-1] == "buffers: 1 full, 4 timeout, 0 event; other events: 0; the output flusher ran 4 times"
    assert len(json.loads(headgate(*arguments, "--json").stdout)["buffers"]) == 5
