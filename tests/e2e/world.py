"""The real command in a world of its own: an environment that marks every process below it, folders for its state and its temporary
files, and a look at what it left."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.local.helpers import descendants_with, listeners, state_of
from tests.report import synthetic

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
GONE_S = 10.0
"""Limit from the end of the command to the end of Headgate's last process."""
LIMIT_S = 100.0
"""Limit of one command on a busy machine."""
TRACES = (
    "Traceback (most recent call last)",
    'File "',
    "raise ",
    "Task was destroyed",
    "never retrieved",
    "Unclosed",
)
LONG = {"warmUp": "500 ms", "baseline": "1 s", "observation": "60 s", "drain": "5 s"}
KEPT = "what was recorded"
EXPECT = [
    {"metric": "delivery.lost", "equals": 0},
    {"metric": "delivery.duplicated", "equals": 0},
    {"metric": "job.state", "equals": "RUNNING"},
]


@dataclass(frozen=True)
class Said:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Command:
    """A `headgate` that runs. Its output is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", process.stdout), ("err", process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: Any) -> None:
        with stream:
            for line in stream:
                self._lines[name].append(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return "".join(self._lines["out"]) + "".join(self._lines["err"])

    def until(self, condition: str | Callable[[], bool], *, seconds: float = LIMIT_S) -> None:
        """Wait until it printed this text, or this is true. Fails with its output when it ends first or takes too long."""
        met = (lambda: condition in self.output()) if isinstance(condition, str) else condition
        deadline = time.monotonic() + seconds
        while not met():
            ended = self.process.poll()
            assert ended is None or met(), f"ended with {ended} before {condition}:\n{self.output()}"
            assert time.monotonic() < deadline, f"no {condition} within {seconds} s:\n{self.output()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, *, seconds: float = LIMIT_S) -> Said:
        """When it ended."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds} s:\n{self.output()}") from None
        for reader in self._readers:
            reader.join(GONE_S)
        return Said(code, "".join(self._lines["out"]), "".join(self._lines["err"]))


class World:
    """`start` or `run` commands, then ask for what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "runs"
        self.state, self.temporary = folder / "state", folder / "tmp"
        self.state.mkdir()
        self.temporary.mkdir()
        self.marker = f"HEADGATE_WORLD={folder.name}-{os.getpid()}"
        name, _, value = self.marker.partition("=")
        self.environment = {
            **os.environ,
            name: value,
            "XDG_RUNTIME_DIR": str(self.state),
            "TMPDIR": str(self.temporary),
        }
        self._commands: list[Command] = []

    # ---- commands

    def start(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        wrapped: tuple[str, ...] = (),
        program: str = "testbed_runtime.cli.main",
    ) -> Command:
        process = subprocess.Popen(
            [*wrapped, sys.executable, "-m", program, *map(str, arguments)],
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - it calls the kernel and nothing else
        )
        command = Command(process)
        self._commands.append(command)
        return command

    def run(self, *arguments: object, **more: Any) -> Said:
        return self.start(*arguments, **more).ended()

    def scenario(self, **changes: Any) -> Path:
        """A small scenario on disk; `changes` replace fields of its spec."""
        document = small(**changes)
        path = self.folder / "scenario.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def runs(self) -> list[Path]:
        """Return the folders of runs; the catalogue of evaluated runs lies beside them."""
        return sorted(f for f in self.out.iterdir() if f.name != ".catalogue") if self.out.exists() else []

    def only_run(self) -> Path:
        (folder,) = self.runs()
        return folder

    # ---- what is there

    def processes(self, words: str = "") -> list[int]:
        """Pids of what runs below our commands, of those with `words` in their command line."""
        return [pid for pid in descendants_with(self.marker) if words in command_line(pid)]

    def ports(self) -> dict[str, int]:
        """Socket → port of what processes of this world listen at."""
        sockets = {link for pid in self.processes() for link in _sockets(pid)}
        return {socket: port for socket, port in listeners().items() if socket in sockets}

    def left(self, ports: dict[str, int] | None = None) -> dict[str, Any]:
        """Everything that should not be there any more; empty when all is well."""
        found: dict[str, Any] = {
            "processes": [command_line(pid) for pid in self.processes()],
            "ports": [port for socket, port in listeners().items() if socket in (ports or ())],
            "state": _files(self.state),
            "temporary": _files(self.temporary),
        }
        return {what: value for what, value in found.items() if value}

    def leaves_nothing(self, ports: dict[str, int] | None = None, *, seconds: float = GONE_S) -> None:
        """Fails with what is left after that time."""
        deadline = time.monotonic() + seconds
        while left := self.left(ports):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def close(self) -> None:
        """End what a failed test left."""
        for command in self._commands:
            if command.process.poll() is None:
                command.process.kill()
            command.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def running(world: World, until: str, **changes: Any) -> Command:
    """Start the small scenario, as long as LONG, and wait until it reports `until`."""
    changes.setdefault("timeline", LONG)
    command = world.start("run", world.scenario(**changes), "--out", world.out)
    command.until(until)
    return command


def recorded(world: World) -> Path:
    """The folder of a run whose histories are sealed and not evaluated yet."""
    folder = world.out / synthetic.RUN
    folder.mkdir(parents=True)
    manifest = synthetic.write_run(folder)
    variants = [{"name": name} for name in dict.fromkeys(p.variant for p in synthetic.PLANS)]
    manifest["scenario"] = small(variants=variants)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _sockets(pid: int) -> list[str]:
    """Inodes of the sockets of a process."""
    found = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(target[8:-1])
    return found


def _files(folder: Path) -> list[str]:
    """Files and folders below it, but the folder of state files itself: it is made once for every run of a user."""
    found = [Path(above, name) for above, folders, files in os.walk(folder) for name in (*folders, *files)]
    return [str(path.relative_to(folder)) for path in found if path.name != f"headgate-{os.getuid()}"]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def small(**changes: Any) -> dict[str, Any]:
    """A job of two tasks on two TaskManagers, some seconds long. `changes` replace fields of the spec, by their names."""
    spec: dict[str, Any] = {
        "seed": 7,
        "testbed": {
            "flinkVersion": "2.x",
            "taskManagers": {"replicas": 2, "slots": 1, "replaceLost": "Never"},
            "flinkConfiguration": {
                "heartbeat.interval": "1 s",
                "heartbeat.timeout": "3 s",
                "execution.checkpointing.interval": "500 ms",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "3",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
            "job": {
                "vertices": [
                    {
                        "name": "source",
                        "slotSharingGroup": "src",
                        "source": {"recordsPerSecond": 1000, "recordBytes": 100, "keys": 50},
                    },
                    {"name": "sink", "slotSharingGroup": "main", "sink": "ledger"},
                ],
                "edges": [{"from": "source", "to": "sink"}],
            },
        },
        "timeline": {"warmUp": "500 ms", "baseline": "1 s", "observation": "3 s", "drain": "5 s"},
        "control": False,
        "expect": EXPECT,
    }
    spec = copy.deepcopy({**spec, **changes})
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "small"},
        "spec": spec,
    }


def no_trace(said: Said) -> None:
    """Check that the output has no stack trace."""
    found = [word for word in TRACES if word in said.text]
    assert not found, said.text


def wait_dead(pids: Sequence[int], *, seconds: float = GONE_S) -> None:
    """Wait until processes are dead: the kernel takes a killed one's memory, and its environment, before it is a zombie."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if state_of(pid) not in ("", "Z")]:
        assert time.monotonic() < deadline, [command_line(pid) for pid in alive]
        time.sleep(0.02)
