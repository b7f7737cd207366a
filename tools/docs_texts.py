"""Hand-written parts of the generated reference pages: introductions, and facts about metrics and faults that the code lacks."""

from __future__ import annotations

GENERATED = "<!-- Written by tools/generate_docs.py (make docs). Change the code or tools/docs_texts.py, not this page. -->"

SCENARIO_INTRO = """# A scenario, field by field

One YAML document describes what runs, what goes wrong and what must hold. The smallest is
[word-count.yaml](../scenarios/examples/word-count.yaml). Each folder of [scenarios](../scenarios) has one, with its reasons.

- A **duration** is a string in Flink's syntax, an integer and a unit: `500 ms`, `10 s`, `2 min`. Without a unit it is milliseconds.
- A **name** is at most {max_name} lower-case letters, digits and dashes, and begins with a letter.
- A **decimal** is a string (`"1.1"`), because some YAML readers and writers change floats.
- Unknown fields are refused. The error names the line, the path of the field and what to write instead. `required` fields have no
  default.
- A file has at most {max_bytes:,} bytes.

This page has only the fields of faults; [faults.md](faults.md) describes what each kind does and does not do. Metrics of `expect`:
[metrics.md](metrics.md). Keys of `flinkConfiguration`: [options.md](options.md).
"""

OPTIONS_INTRO = """# Options

`flinkConfiguration` takes Flink's own keys as strings in Flink's syntax. A key belongs to one of these classes:

| class | what happens |
|---|---|
| effective here | the testbed follows it; a value that does not parse is an error |
| known, without effect | accepted, and listed at the start of the run, so that you know that it does nothing |
| a typo | refused with the key that was probably meant (up to {edits} letters away) |
| anything else | a warning |

Older names (`akka.ask.timeout`) are accepted for the newer ones. A key of another Flink version than `flinkVersion` gives a
warning, but has its effect here. Defaults are those of the profile that `flinkVersion` selects:

| `flinkVersion` | stands for | what is particular |
|---|---|---|
| `1.12` | Flink 1.12 and 1.13 | request backoff at the consumer, no heartbeat RPC failure threshold, `fixed-delay` restarts, no overdraft buffers, `akka.*` in error texts; the frames are those of 1.20 |
| `1.20` | Flink 1.19 and 1.20 | partition requests wait at the producer, failure threshold 2, `exponential-delay` restarts, 5 overdraft buffers |
| `2.x` | Flink 2.0 to 2.3 | as `1.20`, with the frames of 2.x and 20 overdraft buffers |

For Flink 1.14 to 1.18, use `1.12` and set the defaults that changed in between ([limits](limits.md)).
"""

METRICS_INTRO = """# Metrics

These are the metrics that `expect` can name. `headgate faults --metrics` prints the same list. A pure function
(`testbed_runtime/checking`) computes each value from the recorded history, the same in PySpark and in the simulator.

```yaml
expect:
  - {metric: recovery.detect, max: 2.25 s}
  - {metric: latency, quantile: p99, phase: observation, max: 200 ms}
  - {metric: job.state, equals: RUNNING}
```

- **Units.** `s` takes `5.5 s`, `200 ms` or a bare number of seconds. `ratio` takes `0.95` or `95 %`. `text` takes `equals`, in which
  `*` matches any text.
- **Phases.** A metric with phases takes `phase: baseline`, `fault` or `observation`. Without one it is judged from the first fault to
  the drain.
- **Quantiles.** Latencies need one of %QUANTILES% within each trial (1 is the maximum). For any other metric, a quantile is taken over
  the trials of a variant and needs enough of them: 2 for the median, 20 for 0.95, 100 for 0.99. With fewer, the result is
  Inconclusive.
- **Safety** metrics are judged in every trial, even if no expectation names them: any value above 0 is Fail. All others count only in
  trials whose faults took effect.
- **No value** is never a Pass: the row gives the reason (below), and the expectation is Inconclusive.
"""

METRIC_SOURCES: dict[str, str] = {
    "delivery.lost": "commits of the sinks (`delivery`) against the last number of each source (`source.end`); needs a drained job",
    "delivery.duplicated": "commits, bit by bit; with at-least-once, duplicates after a failover are allowed",
    "delivery.corrupted": "checksums at the sinks, and sequence numbers that no source emitted",
    "delivery.out-of-order": "sequence numbers at the sinks, per path",
    "delivery.committed": "commits; after a window, the sum of its counts",
    "credit.violations": "samples of both ends of every remote channel (`channels`)",
    "job.state": "`job.state` events",
    "job.failure": "the `job.state` event FAILED",
    "failovers.count": "`failover.started` events",
    "restarts.attempts": "`failover.attempt` events",
    "detection.text": "the first `failover.started`, or else `taskmanager.lost`, or else the job's failure",
    "detection.detector": "the same event",
    "recovery.detect": "`faults` (injected) → the first cause",
    "recovery.cancel": "→ `failover.cancelled`",
    "recovery.slots": "→ `failover.slots`",
    "recovery.restore": "→ the last `task.restored`; 0 without a checkpoint",
    "recovery.deploy": "→ `failover.deployed`",
    "recovery.reconnect": "→ the last `gate.connected`",
    "recovery.first-record": "→ the first `sink.first-record`",
    "recovery.catch-up": "→ samples (`tasks`): the lag of every source and sink is back to normal for half a second",
    "recovery.steady": "→ samples of the sinks",
    "recovery.downtime": "the sum of the phases up to the first record",
    "recovery.total": "the sum of all phases",
    "throughput.records-per-second": "samples of the sinks, ten per second",
    "throughput.relative": "the same, divided by the baseline's",
    "throughput.relative-to-control": "the same, divided by the value of the variant's control trial (or of one with the same settings)",
    "latency": "histograms of the sinks (`latency`), windows of 250 ms; buckets grow by 25 %",
    "latency.relative": "the same, divided by the baseline's",
    "latency.relative-to-control": "the same, divided by the value of the variant's control trial (or of one with the same settings)",
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
    "loop.stall": "`loop.stall` events: a process noticed that it had stalled",
    "fault.verified": "`faults`: the measurement of every target",
    "fault.residue": "`faults`: the measurement after the end",
    "control.stable": "the control trial: the job ran, no failover, throughput within 10 % of its own baseline",
    "history.missing": "gaps in each process's row numbers, and rows that it reported as dropped",
}

KINDS_INTRO = """# The kinds in a cluster

All kinds are in `headgate.dev/v1alpha1` and in the category `headgate` (`kubectl get headgate`). A [Scenario](scenario.md) is the same
document as on one machine and starts nothing by itself. This page has the fields of the other kinds. Parts that a Scenario also has
(job, faults, expectations) are described on its page. `kubectl explain run.spec` shows the same, and every status.

The API server refuses malformed objects. An object that is well-formed but invalid (an unknown option, a job with a cycle) gets the
condition `Accepted=False` with the same message as the command line, and nothing is created.
"""

FAULTS_INTRO = """# Faults

Each fault has exactly one kind. `headgate faults` says which of them this machine can do, and how.

- **Asked is not done.** Every fault is measured while it lasts. Until it was seen to take effect (`fault.verified`), the expectations of its
  trial cannot pass.
- **It ends.** At its own deadline, held by the supervisor next to the process and by the far end that carries it; at `headgate heal --all`; and, inside a
  run, 10 s after the runner stopped renewing its lease (the trial is then void and repeated).
- **Residue** is measured after the end: that which the fault put there is gone. Anything left makes the verdict Error.
- **Order** of bytes and frames is never changed; only `network.reorder` changes that of packets, which TCP puts right.

A field of a fault is described in [scenario.md](scenario.md). Backends, strongest first; the first that the place offers is taken:

| backend | what it is | offered on one machine |
|---|---|---|
"""

PROBE = "A connection of its own through the same path, to an echo at the supervisor: round trips before, during and after."
SILENCE = "A ping on a connection of its own stays unanswered for a second (or half the fault), and the connection is not closed."
PROXY_RESIDUE = "The rule is still in the proxy, or a new connection's round trip is more than 2 ms (or half the asked delay) above what it was before."
TAPS = "Taps on both sides (before the interceptor, after receipt), matched by channel and number."
RULE_RESIDUE = "The rule is still in a process, or frames are still held there."
CALL_RESIDUE = "The rule is still in a process."

FAULT_TEXTS: dict[str, tuple[str, str, str]] = {
    "network.latency": (
        f"{PROBE} The best of five must be longer than the best one before by at least 80 % of what was asked (jitter taken off).",
        PROXY_RESIDUE,
        "It delays bytes, not packets: TCP on either side sees no longer round trip, so its window and its timers do not change. New connections "
        "are accepted at once; only what is sent on them is late.",
    ),
    "network.loss": (
        "2,300 datagrams of one packet each through the same rule, counted at both ends: what was asked lies in Wilson's 99.99 % interval of what was lost.",
        "Datagrams are still lost, or a rule of ours is in the kernel.",
        "It needs packets: root on one machine (each process then has a network namespace of its own), or the agent container in pods. The simulator has none, and refuses it "
        "before anything starts.",
    ),
    "network.duplicate": (
        "A probe of datagrams on the packets' path.",
        "Packets still arrive twice.",
        "TCP drops the second copy: the job sees it only as traffic. Only where there are packets, as packet loss.",
    ),
    "network.reorder": (
        "A probe of numbered datagrams on the packets' path.",
        "Packets are still overtaken.",
        "TCP puts bytes in order again: the job sees later bytes and repeated segments, never another order. Only where there are packets.",
    ),
    "network.corrupt": (
        "A probe of datagrams on the packets' path: damaged ones do not arrive.",
        "Packets are still damaged.",
        "The receiver's checksum drops the packet, so it is a loss with another cause. Only where there are packets.",
    ),
    "network.partition": (
        SILENCE,
        PROXY_RESIDUE,
        "It does not refuse connections: the kernel answers the TCP handshake with the proxy, and the caller believes to be connected until a timeout "
        "of its own says otherwise. What was sent during it arrives afterwards; real routers may have given up by then.",
    ),
    "network.reset": (
        "The probe's connection is reset within a second.",
        PROXY_RESIDUE,
        "It drops what was on its way in both directions, and does not wait for the peer. It is not a one-time event: while it lasts, every new "
        "connection is reset as well.",
    ),
    "network.stall": (
        SILENCE,
        f"{PROXY_RESIDUE} Nothing is held any more.",
        "It is no partition: bytes are accepted (up to 16 MiB a direction and connection), so the sender believes that they are gone.",
    ),
    "network.half-open": (
        f"{SILENCE} It is sent from the end that stays.",
        PROXY_RESIDUE,
        "It does not lose the target's process: only its ends of its connections. When it ends, the other ends are reset, as a firewall that lost its "
        "table would do.",
    ),
    "network.bandwidth": (
        "A transfer over a connection of its own, about 0.3 s long, is not faster than 1.25 × the ceiling.",
        PROXY_RESIDUE,
        "The ceiling is per direction and connection, not one that connections share. It acts in slices of 5 ms, not in packets.",
    ),
    "frames.delay": (
        f"{TAPS} The median delay is at least 80 % of what was asked.",
        RULE_RESIDUE,
        "It holds up its own channel only (what is behind a delayed frame waits), not the connection. Channels inside one process have no frames.",
    ),
    "frames.drop": (
        f"{TAPS} At least half as many are missing as was asked.",
        RULE_RESIDUE,
        "It is not packet loss: TCP never loses a frame, so this breaks the protocol on purpose. Flink has no remedy for a lost buffer; expect a job that fails or stands still.",
    ),
    "frames.withhold-credit": (
        f"{TAPS} Credit that was sent has not arrived.",
        RULE_RESIDUE,
        "It does not hold the initial credit, which travels in the partition request. Credits of a channel that ends meanwhile are given up.",
    ),
    "registration.delay": (
        "The TaskManagers' own count: a registration waited, and for at least 80 % of the asked time.",
        CALL_RESIDUE,
        "It delays only partitions that are registered while it lasts: with `at: deploy` those of the first deployment. It does not slow the task itself.",
    ),
    "heartbeats.mute": (
        "The count of swallowed heartbeats at the process that should have received them.",
        CALL_RESIDUE,
        "It hits no other message, so the TaskManager stays reachable: detection is by `heartbeat.timeout`, never by the RPC failure threshold.",
    ),
    "rpc.delay": (
        "The callee's own count: a message waited for at least 80 % of the asked time.",
        CALL_RESIDUE,
        "It delays no bytes: the message has arrived and occupies the mailbox, as an overloaded process would let it. An ask that times out does not cancel it.",
    ),
    "process.kill": (
        "The process id is gone (or a zombie).",
        "Nothing to be left: the process is gone.",
        "It kills the process, not the machine or the pod: the kernel closes its connections at once, so peers with open ones notice immediately.",
    ),
    "process.pause": (
        "The kernel says that the process is stopped (`T` in /proc).",
        "The process is still stopped.",
        "Its connections stay open and the kernel still acknowledges and buffers for it. Its supervisor and the probes go on.",
    ),
    "pod.delete": (
        "The API server does not know the pod any more, or knows another one of its name.",
        "Nothing to be left: the pod is gone.",
        "Without grace: nothing in the pod can end in order. Only where the processes are pods; a TaskManager comes again by `replaceLost`.",
    ),
    "pod.evict": (
        "The API server does not know the pod any more, or knows another one of its name.",
        "Nothing to be left: the pod is gone.",
        "A disruption budget may refuse it; then it did not take effect. Only where the processes are pods.",
    ),
    "jobmanager.kill": (
        "The process id is gone (or a zombie).",
        "Nothing to be left: the process is gone. It is started again with the same address.",
        "There is no standby: the next incarnation takes the job and the latest checkpoint from the store.",
    ),
    "jobmanager.pause": (
        "The kernel says that the process is stopped (`T` in /proc).",
        "The process is still stopped.",
        "The runner asks in vain meanwhile, so live progress stands still too.",
    ),
    "store.slow": (
        "The targets' own count: an access waited for at least 80 % of the asked time.",
        CALL_RESIDUE,
        "Listing and deleting are not slowed. Every process has its own view of the store: untargeted ones are not affected.",
    ),
    "store.failing": (
        "The targets' own count of refused writes.",
        CALL_RESIDUE,
        "Reads go on. What is already stored is not damaged.",
    ),
}

CLI_INTRO = """# The command

```
{help}
```

Exit codes are the same for every command:

| code | meaning |
|---|---|
| 0 | Pass, or done |
| 1 | Fail: an expectation or safety did not hold |
| 2 | Error: bad input, or the run could not be carried out |
| 3 | Inconclusive: the evidence is not enough (`--inconclusive` can change this code) |
| 130 | interrupted: faults are healed, processes are stopped, and the history is kept; in a cluster, the run heals and stops |

Results go to stdout, progress and messages to stderr. `HEADGATE_DEBUG=1` shows stack traces. `headgate --install-completion`
installs shell completion; `headgate --show-completion` only prints it.
"""
