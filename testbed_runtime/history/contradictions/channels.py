"""Compare the columns of a channel's sample with each other. They are counted at several places of the exchange."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from testbed_runtime.core.exchange.credit import UNLIMITED_CREDIT
from testbed_runtime.core.options import EXCLUSIVE_BUFFERS
from testbed_runtime.core.trial.sampling import SAMPLED_SUBTASKS
from testbed_runtime.history.checked import CheckedTrial
from testbed_runtime.history.columns import Owned, equal, first_true, ints, numbered, sound, taskmanager_of
from testbed_runtime.history.contradictions.executions import LONG_NS
from testbed_runtime.history.damage import Damage, first_of_each

CHANNEL = ("process", "side", "task", "attempt", "peer")
MEASURED = ("credit", "announced", "used", "backlog", "queued", "floating", "exclusive")
PEER_SAMPLES_MIN = 20
"""If one end of a channel has this many samples over LONG_NS, the other end has at least one."""
ARRIVING = 1
"""Maximum buffers of a channel that have arrived in part."""


def check_credit(channels: pa.Table) -> Iterator[Damage]:
    """Return a producer with more credit than was announced and not used, and a consumer with more segments than it announced. Without
    exclusive buffers, either may have less: a consumer that resumes begins at 0. Using more than was announced is not damage:
    `checking.credit` judges it."""
    return islice(_unbalanced(channels, exact=False), 1)


def check_balance(trial: CheckedTrial) -> list[Damage]:
    """Return a producer with less credit than was announced and not used, or a consumer with fewer segments, if the job's channels
    have exclusive buffers. A buffer that has arrived in part holds a segment and is not used yet."""
    if trial.options.integer(EXCLUSIVE_BUFFERS) < 1:
        return []
    return first_of_each(_unbalanced(trial.table("channels"), exact=True))


def check_samples(trial: CheckedTrial) -> list[Damage]:
    """Return samples that contradict each other or the deployments: a sample that repeats the previous one, although samples are taken on a
    change; a channel that is local although its ends were deployed to different TaskManagers, or the reverse; a channel of which only one
    end was sampled."""
    if not trial.deployed or not len(trial.table("waits")):
        return []
    channels = trial.table("channels")
    return first_of_each(_repeated(channels), _local(trial), _one_sided(trial))


def _repeated(table: pa.Table) -> Iterator[Damage]:
    if not sound(table, "seq", *CHANNEL, *MEASURED):
        return
    owned = Owned.of(numbered([table], CHANNEL), ints(table, "seq"))
    measured = np.stack([ints(table, column)[owned.order] for column in MEASURED])
    same = owned.follows((np.diff(measured) == 0).all(axis=0))
    if same.any():
        row = int(owned.order[same].min())
        task, peer = (table.column(c)[row].as_py() for c in ("task", "peer"))
        problem = (
            f"is of a sample of {task} with {peer} that repeats the one before: they are taken on a change"
        )
        yield Damage("channels", "seq", row, problem)


def _local(trial: CheckedTrial) -> Iterator[Damage]:
    places: dict[str, set[str]] = {}
    for (task, _), event in trial.deployed.items():
        places.setdefault(task, set()).add(taskmanager_of(event))
    for row, r in trial.distinct("channels", "process", "peer", "local"):
        owners = places.get(r["peer"], set())
        if owners and (r["process"] not in owners if r["local"] else owners == {r["process"]}):
            problem = f"is {r['local']} in {r['process']}, but {r['peer']} was deployed to {', '.join(sorted(owners))} (task.state in events)"
            yield Damage("channels", "local", row, problem)


def _one_sided(trial: CheckedTrial) -> Iterator[Damage]:
    """Yield a task without samples as the producer or as the consumer of its channels, although the other ends have many. In a large job only
    some channels are sampled, the reader of a blocking result has no producer that runs, and a short task may end before its channels are
    sampled."""
    if trial.has_blocking_edges or not 0 < len(trial.tasks) <= SAMPLED_SUBTASKS:
        return
    table, end = trial.table("channels"), ["side", "task", "peer"]
    remote = table.filter(pc.invert(table.column("local"))).select([*end, "t_ns"])
    ends = remote.group_by(end).aggregate([("t_ns", "min"), ("t_ns", "max"), ("t_ns", "count")]).to_pylist()
    sampled = {(r["side"], r["task"]) for r in ends}
    samples = trial.places("tasks", "task")
    for r in sorted(ends, key=lambda r: (r["side"], r["task"], r["peer"])):
        other = "consumer" if r["side"] == "producer" else "producer"
        many = r["t_ns_count"] >= PEER_SAMPLES_MIN and r["t_ns_max"] - r["t_ns_min"] >= LONG_NS
        ran = len(samples.get((r["peer"],), ())) >= PEER_SAMPLES_MIN
        if many and ran and (other, r["peer"]) not in sampled:
            problem = f"is never {other!r} for {r['peer']}, of whose channel {r['task']} recorded {r['t_ns_count']} samples ({r['side']})"
            yield Damage("channels", "side", -1, problem)


def _unbalanced(table: pa.Table, *, exact: bool) -> Iterator[Damage]:
    if not sound(table, "side", "local", "credit", "announced", "used"):
        return
    credit, announced, used = (ints(table, c) for c in ("credit", "announced", "used"))
    limited = (announced > 0) & (credit < UNLIMITED_CREDIT)
    remote = limited & ~np.asarray(table.column("local").to_numpy(zero_copy_only=False), dtype=np.bool_)
    producing = equal(table, "side", "producer")
    more = credit - (announced - used)
    wrong = remote & producing & ((more > 0) | (exact & (more < 0)))
    for row in first_true(wrong):
        problem = (
            f"is {credit[row]}, but {announced[row]} were announced and {used[row]} used (announced, used)"
        )
        yield Damage("channels", "credit", row, problem)
    if not sound(table, "floating", "exclusive"):
        return
    free = ints(table, "floating") + ints(table, "exclusive")
    more = used + free - (announced + credit)
    wrong = remote & ~producing & (used <= announced) & ((more > 0) | (exact & (more < -ARRIVING)))
    for row in first_true(wrong):
        problem = f"is {announced[row]} and {credit[row]} are not announced, but {used[row]} were used and {free[row]} are free (credit, used, floating, exclusive)"
        yield Damage("channels", "announced", row, problem)
