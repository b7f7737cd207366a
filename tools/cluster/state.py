"""The state that `up` records for `down`, `status` and the next `up`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import processes, settings
from .processes import Process
from .settings import Layout

OWN, KIND, GIVEN = "own", "kind", "given"


@dataclass(frozen=True)
class Choice:
    """Which cluster to use, and why. `kubeconfig` is set for a given one."""

    kind: str
    why: str
    kubeconfig: str = ""


@dataclass(frozen=True)
class State:
    """`kind`: OWN or KIND. `process`: the parent of the node's first process."""

    kind: str
    process: Process | None = None


def choose(environment: Mapping[str, str], own: Path, *, kind_works: bool, bare: bool) -> Choice:
    """Choose the given kubeconfig (unless it is that of this cluster), or else kind, or else a cluster on this machine."""
    for name in ("HEADGATE_KUBECONFIG", "KUBECONFIG"):
        if not bare and (given := environment.get(name)) and given != str(own):
            return Choice(GIVEN, f"{name} is set", given)
    if kind_works and not bare:
        return Choice(KIND, "kind and its container engine answer")
    return Choice(
        OWN, "no kubeconfig is given and kind is not available" if not bare else "requested with --bare"
    )


def read(layout: Layout) -> State | None:
    """Return what `up` recorded, or None if it is missing or unreadable."""
    try:
        found: dict[str, Any] = json.loads(layout.state.read_text())
        process = Process(**found["process"]) if found["process"] else None
        return State(found["kind"], process)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(layout: Layout, state: State) -> None:
    """Record the state atomically."""
    new = layout.state.with_suffix(".new")
    new.write_text(json.dumps(asdict(state)))
    new.replace(layout.state)


def runs(state: State | None) -> bool:
    """Return whether the recorded cluster is running. A kind cluster is assumed to be."""
    if state is None:
        return False
    return state.kind == KIND or (state.process is not None and processes.alive(state.process))


def node(layout: Layout) -> dict[str, Any]:
    """Return the report of the node's first process, empty before the first one."""
    try:
        found: dict[str, Any] = json.loads((layout.run / "node.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def nodes(layout: Layout) -> dict[str, int]:
    """Return the process id on this machine of each node's first process, by the node's name."""
    state = read(layout)
    if state is None or state.process is None or not (firsts := processes.children(state.process.pid)):
        return {}
    second = programs(layout).get(settings.SECOND.name)
    below = processes.children(second) if second is not None else []
    return {settings.NODE: firsts[0], **({settings.SECOND.name: below[0]} if below else {})}


def programs(layout: Layout) -> dict[str, int]:
    """Return the process id on this machine of each of the first node's programs; the second node is one of them."""
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
