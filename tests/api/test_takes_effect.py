"""Documents in which a bound or a fault cannot take effect, found before anything runs."""

from __future__ import annotations

import pytest

from tests.api.test_validate import changed, errors

BAD = {
    "fraction of a whole number": (
        lambda s: s["testbed"]["job"]["vertices"][0]["source"].update(recordsPerSecond=2.5),
        "spec.testbed.job.vertices[0].source.recordsPerSecond: 2.5 is not an integer (write a whole number from 1 to",
    ),
    "option of Flink outside its configuration": (
        lambda s: s.update({"execution.checkpointing.interval": "1 s"}),
        "spec[execution.checkpointing.interval]: is an unknown field (write options of Flink below flinkConfiguration)",
    ),
    "write buffers that leave nothing of the cache": (
        lambda s: s["testbed"]["flinkConfiguration"].update(
            {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.write-buffer-ratio": "0.95"}
        ),
        "write-buffer-ratio]: Flink does not start: Invalid configuration: writeBufferRatio 0.95 with highPriPoolRatio 0.1 (it is "
        "'0.95': make one of the two ratios smaller: 2w / (3 − w) + h must be below 1 (w: write-buffer-ratio, h: high-prio-pool-ratio))",
    ),
    "high-priority blocks that leave nothing of the cache": (
        lambda s: s["testbed"]["flinkConfiguration"].update(
            {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.high-prio-pool-ratio": "0.7"}
        ),
        "high-prio-pool-ratio]: Flink does not start: Invalid configuration: writeBufferRatio 0.5 with highPriPoolRatio 0.7 (it is "
        "'0.7': make one of the two ratios smaller",
    ),
    "bounds the wrong way round": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "min": "3 s", "max": "2 s"}),
        "spec.expect[1]: no value is at least 3 s and at most 2 s: swap `min` and `max`",
    ),
    "milestone of an unknown fault": (
        lambda s: s["expect"].append({"metric": "lag.max", "phase": "outage/long-gv", "max": "2 s"}),
        "spec.expect[1].phase: the fault 'long-gv' does not exist (did you mean long-gc?)",
    ),
}


@pytest.mark.parametrize(("change", "text"), BAD.values(), ids=BAD.keys())
def test_what_cannot_take_effect_is_refused(change, text):
    """The alternative is to find it after all trials."""
    assert any(text in e for e in errors(change)), errors(change)


@pytest.mark.parametrize("share", ["1.5", "-0.5"])
@pytest.mark.parametrize("name", ["write-buffer-ratio", "high-prio-pool-ratio"])
def test_a_share_that_is_out_of_range_is_one_error(name, share):
    """It is not refused a second time together with the other share."""
    key = f"state.backend.rocksdb.memory.{name}"
    given = {"state.backend.type": "rocksdb", key: share}
    found = errors(lambda s: s["testbed"]["flinkConfiguration"].update(given))
    default = {"write-buffer-ratio": "0.5", "high-prio-pool-ratio": "0.1"}[name]
    problem = f"must be between 0 and 1 (the default is {default})"
    assert found == [f"spec.testbed.flinkConfiguration[{key}]: {problem}"]


@pytest.mark.parametrize(("version", "refused"), [("1.19", False), ("1.20", True), ("2.x", True)])
def test_less_than_minus_one_transfer_threads_are_refused_from_1_20_on(version, refused):
    """Before, Flink transfers in the thread that asks for it. From 1.20 on, in threads that Headgate does not have."""

    def configure(spec):
        spec["testbed"]["flinkVersion"] = version
        spec["testbed"]["flinkConfiguration"]["state.backend.rocksdb.checkpoint.transfer.thread.num"] = "-2"

    assert any("transfer.thread.num]" in e for e in errors(configure)) is refused


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            lambda s: (
                s["timeline"].update(baseline="0 s"),
                s["expect"].append({"metric": "throughput.relative", "min": "90 %"}),
            ),
            "spec.expect[1].metric: spec.timeline.baseline is 0, so there is nothing to measure: the answer will be Inconclusive "
            "(write 3 s or more)",
        ),
        (
            lambda s: (
                s["variants"].clear(),
                s["timeline"].update(observation="9 s"),
                s["faults"][0].update(duration="9 s"),
                s["expect"].append({"metric": "lag.max", "max": "1 s", "phase": "observation"}),
            ),
            "spec.expect[1].phase: the last fault of main ends with the observation, so this phase has no time: the answer will be "
            "Inconclusive (make spec.timeline.observation longer than 9 s)",
        ),
        (
            lambda s: s["testbed"]["flinkConfiguration"].pop("execution.checkpointing.interval"),
            "spec.testbed.flinkConfiguration: without execution.checkpointing.interval and restart-strategy.type the first failure "
            "ends the job, and an exactly-once sink commits only when the job is drained",
        ),
    ],
)
def test_a_phase_without_time_and_a_job_that_never_restarts_are_warnings(change, warning):
    """They are valid, and seldom meant."""
    findings = changed(change)
    assert findings.errors == ()
    assert warning in findings.warnings
