"""The questions that `headgate new` turns into a document, and the text of that document.

A document is commented YAML that validates and simulates as it is. The reader replaces the shape of the job and the options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct

from testbed_runtime.api.catalogue import OWN_PREFIX
from testbed_runtime.core.exchange.backoff import remote_backoff
from testbed_runtime.core.judgement.quantities import format_value
from testbed_runtime.core.options import ALIASES, BY_KEY, Options
from testbed_runtime.core.versions import PEKKO, VERSIONS, has

AKKA = tuple(v for v in VERSIONS if not has(v, PEKKO))
WITH_PEKKO = tuple(v for v in VERSIONS if has(v, PEKKO))
BEFORE_2 = tuple(v for v in VERSIONS if v.startswith("1."))


class Given(Struct, frozen=True, kw_only=True):
    """The reader's own Flink configuration."""

    options: Mapping[str, str]
    cluster: str
    """The size of the cluster, in words; empty if unknown."""
    interval_s: int
    """heartbeat.interval: a fault may happen at any moment of it."""
    timeout_s: int
    """heartbeat.timeout, which a scenario may have to wait for."""


class Shape(Struct, frozen=True, kw_only=True):
    """The properties of the job that `headgate new` asks for."""

    flink_version: str = "2.x"
    parallelism: int = 2
    records_per_second: int = 1000
    given: Given | None = None
    """The configuration of --flink-conf."""


class Line(Struct, frozen=True):
    """An option with its value and a comment, in the documents of `versions`."""

    key: str
    value: str
    why: str
    versions: tuple[str, ...] = VERSIONS


class Question(Struct, frozen=True, kw_only=True):
    """A question, and what its document contains besides the job."""

    name: str
    question: str
    hypothesis: str
    options: tuple[Line, ...]
    """Lines of flinkConfiguration."""
    faults: tuple[str, ...]
    """Lines of `spec.faults`, without indentation."""
    expect: tuple[tuple[str, str], ...]
    """(expectation in YAML, comment)."""
    observation_s: int
    heartbeats: bool = False
    """Whether heartbeats notice the fault: it then meets them at a random moment, and the observation waits for their timeout."""
    errors: tuple[str, ...] = ()
    """Parts of the lines that Flink logs when it happens."""
    baseline: str = "3 s"
    spare: int = 1
    """TaskManagers without a task, for the tasks of a lost one."""
    control: bool = True


CHECKPOINTS = Line(
    "execution.checkpointing.interval",
    "1 s",
    "yours; a short one keeps the replay after a failover short",
)
ADDED_CHECKPOINTS = Line(
    CHECKPOINTS.key,
    CHECKPOINTS.value,
    "added: your file has no valid one. Write what your job sets in code, if it does",
)
COMMON = (
    CHECKPOINTS,
    Line("restart-strategy.type", "fixed-delay", "yours"),
    Line("restart-strategy.fixed-delay.attempts", '"10"', "yours; numbers are in quotes"),
    Line("restart-strategy.fixed-delay.delay", "1 s", "yours"),
    Line(
        "headgate.restart.fence-dead-slots",
        '"false"',
        "as Flink: each deployment to a lost TaskManager counts as a restart attempt",
    ),
)
SURVIVED = (
    ("{metric: job.state, equals: RUNNING}", "the job survives"),
    ("{metric: delivery.lost, equals: 0}", "every record of the sources reached a sink"),
    ("{metric: delivery.duplicated, equals: 0}", "and none of them twice"),
)

QUESTIONS: tuple[Question, ...] = (
    Question(
        name="taskmanager-killed",
        question="A TaskManager dies. How long is the job down, and which timeout decides it?",
        errors=("RemoteTransportException", "is no longer reachable"),
        hypothesis="The job is back within 10 s of the loss of a TaskManager, and loses nothing.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line("heartbeat.timeout", "5 s", "Flink's default is 50 s"),
            *COMMON,
        ),
        faults=(
            "- name: dead",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 1 s",
            "  target: {taskManagers: {running: sink, mode: one}}   # try source, too: its loss is detected differently",
            "  process: {kill: {}}",
        ),
        expect=(
            ("{metric: recovery.total, max: 10 s}", "the promise that you want to keep"),
            ("{metric: failovers.count, min: 1}", "the fault had an effect"),
            *SURVIVED,
        ),
        observation_s=20,
        heartbeats=True,
    ),
    Question(
        name="taskmanager-paused",
        question="A TaskManager stops for a while (garbage collection, a slow disk). Is a failover started for nothing?",
        errors=("Heartbeat of TaskManager",),
        hypothesis="A pause of 3 s causes no failover, because heartbeat.timeout is longer.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line(
                "heartbeat.timeout",
                "5 s",
                "Flink's default is 50 s; if it is shorter than the pause, the TaskManager is declared lost",
            ),
            *COMMON,
        ),
        faults=(
            "- name: pause",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 3 s                          # the longest pause that you have seen",
            "  target: {taskManagers: {running: count, mode: one}}",
            "  process: {pause: {}}",
        ),
        expect=(
            ("{metric: failovers.count, equals: 0}", "the pause is survived"),
            *SURVIVED,
        ),
        observation_s=12,
        heartbeats=True,
    ),
    Question(
        name="late-producer",
        question="A producer registers its partition late (a slow start, a large job). Do its consumers wait long enough?",
        errors=("PartitionNotFoundException",),
        hypothesis="Consumers wait for a producer that is 3 s late, and the job starts without a failure.",
        options=(
            Line("taskmanager.network.request-backoff.initial", "100 ms", "in ms: Flink's default"),
            Line(
                "taskmanager.network.request-backoff.max",
                "10 s",
                "in ms: Flink's default. The budget up to 1.18: 100 + 200 + … + 6400 + 10000 ms = 22.7 s",
            ),
            *COMMON,
        ),
        faults=(
            "- name: late",
            "  at: deploy                             # before the job is submitted",
            "  duration: 6 s                          # longer than the delay: at its end, every partition is registered",
            "  target: {taskManagers: {}}             # every TaskManager",
            "  registration: {delay: {delay: 3 s}}    # how late the partitions are",
        ),
        expect=(
            ("{metric: failovers.count, equals: 0}", "the first deployment succeeds"),
            *SURVIVED,
        ),
        observation_s=5,
        spare=0,
        control=False,
    ),
    Question(
        name="slow-deployment",
        question="The JobManager is busy while it deploys many tasks. Is the ask timeout long enough?",
        errors=("AskTimeoutException", "Invocation of [RemoteRpcInvocation"),
        hypothesis="A JobManager that needs 20 ms for each message deploys the job without an ask timeout.",
        options=(
            Line("akka.ask.timeout", "10 s", "Flink's default", AKKA),
            Line("pekko.ask.timeout", "10 s", "Flink's default", WITH_PEKKO),
            Line(
                "headgate.jobmanager.service-time",
                "20 ms",
                "how long the JobManager is busy with each message; the queue grows with the tasks",
            ),
            *COMMON,
        ),
        faults=(),
        expect=(
            ("{metric: rpc.timeouts, equals: 0}", "no request waited longer than pekko.ask.timeout"),
            *SURVIVED,
        ),
        observation_s=5,
        spare=0,
    ),
    Question(
        name="slow-network",
        question="The network between the stages gets slower. Does the job keep its rate, and how late are its records?",
        hypothesis="200 ms more on every round trip cost no throughput and no failover.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line(
                "taskmanager.network.memory.buffers-per-channel",
                '"2"',
                "Flink's default: the credit of each channel",
                BEFORE_2,
            ),
            Line("taskmanager.network.memory.floating-buffers-per-gate", '"8"', "Flink's default", BEFORE_2),
            CHECKPOINTS,
        ),
        faults=(
            "- name: slow-network",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 5 s",
            "  target: {taskManagers: {running: count}}",
            "  network: {latency: {delay: 200 ms, mode: round-trip}}",
        ),
        expect=(
            ("{metric: failovers.count, equals: 0}", "slow is not dead"),
            ("{metric: throughput.relative, phase: fault, min: 80 %}", "compared with the control run"),
            *SURVIVED,
        ),
        observation_s=10,
        spare=0,
    ),
)
BY_NAME = {question.name: question for question in QUESTIONS}


def about_error(line: str) -> Question | None:
    """Return the question about an error of Flink's log, given as its class or the whole line. Pure."""
    return next((q for q in QUESTIONS if any(error.lower() in line.lower() for error in q.errors)), None)


def document(question: Question, shape: Shape) -> str:
    """Return the commented scenario. Pure."""
    replicas = 2 * shape.parallelism + question.spare
    spare = f"   # {question.spare} spare" if question.spare else ""
    options = list(_options(question, shape))
    paste = "# Paste your own flinkConfiguration here. A duration has a unit (15 s, 500 ms), unless Flink reads milliseconds."
    described = "# The shape of your job: vertices with their parallelism, edges with their partitioning."
    observation_s = question.observation_s
    if shape.given:
        size = f" Your cluster has {shape.given.cluster}." if shape.given.cluster else ""
        paste, described = "# Your options that have an effect here.", described + size
        if question.heartbeats:
            observation_s += shape.given.interval_s + shape.given.timeout_s
    wide = max(len(text) for text, _ in question.expect) + 2
    expect = [f"    - {text:<{wide}}# {why}" for text, why in question.expect]
    faults = ["  faults:", *(f"    {line}" for line in _faults(question, shape))] if question.faults else []
    lines = [
        f"# {question.question}",
        "# headgate validate FILE    headgate simulate FILE    headgate run FILE",
        "apiVersion: headgate.dev/v1alpha1",
        "kind: Scenario",
        f"metadata: {{name: {question.name}}}",
        "spec:",
        "  # One sentence that the run can prove wrong.",
        f"  hypothesis: {question.hypothesis}",
        "  seed: 7                                      # the same seed repeats the same simulation",
        "  testbed:",
        f'    flinkVersion: "{shape.flink_version}"' + " " * 8 + "# 1.12 to 2.3, or 2.x: defaults and behaviour differ",
        f"    taskManagers: {{replicas: {replicas}, slots: 1, replaceLost: Never}}{spare}",
        f"    {paste}",
        "    flinkConfiguration:",
        *options,
        f"    {described}",
        "    job:",
        "      vertices:",
        f"        - {{name: source, parallelism: {shape.parallelism}, slotSharingGroup: src, "
        f"source: {{recordsPerSecond: {shape.records_per_second}, recordBytes: 100, keys: 1000}}}}",
        f"        - {{name: count, parallelism: {shape.parallelism}, slotSharingGroup: main, operator: keyed-count}}",
        f"        - {{name: sink, parallelism: {shape.parallelism}, slotSharingGroup: main, sink: ledger}}",
        "      edges:",
        "        - {from: source, to: count, partitioning: hash}",
        "        - {from: count, to: sink, partitioning: forward}",
        "  # observation counts from the end of the baseline, and contains the faults.",
        f"  timeline: {{warmUp: 2 s, baseline: {question.baseline}, observation: {observation_s} s, drain: 10 s}}",
        *faults,
        f"  control: {str(question.control).lower():<36}# also a run without the fault, to compare with",
        "  trials: 1                                    # more trials give distributions instead of one value",
        "  # What you promise. `headgate faults --metrics` lists the metrics.",
        "  expect:",
        *expect,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _faults(question: Question, shape: Shape) -> Iterator[str]:
    for line in question.faults:
        yield line + (f"; {_budget(question, shape)}" if "registration:" in line else "")
        if shape.given and question.heartbeats and line.strip().startswith("at:"):
            jitter = f"  jitter: {shape.given.interval_s} s"
            yield f"{jitter:<41}# up to one heartbeat.interval later; `headgate simulate --seeds 20` shows the range"


def _budget(question: Question, shape: Shape) -> str:
    """Return how late a partition may be, with the options of the document."""
    written = shape.given.options if shape.given else {line.key: line.value for line in question.options}
    backoff = remote_backoff(Options(written, flink_version=shape.flink_version))
    budget = backoff.budget()
    if budget is None:
        return "its consumers wait without a limit"
    fails = "may fail" if backoff.waits_at_producer else "fails"
    return f"above {format_value(budget, 's')}, the job {fails} with PartitionNotFoundException"


def _options(question: Question, shape: Shape) -> Iterator[str]:
    """Yield the lines of flinkConfiguration. The options of the reader replace those that the question suggests."""
    chosen = [line for line in question.options if shape.flink_version in line.versions]
    if shape.given:
        own = [line for line in chosen if line.key.startswith(OWN_PREFIX)]
        checkpoints = [] if CHECKPOINTS.key in shape.given.options else [ADDED_CHECKPOINTS]
        yield from (f"      {key}: {_scalar(value)}" for key, value in shape.given.options.items())
        chosen = [*checkpoints, *own]
    set_to = [(f"{line.key}: {_written(line, shape.flink_version)}", line.why) for line in chosen]
    width = max((len(text) for text, _ in set_to), default=0) + 2
    yield from (f"      {text:<{width}}# {why}" for text, why in set_to)


def _written(line: Line, flink_version: str) -> str:
    """Return the value as this version of Flink reads it, in YAML."""
    option = BY_KEY.get(ALIASES.get(line.key, line.key))
    if option is None or not option.in_millis(flink_version):
        return line.value
    return _scalar(option.written(line.value, flink_version))


def _scalar(text: str) -> str:
    """Return a text in YAML, in quotes if YAML would read something else."""
    try:
        plain = yaml.safe_load(text) == text
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
