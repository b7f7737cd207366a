"""Hand-written parts of the generated reference pages: introductions, and what code cannot say of metrics and faults."""

from __future__ import annotations

GENERATED = "<!-- Written by tools/generate_docs.py (make docs). Change the code or tools/docs_texts.py, not this page. -->"

SCENARIO_INTRO = """# A scenario, field by field

One YAML document says what runs, what goes wrong and what must hold. The smallest is
[word-count.yaml](../scenarios/examples/word-count.yaml); each folder of [scenarios](../scenarios) holds one with its reasons.

- A **duration** is a string in Flink's syntax, an integer and a unit: `500 ms`, `10 s`, `2 min`. Without a unit it is milliseconds.
- A **name** is at most {max_name} lower-case letters, digits and dashes, and begins with a letter.
- A **decimal** is a string (`"1.1"`), because floats do not survive every reader and writer unchanged.
- Unknown fields are refused, with the line, the path of the field and what to write instead. `required` fields have no default.
- A file has at most {max_bytes:,} bytes.

Of the faults only the shape stands here; what they do, and what they do not, is in [faults.md](faults.md). Metrics of `expect`:
[metrics.md](metrics.md). Keys of `flinkConfiguration`: [options.md](options.md).
"""

OPTIONS_INTRO = """# Options

`flinkConfiguration` takes Flink's own keys as strings in Flink's syntax. A key falls into one of these classes:

| | what happens |
|---|---|
| effective here | the testbed behaves by it; a value that does not parse is an error |
| known, without effect | accepted, and listed at the start of the run, so that nobody thinks it acted |
| a typo | refused with the key that was probably meant (up to {edits} letters away) |
| anything else | a warning |

Older names (`akka.ask.timeout`) are taken for the newer ones. A key of another Flink version than `flinkVersion` is a warning; here it
acts all the same. Defaults are those of the version that `flinkVersion` selects.
"""

METRICS_INTRO = """# Metrics

What `expect` can ask about. `headgate faults --metrics` prints the same list. Each value is computed from the recorded history by a pure
function (`testbed_runtime/checking`), the same in PySpark and in the simulator.

```yaml
expect:
  - {metric: recovery.detect, max: 2.25 s}
  - {metric: latency, quantile: p99, phase: observation, max: 200 ms}
  - {metric: job.state, equals: RUNNING}
```

- **Units.** `s` takes `5.5 s`, `200 ms` or a bare number of seconds; `ratio` takes `0.95` or `95 %`; `text` takes `equals`, in which `*` stands for
  any text.
- **Phases.** A metric with phases takes `phase: baseline`, `fault` or `observation`; without one it is judged from the first fault to the drain.
- **Quantiles.** Latencies need one of %QUANTILES% within each trial (1 is the maximum). Of any other number a quantile
  is one over the trials of a variant, and needs enough of them: 2 for the median, 20 for 0.95, 100 for 0.99. With fewer the answer is
  Inconclusive.
- **Safety** metrics are judged in every trial, asked for or not: anything above 0 is Fail. All others count only in trials whose faults were
  seen to take effect.
- **No value** is never a Pass: the row says why (below), and the expectation is Inconclusive.
"""

METRIC_SOURCES: dict[str, str] = {
    "delivery.lost": "commits of the sinks (`delivery`) against the last number of each source (`source.end`); needs a drained job",
    "delivery.duplicated": "commits, bit by bit; with at-least-once a duplicate after a failover is allowed",
    "delivery.corrupted": "checksums at the sinks, and numbers that no source emitted",
    "delivery.out-of-order": "sequence numbers at the sinks, per path",
    "delivery.committed": "commits; behind a window, the sum of its counts",
    "credit.violations": "samples of both ends of every remote channel (`channels`)",
    "job.state": "`job.state` events",
    "job.failure": "the `job.state` event that says FAILED",
    "failovers.count": "`failover.started` events",
    "restarts.attempts": "`failover.attempt` events",
    "detection.text": "the first `failover.started`, else `taskmanager.lost`, else the job's failure",
    "detection.detector": "the same event",
    "recovery.detect": "`faults` (injected) → the first cause",
    "recovery.cancel": "→ `failover.cancelled`",
    "recovery.slots": "→ `failover.slots`",
    "recovery.restore": "→ the last `task.restored`; 0 when there was no checkpoint",
    "recovery.deploy": "→ `failover.deployed`",
    "recovery.reconnect": "→ the last `gate.connected`",
    "recovery.first-record": "→ the first `sink.first-record`",
    "recovery.catch-up": "→ samples (`tasks`): every source's and sink's lag is back, for half a second",
    "recovery.steady": "→ samples of the sinks",
    "recovery.downtime": "the sum of the phases up to the first record",
    "recovery.total": "the sum of all phases",
    "throughput.records-per-second": "samples of the sinks, ten a second",
    "throughput.relative": "the same, divided by the baseline's",
    "throughput.relative-to-control": "the same, divided by that of the control trial of the variant (or of one with the same settings)",
    "latency": "histograms of the sinks (`latency`), windows of 250 ms; buckets grow by a quarter",
    "latency.relative": "the same, divided by the baseline's",
    "latency.relative-to-control": "the same, divided by that of the control trial of the variant (or of one with the same settings)",
    "lag.max": "samples of sources and sinks",
    "liveness.longest-stall": "samples of the sinks",
    "stale.rejected": "`stale.rejected` events of the JobManager",
    "checkpoints.completed": "`checkpoints` that ended in the phase",
    "checkpoints.failed": "`checkpoints` that ended in the phase",
    "checkpoints.duration": "`checkpoints` that ended in the phase",
    "partition.requests": "`partition.request` events",
    "partition.retries": "`partition.request` events with a number above 1",
    "rpc.timeouts": "`rpc.timeout` events",
    "taskmanagers.lost": "`taskmanager.lost` events, each TaskManager once",
    "loop.stall": "`loop.stall` events: a process noticed that it had stood still",
    "fault.verified": "`faults`: the measurement of every target",
    "fault.residue": "`faults`: the measurement after the end",
    "control.stable": "the control trial: the job ran, no failover, throughput within 10 % of its own baseline",
    "history.missing": "gaps in each process's row numbers, and rows that it says it shed",
}

KINDS_INTRO = """# The kinds in a cluster

All of `headgate.dev/v1alpha1`, category `headgate`: `kubectl get headgate`. A [Scenario](scenario.md) is the same document as on one machine and does
nothing by itself; here is what the others have of their own. Parts that a Scenario has too (job, faults, expectations) are described there.
`kubectl explain run.spec` says the same, and every status.

What is no well-formed object is refused by the API server; what makes no sense (an unknown option, a job with a cycle) has the condition
`Accepted=False` with the words of the command line, and nothing is created.
"""

FAULTS_INTRO = """# Faults

Each fault has exactly one kind. `headgate faults` lists the kinds that this machine can inject.

- **Requesting a fault is not the same as having it.** Every fault is measured while it lasts. Until it was seen to take effect (`fault.verified`),
  the expectations of its trial cannot pass.
- **It ends**: at its own deadline, held by the supervisor next to the process and by the far end that carries it; at `headgate heal --all`; and, inside
  a run, 10 s after the runner stopped renewing its lease (the trial is then void and repeated).
- **Residue** is measured after the end: everything that the fault put in place must be gone. Anything left makes the verdict Error.
- **Order** of bytes and frames never changes; only `network.reorder` changes the order of packets, which TCP corrects.

The fields of a fault are described in [scenario.md](scenario.md). Backends are listed in order of preference; the first that the environment offers
is taken:

| backend | what it is | offered on one machine |
|---|---|---|
"""

CLI_INTRO = """# The command

```
{help}
```

Exit codes are the same for every command:

| code | meaning |
|---|---|
| 0 | Pass, or done |
| 1 | Fail: an expectation or safety did not hold |
| 2 | Error: bad input, or it could not be carried out |
| 3 | Inconclusive: what was seen is not enough to say (`--inconclusive` can change that) |
| 130 | interrupted; faults are healed, processes stopped, what was recorded is kept; in a cluster the run is told to heal and to stop |

The answer goes to stdout, progress and messages to stderr. `HEADGATE_DEBUG=1` shows stack traces. Completion:
`headgate --install-completion`, or `headgate --show-completion` to see it first.
"""
