"""Iterations in a document: what they compile to, and what is refused, each with the fix."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from testbed_runtime.api import models
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.validate import validate
from testbed_runtime.core.job.jobgraph import IterationConfig
from testbed_runtime.core.job.slots import needed_slots
from tests.api.documents import good

BULK: dict[str, Any] = {
    "vertices": [
        {"name": "source", "parallelism": 2, "slotSharingGroup": "a", "source": {"limit": 100}},
        {"name": "loop", "parallelism": 2, "iteration": {"maxIterations": 10}},
        {"name": "step", "parallelism": 2, "slotSharingGroup": "a", "operator": "map"},
        {"name": "back", "parallelism": 2, "operator": "map"},
        {"name": "sink", "parallelism": 1, "sink": "ledger"},
    ],
    "edges": [
        {"from": "source", "to": "loop"},
        {"from": "loop", "to": "step"},
        {"from": "step", "to": "back"},
        {"from": "back", "to": "loop", "feedback": True},
        {"from": "loop", "to": "sink"},
    ],
}
VERTEX = {v["name"]: number for number, v in enumerate(BULK["vertices"])}
Change = Callable[[dict[str, Any]], Any]


def document(change: Change = lambda _: None, *, delta: bool = False) -> dict[str, Any]:
    """A scenario with an iteration, changed."""
    data = good("Scenario")
    spec = data["spec"]
    spec["testbed"] = {
        "flinkVersion": "1.20",
        "taskManagers": {"replicas": 4, "slots": 2},
        "job": copy.deepcopy(BULK),
    }
    spec["faults"] = spec["variants"] = []
    if delta:
        vertices = spec["testbed"]["job"]["vertices"]
        vertices[VERTEX["loop"]]["iteration"]["kind"] = "delta"
        vertices[VERTEX["step"]] |= {"operator": "flat-map", "function": "f.py:near"}
        vertices[VERTEX["back"]] |= {"operator": "solution-set-join", "function": "f.py:join"}
    change(spec["testbed"])
    return data


def vertex(which: str, **fields: Any) -> Change:
    return lambda bed: bed["job"]["vertices"][VERTEX[which]].update(fields)


def edge(number: int, **fields: Any) -> Change:
    return lambda bed: bed["job"]["edges"][number].update(fields)


def both(one: Change, other: Change) -> Change:
    return lambda bed: (one(bed), other(bed))


def more(**fields: Any) -> Change:
    return lambda bed: bed["job"]["edges"].append(fields)


@pytest.mark.parametrize("delta", [False, True])
def test_an_iteration_compiles_to_head_tail_and_synchronisation_task(delta: bool):
    """The job graph has no cycle, and needs no slot for the synchronisation task."""
    job = compile_testbed(validate(document(delta=delta)).valid().spec.testbed, seed=1).job
    config = IterationConfig("loop", "delta" if delta else "bulk", 10, "", "step", "loop-sync")
    assert job.vertex("loop").iteration == job.vertex("back").feeds_back == config
    assert job.vertex("loop-sync").synchronizes == config
    assert job.vertex("loop-sync").slot_sharing_group == "default"
    assert ("back", "loop") not in [(e.source, e.target) for e in job.edges]
    assert ("loop", "loop-sync") in [(e.source, e.target) for e in job.edges]
    assert len(needed_slots(job)) == 4
    assert job.is_batch


def test_a_job_without_an_iteration_takes_checkpoints():
    """Only a blocking result or an iteration makes a batch job."""
    testbed = models.TestbedSpec.model_validate(good("Testbed")["spec"])
    assert not compile_testbed(testbed, seed=1).job.is_batch


REFUSED: dict[str, tuple[bool, Change, str]] = {
    "a newer Flink": (False, lambda bed: bed.update(flinkVersion="2.x"), 'spec.testbed.flinkVersion: Flink 2.x has no iterations: 2.0 removed the DataSet API (write flinkVersion: "1.20")'),
    "an unbounded source": (False, vertex("source", source={}), "spec.testbed.job.vertices[0].source: a job with an iteration never ends with an unbounded source (add a limit to a generated source)"),
    "an edge back that is not marked": (False, edge(3, feedback=False), "feedback: true on the edge back, iteration on the vertex where it ends"),
    "a head without feedback": (False, lambda bed: bed["job"]["edges"].pop(3), "spec.testbed.job.vertices[1]: 0 edges with feedback: true lead to 'loop' instead of one (add an edge from the last vertex of the step function"),
    "two tails": (False, more(**{"from": "step", "to": "loop", "feedback": True}), "2 edges with feedback: true lead to 'loop'"),
    "feedback to an operator": (False, edge(3, to="step"), "the feedback edge leads to 'step', which is not the head of an iteration"),
    "a partitioned feedback": (False, edge(3, partitioning="rebalance"), "spec.testbed.job.edges[3]: a feedback edge stays in the memory of one subtask"),
    "a tail that is not behind the head": (False, edge(1, **{"from": "source"}), "the step function from 'loop' to 'back' is not a chain"),
    "a second input": (False, more(**{"from": "source", "to": "step"}), "the step function from 'loop' to 'back' is not a chain"),
    "another parallelism": (False, vertex("back", parallelism=1), "spec.testbed.job.vertices[3]: the tail 'back' does not run in the slots of the head 'loop' (give it parallelism: 2 and slotSharingGroup: default)"),
    "another slot": (False, vertex("back", slotSharingGroup="a"), "the tail 'back' does not run in the slots of the head 'loop'"),
    "a window inside": (False, vertex("step", operator="window"), "window does not work inside a bulk iteration (use map, keyed-count, python)"),
    "a second output": (False, more(**{"from": "step", "to": "sink"}), "'step' has other outputs than the next vertex of the step function (results leave an iteration at its head"),
    "a result that goes nowhere": (False, edge(4, **{"from": "source"}), "the result of the iteration goes nowhere"),
    "a nested iteration": (False, lambda bed: (bed["job"]["vertices"][2].pop("operator"), bed["job"]["vertices"][2].update(iteration={"maxIterations": 2})), "iterations cannot be nested"),
    "a broadcast inside": (False, edge(2, partitioning="broadcast"), "spec.testbed.job.edges[2]: an edge inside an iteration is pipelined and eager, and sends each record once"),
    "a blocking result inside": (False, edge(1, result="blocking", deployment="on-full-result"), "an edge inside an iteration is pipelined and eager"),
    "a late tail": (False, edge(2, deployment="on-first-record"), "an edge inside an iteration is pipelined and eager"),
    "a consumer of the first record": (False, edge(4, deployment="on-first-record"), "the result of an iteration has no first record before its end"),
    "a vertex called like the synchronisation task": (False, both(vertex("sink", name="loop-sync"), edge(4, to="loop-sync")), "its synchronisation task is called 'loop-sync'"),
    "a criterion without a function": (False, vertex("loop", iteration={"maxIterations": 2, "criterion": "f.py"}), "spec.testbed.job.vertices[1].iteration.criterion: a criterion is a function"),
    "a criterion of a delta iteration": (True, vertex("loop", iteration={"kind": "delta", "maxIterations": 2, "criterion": "f.py:f"}), "a delta iteration ends when its workset is empty"),
    "a flat-map in a bulk iteration": (False, vertex("step", operator="flat-map", function="f.py:f"), "flat-map works only between the head and the tail of a delta iteration (use operator: python)"),
    "a join without its function": (True, vertex("back", function=""), "a solution-set-join operator needs its function"),
    "a delta iteration without a join": (True, vertex("back", operator="map"), "the tail of the delta iteration of 'loop' is map (use solution-set-join, with its function)"),
    "a join in the middle": (True, vertex("step", operator="solution-set-join"), "only the tail of a delta iteration can be a solution-set-join"),
    "other key groups": (True, vertex("back", maxParallelism=64), "spec.testbed.job.vertices[3].maxParallelism: 'back' has other key groups than 'loop'"),
    "candidates that are not keyed": (True, edge(2, partitioning="rebalance"), "spec.testbed.job.edges[2].partitioning: head and tail of a delta iteration must get their records by key (write hash)"),
    "checkpoints": (False, lambda bed: bed.update(flinkConfiguration={"execution.checkpointing.interval": "1 s"}), "a job with an iteration takes no checkpoints (leave it out)"),
    "a kept checkpoint": (False, lambda bed: bed.update(flinkConfiguration={"execution.state-recovery.path": "/tmp/chk-1"}), "a job with an iteration does not start from a checkpoint (leave it out)"),
    "a head with a function": (False, vertex("loop", function="f.py:f"), "'loop' is the head of an iteration, which passes records on and calls no function (move function and serviceTime"),
    "a slow head": (False, vertex("loop", serviceTime="1 ms"), "'loop' is the head of an iteration, which passes records on"),
    "latency markers": (False, lambda bed: bed.update(flinkConfiguration={"metrics.latency.interval": "1 s"}), "latency markers do not pass through an iteration"),
    "a receive queue": (False, lambda bed: bed.update(flinkConfiguration={"headgate.flow-control": "pid"}), "the end of a superstep does not wait for the receive queue of a task"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_iteration_is_refused_with_the_fix(name: str):
    """Whatever is wrong, it is reported before anything starts, and nothing raises."""
    delta, change, words = REFUSED[name]
    errors = [str(error) for error in validate(document(change, delta=delta)).errors]
    assert [error for error in errors if words in error], errors
