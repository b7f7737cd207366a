"""The catalogue of everything that `expect` can ask about, and the row in which it is answered. Pure data.

`checking.metrics` computes the rows, `core.verdict` judges them, `spec` validates names and bounds, `report` shows units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

METRIC_FIELDS: tuple[tuple[str, str], ...] = (
    ("run", "string"),
    ("trial", "string"),
    ("metric", "string"),
    ("phase", "string"),
    ("quantile", "double"),
    ("value", "double"),
    ("text", "string"),
    ("bounded_by", "string"),
    ("reason", "string"),
)
"""Of a metric row, with Spark's type names. `quantile` and `value` may be null, texts are never null.

`reason` says why there is no value, or why the value is only a bound (LOWER_BOUNDS) or does not cover everything.
`phase` is `baseline`, `fault`, `observation`, or empty: from the first fault to the end of the observation."""

RECOVERY_PHASES = (
    "detect", "cancel", "slots", "restore", "deploy", "reconnect", "first-record", "catch-up", "steady",
)  # fmt: skip
TRIAL_PHASES = ("baseline", "fault", "observation")
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Of the latency rows; 1 is the maximum."""

# Reasons. A row or a judgement carries one of these, or none.
NO_DATA = "NoData"
NOT_DRAINED = "DeliveryNotDrained"
JOB_FAILED = "JobFailed"
NO_FAILOVER = "NoFailover"
NO_FAULT = "NoFault"
NO_BASELINE = "NoBaseline"
NO_CONTROL = "NoControl"
NOT_RECOVERED = "NotRecovered"
OBSERVATION_TOO_SHORT = "ObservationTooShort"
FAULT_NOT_VERIFIED = "FaultNotVerified"
CONTROL_UNSTABLE = "ControlUnstable"
NOT_ENOUGH_TRIALS = "NotEnoughTrials"
VOIDED = "Voided"
FILTERED = "RecordsDropped"
RESIDUE = "Residue"
RESIDUE_NOT_MEASURED = "ResidueNotMeasured"
HISTORY_INCOMPLETE = "HistoryIncomplete"
RUN_FAILED = "RunFailed"
AMBIGUOUS = "BadExpectation"
HEALED = "Healed"
LOWER_BOUNDS = frozenset({NOT_RECOVERED, OBSERVATION_TOO_SHORT})
"""With these the value is what was seen until the end: the true one is at least that."""

REASON_TEXTS: dict[str, str] = {
    NO_DATA: "nothing was recorded that could answer this",
    NOT_DRAINED: "the job was not drained within the limit, so what should have arrived is not known",
    JOB_FAILED: "the job failed for good, so what should have arrived is not known",
    NO_FAILOVER: "there was no failover, so this phase did not happen",
    NO_FAULT: "no fault took place in this trial",
    NO_BASELINE: "there is no baseline to compare with",
    NO_CONTROL: "there is no control trial to compare with",
    NOT_RECOVERED: "the job had not recovered when the observation ended; the value is a lower bound",
    OBSERVATION_TOO_SHORT: "the observation ended before this could be told; the value is a lower bound",
    FAULT_NOT_VERIFIED: "the fault was not seen to take effect",
    CONTROL_UNSTABLE: "the control run, without a fault, was not stable either",
    NOT_ENOUGH_TRIALS: "there are too few trials for this quantile",
    VOIDED: "the trial is void: its fault ended early because the runner did not renew its lease",
    FILTERED: "a function of the scenario dropped records, so what should have arrived is not known",
    RESIDUE: "something of a fault was left behind",
    RESIDUE_NOT_MEASURED: "nobody looked whether something of the fault was left behind",
    HISTORY_INCOMPLETE: "rows of the history are missing",
    RUN_FAILED: "the run could not be carried out",
    HEALED: "somebody healed the run's faults and so stopped it",
    AMBIGUOUS: "the expectation cannot be judged as it is written",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit`: `s`, `count`, `ratio`, `records/s` or `text`. `lower_is_better` None: neither is."""

    name: str
    unit: str
    lower_is_better: bool | None
    doc: str
    phased: bool = False
    """Has a value per phase of the trial."""
    quantiles: bool = False
    """Has a value per quantile within one trial; of any other metric a quantile is one over trials."""
    safety: bool = False
    """Judged in every trial, whether asked for or not: anything above 0 is Fail."""


_PHASE_DOCS = {
    "detect": "from the effect of the fault until the JobManager knows the first cause",
    "cancel": "until every task of the region has ended",
    "slots": "until all slots are there, including the restart delay",
    "restore": "until the state is loaded",
    "deploy": "until all tasks are RUNNING",
    "reconnect": "until every input channel was answered by its producer",
    "first-record": "until the first new record at a sink",
    "catch-up": "until the lag is back at the baseline's 95th percentile",
    "steady": "until throughput stays within 5 % of the baseline for 3 s",
}

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("delivery.lost", "count", True, "Records that a source emitted and no sink committed.", safety=True),
        Metric("delivery.duplicated", "count", True, "Records committed more often than once.", safety=True),
        Metric("delivery.corrupted", "count", True, "Records with a wrong checksum, or that no source emitted.", safety=True),
        Metric("delivery.out-of-order", "count", True, "Records that overtook another one of the same path.", safety=True),
        Metric("delivery.committed", "count", None, "Distinct records committed by the sinks."),
        Metric("credit.violations", "count", True, "Samples in which a channel used more credit than was announced, or counters that do not fit together.", safety=True),
        Metric("job.state", "text", None, "State of the job when the observation ended (before the drain)."),
        Metric("job.failure", "text", None, "Flink's class name of the terminal cause, empty if the job did not fail."),
        Metric("failovers.count", "count", True, "Restarts of a region."),
        Metric("restarts.attempts", "count", True, "Deployments tried by all restarts."),
        Metric("detection.text", "text", None, "Text of the first cause that the JobManager knew."),
        Metric("detection.detector", "text", None, "Who detected first: JobMaster, ResourceManager or Task."),
        *(Metric(f"recovery.{p}", "s", True, f"Recovery: {_PHASE_DOCS[p]}; counted from the end of the phase before.") for p in RECOVERY_PHASES),
        Metric("recovery.downtime", "s", True, "From the effect of the fault to the first new record at a sink."),
        Metric("recovery.total", "s", True, "From the effect of the fault until throughput is steady again."),
        Metric("throughput.records-per-second", "records/s", False, "Records received by the sinks.", phased=True),
        Metric("throughput.relative", "ratio", False, "Throughput in relation to the baseline phase.", phased=True),
        Metric("throughput.relative-to-control", "ratio", False, "Throughput in relation to the same phase of the control trial.", phased=True),
        Metric("latency", "s", True, "From the due time of a record to its arrival at a sink.", phased=True, quantiles=True),
        Metric("latency.relative", "ratio", True, "Latency in relation to the baseline phase.", phased=True, quantiles=True),
        Metric("latency.relative-to-control", "ratio", True, "Latency in relation to the same phase of the control trial.", phased=True, quantiles=True),
        Metric("lag.max", "s", True, "Largest lag of a source or sink behind the due time.", phased=True),
        Metric("liveness.longest-stall", "s", True, "Longest time without a new record at any sink.", phased=True),
        Metric("stale.rejected", "count", None, "Acknowledgements, commits and records of stale attempts that were rejected."),
        Metric("checkpoints.completed", "count", False, "Completed checkpoints.", phased=True),
        Metric("checkpoints.failed", "count", True, "Failed checkpoints.", phased=True),
        Metric("checkpoints.duration", "s", True, "Longest completed checkpoint.", phased=True),
        Metric("partition.requests", "count", True, "Partition requests, with those that were repeated."),
        Metric("partition.retries", "count", True, "Partition requests after the first of their channel."),
        Metric("rpc.timeouts", "count", True, "Asks that timed out."),
        Metric("taskmanagers.lost", "count", True, "TaskManagers given up by the JobManager."),
        Metric("loop.stall", "s", True, "Longest time in which a process of the testbed did not run."),
        Metric("fault.verified", "ratio", False, "1 when every fault of the trial was seen to take effect."),
        Metric("fault.residue", "count", True, "Faults that left something behind."),
        Metric("control.stable", "ratio", False, "1 when the trial without a fault kept its baseline."),
        Metric("history.missing", "count", True, "Rows of the history that were shed or lost."),
    )
}  # fmt: skip

SAFETY: tuple[str, ...] = tuple(m.name for m in METRICS.values() if m.safety)

_NUMBER = re.compile(r"^\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ%/]*)\s*$", re.IGNORECASE)
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}  # fmt: skip
_EXAMPLES = {"s": "5.5 s or 200 ms", "ratio": "0.95 or 95 %", "count": "3", "records/s": "20000"}


def parse_bound(value: str | float, unit: str) -> float:
    """A bound of an expectation in the metric's unit: seconds for `s` (a bare number is seconds), a fraction for `ratio`.
    Raises ValueError with what to write instead."""
    found = _NUMBER.match(str(value))
    scales = {"s": _SECONDS, "ratio": {"": 1.0, "%": 0.01}, "records/s": {"": 1.0, "records/s": 1.0}}
    scale = scales.get(unit, {"": 1.0})
    if not found or found[2].lower() not in scale:
        raise ValueError(f"{value!r} is no value here: write {_EXAMPLES.get(unit, 'a number')}")
    return float(found[1]) * scale[found[2].lower()]


def parse_quantile(value: str | float) -> float:
    """`0.99`, `99 %` or `p99`, as a fraction in (0, 1]. Raises ValueError."""
    text = str(value).strip().lower()
    percent = text.startswith("p") or text.endswith("%")
    try:
        number = float(text.strip("p% ")) / (100 if percent else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise ValueError(f"{value!r} is no quantile: write 0.99, 99 % or p99")
    return round(number, 6)


def trials_needed(quantile: float) -> int:
    """How many trials a quantile over trials needs: as many that at least one lies at or above it by right
    (2 for the median, 20 for 0.95, 100 for 0.99); for the maximum, one."""
    return 1 if quantile >= 1 else max(2, -(-1_000_000 // round((1 - quantile) * 1_000_000)))
