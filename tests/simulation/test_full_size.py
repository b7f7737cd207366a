"""The documents' own values, unscaled: scenarios/full-size in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli import loading
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.messages import JobStatusReply
from testbed_runtime.core.trial.plan import REAL_PARALLELISM_MAX, REAL_TASK_MANAGERS_MAX
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.runner.engine import check_size
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.simulation.testbed import SAMPLED_CHANNELS, SimTestbed, pace_of
from tests.simulation.simulating import run_document

FULL_SIZE = Path(__file__).parents[2] / "scenarios" / "full-size"
LARGE = Path(__file__).parents[1] / "data" / "large-job.yaml"
QUICK = ("request-backoff-community-beyond",)
"""Short enough for the quick tests."""
LONG = "ask-timeout-"
"""15 s to minutes of processor time each: in `make soak`. `test_ask_timeouts.py` has the same queue of deployments with fewer tasks."""


def _variants() -> list[object]:
    found: list[object] = []
    for path in sorted(FULL_SIZE.glob("*.yaml")):
        for variant in loading.load(path).scenario.spec.variants:
            name = f"{path.stem}-{variant.name}"
            marks = (
                [] if name in QUICK else [pytest.mark.soak if name.startswith(LONG) else pytest.mark.virtual]
            )
            found.append(pytest.param(path, variant.name, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("path", "variant"), _variants())
def test_a_full_size_scenario_passes_in_virtual_time(path: Path, variant: str, tmp_path: Path) -> None:
    """Minutes of waiting cost seconds, and the verdict is the one that the document's numbers predict."""
    result, complaints = run_document(loading.load(path).document, tmp_path, variants=[variant])
    bad = [e for e in result.verdict.judged if e.verdict == "Fail"]
    assert (result.verdict.verdict, bad) == ("Pass", [])
    assert complaints == []


@pytest.mark.parametrize(
    ("divisor", "task_managers"),
    [
        pytest.param(16, 4, id="a-sixteenth", marks=pytest.mark.virtual),
        pytest.param(1, 54, id="full", marks=pytest.mark.soak),
    ],
)
def test_the_tuning_guides_job_recovers_in_the_time_that_its_waits_add_up_to(
    divisor, task_managers, tmp_path
):
    """The document has 330 + 10 × 400 = 4,330 subtasks on 54 TaskManagers and a spare one, a sixteenth of it
    20 + 10 × 25 = 270 on 4 and a spare one."""
    document = loading.load(FULL_SIZE / "tuning-guide.yaml").document
    testbed = document["spec"]["testbed"]
    vertices = testbed["job"]["vertices"]
    assert sum(vertex["parallelism"] for vertex in vertices) == 330 + 10 * 400 == 4_330
    assert testbed["taskManagers"] == {"replicas": 54 + 1, "slots": 8, "replaceLost": "Never"}
    for vertex in vertices:
        vertex["parallelism"] //= divisor
    testbed["taskManagers"]["replicas"] = task_managers + 1
    result, complaints = run_document(document, tmp_path)
    bad = [e for e in result.verdict.judged if e.verdict != "Pass"]
    assert (result.verdict.verdict, bad, complaints) == ("Pass", [], [])


def _scaled(replicas: int, parallelism: int):
    document = loading.load(LARGE).document
    testbed = document["spec"]["testbed"]
    testbed["taskManagers"]["replicas"] = replicas
    for vertex in testbed["job"]["vertices"]:
        vertex["parallelism"] = parallelism
    loaded = loading.with_seed(
        loading.Loaded(LARGE, loading.load(LARGE).scenario, document, ()),
        3,
    )
    return compile_run(loaded.scenario, scenario_folder=FULL_SIZE)


def test_jobs_that_only_virtual_time_can_run_are_valid_and_refused_elsewhere():
    """A parallelism of 800 and hundreds of TaskManagers are valid; real processes refuse them with the command to use."""
    with pytest.raises(UserError, match=r"800 subtasks of source are more than 512 .*headgate simulate"):
        check_size(_scaled(100, 800))
    with pytest.raises(UserError, match=r"300 TaskManagers are more than 128 .*headgate simulate"):
        check_size(_scaled(300, 400))
    check_size(_scaled(REAL_TASK_MANAGERS_MAX, REAL_PARALLELISM_MAX))


@pytest.mark.parametrize(
    ("parallelism", "sample_s", "stride"),
    [(8, 0.1, 1), (42, 0.1, 1), (80, 0.2, 2), (333, 1.0, 8), (1400, 2.0, 33)],
)
def test_large_jobs_are_sampled_more_rarely(parallelism, sample_s, stride):
    """Up to 128 subtasks as often as real processes; above, the number of rows stays about the same."""
    job = _scaled(200, parallelism).trials[0].testbed.job
    pace = pace_of(job)
    assert (pace.sample_s, pace.channel_stride, pace.channel_every) == (sample_s, stride, stride)
    assert pace.lazy


@pytest.mark.parametrize(("parallelism", "stride"), [(42, 1), (80, 4), (333, 55)])
def test_the_number_of_sampled_channels_does_not_grow_with_an_all_to_all_job(parallelism, stride):
    """Two exchanges of 333 subtasks have 221,778 channels. They are sampled as often as those of a job without exchanges."""
    job = _scaled(200, parallelism).trials[0].testbed.job
    wide = replace(job, edges=tuple(replace(edge, partitioning="hash") for edge in job.edges))
    pace = pace_of(wide)
    assert wide.channels == len(job.edges) * parallelism**2
    assert pace.channel_stride == stride
    assert wide.channels / stride <= SAMPLED_CHANNELS
    assert pace.channel_every == pace_of(job).channel_every


class _Job:
    """A job that counts how often its status is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def status(self) -> JobStatusReply:
        self.asked += 1
        return JobStatusReply("RUNNING")

    async def stop_with_drain(self, *, timeout_s: float, poll_s: float) -> bool:
        return (timeout_s, poll_s) == (1.0, 0.1)


def test_the_status_of_a_large_job_is_asked_as_often_as_it_is_sampled(tmp_path):
    """240 subtasks are sampled every 0.2 s: of ten polls, one every 0.06 s, those at 0, 0.24 and 0.48 s ask, and the one
    after the drain."""
    plan = _scaled(200, 80).trials[0].testbed
    job = _Job()

    async def main() -> tuple[int, bool]:
        testbed = SimTestbed(plan, TrialContext("run", "main-1", 3), tmp_path)
        testbed._client = job
        for _ in range(10):
            await testbed.job_status()
            await asyncio.sleep(0.06)
        before, drained = job.asked, await testbed.stop_job(timeout_s=1.0)
        await testbed.job_status()
        return before, drained

    assert run_virtual(main()) == (3, True)
    assert job.asked == 4


def test_a_simulation_imports_no_http_library():
    """aiohttp and what it imports took a quarter of the imports of `headgate simulate`."""
    code = "import sys, testbed_runtime.simulation.entry; print('aiohttp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
