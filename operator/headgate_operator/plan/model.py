"""What planners decide: actions on the API server and on fault agents, a status, and when to look again. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Key:
    """An object of ours, by kind (`Testbed`), namespace and name."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole object of ours; harmless when nothing differs."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Create:
    """Create, not apply: for pods, which are not changed. AlreadyExists is harmless."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """With background propagation. NotFound is harmless; `uid` protects a younger object of the same name."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Exactly these finalizers on the object that is reconciled (others' are to be kept by whoever plans)."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of another object's spec or metadata (suspend, annotations, a tuned configuration)."""

    api_version: str
    kind: str
    namespace: str
    name: str
    patch: Manifest


@dataclass(frozen=True, slots=True)
class Emit:
    """An Event on the object that is reconciled. The same reason and text within an hour are counted, not repeated."""

    type: str
    """`Normal` or `Warning`."""
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A call to fault agents or to a JobManager, carried out by the handler; its answer is in the next observation.

    `what` names it (`inject`, `heal`, `heal-all`), `body` is its argument."""

    what: str
    body: Mapping[str, Any] = field(default_factory=dict)


Action = Apply | Create | Delete | SetFinalizers | Patch | Emit | Ask


@dataclass(frozen=True, slots=True)
class Plan:
    """`status` None: leave it alone. It is written before the actions are carried out where `status_first` says so (what must be
    known before it is done), after them otherwise."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    requeue_after_s: float | None = None
    status_first: bool = True
