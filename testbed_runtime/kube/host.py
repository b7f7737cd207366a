"""Testbeds as resources: one for each trial, made by the operator's hands, taken away at the trial's end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.faults.registry import Capabilities
from testbed_runtime.kube.api import Api, ApiError
from testbed_runtime.kube.podfaults import PodFaults
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.kube.testbed import AddressOf, KubeTestbed, Place
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.runner.progress import Happened, Progress

READY_LIMIT_S = 600.0
"""Until a Testbed is ready: pods start within seconds, the rest is for an operator or an API server that is away."""
REGISTER_LIMIT_S = 60.0
"""From Ready to every TaskManager registered as seen from here: they were when they became ready."""
GONE_LIMIT_S = 180.0
"""From its deletion to the last pod's end: the API server may be away for a minute in between."""
POLL_S = 0.5
CREATE_MARGIN_S = 30.0
PACKETS_OFF = "the testbed has no agent with NET_ADMIN; set testbed.pods.packetFaults: true"

T = TypeVar("T")


def capabilities(*, packet_faults: bool) -> Capabilities:
    """Of the place `kubernetes`. With packet faults the agent in the pod says which of its means the kernel has."""
    packets = ("nfqueue", "nftables")
    if packet_faults:
        missing = {"netem": "the agent takes it where the kernel has it"}
        return Capabilities("kubernetes", ("channel", "proxy", "supervisor", "kubernetes", *packets), missing)
    missing = dict.fromkeys(("netem", *packets), PACKETS_OFF)
    return Capabilities("kubernetes", ("channel", "proxy", "supervisor", "kubernetes"), missing)


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run lives: what every Testbed of it is made with."""

    namespace: str
    run: str
    token: str
    recorder: Address
    owner: Mapping[str, Any] = field(default_factory=dict)
    """The ScenarioRun: its Testbeds are its own and go with it."""


def manifest(testbed: TestbedPlan, place: RunPlace, context: TrialContext) -> dict[str, Any]:
    """The Testbed of one trial: its job is submitted by the runner, its record goes to the run's recorder. Pure."""
    spec = dict(testbed.resource)
    host, port = place.recorder
    spec |= {
        "jobState": "suspended",
        "seed": context.seed,
        "recorder": f"{host}:{port}{recorder_path(context.trial)}",
        "run": place.run,
        "trial": context.trial,
        "pods": {**spec.get("pods", {}), "tokenSecret": naming.token_name(place.run), "proxy": testbed.proxy},
    }
    metadata: dict[str, Any] = {
        "name": naming.trial_testbed_name(place.run, context.trial),
        "namespace": place.namespace,
        "labels": {naming.LABEL_RUN: place.run, naming.LABEL_MANAGED_BY: naming.MANAGED_BY},
        "annotations": {naming.ANNOTATION_TRIAL: context.trial},
    }
    if place.owner:
        metadata["ownerReferences"] = [_owner(place.owner)]
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "Testbed",
        "metadata": metadata,
        "spec": spec,
    }


def recorder_path(trial: str) -> str:
    return f"/t/{trial}"


def _owner(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        "name": run["metadata"]["name"],
        "uid": run["metadata"]["uid"],
        "controller": True,
    }


def readiness(testbed: Mapping[str, Any]) -> tuple[bool, str, str]:
    """(ready, why it can never be, what it waits for) by the conditions that speak of its present generation. Pure."""
    generation = int(testbed["metadata"].get("generation", 0))
    conditions = {
        c["type"]: c
        for c in testbed.get("status", {}).get("conditions") or ()
        if int(c.get("observedGeneration", generation)) >= generation
    }

    def holds(kind: str, status: str) -> bool:
        return bool(conditions.get(kind, {}).get("status") == status)

    refused = conditions["Accepted"].get("message", "") if holds("Accepted", "False") else ""
    if holds("Stalled", "True") and conditions["Stalled"].get("reason") == "NotAdmitted":
        refused = conditions["Stalled"].get("message", "")
    waits = conditions.get("Ready", {}).get("message", "") or "the operator has not looked at it"
    if holds("Stalled", "True"):
        waits = f"it is stalled: {conditions['Stalled'].get('message', '')}"
    return holds("Ready", "True"), refused, waits


class KubeTestbedHost:
    """A `ports.hosts.TestbedHost` of a cluster. `address` says how a process of a testbed is reached from here (by its name in the
    network, unless told otherwise)."""

    __test__ = False
    environment = "kubernetes"
    create_limit_s = READY_LIMIT_S + REGISTER_LIMIT_S + CREATE_MARGIN_S
    close_limit_s = GONE_LIMIT_S + CREATE_MARGIN_S

    def __init__(
        self,
        api: Api,
        run: RunPlace,
        progress: Progress,
        *,
        packet_faults: bool = False,
        folder: RecorderFolder | None = None,
        address: Callable[[str], AddressOf] | None = None,
    ) -> None:
        self.capabilities = capabilities(packet_faults=packet_faults)
        self._api = api
        self._run = run
        self._progress = progress
        self._folder = folder
        self._address = address or self._by_name
        self._open_testbeds: dict[str, KubeTestbed] = {}

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> KubeTestbed:
        """Until its TaskManagers are registered. Raises HeadgateError: refused, or not ready within READY_LIMIT_S and why."""
        wanted = manifest(testbed, self._run, context)
        name = str(wanted["metadata"]["name"])
        try:
            # of a runner before this one, whose record went with its recorder: nobody knows what was done to it
            if await self._patiently(lambda: self._get(name), READY_LIMIT_S) is not None:
                await self._remove(name)
            await self._patiently(lambda: self._api.create(wanted), READY_LIMIT_S)
            await self._until_ready(name, context)
            return await self._open(testbed, context, name)
        except BaseException:
            await self._delete(name)
            raise

    async def _open(self, plan: TestbedPlan, context: TrialContext, name: str) -> KubeTestbed:
        place = Place(
            namespace=self._run.namespace,
            testbed=name,
            token=self._run.token,
            recorder=self._run.recorder,
            recorder_path=recorder_path(context.trial),
            capabilities=self.capabilities,
            address=self._address(name),
        )
        made = KubeTestbed(
            plan,
            context,
            place,
            pods=PodFaults(self._api, self._run.namespace, name),
            gone=lambda: self._is_gone(name),
            folder=self._folder,
        )
        try:
            await made.open(register_limit_s=REGISTER_LIMIT_S)
        except BaseException:
            await made.close()
            raise
        self._open_testbeds[context.trial] = made
        return made

    async def dispose(self, context: TrialContext) -> None:
        """Delete the trial's Testbed, also one that an earlier runner left behind, and wait for the end of its last pod."""
        testbed = self._open_testbeds.pop(context.trial, None)
        if testbed is not None:
            await testbed.close()
        await self._remove(naming.trial_testbed_name(self._run.run, context.trial))

    # ---- inside

    async def _until_ready(self, name: str, context: TrialContext) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_LIMIT_S
        said = ""
        while True:
            found = await self._patiently(lambda: self._get(name), READY_LIMIT_S)
            if found is None:
                raise HeadgateError(f"the Testbed {name} was deleted while it was being made")
            ready, refused, waits = readiness(found)
            if refused:
                raise HeadgateError(f"the Testbed {name} was refused: {refused}")
            if ready:
                return
            if waits != said:
                said = waits
                self._progress.on_event(Happened(context.trial, f"testbed {name}: {waits}"))
            if loop.time() >= end:
                raise HeadgateError(f"the Testbed {name} was not ready within {READY_LIMIT_S:g} s: {waits}")
            await asyncio.sleep(POLL_S)

    async def _remove(self, name: str) -> None:
        await self._patiently(
            lambda: self._api.delete(naming.API_VERSION, "Testbed", self._run.namespace, name), GONE_LIMIT_S
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + GONE_LIMIT_S
        while not await self._patiently(lambda: self._is_gone(name, pods=True), GONE_LIMIT_S):
            if loop.time() >= end:
                raise HeadgateError(f"the pods of Testbed {name} were not gone within {GONE_LIMIT_S:g} s")
            await asyncio.sleep(POLL_S)

    async def _is_gone(self, name: str, *, pods: bool = False) -> bool:
        found = await self._get(name)
        if found is not None and (pods or not found["metadata"].get("deletionTimestamp")):
            return False
        if not pods:
            return True
        labels = {naming.LABEL_TESTBED: name}
        return not await self._api.list("v1", "Pod", self._run.namespace, labels=labels)

    async def _get(self, name: str) -> dict[str, Any] | None:
        return await self._api.get(naming.API_VERSION, "Testbed", self._run.namespace, name)

    async def _delete(self, name: str) -> None:
        """Asked once; what it leaves is the ScenarioRun's and goes with it."""
        try:
            await self._api.delete(naming.API_VERSION, "Testbed", self._run.namespace, name)
        except HeadgateError as error:
            self._progress.on_event(Happened("", f"deleting the Testbed {name}: {error}"))

    async def _patiently(self, call: Callable[[], Awaitable[T]], limit_s: float) -> T:
        """Repeated while the API server is away."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while True:
            try:
                return await call()
            except ApiError as error:
                if not error.unreachable or loop.time() >= end:
                    raise
            await asyncio.sleep(POLL_S)

    def _by_name(self, testbed: str) -> AddressOf:
        namespace = self._run.namespace
        return lambda process, port: (naming.dns_name(testbed, process, namespace), port)
