"""Ctrl-C at awkward moments: while modules are imported, and while children work. The user always reads one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed_runtime.cli import commands
from testbed_runtime.cli.interrupting import keeping_interrupts

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SAID = "headgate: interrupted\n"


@pytest.mark.parametrize("script", ["main", "kubectl"])
def test_ctrl_c_during_the_imports_is_said_in_one_line(tmp_path, script):
    """Not with the stack of the import. The first library that both commands need stands for all of them."""
    (tmp_path / "typer.py").write_text(INTERRUPTING)
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


def test_an_interrupt_that_a_library_turns_into_its_own_error_is_still_an_interrupt(headgate, monkeypatch):
    """As pydantic does when it builds a model. The next command is not affected."""

    def interrupted(**_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Error building serializer") from None

    monkeypatch.setattr(commands, "build", lambda: interrupted)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        said = headgate()
    finally:  # the command ignores further signals, because its process ends
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert (said.returncode, said.stderr) == (130, SAID)
    monkeypatch.undo()
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
