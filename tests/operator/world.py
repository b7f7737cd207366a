"""The whole operator in virtual time: model API server, kubelet model, operators that are started and killed, jobs that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate_operator import handlers
from headgate_operator.agents import Agents
from headgate_operator.app import Operator, lead, leader_for
from headgate_operator.handler import Context, Handler
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.simulation.loop import PROCESS, VirtualLoop, run_virtual, spawn
from tests.operator.model import Kubelet, ModelApi, Obj

T = TypeVar("T")
EPOCH = 1_700_000_000.0
SETTLE_LIMIT_S = 600.0
STEP_S = 0.5


def wall() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class ModelJobs:
    """Every JobManager's job runs, unless a test says otherwise. A request needs the token that the pod mounted."""

    def __init__(self) -> None:
        self.tokens: Mapping[str, str] = {}
        """Address of a pod → the token that it mounted."""
        self.answer: Mapping[str, Any] | None = {"state": "RUNNING", "running": 2, "total": 2}
        self.asked: list[tuple[str, str]] = []

    async def job(self, address: str, token: str) -> Mapping[str, Any] | None:
        self.asked.append((address, token))
        await asyncio.sleep(0.01)
        return self.answer if self.tokens.get(address, token) == token else None


@dataclass
class World:
    """`table` narrows which kinds are handled."""

    table: Mapping[str, Handler] = field(default_factory=handlers.table)
    agents: Agents = field(default_factory=Agents)
    api: ModelApi = field(default_factory=lambda: ModelApi(now=wall, latency_s=0.005))
    jobs: ModelJobs = field(default_factory=ModelJobs)
    operators: dict[str, Operator] = field(default_factory=dict)
    """Replicas that are watching now."""
    acted: set[str] = field(default_factory=set)
    """Replicas that ever held the Lease."""
    namespaces: tuple[str, ...] = ()
    """Those that the installation is limited to; empty: the whole cluster."""
    watch_fails: Exception | None = None
    """Raised by the watches of every replica, as kopf raises what it cannot retry."""

    def __post_init__(self) -> None:
        self.kubelet = Kubelet(self.api)
        self.jobs.tokens = self.kubelet.tokens
        self.kubelet.attach()

    def start(self, name: str = "operator-0") -> None:
        """A replica, as a process of its own: it waits for the Lease, then acts."""
        spawn(name, self._operator(name), name=name)

    def kill(self, name: str = "operator-0") -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.kill(name)
        self.operators.pop(name, None)

    async def _operator(self, name: str) -> None:
        """A process that ends by itself would fail the test: nothing starts it again."""
        settings = Settings(identity=name, namespaces=self.namespaces)
        tokens = iter(range(1, 10**6))
        context = Context(
            self.api,
            settings,
            self.jobs,
            self.agents,
            wall,
            lambda: f"token-{name}-{next(tokens)}",
            lambda: b"certificate of " + name.encode(),
        )
        operator = Operator(context, self.table)
        await lead(operator, leader_for(operator, context), lambda: self._watched(name, operator))

    async def _watched(self, name: str, operator: Operator) -> None:
        """Watch until the term ends or `watch_fails`."""
        self.acted.add(name)
        self.operators[name] = operator
        watcher = self._watch(name, operator)
        try:
            while self.watch_fails is None:
                await asyncio.sleep(STEP_S)
            raise self.watch_fails
        finally:
            self.operators.pop(name, None)
            self.api.watchers.remove(watcher)

    def _watch(self, name: str, operator: Operator) -> Callable[[str, Obj], None]:
        """As kopf does: what is there first, then each change; in the operator's own process."""
        loop = asyncio.get_running_loop()

        def deliver(type_: str, obj: Obj) -> None:
            if operator.served and obj["metadata"].get("namespace") not in operator.served:
                return
            before = PROCESS.set(name)
            try:
                loop.call_soon(operator.on_event, type_, obj)
            finally:
                PROCESS.reset(before)

        for kind in (*operator.kinds, "Pod"):
            labels = {naming.LABEL_MANAGED_BY: naming.MANAGED_BY} if kind == "Pod" else {}
            for obj in self.api.select(kind, None, labels):
                deliver("", obj)
        self.api.watchers.append(deliver)
        return deliver

    async def until(self, condition: Callable[[], bool], *, limit_s: float = SETTLE_LIMIT_S) -> float:
        """Seconds that it took. Fails with what is there otherwise."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not condition():
            assert loop.time() - begun < limit_s, f"not within {limit_s} s: {self.summary()}"
            await asyncio.sleep(STEP_S)
        return loop.time() - begun

    def summary(self) -> str:
        return "; ".join(
            f"{kind} {name} {(obj.get('status') or {}).get('phase', '')}"
            for (kind, _, name), obj in sorted(self.api.objects.items())
        )


def find(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return the condition of this type in a status as JSON."""
    return next((c for c in status.get("conditions") or () if c["type"] == type_), None)


def is_true(status: Mapping[str, Any], type_: str) -> bool:
    found = find(status, type_)
    return found is not None and found["status"] == "True"


def kstatus(obj: Mapping[str, Any] | None) -> str:
    """Return what `kstatus.Compute` of sigs.k8s.io/cli-utils returns for a custom resource with conditions."""
    assert obj is not None
    status = obj.get("status") or {}
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration") not in (None, obj["metadata"]["generation"]):
        return "InProgress"
    if is_true(status, "Reconciling"):
        return "InProgress"
    if is_true(status, "Stalled"):
        return "Failed"
    ready = find(status, "Ready")
    return "Current" if ready is None or ready["status"] == "True" else "InProgress"


def simulate(scenario: Callable[[World], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Run a scenario in a world of its own, in virtual time."""

    async def main() -> T:
        return await scenario(World(**options))

    return run_virtual(main())


def a_testbed(name: str = "bench", **spec: Any) -> Obj:
    """A valid one of three TaskManagers; fields of spec as given."""
    job = {
        "vertices": [
            {"name": "source", "slotSharingGroup": "src", "source": {"recordsPerSecond": 100}},
            {"name": "sink", "slotSharingGroup": "main", "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "sink"}],
    }
    managers = {"replicas": 3, "slots": 1, "replaceLost": "Never", **spec.pop("taskManagers", {})}
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Testbed",
        "metadata": {"name": name, "namespace": "lab"},
        "spec": {"taskManagers": managers, "job": job, **spec},
    }
