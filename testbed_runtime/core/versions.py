"""The Flink versions whose behaviour is reproduced, and the changes between them. Defaults of options are in `core.options`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

from msgspec import Struct

Version = Literal[
    "1.12", "1.13", "1.14", "1.15", "1.16", "1.17", "1.18", "1.19", "1.20", "2.0", "2.1", "2.2", "2.3", "2.x"
]
VERSIONS: tuple[str, ...] = get_args(Version)
LATEST = "2.x"
"""The newest minor of Flink 2."""

_NUMBER = re.compile(r"^\s*v?(\d+)(?:[._](\d+|x))?", re.IGNORECASE)


class Change(Struct, frozen=True):
    """A change of behaviour: the first version with it, and its description."""

    since: str
    text: str


CHANNEL_STATE_RESCALES = Change(
    "1.13", "data in flight of an unaligned checkpoint is restored at another parallelism (FLINK-17979)"
)
ASK_NAMES_INVOCATION = Change(
    "1.14",
    "an ask timeout is a `TimeoutException` that names the invocation and its recipient; before, Akka's `AskTimeoutException`",
)
TASKS_INITIALIZE = Change(
    "1.13",
    "a task is INITIALIZING while it restores its state, and reports that; before, its only report of progress is RUNNING "
    "(FLINK-17012)",
)
DECLARATIVE_SLOTS = Change(
    "1.13", "the ResourceManager no longer reports the slots of a lost TaskManager to the job (FLINK-19314)"
)
CHECKS_POSTPONED = Change(
    "1.16",
    "the ResourceManager allocates slots 50 ms after a change (`slotmanager.requirement-check.delay`); before, at once (FLINK-27921)",
)
REQUESTS_POSTPONED = Change(
    "2.0",
    "a JobMaster requests slots 20 ms after its last change of them (`slot.request.max-interval`); before, at once (FLINK-33874)",
)
SLOT_DELAYS = {
    "slot.request.max-interval": REQUESTS_POSTPONED,
    "slotmanager.requirement-check.delay": CHECKS_POSTPONED,
}
"""Options that put a request for slots off, and since when they exist."""
RM_TELLS_JOBS = Change(
    "1.20",
    "a ResourceManager that gives a TaskManager up disconnects it from the job at once; from 1.13 to 1.19 only the JobMaster's own "
    "heartbeats do. Until 1.12 it reports the failed slots to the job",
)
ALIGNMENT_TIMES_OUT = Change(
    "1.13",
    "an aligned checkpoint becomes unaligned in a task when `alignment-timeout` has passed since its first barrier or announcement; "
    "before, it stays aligned (FLINK-19681)",
)
TIMEOUT_SINCE_START = Change(
    "1.14",
    "`aligned-checkpoint-timeout` counts from the start of the checkpoint; before, from a task's first barrier",
)
OUTPUT_BARRIERS_TIME_OUT = Change(
    "1.16",
    "a barrier that waits behind data in the output of a task times out there too; before, only in the input of a task (FLINK-27251)",
)
CHANNEL_LIMIT_IGNORED = Change(
    "1.16",
    "a subpartition that already has `max-buffers-per-channel` buffers still gets free buffers, so that a record that has begun is finished; before, its "
    "task waits for one of them (FLINK-27522)",
)
NO_EXCLUSIVE_BUFFERS = Change(
    "1.14",
    "channels may have no exclusive buffers; before, a task with a remote channel fails (FLINK-16641)",
)
CHECKPOINTS_AFTER_FINISH = Change(
    "1.14",
    "checkpoints are taken after tasks have finished if `execution.checkpointing.checkpoints-after-tasks-finish` is true (the "
    "default from 1.15 on); otherwise a bounded source does not wait for a last checkpoint, and none is taken after its end (FLIP-147)",
)
IO_FAILURES_COUNT = Change(
    "1.14",
    "a checkpoint that fails with an IO exception while it is triggered counts as failed, each time if it has no id yet",
)
BUFFER_DEBLOATING = Change(
    "1.14",
    "buffers can be debloated (FLIP-183)",
)
ABORTION_NAMES_COMPLETED = Change(
    "1.15",
    "the notification about an aborted checkpoint names the latest completed one: a task that missed its notification learns of it then",
)
FINALIZATION_COUNTS = Change("1.15", "a checkpoint whose finalization fails counts as failed")
SAVEPOINTS_DO_NOT_COUNT = Change(
    "1.15",
    "if the final checkpoint of a stop expires or cannot be finalized, the tasks that have begun it fail; before, the JobMaster fails "
    "the job, also if it could not be triggered (FLINK-24344)",
)
TRIGGER_FAILURES_ABORT = Change(
    "1.14",
    "a checkpoint is aborted if a task cannot be reached with its trigger, or is unknown; before, it expires (FLINK-21246)",
)
RESTART_NAMES_TASKMANAGER = Change(
    "1.16", "the failure of tasks whose TaskManager was restarted names the TaskManager"
)
FAILURE_NAMES_REASON = Change(
    "1.17", "`Exceeded checkpoint tolerable failure threshold.` is followed by the reason of the last failure"
)
ABORTED_BY_AGE = Change(
    "1.17",
    "a task remembers as many aborted checkpoints as there may be at a time, and treats older ones as aborted; before, it remembers "
    "128 (FLINK-28474)",
)
CANCELLED_BY_CAUSE = Change(
    "1.15",
    "a task that reads a failed producer over a connection ends CANCELED; before, it fails",
)
ONE_CONNECTION = Change(
    "1.15",
    "all channels between two TaskManagers share one TCP connection (`max-num-tcp-connections`); before, each exchange has its own "
    "(FLINK-22643)",
)
CONNECTIONS_NAME_PEER = Change(
    "1.15", "the errors of a data connection name the TaskManager at its other end; before, only its address"
)
SORTED_RESULTS_LIMITED = Change(
    "1.15",
    "the pool of a sorted blocking result has a limit, 4 buffers for each subpartition if that is more than it requires (FLINK-25774)",
)
EXPONENTIAL_DELAY_EXISTS = Change(
    "1.13", "the restart strategy `exponential-delay` exists; before, it is refused"
)
REQUIRED_BUFFERS_LIMITED = Change(
    "1.17",
    "the gate of a blocking result requires at most 1000 buffers: with more channels, they have fewer exclusive buffers, or none "
    "(`read-buffer.required-per-gate.max`, FLIP-266)",
)
END_OF_DATA_TRIGGERS = Change(
    "1.18",
    "a checkpoint begins as soon as the data of every task has ended, without min-pause; before, the next periodic one covers the end "
    "(FLINK-28386)",
)
PEKKO = Change("1.18", "`pekko.*` instead of `akka.*` in error texts (FLINK-32468)")
REQUESTS_WAIT_AT_PRODUCER = Change(
    "1.19", "a partition request waits at the producer instead of being refused and repeated (FLINK-25055)"
)
EXPONENTIAL_DELAY = Change(
    "1.19",
    "with checkpoints, an unset restart strategy is `exponential-delay` instead of `fixed-delay` (FLINK-33738)",
)
MERGED_FAILURES = Change(
    "1.19",
    "exponential-delay restarts merge failures during the delay, may be limited in number, and never wait less than the initial "
    "delay (FLIP-364)",
)
TRANSFERS_SHARE_THREADS = Change(
    "1.20",
    "a `state.backend.rocksdb.checkpoint.transfer.thread.num` below -1 stands for the threads of `cluster.io-pool.size`, and is refused; "
    "before, for one thread (FLINK-35501)",
)
BUFFERS_TIMEOUT_RENAMED = Change(
    "1.20",
    "`buffers-request-timeout` instead of `exclusive-buffers-request-timeout-ms` in the error of a request for buffers",
)
LAST_BUFFER_GROWS = Change(
    "1.19",
    "the last free buffer, which the debloater made small, grows to the record that does not fit; before, the task waits for another "
    "buffer in the middle of the record",
)
PARTIAL_BUFFERS = Change("2.0", "the frame of a buffer lists partial buffers (hybrid shuffle)")
GATES_DEBLOATED_ALONE = Change(
    "1.15",
    "each gate has its own buffer size, which is averaged, and a debloated buffer has room for its first record; before, all gates of a "
    "task have one size, only their common throughput is averaged, records for all subpartitions are in full buffers, and sizes that "
    "contradict each other are refused only with debloating (FLINK-24189, FLINK-24190)",
)
STARTING_SEGMENT_SIZE = Change(
    "2.0",
    "buffer debloating starts with small buffers (`taskmanager.memory.starting-segment-size`), and averages sizes as real numbers "
    "instead of integers",
)
ISO_DURATIONS = Change(
    "2.0",
    "durations may be written in ISO 8601, as in `PT10S`, and are in the error of an unanswered deployment",
)
SLOT_REFUSAL_NAMES_HOLDER = Change(
    "2.1",
    "a TaskManager that refuses an allocation which has another slot names that slot; before, the text is `Could not allocate slot.`",
)
PRIORITY_PASSES_BLOCK = Change(
    "2.3",
    "an unaligned barrier is sent even if its subpartition is blocked; before, it waits until the consumer resumes",
)
CHECKPOINTS_FOLLOW_TASKS = Change(
    "2.3",
    "the first checkpoint comes min-pause after all tasks run, and after a restart min-pause and then an interval after the first "
    "one runs; before, at a drawn moment after the job's state is RUNNING. One that comes before all tasks run is dropped",
)
NO_DATASET = Change("2.0", "the DataSet API is gone, and with it bulk and delta iterations")

CHANGES = tuple(value for value in tuple(vars().values()) if isinstance(value, Change))


@lru_cache(maxsize=64)
def number(version: str) -> tuple[int, int]:
    """Return a version as numbers, for comparison. `2.x` is the newest 2. Raises ValueError for any other text."""
    found = _NUMBER.match(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version of Flink")
    minor = found[2] or "0"
    return int(found[1]), 999 if minor in "xX" else int(minor)


def has(version: str, change: Change) -> bool:
    """Return whether a version behaves in the changed way."""
    return number(version) >= number(change.since)


def nearest_version(text: str) -> str:
    """Return the known version that behaves most like the one in `text`; empty if `text` is not a version."""
    try:
        wanted = number(text)
    except ValueError:
        return ""
    if wanted in map(number, VERSIONS):
        return next(version for version in VERSIONS if number(version) == wanted)
    older = [version for version in VERSIONS[:-1] if number(version) < wanted]
    if wanted[0] >= number(LATEST)[0]:
        return LATEST
    return older[-1] if older else VERSIONS[0]
