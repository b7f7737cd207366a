"""The node's first process: PID 1 in its own namespaces (processes, mounts, network, host name).

It sets up the node's view of the file system, starts the programs of the plan, restarts those that end, and reaps processes. Every process
of the cluster is its descendant. When it ends, all of them end, together with their mounts and their network.

    python -m tools.cluster.node CACHE [FOLDER]       (started by up.py under `unshare`; CACHE/run/FOLDER/plan.json is the plan)

The second node's first process is a program of the first node's plan.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import manifests, settings
from .settings import INSIDE, Node

LINK_LIMIT_S = 20.0  # until the host has handed over the link
RETRY_S = 0.1  # between two attempts of a step
RESTART_S = 1.0  # before a program that exited restarts
RESTARTS_MAX = 10  # per program; after that it stays stopped, because it would only fail again
IDLE_S = 3600.0  # the longest sleep; the exit of a child interrupts it
PRIVATE = ("/var/lib", "/var/log")  # folders of the host that the node replaces with its own
PROCESSORS = Path("/sys/devices/system/cpu")
NUMA_NODES = Path("/sys/devices/system/node")
SIGNALS = {signal.SIGCHLD}


class NodeError(Exception):
    """The node cannot start; the message names the step that failed."""


class Programs:
    """Start, restart and reap the node's programs. Single-threaded; every wait reaps."""

    def __init__(self, run: Path) -> None:
        self._logs = run / "logs"
        self._status = run / "node.json"
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[int, str] = {}
        self._due: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._attempts: dict[int, int | None] = {}
        self._ready = False

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program that runs as long as the node does."""
        self._commands[name] = command
        self._restarts.setdefault(name, 0)
        self._running[self._spawn(name, command)] = name
        self.report()

    def attempt(self, what: str, command: Sequence[str], seconds: float) -> None:
        """Repeat a command until it succeeds. Raises NodeError if it does not within `seconds`."""
        limit = time.monotonic() + seconds
        while self._once(command, limit) != 0:
            if time.monotonic() > limit:
                raise NodeError(f"not within {seconds:.0f} s: {what}")
            self.wait(RETRY_S)

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds`. Meanwhile, reap processes that have exited and restart programs that are due."""
        due = min(self._due.values(), default=time.monotonic() + seconds) - time.monotonic()
        signal.sigtimedwait(SIGNALS, max(0.0, min(seconds, due)))
        self._reap()
        for name in [n for n, at in self._due.items() if time.monotonic() >= at]:
            del self._due[name]
            self.start(name, self._commands[name])

    def forever(self) -> None:
        """Report that everything is running, then only supervise the programs."""
        self._ready = True
        self.report()
        while True:
            self.wait(IDLE_S)

    def report(self, failed: str = "") -> None:
        """Write the state to a file, atomically. Process ids are the node's own."""
        found = {
            "programs": {name: pid for pid, name in self._running.items()},
            "restarts": self._restarts,
            "ready": self._ready,
            "failed": failed,
        }
        new = self._status.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(self._status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._attempts:
                self._attempts[pid] = os.waitstatus_to_exitcode(status)
            elif pid in self._running:
                self._ended(self._running.pop(pid), os.waitstatus_to_exitcode(status))

    def _ended(self, name: str, code: int) -> None:
        print(f"{name} exited with {code}", file=sys.stderr, flush=True)
        self._restarts[name] += 1
        if self._restarts[name] <= RESTARTS_MAX:
            self._due[name] = time.monotonic() + RESTART_S
        self.report()

    def _once(self, command: Sequence[str], limit: float) -> int:
        """Run a command once and return its exit code. It is killed when the limit passes."""
        pid = self._spawn("steps", command)
        self._attempts[pid] = None
        while (code := self._attempts[pid]) is None:
            self.wait(RETRY_S)
            if time.monotonic() > limit and self._attempts[pid] is None:
                os.kill(pid, signal.SIGKILL)
        del self._attempts[pid]
        return code

    def _spawn(self, name: str, command: Sequence[str]) -> int:
        """Start a command in a session of its own, with output appended to a log and no signal blocked."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._logs / f"{name}.log"), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(
            command[0], list(command), os.environ, file_actions=actions, setsid=True, setsigmask=[]
        )


def prepare_files(cache: Path, node: Node, hidden: Mapping[str, str]) -> None:
    """Mount the node's own /run, /var/lib and /var/log, the cache at INSIDE, private copies of kernel settings, and more processors.

    The new /run is created beside the old one and then moved, so that the cache can be anywhere. Both nodes have the same volumes.
    """
    staging = cache / "run" / node.folder / "staging"
    staging.mkdir(exist_ok=True)
    _do("mount", "-n", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(staging))
    inside = staging / INSIDE.relative_to("/run")
    inside.mkdir()
    _do("mount", "-n", "--bind", str(cache), str(inside))
    _do("mount", "-n", "--move", str(staging), "/run")
    for folder in PRIVATE:
        own = INSIDE / "run" / node.folder / folder.strip("/").replace("/", "-")
        own.mkdir(exist_ok=True)
        _do("mount", "-n", "--bind", str(own), folder)
    if node != settings.FIRST:
        shared = Path(manifests.VOLUME_FOLDERS[0]).parent
        shared.mkdir(exist_ok=True)
        _do("mount", "-n", "--bind", str(INSIDE / "run" / "var-lib" / shared.name), str(shared))
    for volume in map(Path, manifests.VOLUME_FOLDERS):
        volume.mkdir(parents=True, exist_ok=True)
        volume.chmod(0o777)  # fsGroup has no effect here, and the pods do not run as root
    for name, value in hidden.items():
        shown = Path("/run/headgate-sysctl") / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(value + "\n")
        if (setting := Path("/proc/sys") / name).exists():
            _do("mount", "-n", "--bind", str(shown), str(setting))
    show_processors(settings.PROCESSORS)
    _do("mount", "-n", "--make-rshared", "/")


def show_processors(count: int) -> None:
    """Let the kubelet count `count` processors. Where it finds no NUMA node, it counts these folders. Pods have a /sys of their own."""
    for folder in (PROCESSORS, NUMA_NODES):
        if folder.exists():
            _do("mount", "-n", "-t", "tmpfs", "tmpfs", str(folder))
    for number in range(count):
        (PROCESSORS / f"cpu{number}").mkdir()


def prepare_network(node: Node, values: Mapping[str, str]) -> None:
    """Wait for the link from the host or the first node and give it the node's address. Raises NodeError if it does not appear.

    There is no default route: services are routed (and rewritten on output), everything else is refused at once.
    """
    limit = time.monotonic() + LINK_LIMIT_S
    while settings.NODE_LINK not in {name for _, name in socket.if_nameindex()}:
        if time.monotonic() > limit:
            raise NodeError(
                f"the host did not hand over the link {settings.NODE_LINK} within {LINK_LIMIT_S:.0f} s"
            )
        time.sleep(RETRY_S / 10)
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "address", "replace", f"{node.address}/{settings.LINK_PREFIX}", "dev", settings.NODE_LINK)
    _do("ip", "link", "set", settings.NODE_LINK, "up")
    _do("ip", "route", "replace", settings.SERVICE_RANGE, "via", node.router)
    if node != settings.FIRST:
        for reached in (f"{settings.NODE_ADDRESS}/32", settings.FIRST.pods):
            _do("ip", "route", "replace", reached, "via", node.router)
    for name, value in values.items():
        (Path("/proc/sys") / name).write_text(value)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def main(cache: Path, folder: str = "") -> None:
    """Carry out the plan, then supervise. A failure is written to the status before the node exits."""
    node = settings.SECOND if folder else settings.FIRST
    plan: dict[str, Any] = json.loads((cache / "run" / folder / "plan.json").read_text())
    programs = Programs(cache / "run" / folder)
    try:
        socket.sethostname(node.name)
        prepare_files(cache, node, plan["sysctls"]["hidden"])
        prepare_network(node, plan["sysctls"]["set"])
        programs = Programs(INSIDE / "run" / folder)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for step in plan["steps"]:
            if "start" in step:
                programs.start(step["start"], step["command"])
            else:
                programs.attempt(step["until"], step["command"], step["seconds"])
        programs.forever()
    except (NodeError, OSError) as error:
        programs.report(str(error))
        raise SystemExit(f"node: {error}") from error


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
