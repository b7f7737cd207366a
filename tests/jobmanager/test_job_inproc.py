"""A whole job in one event loop: JobManager, three TaskManagers, an in-process network, Rpc in memory."""

import asyncio

import pytest

from testbed_runtime.core.errors import FlinkError, StopRefused
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.messages import CancelJob, UpdateTaskExecutionState
from testbed_runtime.core.job.results import BLOCKING, FULL_RESULT
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.ports.rpc import RecipientUnreachable
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.inproc import a_testbed, graph, run_and_drain


def test_a_job_runs_takes_checkpoints_drains_and_delivers_exactly_once():
    """The whole way on a virtual clock: everything emitted was committed once."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph())
            bed.assert_exact()
            assert sum(bed.emitted().values()) > 500
            assert {r["subject"] for r in bed.events("gate.connected")} == {
                "work-0",
                "work-1",
                "sink-0",
                "sink-1",
            }
            assert {r["subject"] for r in bed.events("sink.first-record")} == {"sink-0", "sink-1"}
            assert {r["role"] for r in bed.rows("tasks")} == {"source", "operator", "sink"}
            assert {r["side"] for r in bed.rows("channels")} == {"producer", "consumer"}
            for row in bed.rows("channels"):
                assert row["local"] or row["used"] <= row["announced"]
            counted = sum(r["count"] for r in bed.rows("latency"))
            assert counted == sum(bed.emitted().values())

    run_virtual(main())


async def test_the_same_job_runs_in_real_time():
    """Nothing depends on the virtual clock."""
    async with a_testbed() as bed:
        await run_and_drain(bed, graph(rate=4000.0))
        bed.assert_exact()


@pytest.mark.parametrize(
    "edges", [("rebalance", "rebalance"), ("hash", "hash"), ("rebalance", "hash"), ("forward", "rebalance")]
)
def test_every_partitioning_keeps_records_whole_and_in_order(edges):
    """Order is judged per way through the job."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(edges=edges, operator=OperatorConfig("map")))
            bed.assert_exact()

    run_virtual(main())


def test_broadcast_delivers_every_record_to_every_consumer():
    """Two consumers: every number twice."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(edges=("broadcast", "forward"), operator=OperatorConfig("map")))
            for source, count in bed.emitted().items():
                assert set(bed.delivered()[source].values()) == {2}
                assert len(bed.delivered()[source]) == count

    run_virtual(main())


def test_a_bounded_source_ends_the_job_after_a_covering_checkpoint():
    """The last records are committed by the final checkpoint."""

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph(limit=1000))
            status = await bed.until(lambda s: s.state == "FINISHED")
            assert status.state == "FINISHED"
            assert sum(bed.emitted().values()) == 1000
            bed.assert_exact()

    run_virtual(main())


@pytest.mark.parametrize(("version", "at_once"), [("1.17", False), ("1.18", True), ("2.x", True)])
def test_J_96_a_checkpoint_begins_when_the_data_of_all_tasks_has_ended(version, at_once):
    """SchedulerBase.notifyEndOfData, from 1.18 on: a job with a checkpoint each 20 s ends with its last record, min-pause or not. In
    1.17 it waits for the next one."""
    options = {"execution.checkpointing.interval": "20 s", "execution.checkpointing.min-pause": "10 s"}

    async def main():
        async with a_testbed(version=version, **options) as bed:
            await bed.submit(graph(limit=1000))
            begun = bed.clock.now()
            await bed.until(lambda s: s.state == "FINISHED", timeout_s=30)
            assert (bed.clock.now() - begun < 3) is at_once
            triggered = [r["checkpoint"] for r in bed.rows("checkpoints") if r["state"] == "triggered"]
            assert triggered == [1]
            bed.assert_exact()

    run_virtual(main())


AFTER_FINISH = "execution.checkpointing.checkpoints-after-tasks-finish"


@pytest.mark.parametrize(
    ("version", "written", "covered"),
    [
        ("1.12", "", False),
        ("1.13", "true", False),
        ("1.14", "", False),
        ("1.14", "true", True),
        ("1.15", "", True),
        ("1.20", "false", False),
        ("2.x", "", True),
        ("2.x", "false", False),
    ],
)
def test_FLIP_147_a_checkpoint_covers_the_end_of_a_bounded_source_if_checkpoints_go_on(
    version, written, covered
):
    """Without it, the sources end at once, and what came after the last checkpoint is not committed. A drain works in all versions."""

    async def main():
        async with a_testbed(version=version, **{AFTER_FINISH: written}) as bed:
            await bed.submit(graph(rate=200.0, limit=500))
            await bed.until(lambda s: s.state == "FINISHED")
            delivered = sum(sum(keys.values()) for keys in bed.delivered().values())
            assert sum(bed.emitted().values()) == 500
            assert (delivered == 500) is covered
        async with a_testbed(version=version, **{AFTER_FINISH: written}) as bed:
            await run_and_drain(bed, graph(rate=200.0))
            bed.assert_exact()

    run_virtual(main())


def two_sources() -> JobGraph:
    """`short` ends after half a second, `long` never does."""
    short, long = (SourceConfig(records_per_second=200, keys=50, limit=limit) for limit in (100, 0))
    return JobGraph(
        "job",
        (
            JobVertex("short", 1, 128, "a", source=short),
            JobVertex("long", 1, 128, "a", source=long),
            JobVertex("sink", 2, 128, "b", sink=SinkConfig()),
        ),
        (JobEdge("short", "sink", "hash"), JobEdge("long", "sink", "hash")),
    )


@pytest.mark.parametrize(
    ("version", "written", "refused"),
    [("1.12", "", True), ("1.13", "true", True), ("1.14", "", True), ("1.14", "true", False), ("1.20", "false", True), ("2.x", "", False)],
)  # fmt: skip
def test_FLIP_147_a_stop_is_refused_at_once_if_a_final_checkpoint_needs_a_finished_task(
    version, written, refused
):
    """The job goes on; Flink's CheckpointException has the same text."""

    async def main():
        async with a_testbed(version=version, **{AFTER_FINISH: written}) as bed:
            await bed.submit(two_sources())
            await asyncio.sleep(3)
            client = JobClient(bed.client, bed.jobmanager_address)
            asked = bed.clock.now()
            if not refused:
                assert await client.stop_with_drain(timeout_s=60)
                return
            with pytest.raises(StopRefused, match="Not all required tasks are currently running"):
                await client.stop_with_drain(timeout_s=60)
            assert bed.clock.now() - asked < 0.5
            assert (await bed.status()).state == "RUNNING"

    run_virtual(main())


@pytest.mark.parametrize("version", ["1.12", "1.14", "1.15", "1.20", "2.x"])
def test_a_batch_job_ignores_the_checkpoint_interval(version):
    """It commits at its end, as without an interval, and the record has Flink's warning."""
    job = JobGraph(
        "job",
        (
            JobVertex("source", 2, 128, "a", source=SourceConfig(records_per_second=2000, limit=1000)),
            JobVertex("sink", 2, 128, "b", sink=SinkConfig()),
        ),
        (JobEdge("source", "sink", result=BLOCKING, deployment=FULL_RESULT),),
    )

    async def main():
        async with a_testbed(version=version) as bed:
            await bed.submit(job)
            await bed.until(lambda s: s.state == "FINISHED")
            assert sum(bed.emitted().values()) == 1000
            bed.assert_exact()
            assert bed.rows("checkpoints") == []
            assert [r["text"][:22] for r in bed.events("note")] == ["Disabled Checkpointing"]

    run_virtual(main())


@pytest.mark.parametrize(("version", "goes_on"), [("1.12", False), ("1.14", False), ("1.15", True)])
def test_FLIP_147_a_job_in_which_a_task_has_finished_takes_checkpoints_if_they_go_on(version, goes_on):
    """One of two sources is bounded. If they go on, it also waits until its consumers have received the end of all their data."""

    async def main():
        async with a_testbed(version=version) as bed:
            await bed.submit(two_sources())
            await asyncio.sleep(5)
            before = await bed.status()
            await asyncio.sleep(5)
            after = await bed.status()
            assert before.tasks["short-0"] == ("RUNNING" if goes_on else "FINISHED")
            assert (after.completed_checkpoints > before.completed_checkpoints) is goes_on
            failed = [r["reason"] for r in bed.rows("checkpoints") if r["state"] == "failed"]
            assert set(failed) <= {"CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"}
            assert after.state == "RUNNING"

    run_virtual(main())


def test_a_bounded_job_without_checkpoints_commits_at_its_end():
    """No interval: the end of the input is the commit."""

    async def main():
        async with a_testbed(**{"execution.checkpointing.interval": ""}) as bed:
            await bed.submit(graph(limit=1000))
            await bed.until(lambda s: s.state == "FINISHED")
            bed.assert_exact()

    run_virtual(main())


def test_windows_deliver_every_record_once_by_weight():
    """One output record stands for many: the weights add up to what was emitted."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(operator=OperatorConfig("window", window_s=0.5)), checkpoints=4)
            total = {(r["task"], r["checkpoint"]): r["weight"] for r in bed.rows("delivery")}
            assert sum(total.values()) == sum(bed.emitted().values())

    run_virtual(main())


def test_a_failing_function_fails_its_task_and_the_job_starts_again_without_loss(tmp_path):
    """The cause names the function; what was committed before is not committed again."""
    (tmp_path / "user.py").write_text(
        "from pathlib import Path\n"
        "once = Path(__file__).with_name('once')\n"
        "def f(record):\n"
        "    if record.source == 'source-0' and record.sequence == 700 and not once.exists():\n"
        "        once.touch()\n"
        "        raise ValueError('seven hundred')\n"
        "    return record\n"
    )

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph(operator=OperatorConfig("python", function=f"{tmp_path}/user.py:f")))
            await bed.until(lambda s: s.restarts == 1 and s.state == "RUNNING")
            seen = (await bed.status()).completed_checkpoints
            await bed.until(lambda s: s.completed_checkpoints > seen + 1)
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()
            [started] = bed.events("failover.started")
            assert started["text"] == "seven hundred (raised by user.py:f on record 700 of source-0)"
            assert {r["subject"] for r in bed.events("task.restored")} >= {"source-0", "work-1", "sink-0"}

    run_virtual(main())


def test_a_killed_taskmanager_costs_a_failover_and_no_record():
    """Its successor takes over; state and sources go on from the checkpoint."""

    async def main():
        async with a_testbed(taskmanagers=4, slots=1, **{"heartbeat.timeout": "1 s"}) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 2)
            victim = (await bed.status()).placement["work-0"]
            name = victim.rsplit("-", 1)[0]
            gone = bed.taskmanagers.pop(name)
            await bed.rpcs.pop(name).close()
            await gone.close()
            await bed.add(int(name[3:]), incarnation=2)
            await bed.until(lambda s: s.restarts >= 1 and s.state == "RUNNING")
            seen = (await bed.status()).completed_checkpoints
            await bed.until(lambda s: s.completed_checkpoints > seen + 1)
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()

    run_virtual(main())


@pytest.mark.parametrize(
    ("version", "overtakes"),
    [("1.12", ""), ("1.13", "input"), ("1.15", "input"), ("1.16", "input output"), ("2.x", "input output")],
)
def test_where_barriers_of_an_aligned_checkpoint_time_out_depends_on_the_version(version, overtakes):
    """In the input of a task from 1.13 on, in the output of a task, such as a source, from 1.16 on."""
    prefix = "execution.checkpointing."
    settings = {"interval": "500 ms", "unaligned.enabled": "true", "aligned-checkpoint-timeout": "100 ms"}
    edges, groups = ("hash", "rebalance"), ("a", "b", "c")
    slow = graph(rate=1500.0, sink=SinkConfig(service_time_s=0.003), edges=edges, groups=groups)

    async def main():
        small = {"taskmanager.memory.segment-size": "1 kb"}
        async with a_testbed(version=version, **{prefix + k: v for k, v in settings.items()}, **small) as bed:
            await bed.submit(slow)
            await bed.until(lambda s: s.completed_checkpoints >= 3)
            stored = [r for r in bed.rows("checkpoints") if r["persisted_bytes"]]
            assert ("input" in overtakes) is any(r["task"].startswith("sink") for r in stored)
            assert ("output" in overtakes) is any(r["task"].startswith("source") for r in stored)
            await bed.ask(CancelJob(bed.job))
            await bed.until(lambda s: s.state == "CANCELED")

    run_virtual(main())


@pytest.mark.parametrize(
    ("lost", "hear"), [(("OfferSlots",), 0.0), (("OfferSlots", "NotifySlotAvailable"), 3.0)]
)
def test_a_slot_whose_offer_fails_is_allocated_again(lost, hear):
    """J-33. The TaskManager frees it and notifies the ResourceManager. If that is lost too, the next heartbeat shows it."""

    async def main():
        async with a_testbed(**{"heartbeat.interval": "3 s", "heartbeat.timeout": "60 s"}) as bed:
            for rpc in bed.rpcs.values():
                lose_first(rpc, lost)
            began = bed.clock.now()
            await bed.submit(graph())
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            assert hear <= bed.clock.now() - began < hear + 1.0
            assert (await bed.status()).restarts == 0
            assert (await bed.drain()).state == "FINISHED"

    run_virtual(main())


def lose_first(rpc, names):
    """Lose the first message of each of these classes."""
    ask, left = rpc.ask, list(names)

    async def losing(*args, **settings):
        name = type(args[3]).__name__
        if name in left:
            left.remove(name)
            raise RecipientUnreachable(f"{name} was lost.")
        return await ask(*args, **settings)

    rpc.ask = losing


@pytest.mark.parametrize("version", ["1.14", "1.20", "2.x"])
def test_a_job_recovers_from_a_failure_whose_report_was_lost(version):
    """The next heartbeat shows that the task is gone. From 1.15 on its readers end as CANCELED, and start no failover."""

    async def main():
        async with a_testbed(version=version) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 1)
            tasks = [task for t in bed.taskmanagers.values() for task in t.tasks]
            source = next(task for task in tasks if task.name == "source-0")
            owner = next(name for name, t in bed.taskmanagers.items() if source in t.tasks)
            lose_failure_reports(bed.rpcs[owner])
            source.fail(FlinkError("IOException", "boom"))
            await bed.until(lambda s: s.restarts == 1 and s.state == "RUNNING" and not s.cause)
            (failure,) = bed.events("failover.started")
            assert "source" in failure["text"] or "unexpectedly no longer running" in failure["text"]
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()

    run_virtual(main())


def lose_failure_reports(rpc):
    """Let no report of a failure arrive, until the heartbeat that shows it."""
    ask = rpc.ask

    async def asking(to, address, endpoint, message, **more):
        if isinstance(message, UpdateTaskExecutionState) and message.state == "FAILED":
            raise RecipientUnreachable("The report was lost.")
        return await ask(to, address, endpoint, message, **more)

    rpc.ask = asking


def test_a_job_whose_pools_want_more_memory_than_there_is_says_so_once():
    """Flink's warning, as a note in the history: the job runs, with smaller pools."""

    async def main():
        memory = "taskmanager.memory.network"
        async with a_testbed(**{f"{memory}.min": "100 kb", f"{memory}.max": "100 kb"}) as bed:
            await run_and_drain(bed, graph(), checkpoints=6)
            notes = [row for row in bed.events("note") if "is too high" in row["text"]]
            assert notes
            assert len({row["subject"] for row in notes}) == len(notes)
            assert "totalMemory=100.000kb" in notes[0]["text"]

    run_virtual(main())


def test_a_cancelled_job_gives_everything_back():
    """No task, no buffer, no slot is left (the testbed's end checks the first two)."""

    async def main():
        async with a_testbed() as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 1)
            await bed.ask(CancelJob(bed.job))
            await bed.until(lambda s: s.state == "CANCELED")
            await asyncio.sleep(0.5)
            assert all(t.counters()["free_slots"] == 2 for t in bed.taskmanagers.values())
            assert all(not t.tasks for t in bed.taskmanagers.values())
            assert all(t.segments_in_use == 0 for t in bed.taskmanagers.values())

    run_virtual(main())


def test_an_at_least_once_sink_commits_as_it_goes():
    """Rows with checkpoint -1; after a drain nothing is missing."""

    async def main():
        async with a_testbed() as bed:
            await run_and_drain(bed, graph(sink=SinkConfig(delivery="at-least-once")))
            bed.assert_exact()
            assert {r["checkpoint"] for r in bed.rows("delivery")} == {-1}

    run_virtual(main())


def test_one_seed_gives_one_history():
    """Two runs of the same job on a virtual clock record the same."""

    def once():
        kept = []

        async def main():
            async with a_testbed() as bed:
                await run_and_drain(bed, graph())
                kept.append(bed)

        run_virtual(main())
        return [
            {k: v for k, v in row.items() if k not in ("run", "trial")}
            for table in ("events", "tasks", "channels", "delivery", "latency", "checkpoints")
            for row in kept[0].rows(table)
        ]

    assert once() == once()
