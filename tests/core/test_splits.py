"""Input splits, and Flink's names of the messages."""

from __future__ import annotations

from testbed_runtime.core.job.messages import MESSAGES
from testbed_runtime.core.job.rpcnames import ACTOR_MESSAGES, METHODS
from testbed_runtime.core.job.splits import NO_SPLIT, SplitAssigner, split_records


def test_splits_go_to_the_subtask_that_asks_first():
    """The faster subtask gets more of them, every split is given out once, and the last one goes first, as in Flink."""
    assigner = SplitAssigner(4)
    asked = [assigner.next_split(*request) for request in ((0, 0), (1, 0), (1, 1), (1, 2), (0, 1), (1, 3))]
    assert asked == [3, 2, 1, 0, NO_SPLIT, NO_SPLIT]
    assert split_records(12_000, 12) == 1000


def test_a_subtask_that_asks_for_the_same_index_gets_the_same_split():
    """A source that restored an older checkpoint reads its own splits again, not those of the others."""
    assigner = SplitAssigner(5)
    assert [assigner.next_split(0, 0), assigner.next_split(1, 0), assigner.next_split(0, 1)] == [4, 3, 2]
    assert [assigner.next_split(0, 0), assigner.next_split(0, 1), assigner.next_split(0, 2)] == [4, 2, 1]


def test_an_assigner_that_knows_less_than_the_subtask_gives_it_the_splits_in_between():
    """After a restart of the JobManager a subtask asks for its third split first: two others count as its own."""
    assigner = SplitAssigner(4)
    assert [assigner.next_split(0, 2), assigner.next_split(1, 0), assigner.next_split(1, 1)] == [1, 0, NO_SPLIT]  # fmt: skip


def test_J_57_one_subtask_reads_every_split_once():
    """Fifty splits are left to one subtask, which then gets no more."""
    assigner = SplitAssigner(50)
    assert sorted(assigner.next_split(0, index) for index in range(50)) == list(range(50))
    assert assigner.next_split(0, 50) == NO_SPLIT


def test_J_58_ten_subtasks_in_turn_read_every_split_once():
    """Each of 500 splits goes to one of them. Then there is none for any."""
    assigner = SplitAssigner(500)
    asked = [assigner.next_split(subtask, index) for index in range(50) for subtask in range(10)]
    assert sorted(asked) == list(range(500))
    assert {assigner.next_split(subtask, 50) for subtask in range(10)} == {NO_SPLIT}


def test_every_name_of_a_message_belongs_to_a_message_of_today():
    """The old names of the overview are all there, and only FailTask has no message any more."""
    assert set(METHODS) <= set(MESSAGES)
    assert {name for name, (message, _) in ACTOR_MESSAGES.items() if message not in METHODS} == {"FailTask"}
    overview = "registerTaskManager submitJob cancelJob updateTaskExecutionState requestNextInputSplit jobStatusChanged"
    assert set(ACTOR_MESSAGES) == {*overview.split(), "SubmitTask", "CancelTask", "FailTask"}
    for old, (message, _) in ACTOR_MESSAGES.items():
        gateway, _, method = METHODS.get(message, ".").partition(".")
        assert gateway.endswith("Gateway") or old == "FailTask"
        assert method.startswith(method[:1].lower())
