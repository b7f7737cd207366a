"""The functions of bulk-iteration.yaml and delta-iteration.yaml. Each runs in every TaskManager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

VERTICES = 600
"""The number of vertices of the graph of delta-iteration.yaml: the limit of its source."""
CHAINS = 6
"""Vertex v is connected with v - CHAINS and v + CHAINS: as many components, which are long chains."""
TARGET = 100


def halve(record: Any) -> Any:
    """One step of Heron's method, which finds the square root of TARGET: x becomes (x + TARGET / x) / 2."""
    guess = float(record.text or 1 + record.key)
    return replace(record, text=f"{(guess + TARGET / guess) / 2:.9g}")


def unfinished(record: Any) -> bool:
    """Whether the value is not yet the root."""
    return abs(float(record.text) ** 2 - TARGET) > 1e-6


def vertex(record: Any) -> Any:
    """Make record n of the source (two subtasks) vertex n, in a component of its own."""
    number = 2 * record.sequence + int(record.source.rpartition("-")[2])
    return replace(record, key=number, text=str(number))


def neighbours(record: Any) -> list[Any]:
    """Propose the component of a vertex to its neighbours."""
    near = (record.key - CHAINS, record.key + CHAINS)
    return [replace(record, key=key) for key in near if 0 <= key < VERTICES]


def smaller(candidate: Any, current: Any) -> Any:
    """Accept a component with a smaller number."""
    return replace(current, text=candidate.text) if int(candidate.text) < int(current.text) else None


def component(record: Any) -> Any:
    """Write the vertex and its component."""
    return replace(record, text=f"{record.key} in {record.text}")
