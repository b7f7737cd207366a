"""Testbed resources: one for each trial, for which the operator makes the pods, deleted at the end of the trial."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from testbed_runtime.api import naming
from testbed_runtime.api.refusals import NOT_ADMITTED
from testbed_runtime.api.resources import manifest, metadata_of
from testbed_runtime.api.status import Condition
from testbed_runtime.api.views import Pod, Resource, Testbed
from testbed_runtime.core.errors import HeadgateError, TestbedNotReady
from testbed_runtime.core.faults.vocabulary import PACKET_BACKENDS, POD_BACKEND, PROCESS_BACKENDS
from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.faults.registry import Capabilities
from testbed_runtime.kube import checkpoint
from testbed_runtime.kube.api import Api, patiently, polled_patiently
from testbed_runtime.kube.disruptions import Disruptions
from testbed_runtime.kube.podfaults import PodFaults
from testbed_runtime.kube.recorder import RecorderFolder
from testbed_runtime.kube.testbed import KubeTestbed, TrialAccess
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.ports.network import Address
from testbed_runtime.runner.progress import Notice, Progress

READY_LIMIT_S = 600.0
"""Time limit for a Testbed to become ready. Pods start within seconds; the rest is for an unreachable operator or API server."""
REGISTER_LIMIT_S = 60.0
"""Time limit for the TaskManagers of a ready Testbed to be registered. They were registered when they became ready."""
GONE_LIMIT_S = 180.0
"""Time limit from deletion to the end of the last pod. The API server may be unreachable for a minute in between."""
POLL_S = 0.5
CREATE_MARGIN_S = 30.0
PACKETS_OFF = "the testbed has no agent with NET_ADMIN (set testbed.pods.packetFaults: true)"


def capabilities(*, packet_faults: bool) -> Capabilities:
    """Return the fault backends in a cluster. With packet faults the pod's agent uses what the kernel supports."""
    offered = (*PROCESS_BACKENDS, POD_BACKEND)
    if packet_faults:
        missing = {"netem": "the agent uses it where the kernel supports it"}
        return Capabilities("kubernetes", (*offered, "nfqueue", "nftables"), missing)
    return Capabilities("kubernetes", offered, dict.fromkeys(PACKET_BACKENDS, PACKETS_OFF))


class RunAccess(Struct, frozen=True):
    """The values that the Testbeds of a run share."""

    namespace: str
    run: str
    token: str
    recorder: Address
    owner: Resource
    """The ScenarioRun, which owns its Testbeds."""


def trial_testbed(testbed: TestbedPlan, run: RunAccess, context: TrialContext) -> dict[str, Any]:
    """Return the Testbed of one trial. The runner submits its job, and the run's recorder gets its record. Pure."""
    spec = dict(testbed.resource)
    host, port = run.recorder
    spec |= {
        "jobState": "suspended",
        "seed": context.seed,
        "recorder": f"{host}:{port}{recorder_path(context.trial)}",
        "run": run.run,
        "trial": context.trial,
        "pods": {**spec.get("pods", {}), "tokenSecret": naming.token_name(run.run), "proxy": testbed.proxy},
    }
    name = naming.trial_testbed_name(run.run, context.trial)
    metadata = metadata_of(
        name, run.namespace, {naming.LABEL_RUN: run.run}, component="testbed", owner=run.owner.reference()
    )
    metadata["annotations"] = {naming.ANNOTATION_TRIAL: context.trial}
    return manifest("Testbed", metadata, spec=spec)


def recorder_path(trial: str) -> str:
    return f"/t/{trial}"


def readiness(testbed: Testbed) -> tuple[bool, str, str]:
    """Return (ready, why it was refused, what it waits for) from the conditions of the current generation. Pure."""
    none = Condition(type="", status="Unknown", reason="", message="")
    current = {
        c.type: c
        for c in testbed.status.conditions
        if c.observed_generation is None or c.observed_generation >= testbed.generation
    }
    accepted, stalled, ready = (current.get(t, none) for t in ("Accepted", "Stalled", "Ready"))
    refused = accepted.message if accepted.status == "False" else ""
    if stalled.is_true and stalled.reason == NOT_ADMITTED:
        refused = stalled.message
    waits = ready.message or "the operator has not reconciled it yet"
    return ready.is_true, refused, f"it is stalled: {stalled.message}" if stalled.is_true else waits


class KubeTestbedHost:
    """A `ports.hosts.TestbedHost` of a cluster."""

    __test__ = False
    create_limit_s = READY_LIMIT_S + REGISTER_LIMIT_S + CREATE_MARGIN_S
    close_limit_s = GONE_LIMIT_S + CREATE_MARGIN_S

    def __init__(
        self,
        api: Api,
        run: RunAccess,
        progress: Progress,
        folder: RecorderFolder,
        *,
        packet_faults: bool = False,
    ) -> None:
        self.capabilities = capabilities(packet_faults=packet_faults)
        self._api = api
        self._run = run
        self._progress = progress
        self._folder = folder
        self._open_testbeds: dict[str, KubeTestbed] = {}

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> KubeTestbed:
        """Create a Testbed and wait until its TaskManagers have registered.

        Raises HeadgateError with the reason if it is refused, TestbedNotReady if it is not ready within READY_LIMIT_S, and HeadgateError
        before anything is created if the job cannot start from its kept checkpoint."""
        kept = await self._kept(testbed)
        wanted = trial_testbed(testbed, self._run, context)
        name = str(wanted["metadata"]["name"])
        try:
            # an earlier runner left the Testbed behind, and the record of what happened to it is lost
            if await patiently(lambda: self._get(name), limit_s=READY_LIMIT_S, every_s=POLL_S) is not None:
                await self._remove(name)
            await patiently(lambda: self._api.create(wanted), limit_s=READY_LIMIT_S, every_s=POLL_S)
            await self._wait_ready(name)
            return await self._open(testbed, context, name, kept)
        except BaseException:
            await self._delete(name)
            raise

    async def _kept(self, plan: TestbedPlan) -> Mapping[str, bytes]:
        """Return the objects of the checkpoint from which the job starts; empty if it starts from none."""
        if not (path := plan.recovery_path):
            return {}
        objects = await checkpoint.fetch(self._api, self._run.namespace, path)
        await checkpoint.checked(objects, plan.job, plan.flink_version)
        return objects

    async def _open(
        self, plan: TestbedPlan, context: TrialContext, name: str, kept: Mapping[str, bytes]
    ) -> KubeTestbed:
        access = TrialAccess(
            token=self._run.token,
            recorder=self._run.recorder,
            recorder_path=recorder_path(context.trial),
            capabilities=self.capabilities,
            address=lambda process, port: (naming.dns_name(name, process, self._run.namespace), port),
        )
        pods = PodFaults(self._api, self._run.namespace, name)
        opened = KubeTestbed(
            plan,
            context,
            access,
            pods=pods,
            disruptions=Disruptions(self._api, self._run.namespace, name, pods.asked),
            gone=lambda: self._is_gone(name),
            folder=self._folder,
        )
        try:
            await opened.open(register_limit_s=REGISTER_LIMIT_S)
            if kept:
                await opened.bring(kept)
        except BaseException:
            await opened.close()
            raise
        self._open_testbeds[context.trial] = opened
        return opened

    async def dispose(self, context: TrialContext) -> None:
        """Delete the trial's Testbed, also one that an earlier runner left behind, and wait for the end of its last pod."""
        testbed = self._open_testbeds.pop(context.trial, None)
        if testbed is not None:
            await testbed.close()
        await self._remove(naming.trial_testbed_name(self._run.run, context.trial))

    async def _wait_ready(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_LIMIT_S
        reported = ""
        while True:
            found = await patiently(lambda: self._get(name), limit_s=READY_LIMIT_S, every_s=POLL_S)
            if found is None:
                raise HeadgateError(f"the Testbed {name} was deleted before it was ready")
            ready, refused, waits = readiness(Testbed(found))
            if refused:
                raise HeadgateError(f"the Testbed {name} was refused: {refused}")
            if ready:
                return
            if waits != reported:
                reported = waits
                self._progress.on_event(Notice(f"testbed {name}: {waits}"))
            if loop.time() >= end:
                raise TestbedNotReady(f"the Testbed {name} was not ready within {READY_LIMIT_S:g} s: {waits}")
            await asyncio.sleep(POLL_S)

    async def _remove(self, name: str) -> None:
        async def delete() -> None:
            await self._api.delete("Testbed", self._run.namespace, name)

        await patiently(delete, limit_s=GONE_LIMIT_S, every_s=POLL_S)
        gone = partial(self._is_gone, name, pods=True)
        if not await polled_patiently(gone, limit_s=GONE_LIMIT_S, every_s=POLL_S):
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        """Stop waiting for pods whose nodes are lost. They end when the node returns or is removed, and the next trial's pods have other names.

        Raises HeadgateError if any other pod still exists."""
        labels = {naming.LABEL_TESTBED: name}
        pods = [Pod(p) for p in await self._api.list("Pod", self._run.namespace, labels=labels)]
        stay = [pod.name for pod in pods if not pod.node_lost]
        if stay or not pods:
            raise HeadgateError(
                f"Testbed {name} or its pods still exist {GONE_LIMIT_S:g} s after its deletion: {', '.join(stay)}"
            )
        left = ", ".join(pod.name for pod in pods)
        self._progress.on_event(Notice(f"left until their node returns or is removed: {left}"))

    async def _is_gone(self, name: str, *, pods: bool = False) -> bool:
        found = await self._get(name)
        if found is not None and (pods or not Resource(found).terminating):
            return False
        if not pods:
            return True
        labels = {naming.LABEL_TESTBED: name}
        return not await self._api.list("Pod", self._run.namespace, labels=labels)

    async def _get(self, name: str) -> dict[str, Any] | None:
        return await self._api.get("Testbed", self._run.namespace, name)

    async def _delete(self, name: str) -> None:
        """Request the deletion of the Testbed once. If it fails, the Testbed is deleted with the ScenarioRun, which owns it."""
        try:
            await self._api.delete("Testbed", self._run.namespace, name)
        except HeadgateError as error:
            self._progress.on_event(Notice(f"deleting the Testbed {name}: {error}"))
