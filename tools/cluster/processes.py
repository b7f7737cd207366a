"""Identify processes by id and start time, so that a reused id is never mistaken for one of them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .settings import ClusterError

STATE, PARENT, STARTED = 0, 1, 19  # fields of /proc/PID/stat after the name
DEAD = {"Z", "X"}
END_LIMIT_S = 15.0  # until the kernel has ended every process of a node that was killed
POLL_S = 0.02
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """`started`: clock ticks since boot; `boot`: the boot's id. Together with the id they identify one process forever."""

    pid: int
    started: int
    boot: str


def identify(pid: int) -> Process | None:
    """Return the process with this id, or None if it does not exist or has exited."""
    fields = _stat(pid)
    if fields is None or fields[STATE] in DEAD:
        return None
    return Process(pid, int(fields[STARTED]), BOOT_ID.read_text().strip())


def alive(process: Process) -> bool:
    return identify(process.pid) == process


def children(pid: int) -> list[int]:
    """Return the ids of a process's living children. The process may be the first one of another PID namespace."""
    ids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    stats = [(each, fields) for each in ids if (fields := _stat(each)) is not None]
    return sorted(each for each, fields in stats if int(fields[PARENT]) == pid and fields[STATE] not in DEAD)


def inner(pid: int) -> int | None:
    """Return the id of a process in its innermost PID namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)


def end(process: Process) -> None:
    """Kill a process and its children and wait until they have exited. Raises ClusterError after END_LIMIT_S."""
    wanted = (
        [p for pid in [process.pid, *children(process.pid)] if (p := identify(pid))] if alive(process) else []
    )
    for each in wanted:
        try:
            os.kill(each.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    limit = time.monotonic() + END_LIMIT_S
    while left := [p.pid for p in wanted if alive(p)]:
        if time.monotonic() > limit:
            raise ClusterError(f"processes {left} were killed but have not exited within {END_LIMIT_S:.0f} s")
        time.sleep(POLL_S)


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
