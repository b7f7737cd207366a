"""What a kind's handler is: it observes, its planner decides, the reconciler carries out. `handlers.table()` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate_operator.cluster import Cluster
from headgate_operator.plan.model import Ask, Key, Plan
from headgate_operator.settings import Settings
from testbed_runtime.api import naming


class Jobs(Protocol):
    """Asks JobManagers how their job goes."""

    async def job(self, address: str, token: str) -> Mapping[str, Any] | None:
        """`GET http://<address>:6123/v1/job`, `{state, running, total, restarts, checkpoints, placement, registered}`; None: not
        reached, or no answer in time. Never raises."""


@dataclass(frozen=True, slots=True)
class Context:
    """What handlers act through. `now`: seconds since the epoch. `entropy`: a fresh token (hexadecimal, 256 bits)."""

    cluster: Cluster
    settings: Settings
    jobs: Jobs
    now: Callable[[], float]
    entropy: Callable[[], str]
    ports: Mapping[str, Any] = field(default_factory=dict)
    """Further ports of single kinds, by name (the fault agents' client)."""
    claims: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    """Faults as they were planned here, until their status is seen written: two workers must not plan what excludes each other."""


class Observed(Protocol):
    """What a planner is given: frozen data. `object` is what is reconciled, as JSON."""

    @property
    def object(self) -> Mapping[str, Any]: ...


class Handler(Protocol):
    """One for each kind, stateless: whatever is to be remembered is in the object's status."""

    @property
    def kind(self) -> str: ...

    async def observe(self, context: Context, key: Key) -> Any | None:
        """Reads what the planner needs (an Observed). None: the object is gone, and so is its key."""

    def plan(self, observed: Any, settings: Settings, now: float) -> Plan:
        """Pure. `plan.status` is the whole status."""

    async def ask(self, context: Context, observed: Any, ask: Ask) -> None:
        """Carries an Ask out. Raising makes the key come again with backoff."""


def keys_of(obj: Mapping[str, Any]) -> tuple[Key, ...]:
    """Who is reconciled when this object was made, changed or deleted: itself, and whom its labels name."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace", "")
    labels = metadata.get("labels") or {}
    keys = []
    if obj.get("apiVersion") == naming.API_VERSION and obj.get("kind") in naming.PLURALS:
        keys.append(Key(obj["kind"], namespace, metadata["name"]))
    owners = (
        ("Testbed", naming.LABEL_TESTBED),
        ("ScenarioRun", naming.LABEL_RUN),
        ("TuningStudy", naming.LABEL_STUDY),
    )
    keys += [Key(kind, namespace, labels[label]) for kind, label in owners if labels.get(label)]
    return tuple(dict.fromkeys(keys))
