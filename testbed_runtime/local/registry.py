"""The supervisors that run on this machine: one small file each, in a folder that only this user can read.

A supervisor that was killed with SIGKILL cannot clean up: its file and its work folder are removed when the registry is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.quantities import counted
from testbed_runtime.faults.http import ControlClient, FaultClient
from testbed_runtime.local import namespaces
from testbed_runtime.ports.network import address_of
from testbed_runtime.process.config import SupervisorState, read_token
from testbed_runtime.supervisor.supervisor import AGENT_PREFIX

_MODULE = b"testbed_runtime.entry.supervisor"
QUIET = "no fault was active"


def state_folder() -> Path:
    """Return the folder, created with mode 0700 under XDG_RUNTIME_DIR or the temporary folder. Raises HeadgateError if another
    user owns it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime) if runtime and Path(runtime).is_dir() else Path(tempfile.gettempdir())
    folder = base / f"headgate-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise HeadgateError(f"{folder} belongs to another user: remove it, or set XDG_RUNTIME_DIR")
    folder.chmod(0o700)
    return folder


def supervisors() -> list[SupervisorState]:
    """Return the running supervisors by file name. Removes what dead ones left behind, including networks."""
    namespaces.sweep()
    found: list[SupervisorState] = []
    for path in sorted(state_folder().glob("*.json")):
        entry = _read(path)
        if entry is not None and _alive(entry.pid):
            found.append(entry)
            continue
        if entry is not None and entry.work_folder:
            shutil.rmtree(entry.work_folder, ignore_errors=True)
        path.unlink(missing_ok=True)
    return found


def active_faults() -> list[str]:
    """Return one line for each active fault of every supervisor."""

    async def lines(entry: SupervisorState, client: FaultClient) -> list[str]:
        return [
            f"{entry.run} {entry.trial}: {f['name']} ({f['kind']}) on {', '.join(f['targets'])} by {f['backend']}, "
            f"{f['remaining_s']:.1f} s left"
            for f in await client.faults()
        ]

    return asyncio.run(_each(lines))


def heal_all() -> list[str]:
    """End every fault of every supervisor now. Return one line for each supervisor."""

    async def heal(entry: SupervisorState, client: FaultClient) -> list[str]:
        active = await client.faults()
        await client.heal_all()
        left = await client.residue()
        ended = f"{counted(len(active), 'fault')} ended" if active else QUIET
        return [f"{entry.run} {entry.trial}: {ended}" + (f"; residue: {json.dumps(left)}" if left else "")]

    return asyncio.run(_each(heal)) or ["no testbed is running on this machine"]


async def _packet_agents(entry: SupervisorState) -> list[FaultClient]:
    """Return clients of the packet agents that are its children. The caller closes them."""
    token = read_token(entry.token_file)
    control = ControlClient(token)
    try:
        processes = (await control.call("GET", entry.control, "/v1/processes"))["processes"]
    finally:
        await control.close()
    agents = [p for p in processes if p["name"].startswith(AGENT_PREFIX) and p["pid"] is not None]
    return [FaultClient(address_of(p["ready"]["control"]), token) for p in agents]


async def _each(act: Callable[[SupervisorState, FaultClient], Awaitable[list[str]]]) -> list[str]:
    lines: list[str] = []
    for entry in supervisors():
        client = FaultClient(entry.control, read_token(entry.token_file))
        try:
            lines += await act(entry, client)
            for agent in await _packet_agents(entry):
                try:
                    lines += [line for line in await act(entry, agent) if QUIET not in line]
                finally:
                    await agent.close()
        except HeadgateError as error:
            lines.append(f"{entry.run} {entry.trial}: {error}")
        finally:
            await client.close()
    return lines


def _read(path: Path) -> SupervisorState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SupervisorState)
    except (OSError, ValueError):  # those of msgspec, and of bytes that are not UTF-8
        return None


def _alive(pid: int) -> bool:
    """Return whether this process exists and is a supervisor: process ids are reused."""
    try:
        return _MODULE in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
