"""Ctrl-C and SIGTERM at awkward moments: while modules are imported, and while children work. The user always reads one line."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from testbed_runtime.cli import commands, kubectl, main
from testbed_runtime.cli.interrupting import keeping_interrupts, run_interruptible
from testbed_runtime.evaluation.catalogue import FOLDER as CATALOGUE
from testbed_runtime.evaluation.process import SparkWorker

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAID = "headgate: interrupted\n"


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("script", ["main", "kubectl"])
def test_an_interrupt_during_the_imports_is_said_in_one_line(tmp_path, script, number):
    """Not with the stack of the import. The first library that both commands need stands for all of them."""
    (tmp_path / "typer.py").write_text(INTERRUPTING.replace("SIGINT", number.name))
    code = f"from testbed_runtime.cli.main import {script}; {script}()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", SAID)


@pytest.fixture
def handlers():
    """A command that is interrupted ignores further signals, because its process ends."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(*, by: signal.Signals = signal.SIGINT, **_: object) -> None:
    """Interrupt this process, as pydantic answers it while it builds a model."""
    try:
        signal.raise_signal(by)
    except KeyboardInterrupt:
        raise RuntimeError("Error building serializer") from None


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("script", "module"), [(main.main, commands), (main.kubectl, kubectl)])
@pytest.mark.usefixtures("handlers")
def test_an_interrupt_that_a_library_turns_into_its_own_error_is_still_an_interrupt(
    script, module, number, capsys, monkeypatch
):
    """In both console scripts."""
    monkeypatch.setattr(module, "build", lambda: partial(interrupted, by=number))
    with pytest.raises(SystemExit) as ended:
        script()
    assert (ended.value.code, capsys.readouterr().err) == (130, SAID)


@pytest.mark.usefixtures("handlers")
def test_a_command_that_ran_on_a_loop_before_still_answers_sigterm():
    """The loop's handler is gone, and the one before is back."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_interruptible(asyncio.sleep(0))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("command", [["trend", "runs"], ["evaluate", "runs/a"]])
@pytest.mark.usefixtures("handlers")
def test_an_interrupted_reading_of_runs_does_not_mention_faults(headgate, command, tmp_path, monkeypatch):
    """No testbed ran: nothing was healed or stopped."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder.parent / CATALOGUE).mkdir()
    monkeypatch.chdir(tmp_path)

    async def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(30)

    monkeypatch.setattr(SparkWorker, "trends", interrupted)
    monkeypatch.setattr("testbed_runtime.runner.engine.judge_run", interrupted)
    monkeypatch.setattr("testbed_runtime.cli.evaluate.read_manifest", lambda _: None)
    said = headgate(*command)
    assert said.returncode == 130
    assert said.stderr.splitlines()[-1].startswith("headgate: interrupted")
    assert "healed" not in said.stderr


@pytest.mark.usefixtures("handlers")
def test_sigterm_while_a_child_starts_is_answered_when_the_child_is_known():
    """The child itself does not inherit a blocked SIGTERM: it must end when it is terminated."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = []

    def start() -> None:
        with keeping_interrupts():
            signal.raise_signal(signal.SIGTERM)
            started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

    with pytest.raises(KeyboardInterrupt):
        start()
    (child,) = started
    child.terminate()
    assert child.wait(30) == -signal.SIGTERM
    child.stdin.close()


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_does_not_affect_the_next_command(headgate, monkeypatch):
    """In the same process."""
    monkeypatch.setattr(commands, "build", lambda: interrupted)
    assert headgate().returncode == 130
    monkeypatch.undo()
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    assert headgate("new", "--list").returncode == 0


def test_a_child_that_starts_in_the_block_gets_no_interrupt_and_the_parent_gets_it_afterwards():
    """The child interrupts itself before its first import, as a terminal may."""
    said = []

    def start() -> None:
        with keeping_interrupts():
            signal.raise_signal(signal.SIGINT)
            done = subprocess.run(
                [sys.executable, "-c", f"{INTERRUPTING}print('done')"], stdout=subprocess.PIPE, check=False
            )
            said.append(done.stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert said == [b"done\n"]


SEARCH = """
import multiprocessing, pathlib, sys
from testbed_runtime.cli.study_runs import Task, simulate_all
from tests.tuning.small import small_scenario

folder = pathlib.Path(sys.argv[1])
document = small_scenario()
document["spec"]["timeline"]["observation"] = "10 h"
tasks = [Task(n, document, folder, variants, folder / str(n)) for n, variants in enumerate([(), ("nosuch",)])]

def interrupt(done):
    raise KeyboardInterrupt

try:
    simulate_all(tasks, jobs=2, on_done=interrupt)
except KeyboardInterrupt:
    print(multiprocessing.active_children(), (folder / "0" / "history").exists())
"""


KILLED = SEARCH.replace(
    "    raise KeyboardInterrupt",
    "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n    os.kill(os.getpid(), 9)",
).replace("import multiprocessing", "import multiprocessing, os")


def test_a_killed_search_leaves_no_process(tmp_path: Path):
    """Its simulations would wait for their next task forever."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    children = [int(word) for word in done.stdout.split()]
    assert (done.returncode, len(children)) == (-signal.SIGKILL, 2), done.stderr
    deadline = time.monotonic() + 30
    while left := [pid for pid in children if is_running(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupted_search_ends_the_simulations_that_have_begun(tmp_path: Path):
    """One run is refused at once, the other would take minutes; it leaves no history."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "[] False\n", done.stderr
