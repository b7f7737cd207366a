"""Models of the fault agents and of the runner, for the operator's world in virtual time. The engine itself has its own simulation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate_operator.agents import Reach, View
from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.faults.fanout import Agent, Part
from testbed_runtime.simulation.loop import VirtualLoop, spawn
from tests.operator.model import ModelApi, Obj, later
from tests.operator.world import World

CONTAINER_START_S = 1.0
TRIALS = 3


@dataclass
class Held:
    """A fault in one agent."""

    name: str
    end: float


@dataclass
class AgentModel:
    active: dict[str, Held] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class ModelAgents:
    """Implements headgate_operator.agents.Agents: one agent at each address, as long as its pod has that address."""

    api: ModelApi
    agents: dict[tuple[str, str], AgentModel] = field(default_factory=dict)
    injections: list[tuple[str, str]] = field(default_factory=list)
    """(fault id, agent), each that was really begun."""
    silent: set[str] = field(default_factory=set)
    """Processes whose agents do not answer."""
    refuse: str = ""
    dirty: bool = False
    unverified: bool = False

    async def views(
        self, reach: Reach, agents: Sequence[Agent], *, fault_id: str, name: str
    ) -> Mapping[Agent, View]:
        await asyncio.sleep(0.01)
        return {agent: self._view(reach, agent, fault_id, name) for agent in agents}

    async def inject(self, reach: Reach, parts: Sequence[Part], *, fault_id: str) -> None:
        await asyncio.sleep(0.2)
        if self.refuse:
            raise UserError("fault", self.refuse)
        models = [(part, self._model(reach, part.agent)) for part in parts]
        for part, model in models:
            if fault_id in model.active or any(r["fault"] == part.fault.name for r in model.rows):
                raise UserError("fault", f"the fault {fault_id} is already active")
        for part, model in models:
            self.begin(model, fault_id, part.fault.name, part.fault.duration_s)
            self.injections.append((fault_id, str(part.agent)))

    async def heal(self, reach: Reach, agents: Sequence[Agent], *, fault_id: str) -> None:
        await asyncio.sleep(0.1)
        for agent in agents:
            if agent.process in reach.hosts:
                self.end(self._model(reach, agent), fault_id, "healed")

    async def heal_all(self, reach: Reach, agents: Sequence[Agent]) -> None:
        await asyncio.sleep(0.1)
        for agent in agents:
            model = self._model(reach, agent)
            for fault_id in list(model.active):
                self.end(model, fault_id, "healed")

    async def capabilities(self, reach: Reach, process: str) -> Mapping[str, Any] | None:
        del reach, process
        return {"backends": ["nfqueue", "nftables"], "missing": {}}

    # ---- for actors and tests

    def begin(self, model: AgentModel, fault_id: str, name: str, duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        model.active[fault_id] = Held(name, loop.time() + duration_s)
        self._row(model, name, "injected")
        self._row(model, name, "unverified" if self.unverified else "verified", {"latency_s": 0.02})
        later(duration_s, self.end, model, fault_id, "its deadline passed")

    def end(self, model: AgentModel, fault_id: str, text: str) -> None:
        held = model.active.pop(fault_id, None)
        if held is not None:
            self._row(model, held.name, "ended", text=text)
            self._row(
                model, held.name, "residue" if self.dirty else "clean", text="a rule" if self.dirty else ""
            )

    def at(self, host: str, container: str = "supervisor") -> AgentModel:
        return self.agents.setdefault((host, container), AgentModel())

    def restart(self, host: str) -> None:
        """The pod's supervisor was killed: what it held went with it, and its journal too."""
        self.agents.pop((host, "supervisor"), None)

    def holding(self) -> list[str]:
        hosts = {(p.get("status") or {}).get("podIP") for p in self.api.select("Pod", None)}
        return [f for (host, _), m in self.agents.items() if host in hosts for f in m.active]

    def _row(self, model: AgentModel, name: str, state: str, measured: Any = None, text: str = "") -> None:
        model.rows.append({"fault": name, "state": state, "measured": measured or {}, "text": text})

    def _model(self, reach: Reach, agent: Agent) -> AgentModel:
        host = reach.hosts.get(agent.process)
        if not host or not reach.token or agent.process in self.silent:
            raise Unreachable(f"{agent} does not answer")
        return self.at(host, agent.container)

    def _view(self, reach: Reach, agent: Agent, fault_id: str, name: str) -> View:
        try:
            model = self._model(reach, agent)
        except HeadgateError as error:
            return View(error=str(error))
        held = model.active.get(fault_id)
        left = held.end - asyncio.get_running_loop().time() if held else 0.0
        active = {"id": fault_id, "remaining_s": max(0.0, left)} if held else None
        return View(active, tuple(r for r in model.rows if r["fault"] == name))


@dataclass
class Runners:
    """Plays the container of every runner pod: trials with a Testbed and one fault each, kept in a folder that outlives it."""

    world: World
    agents: ModelAgents
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials_injected: list[str] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)
    deaf: bool = False
    """They end nothing that is healed, and go on with trial after trial."""
    hanging: bool = False
    """They write how their run ended, with a Testbed of it still there, and do not end."""

    def attach(self) -> None:
        self.world.api.watchers.append(self._on)

    def _on(self, type_: str, obj: Obj) -> None:
        if obj["kind"] != "Pod" or (obj["metadata"].get("labels") or {}).get(naming.LABEL_ROLE) != "runner":
            return
        uid = obj["metadata"]["uid"]
        if type_ == "DELETED" or obj["metadata"].get("deletionTimestamp"):
            self._stop(uid)
        elif (obj.get("status") or {}).get("phase") == "Running" and uid not in self.lives:
            self.lives[uid] = 0
            self._start(obj)

    def _start(self, pod: Obj) -> None:
        uid, run = pod["metadata"]["uid"], pod["metadata"]["labels"][naming.LABEL_RUN]
        life = self.lives[uid]
        spawn(f"{uid}/{life}", self._run(run, pod), name=f"runner-{uid}-{life}")

    def _stop(self, uid: str) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if uid in self.lives:
            loop.kill(f"{uid}/{self.lives[uid]}")

    def kill(self) -> None:
        """SIGKILL of each runner's container; the kubelet starts it again."""
        for pod in self.world.api.select("Pod", None, {naming.LABEL_ROLE: "runner"}):
            uid = pod["metadata"]["uid"]
            if uid in self.lives and (pod.get("status") or {}).get("phase") == "Running":
                self._stop(uid)
                self.lives[uid] += 1
                later(CONTAINER_START_S, self._again, pod, self.lives[uid])

    def _again(self, pod: Obj, life: int) -> None:
        there = self.world.api.one("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if (
            there
            and there["metadata"]["uid"] == pod["metadata"]["uid"]
            and self.lives[pod["metadata"]["uid"]] == life
        ):
            self._start(pod)

    async def _run(self, run: str, pod: Obj) -> None:
        folder = self.folders.setdefault(run, {"done": [], "void": [], "open": ""})
        if folder["open"]:
            await self._drop(run, folder["open"])
            folder["void"].append(folder["open"])
            folder["open"] = ""
        while self.deaf or len(folder["done"]) < TRIALS:
            if await self._healed(run):
                return self._say(run, "Complete", verdict="Inconclusive", reason="Healed")
            trial = f"main-{len(folder['done']) + len(folder['void']) + 1}"
            folder["open"] = trial
            self._say(run, "Running", trial=trial)
            if await self._trial(run, trial):
                folder["done"].append(trial)
            else:
                folder["void"].append(trial)
            folder["open"] = ""
        self._say(run, "Evaluating")
        await asyncio.sleep(2)
        self._say(run, "Complete", verdict="Pass", reason="", text="every expectation holds")
        if self.hanging:
            owner = self.world.api.objects["ScenarioRun", "lab", run]["metadata"]["uid"]
            self.world.api.put(a_trials_testbed(naming.trial_testbed_name(run, "main-9"), run, owner))
            await asyncio.Event().wait()
        self.world.kubelet.set(
            ("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]), {"phase": "Succeeded"}
        )
        return None

    async def _trial(self, run: str, trial: str) -> bool:
        """Whether it counts: its fault lasted until its end."""
        name = naming.trial_testbed_name(run, trial)
        api, agents = self.world.api, self.agents
        owner = api.objects["ScenarioRun", "lab", run]["metadata"]
        api.put(a_trials_testbed(name, run, owner["uid"]))
        host = ""
        while not host:
            if await self._healed(run):
                return False
            await asyncio.sleep(0.5)
            pod = api.one("Pod", "lab", f"{name}-tm-0")
            ready = [c["status"] for c in ((pod or {}).get("status") or {}).get("conditions") or ()]
            host = pod["status"]["podIP"] if pod and ready == ["True"] else ""
        await asyncio.sleep(1)
        model = agents.at(host)
        self.trials_injected.append(f"{run}/{trial}")
        agents.begin(model, f"{run}/{trial}", "pause", 5.0)
        await asyncio.sleep(6)
        held = any(r["state"] == "clean" for r in model.rows) and agents.at(host) is model
        await self._drop(run, trial)
        return held

    async def _drop(self, run: str, trial: str) -> None:
        address = ("Testbed", "lab", naming.trial_testbed_name(run, trial))
        self.world.api.remove(address)
        while address in self.world.api.objects:
            await asyncio.sleep(0.5)

    async def _healed(self, run: str) -> bool:
        there = self.world.api.one("ScenarioRun", "lab", run)
        await asyncio.sleep(0.01)
        if there is not None and self.deaf:
            return False
        return there is None or naming.ANNOTATION_HEAL in (there["metadata"].get("annotations") or {})

    def _say(self, run: str, phase: str, **more: Any) -> None:
        there = self.world.api.one("ScenarioRun", "lab", run)
        folder = self.folders[run]
        if there is None:
            return
        data = {
            "phase": phase, "trialsDone": len(folder["done"]), "trialsTotal": TRIALS, **more,
            "trials": [{"name": t, "jobState": "FINISHED", "voided": False, "reason": ""} for t in folder["done"]]
            + [{"name": t, "jobState": "", "voided": True, "reason": "the runner was killed"} for t in folder["void"]],
            "faults": [{"name": "pause", "backend": "supervisor", "why": "", "verified": True, "residue": ""}]
            if folder["done"] else [],
        }  # fmt: skip
        self.world.api.put({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": naming.status_name(run), "namespace": "lab", "labels": {naming.LABEL_RUN: run,
                         naming.LABEL_MANAGED_BY: naming.MANAGED_BY}, "ownerReferences": [{
                             "apiVersion": naming.API_VERSION, "kind": "ScenarioRun", "name": run,
                             "uid": there["metadata"]["uid"]}]},
            "data": {"status.json": json.dumps(data)},
        })  # fmt: skip


def a_trials_testbed(name: str, run: str, uid: str) -> Obj:
    from tests.operator.world import a_testbed

    made = a_testbed(name, taskManagers={"replicas": 2})
    made["metadata"] |= {
        "labels": {naming.LABEL_RUN: run, naming.LABEL_MANAGED_BY: naming.MANAGED_BY},
        "ownerReferences": [
            {"apiVersion": naming.API_VERSION, "kind": "ScenarioRun", "name": run, "uid": uid}
        ],
    }
    made["spec"]["jobState"] = "suspended"
    return made


def a_run(name: str = "trial-run", **spec: Any) -> Obj:
    """A valid one with one fault."""
    from tests.operator.world import a_testbed

    testbed = {**a_testbed()["spec"]}
    fault = {
        "name": "pause", "at": "0 s", "duration": "5 s", "process": {"pause": {}},
        "target": {"taskManagers": {"names": ["tm-0"]}},
    }  # fmt: skip
    scenario = {"testbed": testbed, "faults": [fault], "trials": TRIALS, "control": False}
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": name, "namespace": "lab"},
        "spec": {"scenario": spec.pop("scenario", scenario), **spec},
    }


def a_fault(name: str = "slow", testbed: str = "bench", **spec: Any) -> Obj:
    """A latency of 20 ms at tm-0 for 10 s, by the proxy, unless spec says otherwise."""
    kinds = (
        "network",
        "frames",
        "process",
        "pod",
        "rpc",
        "heartbeats",
        "store",
        "jobmanager",
        "registration",
    )
    kind = {} if any(k in spec for k in kinds) else {"process": {"pause": {}}}
    target = {} if "target" in spec else {"target": {"taskManagers": {"names": ["tm-0"]}}}
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Fault",
        "metadata": {"name": name, "namespace": "lab"},
        "spec": {"testbedRef": {"name": testbed}, "duration": "10 s", **target, **kind, **spec},
    }
