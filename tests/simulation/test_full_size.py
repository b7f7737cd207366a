"""The documents' own values, unscaled: scenarios/full-size in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.api.compile import compile_run
from testbed_runtime.cli import loading
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.trial.plan import REAL_PARALLELISM_MAX, REAL_TASK_MANAGERS_MAX
from testbed_runtime.runner.engine import check_size
from testbed_runtime.simulation.testbed import SAMPLE_STEPS_S, pace_of
from tests.simulation.simulating import run_document

FULL_SIZE = Path(__file__).parents[2] / "scenarios" / "full-size"
LARGE = Path(__file__).parents[1] / "data" / "large-job.yaml"
QUICK = ("request-backoff-community-beyond",)
"""Short enough for the quick tests."""


def _variants() -> list[object]:
    found: list[object] = []
    for path in sorted(FULL_SIZE.glob("*.yaml")):
        for variant in loading.load(path).scenario.spec.variants:
            name = f"{path.stem}-{variant.name}"
            marks = [] if name in QUICK else [pytest.mark.virtual]
            found.append(pytest.param(path, variant.name, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("path", "variant"), _variants())
def test_a_full_size_scenario_passes_in_virtual_time(path: Path, variant: str, tmp_path: Path) -> None:
    """Minutes of waiting cost seconds, and the verdict is the one that the document's numbers predict."""
    result, complaints = run_document(loading.load(path).document, tmp_path, variants=[variant])
    bad = [e for e in result.verdict["expectations"] if e["verdict"] == "Fail"]
    assert (result.verdict["verdict"], bad) == ("Pass", [])
    assert complaints == []


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
    assert (pace.sample_s, pace.channel_stride) == (sample_s, stride)
    assert pace.sample_s in SAMPLE_STEPS_S
    assert pace.lazy
