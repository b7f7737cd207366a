"""What is up, as it was written down by `up` for `down`, `status` and the next `up`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import processes
from .processes import Process
from .settings import Layout

OWN, KIND, GIVEN = "own", "kind", "given"


@dataclass(frozen=True)
class Choice:
    """Which cluster is to be used, and why; `kubeconfig` is that of a given one."""

    kind: str
    why: str
    kubeconfig: str = ""


@dataclass(frozen=True)
class State:
    """`kind`: ours or kind's. `process`: the parent of our node's first process."""

    kind: str
    process: Process | None = None


def choose(environment: Mapping[str, str], own: Path, *, kind_works: bool, bare: bool) -> Choice:
    """A given kubeconfig comes first (unless it is our own cluster's), then kind, then a cluster on the bare machine."""
    for name in ("HEADGATE_KUBECONFIG", "KUBECONFIG"):
        if not bare and (given := environment.get(name)) and given != str(own):
            return Choice(GIVEN, f"{name} is set", given)
    if kind_works and not bare:
        return Choice(KIND, "kind and its container engine answer")
    return Choice(OWN, "no kubeconfig is given and there is no kind" if not bare else "asked for with --bare")


def read(layout: Layout) -> State | None:
    """What `up` wrote down; None if nothing, or nothing readable, is there."""
    try:
        found: dict[str, Any] = json.loads(layout.state.read_text())
        process = Process(**found["process"]) if found["process"] else None
        return State(found["kind"], process)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(layout: Layout, state: State) -> None:
    """Whole or not at all."""
    new = layout.state.with_suffix(".new")
    new.write_text(json.dumps(asdict(state)))
    new.replace(layout.state)


def runs(state: State | None) -> bool:
    """Is the cluster that was written down still there? (Of kind's only kind knows; it is taken to be.)"""
    if state is None:
        return False
    return state.kind == KIND or (state.process is not None and processes.alive(state.process))


def node(layout: Layout) -> dict[str, Any]:
    """What the node's first process says of itself; empty before it has said anything."""
    try:
        found: dict[str, Any] = json.loads((layout.run / "node.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def programs(layout: Layout) -> dict[str, int]:
    """Name of each program of our node → its process id on this machine."""
    state = read(layout)
    if state is None or state.process is None or not runs(state):
        return {}
    named = {pid: name for name, pid in node(layout).get("programs", {}).items()}
    firsts = processes.children(state.process.pid)
    return {
        named[own]: pid
        for first in firsts
        for pid in processes.children(first)
        if (own := processes.inner(pid)) in named
    }
