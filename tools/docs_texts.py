"""Hand-written parts of the generated reference pages: introductions, and facts about metrics and faults that the code lacks."""

from __future__ import annotations

GENERATED = "<!-- Written by tools/generate_docs.py (make docs). Change the declaration, the docstring below its field, or tools/docs_texts.py, not this page. -->"

SCENARIO_INTRO = """# A scenario, field by field

One YAML document describes what runs, what goes wrong and what must hold. The smallest is
[word-count.yaml](../scenarios/examples/word-count.yaml). Each folder of [scenarios](../scenarios) has one, with a README that gives the reasons for its numbers.

- A **duration** is a string in Flink's syntax: an integer and a unit (`500 ms`, `10 s`, `2 min`). Without a unit it is in milliseconds.
- A **name** is at most {max_name} lower-case letters, digits and dashes, and begins with a letter.
- A **decimal** is a string (`"1.1"`), because some YAML readers and writers change floats.
- Unknown fields are refused. The error names the line, the path of the field and what to write instead. `required` fields have no
  default.
- A file has at most {max_bytes:,} bytes.

Related pages: [faults.md](faults.md) describes what each kind of fault does and does not do, [metrics.md](metrics.md) the metrics of `expect`,
and [options.md](options.md) the keys of `flinkConfiguration`.
"""

OPTIONS_INTRO = """# Options

`flinkConfiguration` takes Flink's own keys as strings in Flink's syntax. A key belongs to one of these classes:

| class | what happens |
|---|---|
| effective here | the testbed acts on it; a value that does not parse is an error |
| known, without effect | accepted, and listed at the start of the run |
| a typo | refused; the error names the key that was probably meant (up to {edits} letters away) |
| anything else | accepted with a warning |

Deprecated names (`akka.ask.timeout`) are accepted too. A key that the chosen `flinkVersion` does not have gives a warning and still
acts here.

`flinkVersion` selects behaviour and defaults. `1.12` is the oldest version. Each version behaves like the one before it, except for:

{profiles}

`2.x` is the newest minor of Flink 2. The frames of all versions before 2.0 are those of 1.20 ([limits](limits.md)).
"""

METRICS_INTRO = """# Metrics

These are the metrics that `expect` can name. `headgate faults --metrics` prints the same list. One pure function per metric
(`testbed_runtime/checking`) computes the value from the recorded history, in PySpark and in the simulator alike.

```yaml
expect:
  - {metric: recovery.detect, max: 2.25 s}
  - {metric: latency, quantile: p99, phase: observation, max: 200 ms}
  - {metric: job.state, equals: RUNNING}
```

- **Units.** `s` takes `5.5 s`, `200 ms` or a bare number of seconds. `ratio` takes `0.95` or `95 %`. `text` takes `equals`, in which
  `*` matches any text.
- **Phases.** A metric with phases takes `phase: baseline`, `fault`, `observation`, `outage`, `catch-up` or `recovered`
  ([scenario.md](scenario.md#specexpect)). Without `phase`, it is judged from the first fault to the drain.
- **Quantiles.** Latencies need one of %QUANTILES% within each trial (1 is the maximum). For any other metric, a quantile is taken over
  the trials of a variant and needs enough of them: 2 for the median, 20 for 0.95, 100 for 0.99. With fewer, the result is
  Inconclusive.
- **Safety** metrics are judged in every trial, even if no expectation names them: any value above 0 is Fail. All others count only in
  trials whose faults took effect.
- **A job that failed for good** is Fail, unless the scenario expects a `job.state` or `job.failure`: then only that is judged.
- **No value** is never a Pass: the expectation is Inconclusive, and the report gives the
  [reason](#why-there-is-no-value-and-what-to-do).
"""

REASONS_INTRO = """The verdict, the report and a ScenarioRun's status name one of these reasons. `RunFailed`, `Residue` and `BadExpectation` make the verdict
Error; with any other one, the expectation is Inconclusive.
"""

KINDS_INTRO = """# The kinds in a cluster

All kinds are in `headgate.dev/v1alpha1` and in the category `headgate` (`kubectl get headgate`). A [Scenario](scenario.md) is the same
document as on one machine and starts nothing by itself. This page has the fields of the other kinds. Parts that a Scenario also has
(job, faults, expectations) are described on the Scenario's page. `kubectl explain run.spec` shows the same fields, and the status of each
kind.

The API server refuses malformed objects. An object that is well-formed but invalid (an unknown option, a job with a cycle) gets the
condition `Accepted=False` with the same message as the command line, and nothing is created.
"""

FAULTS_INTRO = """# Faults

Each fault has exactly one kind. `headgate faults` lists the kinds that this machine can inject.

- **Requesting a fault is not the same as having it.** Every fault is measured while it lasts. The expectations of its trial cannot pass
  unless its effect was measured (`fault.verified`).
- **A fault on a dead process** does nothing: it is reported as not applied, and the trial goes on. So is a fault on a vertex that no TaskManager
  runs at that moment, for example while the job waits for slots. `headgate validate` refuses a fault whose target another fault of the
  scenario has certainly killed by then, or paused if the target itself has to carry the fault out.
- **A fault ends** at its deadline. Both the supervisor next to the process and the component that carries the fault (proxy, process or packet
  agent) hold that deadline. `headgate heal --all` ends the fault at once. Inside a run, a fault also ends 10 s after the runner stopped
  renewing its lease; the trial is then void and repeated.
- **Residue** is measured after the end: everything that the fault put in place must be gone. Any residue makes the verdict Error.
- **The order** of bytes and frames never changes. Only `network.reorder` changes the order of packets, which TCP corrects.

[scenario.md](scenario.md) describes the fields of a fault. A *backend* is the mechanism that injects a fault. The backends of each kind are listed
in order of preference, and Headgate uses the first one that the environment offers:

| backend | what it is | offered on one machine |
|---|---|---|
"""

PACKET_BACKENDS_NOTE = """On one machine, packet backends need root, which gives each process a network namespace of its own. Without root, all
processes share one network interface, and a packet rule would hit every program on the machine.
"""

CLI_INTRO = """# The command

```
{help}
```

Exit codes are the same for every command:

| code | meaning |
|---|---|
| 0 | Pass, or done |
| 1 | Fail: an expectation did not hold, or data was lost, duplicated or reordered |
| 2 | Error: bad input, or the run could not be carried out |
| 3 | Inconclusive: the evidence is not enough (`--inconclusive` can change this code) |
| 130 | interrupted: faults are healed, processes are stopped, and the history is kept; in a cluster, the run heals and stops |

Results go to stdout, progress and messages to stderr. `HEADGATE_DEBUG=1` shows stack traces. `headgate --install-completion`
installs shell completion; `headgate --show-completion` only prints it.
"""

MESSAGES_PAGE = """# Messages between the processes

Client, JobManager and TaskManagers exchange Flink's messages. The text of an ask timeout prints the method
(`RemoteRpcInvocation(…)`), and faults of the kind `rpc.delay` name the message.

{current}

## Until Flink 1.4

JobManager and TaskManager were actors, and their messages had other names.

{before}
"""

COMBINATIONS_INTRO = """
## Result types and deployments

An edge's `result` and `deployment` must fit each other.
"""
