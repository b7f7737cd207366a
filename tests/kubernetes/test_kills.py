"""Three runs at a time, while parts of the installation and of the runs are killed at random."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.runner.engine import RunResult
from tests.kubernetes import spaces
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.spaces import PRIVILEGED, Space, fresh
from tests.kubernetes.test_runs import SLOW, SMALL, Followed, delete_operator, injections, nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive, pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = 20
AT_ONCE = 3
SEED = 20
PAUSES_S = (3.0, 12.0)
"""The pause between two kills is drawn from this range."""
VICTIM_LIMIT_S = 300.0
"""Limit for the wait for a process of that kind: an agent lives only within a trial."""
OPERATOR = "operator"
PROGRAMS = {
    "runner": spaces.RUNNER,
    "recorder": spaces.RECORDER,
    "agent": spaces.AGENT,
    "store": spaces.STORE,
    "spark": spaces.JAVA,
}


def slow_small() -> dict[str, Any]:
    """Return SMALL with packets to the sink delayed by its agent: a trial of some 25 s."""
    document = copy.deepcopy(SMALL)
    document["spec"]["faults"] = [SLOW]
    document["spec"]["testbed"]["pods"] = {"packetFaults": True}
    return document


async def kill_one(space: Space, part: str, rng: random.Random) -> None:
    """Kill the operator's pod, or a process of that kind in the namespace, as soon as there is one."""
    if part == OPERATOR:
        await asyncio.to_thread(delete_operator, space.cluster)
        return
    async with asyncio.timeout(VICTIM_LIMIT_S):
        while True:
            for pid in rng.sample(found, len(found)) if (found := await victims(space, part)) else ():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                return
            await asyncio.sleep(0.5)


async def victims(space: Space, part: str) -> list[int]:
    return sorted(await asyncio.to_thread(spaces.processes_of, space, PROGRAMS[part]))


async def kill_all(space: Space, rng: random.Random, killed: list[str]) -> None:
    """Every part at least three times, in an order and with pauses that follow from the seed."""
    parts = ([OPERATOR, *PROGRAMS] * KILLS)[:KILLS]
    rng.shuffle(parts)
    for part in parts:
        await asyncio.sleep(rng.uniform(*PAUSES_S))
        await kill_one(space, part, rng)
        killed.append(part)


@pytest.fixture
def roomy(installed: Cluster) -> Iterator[Space]:
    with fresh(installed, level=PRIVILEGED) as made:
        yield made


def right(followed: Followed, result: RunResult) -> bool:
    """Pass, or no verdict because each attempt at the trial was void."""
    void = bool(followed.trials) and all(voided for _, voided in followed.trials)
    return result.verdict.verdict == ("Inconclusive" if void else "Pass")


async def counted(followed: Followed) -> dict[str, int]:
    """`injections`, again while the run's recorder is killed and starts."""
    async with asyncio.timeout(VICTIM_LIMIT_S):
        while True:
            try:
                return await injections(followed)
            except AssertionError:  # kubectl failed
                await asyncio.sleep(1)


async def test_runs_end_right_while_parts_are_killed_at_random(roomy: Space, tmp_path: Path):
    """Operator, runners, recorders, agents, stores and Spark: no second injection within a trial, no residue, nothing left."""
    if not roomy.cluster.own:
        pytest.skip("processes of pods can be killed from outside only on the test cluster's own node")
    killed: list[str] = []
    ended: list[Followed] = []
    acting = asyncio.create_task(kill_all(roomy, random.Random(SEED), killed), name="kills")

    async def one_after_the_other(number: int) -> None:
        while not acting.done():
            followed = Followed(roomy, tmp_path / str(number))
            result = await followed.run(slow_small())
            assert right(followed, result), f"{killed} {followed.story(result)}"
            faults = roomy.get("scenariorun", followed.name)["status"].get("faults", [])
            assert not any(f.get("residue") for f in faults), faults
            assert max((await counted(followed)).values(), default=0) <= 1, followed.story(result)
            await nothing_left(followed)
            ended.append(followed)
            roomy.kubectl("delete", "scenariorun", followed.name, "--wait=false")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(one_after_the_other(number), name=f"runs-{number}")
        await acting
    finally:
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
    assert set(killed) == {OPERATOR, *PROGRAMS}
    assert len(ended) >= AT_ONCE
