"""Flink's own arithmetic beside Headgate's: memory of a TaskManager, key groups, default max parallelism."""

from __future__ import annotations

import json
import random
import subprocess

import numpy as np
import pytest

from testbed_runtime.core.job.keygroups import (
    compute_default_max_parallelism,
    group_range,
)
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import NETWORK, OVERHEAD, PREFIX
from testbed_runtime.workload.keys import murmur_hashes
from tests.core.test_processmemory import VECTORS, as_flink_names_it, as_flink_said_it
from tests.interop.flink import LIMIT_S

pytestmark = pytest.mark.processes
DRAWN = 300


def asked(flink, lines):
    """Return the answer of Flink to each line."""
    done = subprocess.run(
        flink.java("numbers"),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def a_configuration(draw: random.Random) -> dict[str, str]:
    """Any mixture of sizes and fractions; about half of them start."""
    sizes = (
        "process.size",
        "flink.size",
        "task.heap.size",
        "managed.size",
        "task.off-heap.size",
        "framework.heap.size",
    )
    found = {PREFIX + draw.choice(["process.size", "flink.size"]): f"{draw.randint(600, 30_000)}m"}
    for size in draw.sample(sizes, draw.choice([0, 0, 1, 2])):
        found[PREFIX + size] = f"{draw.randint(0, 3_000_000_000)}b"
    for key in draw.sample(
        [f"{NETWORK}.fraction", f"{OVERHEAD}.fraction", PREFIX + "managed.fraction"], draw.randint(0, 3)
    ):
        found[key] = f"{draw.random() * 0.6:.6f}"
    for part in draw.sample([NETWORK, OVERHEAD], draw.randint(0, 2)):
        found[f"{part}.max"] = f"{draw.randint(64, 9000)}m"
    return found


def test_memory_is_what_flinks_task_executor_process_utils_calculates(flink):
    """The vectors of the unit tests, and drawn configurations: every byte and every refusal."""
    draw = random.Random(7)
    cases = [{PREFIX + k: v for k, v in vector["configuration"].items()} for vector in VECTORS]
    cases += [a_configuration(draw) for _ in range(DRAWN)]
    answers = asked(flink, ["memory " + ";".join(f"{k}={v}" for k, v in case.items()) for case in cases])
    assert len(answers) == len(cases)
    ours = [as_flink_names_it(Options(case, flink_version=flink.name)) for case in cases]
    assert ours == [as_flink_said_it(answer) for answer in answers]
    assert DRAWN / 4 < sum("errors" not in answer for answer in answers[len(VECTORS) :]) < DRAWN


def test_key_groups_are_those_of_flinks_key_group_range_assignment(flink):
    """Murmur, group, subtask and default max parallelism of 5,000 hashes and the extreme ones."""
    draw = random.Random(7)
    hashes = [0, 1, -1, 2**31 - 1, -(2**31), *(draw.randrange(-(2**31), 2**31) for _ in range(5000))]
    cases = []
    for code in hashes:
        most = draw.choice([1, 7, 128, 512, 1024, 32768])
        cases.append((code, draw.randint(1, most), most))
    answers = asked(flink, [f"group {code} {parallelism} {most}" for code, parallelism, most in cases])
    owners = [answer.pop("subtask") for answer in answers]
    murmurs = murmur_hashes(np.array(hashes, dtype=np.int32)).tolist()
    for owner, murmur, (_, parallelism, most) in zip(owners, murmurs, cases, strict=True):
        assert murmur % most in group_range(owner, parallelism, most)
    assert answers == [
        {
            "murmur": murmur,
            "group": murmur % most,
            "default": compute_default_max_parallelism(parallelism),
        }
        for murmur, (_, parallelism, most) in zip(murmurs, cases, strict=True)
    ]
