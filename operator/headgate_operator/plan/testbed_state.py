"""What is there of a Testbed, and what is done next: what the planner finds, and the status tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate_operator.plan.podview import PodView


@dataclass(frozen=True, slots=True)
class State:
    """What is there, by logical name, and what is remembered of it."""

    desired: tuple[str, ...]
    pods: Mapping[str, PodView]
    taken: frozenset[str]
    """Names that pods of another Testbed (an earlier one of this name) still have."""
    incarnations: Mapping[str, int]
    members: frozenset[str]
    lost: Mapping[str, float]
    """Wanted TaskManagers that are gone, and since when."""
    stale: tuple[str, ...]
    """Live pods made from something else than is wanted now; TaskManagers from the highest ordinal, then the JobManager."""
    estranged: tuple[str, ...]
    """Live pods with a token that no longer is: they understand nobody."""

    def alive(self, process: str) -> bool:
        return process in self.pods and self.pods[process].alive

    def ready(self, process: str) -> bool:
        return process in self.pods and self.pods[process].ready


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done now, by logical name."""

    make: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    """No longer wanted."""
    replace: tuple[str, ...] = ()
    """Deleted now, made again when the name is free."""
    next_s: float | None = None

    @property
    def any(self) -> bool:
        return bool(self.make or self.remove or self.replace)
