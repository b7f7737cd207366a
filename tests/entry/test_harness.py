"""The harness of every process: how it starts, what ends it, and with which exit code."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed_runtime import entry
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.entry.harness import Process, config_file, run_process


class Config:
    @staticmethod
    def load(path):
        return path


@pytest.fixture
def stdin(monkeypatch):
    """A pipe as stdin; returns the end that a parent would hold."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "argv", ["process", "config.json"])
        yield writing
    try:
        os.close(writing)
    except OSError:
        return


def run(start, **more):
    return run_process(start, config_file(Config.load), **more)


def test_a_process_prints_its_ready_line_and_ends_with_0_when_its_parent_is_gone(stdin, capsys):
    """Parts are closed in reverse order."""
    closed = []

    async def start(config, process):
        async def close(name):
            closed.append(name)

        process.on_close(close, "first")
        process.on_close(close, "second")
        asyncio.get_running_loop().call_soon(os.close, stdin)
        return {"control": ("127.0.0.1", 1), "config": config}

    assert run(start) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"ready": {"control": ["127.0.0.1", 1], "config": "config.json"}}
    assert closed == ["second", "first"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_has_no_parent(stdin, number):
    """SIGTERM and SIGINT: exit code 0."""

    async def start(config, process):
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        return {}

    assert run(start, has_parent=lambda _: False) == 0


def test_a_process_that_is_still_starting_ends_at_once_on_a_signal(stdin, capsys):
    """Its start is cancelled, what it opened is closed, and it does not print a ready line."""
    closed = asyncio.Event()

    async def start(config, process):
        async def close():
            closed.set()

        process.on_close(close)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
        return {}

    assert run(start) == 0
    assert closed.is_set()
    assert capsys.readouterr().out == ""


def test_a_start_that_fails_is_reported_although_stdin_is_closed(stdin, capsys):
    """A start that fails is not hidden by the missing parent."""

    async def start(config, process):
        os.close(stdin)
        await asyncio.sleep(0.05)
        raise UserError("bind", "is in use")

    assert run(start) == 2
    assert "bind: is in use" in capsys.readouterr().err


def test_the_first_failure_of_a_part_is_one_line_and_exit_code_2(stdin, capsys):
    """Later failures are consequences of the first."""

    async def start(config, process):
        loop = asyncio.get_running_loop()
        loop.call_soon(process.end, "the disk is full")
        loop.call_soon(process.end, "the peer is gone")
        return {}

    assert run(start) == 2
    assert capsys.readouterr().err == "the disk is full\n"


def test_a_start_that_fails_is_one_line_and_exit_code_2(stdin, capsys):
    """No ready line, no traceback."""

    async def start(config, process):
        raise HeadgateError("bind: the port is in use")

    assert run(start) == 2
    assert capsys.readouterr() == ("", "bind: the port is in use\n")


def test_a_background_coroutine_that_fails_ends_the_process(stdin, capsys):
    """Its name and its error are in the message."""

    async def broken():
        raise ValueError("no")

    async def start(config, process: Process):
        process.spawn(broken(), "watch")
        return {}

    assert run(start) == 2
    assert "watch: ValueError('no')" in capsys.readouterr().err


def test_a_missing_configuration_file_is_named(stdin, capsys, monkeypatch):
    """Not an IndexError."""
    monkeypatch.setattr(sys, "argv", ["process"])

    async def start(config, process):
        return {}

    assert run(start) == 2
    assert capsys.readouterr().err.startswith("CONFIG.json: is missing")


COLLECTS = """
import atexit, gc, sys

def look(event, arguments):
    if event == "import" and arguments[0] == "testbed_runtime.entry.harness":
        print("imports:", gc.isenabled())

sys.addaudithook(look)
atexit.register(lambda: print("ends:", gc.isenabled()))
"""


@pytest.mark.parametrize(
    ("command", "imports"),
    [(["-m", "testbed_runtime.entry.store"], False), (["-c", "import testbed_runtime.entry.harness"], True)],
    ids=["process", "program"],
)
def test_a_process_collects_no_garbage_while_it_imports_its_modules(command, imports, tmp_path):
    """It does from then on. A program that imports one of them, as these tests do, keeps its garbage collection."""
    (tmp_path / "sitecustomize.py").write_text(COLLECTS)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == [f"imports: {imports}", "ends: True"], done.stderr


def test_every_process_starts_by_the_harness():
    """It turns on the garbage collection that was off during the imports."""
    folder = Path(entry.__file__).parent
    processes = [path for path in folder.glob("*.py") if "__main__" in path.read_text()]
    assert len(processes) > 10
    assert [p.name for p in processes if not re.search(r"\brun_(process|main)\(", p.read_text())] == []
