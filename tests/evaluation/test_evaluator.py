"""Spark in a process of its own: progress, results, reuse, and every way in which it can die."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from testbed_runtime.cli.session import Session
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.evaluation.evaluate import STAGES
from testbed_runtime.evaluation.process import TAIL_LINES, SparkWorker, remember
from testbed_runtime.local.evaluator import SparkEvaluator
from tests.manifests import run_manifest
from tests.metricrows import metric_row
from tests.report import synthetic

CHILD = """#!{python}
import json, os, subprocess, sys, time
def answer(**line): print(json.dumps(line), flush=True)
for line in sys.stdin:
    folder = json.loads(line)["folder"]
{body}
"""
DONE = "answer(result='done')"
ROWS = [metric_row("lag.max", value, trial=trial) for trial, value in (("a", 1.0), ("b", 2.0))]
METRICS = f"open(folder + '/metrics.json', 'w').write({json.dumps(json.dumps(to_builtins(ROWS)))})"
MANIFEST = run_manifest([{"trial": "a"}, {"trial": "b"}], expectations={"main": []})


def empty_run(folder: Path) -> Path:
    """Only the manifest."""
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(to_builtins(MANIFEST)))
    return folder


def stand_in(folder: Path, *body: str) -> str:
    """A program that takes the place of Python: it answers each request with `body`."""
    path = folder / "stand-in"
    path.write_text(
        CHILD.format(python=sys.executable, body=textwrap.indent("\n".join(body).strip(), "    "))
    )
    path.chmod(0o755)
    return str(path)


async def evaluated(folder: Path, *body: str, on_progress: Any = None, **options: Any) -> list[Any]:
    """Evaluate one folder with a stand-in that is closed afterwards."""
    worker = SparkWorker(python=stand_in(folder, *body), **options)
    try:
        return await SparkEvaluator(worker, on_progress=on_progress).evaluate(empty_run(folder))
    finally:
        await worker.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while alive(pid):
            await asyncio.sleep(0.02)


@pytest.mark.processes
async def test_the_rows_of_a_catalogue_are_collected_by_job(tmp_path: Path):
    """One line a row, whatever job it belongs to."""
    body = ["answer(job='metrics', row={'run': folder})", "answer(job='prices', row={'seconds': 2})", DONE]
    program = stand_in(tmp_path, *body)
    Path(program).write_text(Path(program).read_text().replace('["folder"]', '["trends"]'))
    worker = SparkWorker(python=program)
    found = await worker.trends(tmp_path)
    assert found == {"metrics": [{"run": str(tmp_path)}], "prices": [{"seconds": 2}]}
    await worker.close()


@pytest.mark.processes
async def test_progress_is_passed_on_and_results_are_read(tmp_path: Path):
    """JSON lines become calls, other lines are ignored; the rows of metrics.json are returned."""
    body = ["answer(stage='spark', done=1)", "print('no json', flush=True)", METRICS, DONE]
    lines: list[Any] = []
    worker = SparkWorker(python=stand_in(tmp_path, *body))
    assert await SparkEvaluator(worker, on_progress=lines.append).evaluate(empty_run(tmp_path)) == ROWS
    assert lines == [{"stage": "spark", "done": 1}]
    await worker.close()


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
            "Spark was killed by SIGKILL before its work was done. The end of its log:\ndying",
        ),
        ("sys.exit(7)", "Spark ended with exit code 7 before its work was done."),
        ("answer(result='failed', error='no such column')", "The evaluation failed: no such column"),
        (DONE, "has no metrics.json"),
    ],
)
async def test_a_failure_is_one_error_with_the_childs_explanation(tmp_path: Path, body: str, problem: str):
    """An exit code, a kill, a refusal, or nothing written: never a stack trace, never silence."""
    with pytest.raises(HeadgateError) as caught:
        await evaluated(tmp_path, body)
    assert problem in str(caught.value)


@pytest.mark.processes
def test_all_evaluations_of_a_command_use_one_process(tmp_path: Path):
    """`ci`, `tune` and `evaluate A B` start Spark once. Each run keeps its own log; the process ends with the command."""
    folders = [tmp_path / "a", tmp_path / "b"]
    pids = "open(folder + '/pid', 'w').write(str(os.getpid()))"
    log = "sys.stderr.write('log of ' + folder + '\\n'); sys.stderr.flush(); time.sleep(0.2)"
    with Session() as session:
        session.spark = SparkWorker(python=stand_in(tmp_path, pids, log, METRICS, DONE))
        for folder in folders:
            empty_run(folder)
            assert session.run(SparkEvaluator(session.spark).evaluate(folder)) == ROWS
        assert session.spark.starts == 1
        first, second = (int((folder / "pid").read_text()) for folder in folders)
        assert first == second
        assert alive(first)
    assert not alive(first)
    for folder in folders:
        assert (folder / "logs" / "evaluation.log").read_text() == f"log of {folder}\n"


@pytest.mark.processes
def test_a_process_that_died_is_replaced_for_the_next_run(tmp_path: Path):
    """A Spark that was killed fails one run, not all runs of the command."""
    body = "os.kill(os.getpid(), 9) if folder.endswith('bad') else None"
    with Session() as session:
        session.spark = SparkWorker(python=stand_in(tmp_path, body, METRICS, DONE))
        for name in ("bad", "good"):
            empty_run(tmp_path / name)
        with pytest.raises(HeadgateError, match="killed by SIGKILL"):
            session.run(SparkEvaluator(session.spark).evaluate(tmp_path / "bad"))
        assert session.run(SparkEvaluator(session.spark).evaluate(tmp_path / "good")) == ROWS
        assert session.spark.starts == 2


GRANDCHILD = """
child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])
open(folder + '/pids', 'w').write(f'{os.getpid()} {child.pid}')
time.sleep(600)
"""


async def pids_of(folder: Path) -> list[int]:
    async with asyncio.timeout(60):
        while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < 2:
            await asyncio.sleep(0.02)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


@pytest.mark.processes
async def test_the_scratch_folder_of_a_killed_process_is_removed(tmp_path: Path):
    """A process that the kernel kills for want of memory removes nothing itself."""
    body = """
from testbed_runtime.evaluation.session import scratch_folder
with scratch_folder() as scratch:
    (scratch / 'shuffle').write_text('blocks')
    open(folder + '/scratch', 'w').write(str(scratch))
    os.kill(os.getpid(), 9)
"""
    with pytest.raises(HeadgateError, match="killed by SIGKILL"):
        await evaluated(tmp_path, body)
    assert not Path((tmp_path / "scratch").read_text()).exists()


@pytest.mark.processes
async def test_a_cancelled_evaluation_leaves_no_process_behind(tmp_path: Path):
    """The whole process group ends, including a process that ignores SIGTERM."""
    task = asyncio.create_task(evaluated(tmp_path, GRANDCHILD))
    pids = await pids_of(tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in pids:
        await gone(pid)


@pytest.mark.processes
async def test_an_evaluation_that_hangs_is_stopped_at_its_limit(tmp_path: Path):
    """The message names the limit."""
    with pytest.raises(HeadgateError, match=r"took longer than 0\.5 s"):
        await evaluated(tmp_path, GRANDCHILD, limit_s=0.5)


NAMELESS = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
"""The same rights on files, under a user id that has no name, as with `docker run --user`."""


def why_not_nameless() -> str:
    """Return why no process here can have a user without a name; empty if it can."""
    if shutil.which(NAMELESS[0]) is None:
        return f"{NAMELESS[0]} is not installed"
    tried = subprocess.run([*NAMELESS, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"{NAMELESS[0]} failed"


def nameless_python(folder: Path) -> str:
    """This Python as a user without a name, where the kernel lets a process have a user namespace."""
    if why_not_nameless():
        return sys.executable
    path = folder / "nameless-python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(NAMELESS)} {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One real Spark for the tests of this file, of a user without a name where that is possible: Hadoop cannot log in as one."""
    with Session() as made:
        made.spark = SparkWorker(python=nameless_python(tmp_path_factory.mktemp("python")))
        yield made


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / synthetic.RUN
    folder.mkdir()
    synthetic.write_run(folder)
    return folder


@pytest.mark.spark
def test_a_real_spark_in_its_own_process_writes_metrics_and_time_series(own_run: Path, session: Session):
    """All stages are reported, all trials are evaluated, comparisons with the control run included."""
    lines: list[Any] = []
    rows = session.run(SparkEvaluator(session.spark, on_progress=lines.append).evaluate(own_run))
    assert [line["stage"] for line in lines] == list(STAGES)
    assert {row.trial for row in rows} == {p.trial for p in synthetic.PLANS}
    assert any(row.metric == "latency.relative-to-control" and row.value for row in rows)
    series = json.loads((own_run / "timeseries.json").read_text())
    assert [s["trial"] for s in series["trials"]] == [p.trial for p in synthetic.PLANS]


@pytest.mark.spark
def test_spark_runs_for_a_user_without_a_name(session: Session):
    """The session of the other tests: it works, and no name belongs to the user id that its JVM sees."""
    if problem := why_not_nameless():
        pytest.skip(problem)
    if not session.spark.is_up:
        session.run(session.spark.start())
    jvms = jvms_below(os.getpid())
    assert jvms
    for pid in jvms:
        seen = int(Path(f"/proc/{pid}/uid_map").read_text().split()[0])
        with pytest.raises(KeyError):
            pwd.getpwuid(seen)


def test_the_line_that_explains_a_failure_is_kept_whatever_follows_it():
    """PySpark may print stack traces of any length when it ends."""
    tail: list[str] = []
    for line in ["starting", "evaluation: the Spark driver has ended", *(f"trace {n}" for n in range(100))]:
        remember(tail, line)
    assert tail[0] == "evaluation: the Spark driver has ended"
    assert tail[-1] == "trace 99"
    assert len(tail) <= TAIL_LINES + 1


@pytest.mark.spark
def test_a_killed_spark_driver_is_reported_in_one_line(own_run: Path, session: Session):
    """SIGKILL of the JVM while it works: one error, earlier results are untouched, no process is left."""
    before = (own_run / "metrics.json").read_bytes() if (own_run / "metrics.json").exists() else None
    killed: list[int] = []

    def kill_driver(line: Any) -> None:
        if line["stage"] == "trials":
            killed.extend(jvms_below(os.getpid()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(HeadgateError, match="The evaluation failed: ") as caught:
        session.run(SparkEvaluator(session.spark, on_progress=kill_driver).evaluate(own_run))
    assert killed
    assert "\n" not in str(caught.value)
    assert "Spark driver has ended" in str(caught.value)
    after = (own_run / "metrics.json").read_bytes() if (own_run / "metrics.json").exists() else None
    assert after == before


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def jvms_below(parent: int) -> list[int]:
    """Return the Java processes of workers that `parent` started: neither the Spark that tests share, nor those of another process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command = (stat.parent / "cmdline").read_bytes()
            pid = int(stat.parent.name)
            if b"java" not in command or b"org.apache.spark" not in command:
                continue
            above = parent_of(pid)
            evaluates = b"testbed_runtime.evaluation.worker" in Path(f"/proc/{above}/cmdline").read_bytes()
            if evaluates and parent_of(above) == parent:
                found.append(pid)
        except (OSError, ValueError):
            continue
    return found
