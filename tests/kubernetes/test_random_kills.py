"""Everything of Headgate is killed at random while three runs are under way; and many runs one after the other leave nothing."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.kube.api import connect
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import (
    AGENT,
    JAVA,
    OPERATOR,
    OPERATOR_NAMESPACE,
    PRIVILEGED,
    STORE,
    Space,
    fresh,
    process_of,
)
from tests.kubernetes.test_runs import (
    SLOW,
    SMALL,
    Followed,
    delete_runner,
    injections,
    kill_operator,
    kill_recorder,
    nothing_left,
)
from tests.kubernetes.test_spark import a_run

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak]

SEED = int(os.environ.get("HEADGATE_KILLS_SEED", "20"))
KILLS = 20
PAUSE_S = (2.0, 7.0)
"""Between two kills."""
LOOP_S = 60.0 * float(os.environ.get("HEADGATE_LOOP_MINUTES", "20"))
AT_ONCE = 3
GROWTH_MAX = 1.05
"""The limit of growth of the operator's memory, between the middle third and the last third of the loop."""
WARM_UP = 0.34
RUN_LIMIT_S = 150.0
SPARK = "headgate-spark"
READ_METRICS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics').read().decode())"

Kill = Callable[[Followed, random.Random], Awaitable[bool]]
"""Whether there was something to kill."""


@pytest.fixture
def open_space(installed: Cluster) -> Iterator[Space]:
    """A namespace that admits the packet agents of one of the runs."""
    with fresh(installed, level=PRIVILEGED) as made:
        yield made


def documents() -> list[dict[str, Any]]:
    """A pause, a slow network by the packet agents, and the pause again with other data."""
    found = [copy.deepcopy(SMALL) for _ in range(AT_ONCE)]
    found[1]["spec"]["faults"] = [SLOW]
    found[1]["spec"]["testbed"]["pods"] = {"packetFaults": True}
    for number, document in enumerate(found):
        document["metadata"]["name"] = f"small-{number}"
        document["spec"]["seed"] = number
        document["spec"]["trials"] = 2
    return found


async def _kill(followed: Followed, ends: str, program: str, rng: random.Random) -> bool:
    """SIGKILL to one process of a pod of this run's testbeds whose name has this end."""
    found = await asyncio.to_thread(followed.space.kubectl, "get", "pods", "-o", "name", check=False)
    names = [n.removeprefix("pod/") for n in found.split()]
    pods = [n for n in names if n.startswith(followed.name) and ends in n] if ends != SPARK else [SPARK]
    for pod in rng.sample(pods, len(pods)):
        if (pid := await asyncio.to_thread(process_of, followed.space, pod, program)) is not None:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def by_client(act: Callable[..., Awaitable[None]]) -> Kill:
    async def kill(followed: Followed, rng: random.Random) -> bool:
        del rng
        space = followed.space
        async with connect(kubeconfig=space.cluster.kubeconfig, namespace=space.name) as api:
            try:
                await act(space, api, followed.name)
            except AssertionError:  # kubectl: its pod is not there (yet, or any more)
                return False
        return True

    return kill


VICTIMS: dict[str, Kill] = {
    "operator": by_client(kill_operator),
    "runner": by_client(delete_runner),
    "recorder": by_client(kill_recorder),
    "agent": lambda followed, rng: _kill(followed, "-tm-", AGENT, rng),
    "store": lambda followed, rng: _kill(followed, "-store", STORE, rng),
    "Spark": lambda followed, rng: _kill(followed, SPARK, JAVA, rng),
}


async def kills(lanes: list[Followed], rng: random.Random, done: list[str]) -> None:
    """Kill KILLS times. A part that is not there at the moment is replaced by another choice."""
    while len(done) < KILLS:
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        victim, followed = rng.choice(sorted(VICTIMS)), rng.choice(lanes)
        if followed.name and await VICTIMS[victim](followed, rng):
            done.append(f"{victim} of {followed.name}")
            print(f"kill {len(done)}: {done[-1]}")  # noqa: T201 - shown when the test fails


@pytest.mark.timeout(1800)
async def test_twenty_random_kills_in_three_parallel_runs_change_no_verdict(
    open_space: Space, tmp_path: Path
):
    """HEADGATE_KILLS_SEED selects the kills. Every run passes, each sealed trial has one injection or none, nothing is left."""
    rng, done = random.Random(SEED), list[str]()
    lanes = [Followed(open_space, tmp_path / str(number)) for number in range(AT_ONCE)]
    killing = asyncio.create_task(kills(lanes, rng, done), name="kills")

    async def lane(followed: Followed, document: dict[str, Any]) -> int:
        ran = 0
        while not ran or not killing.done():
            followed.progress.events.clear()
            result = await followed.run(document)
            assert result.verdict["verdict"] == "Pass", f"{done}\n{followed.story(result)}"
            counted = [trial for trial, voided in followed.trials if not voided]
            injected = await injections(followed)
            assert len(counted) == document["spec"]["trials"], followed.story(result)
            assert [injected.get(trial) for trial in counted] == [1] * len(counted), (injected, done)
            assert max(injected.values()) == 1, (injected, done)
            await nothing_left(followed)
            ran += 1
        return ran

    try:
        await asyncio.gather(*(lane(f, d) for f, d in zip(lanes, documents(), strict=True)))
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    assert len(done) == KILLS
    where = ("-n", OPERATOR_NAMESPACE)
    open_space.cluster.kubectl(*where, "rollout", "status", OPERATOR, "--timeout=60s")
    assert open_space.kubectl("get", "testbeds,faults", "-o", "name") == ""


def memory(cluster: Cluster) -> float:
    """The operator's resident memory in bytes, as it reports it."""
    text = cluster.kubectl("-n", OPERATOR_NAMESPACE, "exec", OPERATOR, "--", "python", "-c", READ_METRICS)
    [line] = [x for x in text.splitlines() if "process_resident_memory_bytes" in x and x[0] != "#"]
    return float(line.split()[-1])


def present(space: Space) -> dict[str, set[str]]:
    """Names of what runs could leave in their namespace."""
    kinds = ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims", "testbeds", "leases")
    return {kind: set(space.kubectl("get", kind, "-o", "name").split()) for kind in kinds}


@pytest.mark.timeout(LOOP_S + 600)
def test_runs_in_a_loop_leave_no_pod_no_configmap_and_no_memory(space: Space):
    """HEADGATE_LOOP_MINUTES long, three runs at a time, each deleted when it has ended. The operator is the same process all the time."""
    ends, number = time.monotonic() + LOOP_S, 0
    usual: dict[str, set[str]] | None = None
    seen: list[tuple[float, float]] = []
    while number == 0 or time.monotonic() < ends:
        names = [f"loop-{number}-{lane}" for lane in range(AT_ONCE)]
        space.apply(*(a_run(name) for name in names))
        for name in names:
            space.condition(f"scenariorun/{name}", "Complete", RUN_LIMIT_S)
            assert space.get("scenariorun", name)["status"]["verdict"] == "Pass", space.story()
        space.kubectl("delete", "scenariorun", *names, "--timeout=60s")
        number += 1
        usual = usual or _settled(space, names, None)
        _settled(space, names, usual)
        seen.append((time.monotonic() - (ends - LOOP_S), memory(space.cluster)))
    third = LOOP_S * WARM_UP
    middle = [size for at, size in seen if third <= at < 2 * third] or [size for _, size in seen]
    last = [size for at, size in seen if at >= 2 * third] or middle
    growth = statistics.median(last) / statistics.median(middle)
    print(f"{number * AT_ONCE} runs; memory {[f'{s / 1e6:.1f}' for _, s in seen]} MB; growth {growth:.3f}")  # noqa: T201
    assert growth < GROWTH_MAX, seen
    [pod] = space.cluster.get("-n", OPERATOR_NAMESPACE, "pods", "-l", "app.kubernetes.io/component=operator")["items"]  # fmt: skip
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def _settled(space: Space, names: list[str], usual: dict[str, set[str]] | None) -> dict[str, set[str]]:
    """Wait until nothing named after these runs is left, and nothing that was not there after the first ones."""
    ends = time.monotonic() + RUN_LIMIT_S
    while True:
        there = present(space)
        left = [n for kind in there.values() for n in kind if any(name in n for name in names)]
        if not left and usual in (None, there):
            return there
        assert time.monotonic() < ends, f"left: {left}; now {there}, usually {usual}"
        time.sleep(1)
