"""Spark as a process of its own: progress, results, and every way in which it can die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import METRIC_FIELDS
from testbed_runtime.local.evaluator import TAIL_LINES, SparkEvaluator, remember
from tests.report import synthetic

CHILD = """#!{python}
import json, os, subprocess, sys, time
{body}
"""


def stand_in(folder: Path, body: str) -> str:
    """A program in the place of Python: the evaluator starts it with the same arguments."""
    path = folder / "stand-in"
    path.write_text(CHILD.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while alive(pid):
            await asyncio.sleep(0.02)


@pytest.mark.processes
async def test_progress_is_passed_on_and_results_are_read(tmp_path: Path):
    """Lines of JSON become calls; the rows of the trials asked for come back."""
    rows = [{"trial": "a", "value": 1.0}, {"trial": "b", "value": 2.0}]
    body = f"print(json.dumps({{'stage': 'spark', 'done': 1}}), flush=True); print('no json', flush=True)\nopen(sys.argv[3] + '/metrics.json', 'w').write({json.dumps(json.dumps(rows))})"
    said: list[Any] = []
    evaluator = SparkEvaluator(on_progress=said.append, python=stand_in(tmp_path, body))
    assert await evaluator.evaluate(str(tmp_path), ["b"]) == [rows[1]]
    assert said == [{"stage": "spark", "done": 1}]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "sys.stderr.write('noise\\nevaluation: history/a/tasks.parquet is truncated\\nnoise\\n'); sys.exit(2)",
            "The evaluation failed: history/a/tasks.parquet is truncated",
        ),
        (
            "sys.stderr.write('dying\\n'); sys.stderr.flush(); os.kill(os.getpid(), 9)",
            "was killed by SIGKILL. The end of its log:\ndying",
        ),
        ("sys.exit(7)", "ended with exit code 7."),
        ("pass", "left no readable metrics.json"),
    ],
)
async def test_failure_is_one_error_with_what_the_child_said(tmp_path: Path, body: str, problem: str):
    """An exit code, a kill, or nothing written: never a stack trace, never silence."""
    with pytest.raises(HeadgateError) as caught:
        await SparkEvaluator(python=stand_in(tmp_path, body)).evaluate(str(tmp_path), [])
    assert problem in str(caught.value)


GRANDCHILD = """
child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])
open(sys.argv[3] + '/pids', 'w').write(f'{os.getpid()} {child.pid}')
time.sleep(600)
"""


async def pids_of(folder: Path) -> list[int]:
    async with asyncio.timeout(10):
        while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < 2:
            await asyncio.sleep(0.02)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


@pytest.mark.processes
async def test_a_cancelled_evaluation_leaves_no_process_behind(tmp_path: Path):
    """The whole group ends, also what ignores SIGTERM."""
    task = asyncio.create_task(
        SparkEvaluator(python=stand_in(tmp_path, GRANDCHILD)).evaluate(str(tmp_path), [])
    )
    pids = await pids_of(tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in pids:
        await gone(pid)


@pytest.mark.processes
async def test_an_evaluation_that_hangs_is_ended_at_its_limit(tmp_path: Path):
    """With the limit in the message."""
    evaluator = SparkEvaluator(python=stand_in(tmp_path, GRANDCHILD), timeout_s=0.5)
    with pytest.raises(HeadgateError, match=r"took longer than 0\.5 s"):
        await evaluator.evaluate(str(tmp_path), [])


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / synthetic.RUN
    folder.mkdir()
    synthetic.write_run(folder)
    return folder


@pytest.mark.spark
async def test_a_real_spark_in_its_own_process_writes_metrics_and_time_series(own_run: Path):
    """All stages are told, all trials are there, comparisons with the control run included."""
    said: list[Any] = []
    rows = await SparkEvaluator(on_progress=said.append).evaluate(str(own_run), [])
    assert [line["stage"] for line in said] == [
        "histories",
        "spark",
        "trials",
        "recovery",
        "throughput",
        "results",
    ]
    assert {row["trial"] for row in rows} == {p.trial for p in synthetic.PLANS}
    assert all(set(row) == {name for name, _ in METRIC_FIELDS} for row in rows)
    assert any(row["metric"] == "latency.relative-to-control" and row["value"] for row in rows)
    series = json.loads((own_run / "timeseries.json").read_text())
    assert [s["trial"] for s in series["trials"]] == [p.trial for p in synthetic.PLANS]
    assert series["recovery"]
    assert series["throughput"]


def test_the_line_that_explains_a_failure_outlives_whatever_is_said_after_it():
    """PySpark may say goodbye with stack traces of any length."""
    tail: list[str] = []
    for line in ["starting", "evaluation: the Spark driver has ended", *(f"trace {n}" for n in range(100))]:
        remember(tail, line)
    assert tail[0] == "evaluation: the Spark driver has ended"
    assert tail[-1] == "trace 99"
    assert len(tail) <= TAIL_LINES + 1


@pytest.mark.spark
async def test_a_spark_driver_that_is_killed_is_told_in_one_line(own_run: Path):
    """SIGKILL of the JVM while it works: one error, earlier results untouched, no process left."""
    before = (own_run / "metrics.json").read_bytes() if (own_run / "metrics.json").exists() else None
    killed: list[int] = []

    def kill_driver(line: Any) -> None:
        if line["stage"] == "trials":
            killed.extend(jvms_below(os.getpid()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(HeadgateError, match="The evaluation failed: ") as caught:
        await SparkEvaluator(on_progress=kill_driver).evaluate(str(own_run), [])
    assert killed
    assert "\n" not in str(caught.value)
    assert "Spark driver has ended" in str(caught.value)
    after = (own_run / "metrics.json").read_bytes() if (own_run / "metrics.json").exists() else None
    assert after == before


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def jvms_below(parent: int) -> list[int]:
    """Java processes of the evaluations that `parent` started itself; not the session shared by other tests, nor those of another worker."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command = (stat.parent / "cmdline").read_bytes()
            pid = int(stat.parent.name)
            if b"java" not in command or b"org.apache.spark" not in command:
                continue
            above = parent_of(pid)
            evaluates = b"testbed_runtime.evaluation.main" in Path(f"/proc/{above}/cmdline").read_bytes()
            if evaluates and parent_of(above) == parent:
                found.append(pid)
        except (OSError, ValueError):
            continue
    return found
