"""The catalogue of metrics that `expect` can name, and their rows. Pure data.

`checking.metrics` computes the rows, `core.judgement.verdict` judges them, `api` validates names and bounds, and `report`
shows units.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from testbed_runtime.core.job.messages import JOB_STATES
from testbed_runtime.core.waits import DETECTORS

RECOVERY_PHASES = (
    "detect", "cancel", "slots", "restore", "deploy", "reconnect", "first-record", "catch-up", "steady",
)  # fmt: skip
TRIAL_PHASES = ("baseline", "fault", "observation")
MILESTONE_PHASES = ("outage", "catch-up", "recovered")
"""Phases by what happened: from the effect of the fault to new records at every sink, until the lag is normal, and until the
drain. With several faults, also `outage/<fault>` and so on; without that suffix they are those of the longest failover, or of the longest
outage if there was none. Faults that share a recovery each begin with their own effect."""
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
"""The quantiles of the latency rows; 1 is the maximum."""


class MetricRow(Struct, frozen=True):
    """The value of a metric in one trial: a row of metrics.json and of the catalogue."""

    run: str
    trial: str
    metric: str
    phase: str
    """One of TRIAL_PHASES or MILESTONE_PHASES, or empty: from the first fault to the end of the observation."""
    quantile: float | None
    value: Annotated[float, Meta(ge=0, le=sys.float_info.max)] | None
    text: str
    bounded_by: str
    reason: str
    """Why there is no value, or why the value is only a bound (LOWER_BOUNDS) or does not cover everything."""


# Reasons. A row or a judgement has at most one of these.
NO_DATA = "NoData"
NOT_DRAINED = "DeliveryNotDrained"
JOB_FAILED = "JobFailed"
JOB_ENDED = "JobEnded"
NO_FAILOVER = "NoFailover"
NO_FAULT = "NoFault"
NO_OUTAGE = "NoOutage"
NO_SUCH_PHASE = "NoSuchPhase"
NO_BASELINE = "NoBaseline"
NO_CONTROL = "NoControl"
NOT_RECOVERED = "NotRecovered"
OBSERVATION_TOO_SHORT = "ObservationTooShort"
FAULT_NOT_VERIFIED = "FaultNotVerified"
CONTROL_UNSTABLE = "ControlUnstable"
NOT_ENOUGH_TRIALS = "NotEnoughTrials"
INDISTINGUISHABLE = "Indistinguishable"
NO_SHARE = "NoShare"
VOIDED = "Voided"
FILTERED = "RecordsDropped"
RESIDUE = "Residue"
RESIDUE_NOT_MEASURED = "ResidueNotMeasured"
HISTORY_INCOMPLETE = "HistoryIncomplete"
NO_THROUGHPUT = "NoThroughput"
OVERLOADED = "Overloaded"
NOT_COUNTED = "BuffersNotCounted"
NOT_SAMPLED = "ChannelsNotSampled"
CLOCKS_DIFFER = "ClocksDiffer"
RUN_FAILED = "RunFailed"
AMBIGUOUS = "BadExpectation"
HEALED = "Healed"
NOT_JUDGED = frozenset({FILTERED, NOT_COUNTED, NOT_SAMPLED})
"""Reasons for which a safety metric cannot be judged. That is not a violation."""
LOWER_BOUNDS = frozenset({NOT_RECOVERED, OBSERVATION_TOO_SHORT})
"""Reasons for which the value was observed only until the end. The true value is at least that."""


class Reason(Struct, frozen=True):
    """Why a value is missing or not judged, as a clause, and what a user can do about it (docs/metrics.md)."""

    text: str
    fix: str


REASONS: dict[str, Reason] = {
    NO_DATA: Reason(
        "the history has no data for this",
        "Check that the job produces the metric (`measured from`), and that the trial has the phase.",
    ),
    NOT_DRAINED: Reason(
        "the job was not drained, so it is unknown which records should have arrived",
        "If the job was failing, remove the cause of its last failure. Otherwise raise `drain`, or give the job less to process before it.",
    ),
    JOB_FAILED: Reason(
        "the job failed permanently, so it is unknown which records should have arrived",
        "The report has the root cause. If the failure is intended, expect `job.state` instead.",
    ),
    JOB_ENDED: Reason(
        "the job had ended before the fault could begin",
        "Begin the fault earlier, or let the job run longer: more records, or a restart strategy that allows more restarts.",
    ),
    NO_FAILOVER: Reason(
        "there was no failover, so this phase did not happen",
        "Expect it only if the fault restarts the job; expect `failovers.count` to be sure that it does.",
    ),
    NO_FAULT: Reason("this trial had no fault", "Remove the expectation from the variant without faults."),
    NO_OUTAGE: Reason(
        "the fault began no outage before the drain, so this phase did not happen",
        "Make the fault longer, or expect a value of the phase `fault` instead.",
    ),
    NO_SUCH_PHASE: Reason(
        "the recovery or the observation ended before this phase began", "Raise `observation`."
    ),
    NO_BASELINE: Reason(
        "there is no baseline to compare with",
        "Raise `warmUp` and `baseline`: each sink needs records before the first fault.",
    ),
    NO_CONTROL: Reason(
        "there is no control trial to compare with",
        "Run the scenario with its control run: no `control: false`, no `--no-control`.",
    ),
    NOT_RECOVERED: Reason(
        "the job had not recovered when the observation ended; the value is a lower bound",
        "Raise `observation`. If that does not help, the job cannot catch up: lower its load or add TaskManagers.",
    ),
    OBSERVATION_TOO_SHORT: Reason(
        "the observation was too short to measure this; the value is a lower bound", "Raise `observation`."
    ),
    FAULT_NOT_VERIFIED: Reason(
        "the fault was not observed to take effect",
        "The report shows the measured effect beside the requested one. The target may have been dead, or the machine busy.",
    ),
    CONTROL_UNSTABLE: Reason(
        "the control run, which has no fault, was unstable too",
        "Run on a machine with free cores (`headgate doctor`), or lower the load of the job. In a pipeline: `--inconclusive retry`.",
    ),
    NOT_ENOUGH_TRIALS: Reason("there are too few trials for this quantile or comparison", "Raise `trials`."),
    INDISTINGUISHABLE: Reason(
        "the trials do not decide it: the required difference is within the confidence interval",
        "Raise `trials`: more of them narrow the interval.",
    ),
    NO_SHARE: Reason(
        "the other variant's value is 0 in some of its trials, so that a share of it has no interval",
        "Ask for a value instead of a share, such as `improvesBy: 500 ms`.",
    ),
    VOIDED: Reason(
        "the trial is void: a fault ended early, or something other than its faults disturbed the testbed",
        "`void_reason` in `manifest.json` (in a cluster: `.status.trials`) names the cause. Remove it and run again.",
    ),
    FILTERED: Reason(
        "a function of the scenario dropped records, so it is unknown which records should have arrived",
        "Expect `delivery.committed`, or let the function return every record.",
    ),
    RESIDUE: Reason(
        "a fault left residue behind",
        "Run `headgate heal --all`. The report says what the residue is, and where.",
    ),
    RESIDUE_NOT_MEASURED: Reason(
        "whether the fault left residue behind could not be checked",
        "The target or its agent did not answer after the fault: `headgate faults` shows what is still active. Run again.",
    ),
    HISTORY_INCOMPLETE: Reason(
        "history rows are missing",
        "The recorder was lost or too slow: lower the load, or run on a machine with free cores. In a cluster, set `recorder.storage.size`.",
    ),
    NO_THROUGHPUT: Reason(
        "no records arrived at the sinks at the end of the observation",
        "Raise `observation` if the job was still recovering; otherwise the report shows what it waited for.",
    ),
    OVERLOADED: Reason(
        "an operator was still at work on earlier records when the observation ended, and no records arrived at the sinks meanwhile",
        "The job is overloaded: raise the parallelism, or lower the rate. The report names the busiest vertex.",
    ),
    NOT_COUNTED: Reason(
        "no TaskManager ended by itself, so none could count its network buffers at the end",
        "Nothing to fix. The value exists only if a TaskManager survives until the end of the trial.",
    ),
    NOT_SAMPLED: Reason(
        "the job finished before any of its channels was sampled",
        "Nothing to fix. Channels are sampled ten times a second; give the job more records if its credit matters.",
    ),
    CLOCKS_DIFFER: Reason(
        "the clocks of the nodes differ by more than the distance between value and bound (clocks.difference)",
        "Synchronize the clocks (NTP), or allow a wider bound.",
    ),
    RUN_FAILED: Reason(
        "the run could not be completed",
        "The verdict has the error; `logs/<trial>` in the run's folder has the output of each process.",
    ),
    HEALED: Reason("the run was stopped because its faults were healed (`headgate heal`)", "Run it again."),
    AMBIGUOUS: Reason(
        "the expectation cannot be judged as written",
        "`headgate validate` names the field and what to write.",
    ),
}


def reason_text(reason: str) -> str:
    """Return the reason as a clause; an unknown reason, for example of another version, unchanged."""
    return REASONS[reason].text if reason in REASONS else reason


def fix_of(reason: str) -> str:
    """Return what a user can do about a reason, as sentences; empty for an unknown one."""
    return REASONS[reason].fix if reason in REASONS else ""


def with_rows(reason: str, why: str, measured: Mapping[str, str]) -> str:
    """Return `why`, with the rows that are missing if that is the reason. `measured` maps the metrics of the trial to their texts."""
    missing = measured.get("history.missing", "") if reason == HISTORY_INCOMPLETE else ""
    return f"{why.removesuffix('.')}: {missing}" if missing else why


class Metric(Struct, frozen=True):
    """A metric. `unit` is `s`, `count`, `bytes`, `ratio`, `records/s` or `text`."""

    name: str
    unit: str
    lower_is_better: bool | None
    """None if neither direction is better."""
    doc: str
    source: str
    """The rows and samples from which the metric is measured."""
    phased: bool = False
    """The metric has a value per phase of the trial."""
    quantiles: bool = False
    """The metric has a value per quantile within one trial. For any other metric, a quantile is taken over trials."""
    detailed: bool = False
    """An expectation shows the text of the metric beside its value."""
    clocks: bool = False
    """The metric compares times that were taken by different processes, so it is as exact as their clocks."""
    values: tuple[str, ...] = ()
    """All possible values of a text metric that has only a few."""
    most: float = math.inf
    """The largest possible value."""
    flag: bool = False
    """The value is 0 or 1."""
    fractional: bool = False
    """The metric is a count that need not be a whole number."""
    safety: bool = False
    """The metric is judged in every trial, even without an expectation: anything above 0 is Fail."""

    @property
    def whole(self) -> bool:
        """Whether every value is a whole number."""
        return self.flag or (self.unit == "count" and not self.fractional)

    def shows_text(self, *, failed: bool) -> bool:
        """Whether an expectation shows the text beside the value. A violation of safety shows the rows that
        prove it."""
        return self.detailed or (failed and self.safety)


_WAITED_FOR = {
    "detect": "the detection of the failure",
    "cancel": "the cancellation of the region's tasks",
    "slots": "slots, including the restart delay and the replacement of TaskManagers",
    "restore": "the restore of the state",
    "deploy": "the deployment of the tasks, or a JobManager that does not answer",
    "reconnect": "the producers' partitions",
    "first-record": "the first new record at a sink",
    "catch-up": "the processing of the backlog, or for the end of a fault that the job survived",
}
PHASE_DOCS = {
    phase: f"seconds of its critical path spent waiting for {what}" for phase, what in _WAITED_FOR.items()
}
"""The phases of a recovery before it is steady."""

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("delivery.lost", "count", True, "Records that a source emitted but no sink committed.", "commits of the sinks (`delivery`) against the last number of each source (`source.end`); needs a drained job", safety=True),
        Metric("delivery.duplicated", "count", True, "Records committed more than once.", "commits, bit by bit; with at-least-once, duplicates after a failover are allowed", safety=True),
        Metric("delivery.corrupted", "count", True, "Records with a wrong checksum, or that no source emitted.", "checksums at the sinks, and sequence numbers that no source emitted", safety=True),
        Metric("delivery.out-of-order", "count", True, "Records that overtook another record on the same path.", "sequence numbers at the sinks, per path", safety=True),
        Metric("delivery.committed", "count", None, "Distinct records committed by the sinks.", "commits; after a window, the sum of its counts"),
        Metric("credit.violations", "count", True, "Samples in which a channel used more credit than was announced, or in which the counters contradict each other.", "samples of both ends of every remote channel (`channels`)", safety=True),
        Metric("buffers.leaked", "count", True, "Network buffers that were still in use after every task had ended, over the TaskManagers that ended by themselves.", "`network.buffers` events of TaskManagers that shut down, after their tasks and connections had ended", safety=True),
        Metric("buffers.used", "ratio", None, "Largest share of its network buffers that a TaskManager had in use. The report lists every TaskManager.", "`network.buffers` events, at most one a second; only changes are recorded", phased=True, most=1),
        Metric("buffers.in-pool-usage", "ratio", None, "Largest share of its buffers that an input gate had in use: Flink's inPoolUsage. A pool that shrinks while its buffers are full makes it larger than 1. The report lists every exchange.", "`network.pools` events, at most one a second; not recorded in large simulations", phased=True),
        Metric("buffers.out-pool-usage", "ratio", None, "Largest share of its buffers that a result partition had in use: Flink's outPoolUsage. An overdraft makes it larger than 1. The report lists every exchange.", "`network.pools` events, at most one a second; not recorded in large simulations", phased=True),
        Metric("buffers.gate", "count", None, "Largest number of buffers of an input gate: channels × buffers-per-channel + the size of its pool of floating buffers. The report lists the largest gate of every exchange.", "`network.pools` events, at most one a second; only changes are recorded", detailed=True),
        Metric("buffers.pool-deviation", "count", True, "Largest difference between the size of a pool and its share of the network memory. Shares are whole buffers, so it is below 1.", "`network.pools` events with every pool of the TaskManager", fractional=True),
        Metric("job.state", "text", None, "State of the job when the observation ended (before the drain).", "`job.state` events", values=tuple(sorted(JOB_STATES))),
        Metric("job.failure", "text", None, "Flink's class name of the terminal failure cause; empty if the job did not fail.", "the `job.state` event FAILED"),
        Metric("job.cause", "text", None, "Last root cause of a job that failed or was restarting when the observation ended; empty if it ran.", "`job.state` and `failover.started` events"),
        Metric("deployment.spread", "s", None, "Time between the deployments of the first and the last task at the first start. Consumers that wait for a first record or a full result are deployed later.", "`task.state` events of the first attempt of each task"),
        Metric("failovers.count", "count", True, "Restarts during the whole trial, including its start and drain, as Flink counts them: a failure while the job is restarting also counts, unless the restart strategy merges it with the previous one.", "`failover.started` events with `counted`"),
        Metric("restarts.attempts", "count", True, "Deployments of all restarts that had their slots.", "`failover.attempt` events"),
        Metric("restarts.tasks", "count", True, "Tasks that were deployed again. The report lists them.", "`task.state` events of attempts above 0", detailed=True),
        Metric("detection.text", "text", None, "Text of the first failure cause that the JobManager knew.", "the first `failover.started`, or else `taskmanager.lost`, or else the job's failure"),
        Metric("detection.detector", "text", None, f"Which component detected the failure first: {', '.join(DETECTORS[:-1])} or {DETECTORS[-1]}.", "the first `failover.started`, or else `taskmanager.lost`, or else the job's failure", values=DETECTORS),
        *(Metric(f"recovery.{p}", "s", True, f"Recovery: {PHASE_DOCS[p]}, summed over its rounds.", "the critical path over `waits` and the steps that `events` show (`recovery.json`)", clocks=True) for p in PHASE_DOCS),
        Metric("recovery.steady", "s", True, "After the recovery: until throughput stays within 5 % of the baseline for 3 s.", "samples of the sinks, from the end of the recovery on", clocks=True),
        Metric("recovery.downtime", "s", True, "From the effect of the fault to the first new record at the last affected sink subtask. A sink behind a window whose next result comes in time counts from when every task runs.", "`faults` (injected) → `sink.first-record` of the last restarted sink subtask", clocks=True),
        Metric("recovery.total", "s", True, "From the effect of the fault until the lag of every task has become normal: at most the baseline's 95th percentile, or the buffer timeouts of the exchanges before the task. By then, no task waits for an input or its state, and no sink for late records of one of its sources. If the job was still catching up in its baseline (it was faster than its sources offer), the calmest part of the trial replaces the baseline. If a fault outlasts a failover and later holds the job up once more, without another failover and for longer than the recovery took, this is the length of that outage, and the other metrics and windows of the recovery stay those of the failover. Otherwise it is the sum of the phases up to catch-up and of the unattributed time.", "`faults` (injected) → samples of all tasks (`tasks`): for each source and sink subtask the first moment from which its lag was normal for half a second; the latest of these moments", clocks=True),
        Metric("recovery.rounds", "count", True, "Deployments of the recovery: those that failed, and the last one.", "failures that restarted the job (`failover.started`, `job.state`)"),
        Metric("recovery.unattributed", "ratio", True, "Share of the recovery that neither a recorded wait nor a step explains.", "segments of the critical path without an owner", most=1),
        Metric("recovery.from-events", "ratio", True, "Share of the recovery without a recorded wait. These seconds are named after the step between two events of the failover.", "segments of the critical path whose owner is a step, not a recorded wait", most=1),
        Metric("throughput.records-per-second", "records/s", False, "Records received by the sinks, including those that are replayed after a failover.", "samples of the sinks, ten per second", phased=True),
        Metric("throughput.slowest-sink", "records/s", False, "Records received by the sink vertex that received least. The report lists every sink vertex.", "as `throughput.records-per-second`, for each sink vertex", phased=True),
        Metric("throughput.fastest-sink", "records/s", False, "Records received by the sink vertex that received most. The report lists every sink vertex.", "as `throughput.records-per-second`, for each sink vertex", phased=True),
        Metric("throughput.goodput", "records/s", False, "Distinct records received by the sinks: without those that are replayed after a failover.", "samples of the sinks, ten per second; an attempt restored from a checkpoint continues at its predecessor's count at that checkpoint", phased=True),
        Metric("throughput.relative", "ratio", False, "Goodput relative to the baseline, which is the offered rate if the job sustained it.", "goodput, divided by the baseline's. The baseline ends before the last sample of a killed task, and is the offered rate if within 5 % of it", phased=True),
        Metric("throughput.relative-to-control", "ratio", False, "Goodput relative to the same phase of the control trial.", "goodput, divided by the value of the variant's control trial (or of one with the same settings)", phased=True),
        Metric("throughput.noise", "ratio", True, "Largest deviation of the goodput over 3 s from its mean while nothing is injected. It widens what counts as steady.", "goodput of the baseline; of the control trial, from its baseline to its drain"),
        Metric("latency", "s", True, "From the due time of a record to its arrival at a sink.", "histograms of the sinks (`latency`), windows of 250 ms; buckets grow by 25 %", phased=True, quantiles=True, clocks=True),
        Metric("latency.markers", "s", True, "From the emission of a latency marker at a source to its arrival at a sink. Markers bypass the operators' records (metrics.latency.interval). The report lists the median of every source vertex and receiving vertex.", "`latency.markers` events of the sinks, which list every latency", phased=True, quantiles=True, clocks=True),
        Metric("latency.relative", "ratio", True, "Latency relative to the baseline phase.", "`latency`, divided by that of the baseline", phased=True, quantiles=True, clocks=True),
        Metric("latency.relative-to-control", "ratio", True, "Latency relative to the same phase of the control trial.", "`latency`, divided by the value of the variant's control trial (or of one with the same settings)", phased=True, quantiles=True, clocks=True),
        Metric("lag.max", "s", True, "Largest lag of a source or sink subtask behind the due time. It grows while the subtask is dead or frozen.", "samples of sources and sinks, and the time since the newest record that they handled", phased=True, clocks=True),
        Metric("liveness.longest-stall", "s", True, "Longest time in which any sink subtask received no new record.", "samples of the sinks", phased=True),
        Metric("liveness.at-end", "ratio", False, "1 if records arrived at the sinks in the last 2 s before the drain, or they had received everything, which includes all that was read from sockets.", "samples of the sinks", most=1, flag=True),
        Metric("network.in-flight", "count", True, "Buffers that were sent and not yet received, on the channel with most of them: the median of its samples.", "samples of both ends of each remote channel (`channels`)", fractional=True),
        Metric("network.push-back", "s", None, "With TCP alone: time from the moment at which the consumer stops reading until the source waits. The report lists the time of each step on every connection. Only on Linux, and not in virtual time.", "`socket.state` events: TCP_INFO, SIOCINQ and SIOCOUTQ of each data connection, ten per second, and the samples of the sources", detailed=True),
        Metric("network.window-limited", "ratio", None, "With TCP alone: share of the time in which the receiver's window limited what a connection sent.", "`rwnd_limited` of TCP_INFO", most=1),
        Metric("network.window-probes", "count", None, "With TCP alone: largest number of zero-window probes in a row.", "the backoff of the persist timer in TCP_INFO, at ten samples per second"),
        Metric("backpressure.reach", "s", None, "From the first record at a sink until a source first waited for buffers: the time that back-pressure needs to reach the source.", "`sink.first-record`, and the samples of the sources"),
        Metric("tasks.backpressured", "ratio", True, "Share of time for which the most back-pressured subtask waited for buffers. The report lists every vertex, with Flink's OK, LOW or HIGH.", "samples of all tasks", phased=True, most=1),
        Metric("tasks.backpressured-sampled", "ratio", True, "Share of samples in which the worst subtask was back-pressured, as Flink measured it until 1.12. It covers the rounds of samples that ended in the phase. The report lists every vertex, with OK, LOW or HIGH.", "rounds of `web.backpressure.num-samples` instants of all tasks", phased=True, most=1),
        Metric("tasks.buffers-per-record", "count", True, "Buffers that all tasks sent for each record that a sink received, in virtual time with headgate.simulation.cost.", "`cpu.spent` events and samples of the sinks", phased=True, fractional=True),
        Metric("tasks.busy", "ratio", None, "Share of time for which the busiest subtask worked. The report lists every vertex.", "samples of all tasks", phased=True, most=1),
        Metric("tasks.cpu-per-record", "s", True, "Processor time of all tasks for each record that a sink received, in virtual time with headgate.simulation.cost.", "`cpu.spent` events and samples of the sinks", phased=True),
        Metric("tasks.idle", "ratio", None, "Share of time for which the least idle subtask waited for input. The report lists every vertex.", "samples of all tasks", phased=True, most=1),
        Metric("stale.rejected", "count", None, "Acknowledgements, commits and records of stale attempts that were rejected.", "`stale.rejected` events of the JobManager"),
        Metric("checkpoints.completed", "count", False, "Completed checkpoints.", "`checkpoints` that ended in the phase", phased=True),
        Metric("checkpoints.failed", "count", True, "Failed checkpoints.", "`checkpoints` that ended in the phase", phased=True),
        Metric("checkpoints.duration", "s", True, "Longest completed checkpoint.", "`checkpoints` that ended in the phase", phased=True),
        Metric("checkpoints.median-duration", "s", True, "Median duration of the completed checkpoints.", "`checkpoints` that ended in the phase", phased=True),
        Metric("checkpoints.completion", "s", True, "Longest time for which a checkpoint was in progress although every task had acknowledged it.", "`finalizing`, `completed` and `failed` rows of `checkpoints`", phased=True),
        Metric("checkpoints.persisted", "bytes", None, "Largest number of bytes of channel state in a checkpoint: data that its barriers have overtaken.", "acknowledgements in `checkpoints`", phased=True),
        Metric("checkpoints.size", "bytes", True, "Bytes that a completed checkpoint stored, on average. An incremental one stores only new files.", "acknowledgements in `checkpoints`", phased=True),
        Metric("checkpoints.full-size", "bytes", True, "Bytes of the state that a completed checkpoint covers, on average.", "completions in `checkpoints`", phased=True),
        Metric("checkpoints.alignment", "s", True, "Longest time for which a task aligned the barriers of a checkpoint.", "acknowledgements in `checkpoints`", phased=True),
        Metric("iteration.supersteps", "count", None, "Supersteps of the iteration, in its last attempt. The report says why it ended.", "`iteration.superstep` events of the synchronisation task", detailed=True),
        Metric("network.connections", "count", None, "TCP connections between TaskManagers for data, each from the consumer's to the producer's. The report lists their number per pair.", "the first partition request of each remote channel, and the connection that it used"),
        Metric("partition.requests", "count", True, "Partition requests, including repeated ones.", "`partition.request` events"),
        Metric("partition.retries", "count", True, "Partition requests after the first one of each channel.", "`partition.request` events with a number above 1"),
        Metric("rpc.timeouts", "count", True, "Asks that timed out.", "`rpc.timeout` events"),
        Metric("taskmanagers.lost", "count", True, "TaskManagers that the JobManager marked as lost.", "`taskmanager.lost` events, each TaskManager once"),
        Metric("clocks.difference", "s", True, "Largest difference between the clocks of two processes of a trial; 0 if it is below 5 ms. The report lists every process whose clock differs from the recorder's.", "`clock.offset` events: a process compared its clock with the recorder's when it sent rows", detailed=True),
        Metric("loop.stall", "s", True, "Longest time for which a process of the testbed did not run.", "`loop.stall` events: a process noticed that it had stalled"),
        Metric("fault.verified", "ratio", False, "1 if every fault of the trial was observed to take effect.", "`faults`: the measurement of every target", most=1, flag=True),
        Metric("fault.residue", "count", True, "Faults that left residue behind.", "`faults`: the measurement after the end"),
        Metric("control.stable", "ratio", False, "1 if the control trial (without a fault) kept its baseline.", "the control trial: the job ran, no failover, throughput within 10 % of its own baseline", most=1, flag=True),
        Metric("history.missing", "count", True, "History rows that were dropped or lost.", "gaps in each process's row numbers, and rows that it reported as dropped"),
    )
}  # fmt: skip

SAFETY: tuple[str, ...] = tuple(m.name for m in METRICS.values() if m.safety)

_NUMBER = re.compile(r"^\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ%/]*)\s*$", re.IGNORECASE)
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}  # fmt: skip
_EXAMPLES = {"s": "a time such as 5.5 s or 200 ms", "ratio": "a share such as 0.95 or 95 %", "count": "a number such as 3", "records/s": "a number such as 20000", "bytes": "a number such as 50000"}  # fmt: skip


def parse_bound(value: str | float, unit: str) -> float:
    """Parse the bound of an expectation into the metric's unit: seconds for `s` (also without a unit), a fraction for
    `ratio`. Raises ValueError with an example of a valid value."""
    found = _NUMBER.match(str(value))
    scales = {"s": _SECONDS, "ratio": {"": 1.0, "%": 0.01}}
    scale = scales.get(unit, {"": 1.0, **({unit: 1.0} if unit in ("records/s", "bytes") else {})})
    if not found or found[2].lower() not in scale:
        raise ValueError(f"{value!r} is not a valid bound: write {_EXAMPLES.get(unit, 'a number')}")
    return float(found[1]) * scale[found[2].lower()]


def parse_quantile(value: str | float) -> float:
    """Parse `0.99`, `99 %` or `p99` into a fraction in (0, 1]. Raises ValueError."""
    text = str(value).strip().lower()
    percent = text.startswith("p") or text.endswith("%")
    try:
        number = float(text.strip("p% ")) / (100 if percent else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise ValueError(f"{value!r} is not a quantile: write 0.99, 99 % or p99")
    return round(number, 6)


def is_phase(name: str) -> bool:
    """Whether rows may have this phase: one of the trial, a milestone, or a milestone of one fault (`outage/<fault>`)."""
    return name in TRIAL_PHASES or name.partition("/")[0] in MILESTONE_PHASES


def trials_needed(quantile: float) -> int:
    """Return how many trials a quantile over trials needs: enough that at least one is expected at or above it
    (2 for the median, 20 for 0.95, 100 for 0.99). The maximum needs one."""
    return 1 if quantile >= 1 else max(2, -(-1_000_000 // round((1 - quantile) * 1_000_000)))
