"""Shared by the tests of processes: a stand-in child, and functions that find what Headgate left behind on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache
from pathlib import Path

from testbed_runtime.local import packets

LISTEN = "0A"
"""State of a socket in /proc/net/tcp."""
CHILD = Path(__file__).parent.parent / "faults" / "child.py"


def sleeping(*flags: str) -> tuple[str, ...]:
    return (sys.executable, str(CHILD), *flags)


@cache
def no_packets() -> str:
    """Return why packet faults are not possible on this machine; empty if they are."""
    here = asyncio.run(packets.capabilities())
    return "" if packets.offers(here) else here.missing["nfqueue"]


def descendants_with(marker: str) -> list[int]:
    """Pids of processes (zombies excluded) whose environment holds the marker."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if marker.encode() in (folder / "environ").read_bytes() and state_of(int(folder.name)) != "Z":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def listeners() -> dict[str, int]:
    """Inode of the socket → port, of all that listen on IPv4. An inode is not used again soon; a port that was given back may at once be
    that of a test beside us."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f[9]: int(f[1].rpartition(":")[2], 16) for f in lines if f[3] == LISTEN}
