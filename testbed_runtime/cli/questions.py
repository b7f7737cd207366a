"""The questions that `headgate new` turns into a document, and the errors and options that each of them is about."""

from __future__ import annotations

import re
from operator import itemgetter

from msgspec import Struct

from testbed_runtime.api.catalogue import judge
from testbed_runtime.core.versions import LATEST, VERSIONS

BEFORE_2 = tuple(v for v in VERSIONS if v.startswith("1."))


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
    """Parts of the lines that Flink logs when it happens. `*` is any text."""
    keys: tuple[str, ...] = ()
    """Options that it is about, and beginnings of their keys."""
    baseline: str = "3 s"
    drain_s: int = 10
    spare: int = 1
    """TaskManagers without a task, for the tasks of a lost one."""
    replace_lost: str = "Never"
    overload: bool = False
    """Whether the sinks are slower than the sources."""
    control: bool = True


class Elsewhere(Struct, frozen=True, kw_only=True):
    """Errors and options that no question is about, and what helps instead."""

    errors: tuple[str, ...]
    keys: tuple[str, ...] = ()
    answer: str


CHECKPOINTS = Line(
    "execution.checkpointing.interval",
    "1 s",
    "yours; a short one keeps the replay after a failover short",
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
        errors=(
            "RemoteTransportException",
            "LocalTransportException",
            "Connection unexpectedly closed by remote task manager",
            "Lost connection to task manager",
            "TaskManager with id * is no longer reachable",
            "Recovery is suppressed by",
        ),
        keys=("heartbeat.interval", "heartbeat.rpc-failure-threshold", "restart-strategy"),
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
        keys=("heartbeat.timeout",),
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
        keys=("taskmanager.network.request-backoff", "taskmanager.network.partition-request-timeout"),
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
        errors=(
            "AskTimeoutException",
            "Ask timed out",
            "Invocation of [RemoteRpcInvocation",
            "not responding after a rpcTimeout",
            "not responding after a timeout",
        ),
        keys=("pekko.ask.timeout",),
        hypothesis="A JobManager that needs 20 ms for each message deploys the job without an ask timeout.",
        options=(
            Line("pekko.ask.timeout", "10 s", "Flink's default"),
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
    Question(
        name="missing-slots",
        question="A lost TaskManager is replaced late (a drained node, a pending pod). Does the job get its slots in time?",
        errors=(
            "NoResourceAvailableException",
            "Could not acquire the minimum required resources",
            "Slot request bulk is not fulfillable",
            "Could not fulfill resource requirements of job",
            "The TaskExecutor is shutting down",
        ),
        keys=("slot.request.timeout", "resourcemanager.standalone.start-up-time"),
        hypothesis="A TaskManager that is replaced after 30 s is back before slot.request.timeout.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line(
                "slot.request.timeout",
                "1 min",
                "Flink's default is 5 min; each time it expires costs a restart attempt",
            ),
            *COMMON,
        ),
        faults=(
            "- name: lost",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 1 s                          # replaceLost above is how late the next TaskManager starts",
            "  target: {taskManagers: {running: sink, mode: one}}   # an evicted one reports its end: no seconds for heartbeats",
            "  process: {kill: {}}",
        ),
        expect=(("{metric: failovers.count, min: 1}", "the fault had an effect"), *SURVIVED),
        observation_s=50,
        heartbeats=True,
        spare=0,
        replace_lost="30 s",
    ),
    Question(
        name="unreachable-taskmanager",
        question="Other TaskManagers cannot connect to a TaskManager at first (a network policy, a late route). How long do they try?",
        errors=(
            "Connecting to remote task manager",
            "PartitionConnectionException",
            "Sending the partition request",
            "UnknownHostException",
            "NoRouteToHostException",
        ),
        keys=("taskmanager.network.netty.client.connectTimeoutSec", "taskmanager.network.retries"),
        hypothesis="Consumers reach a TaskManager that is cut off for 25 s with their first attempt.",
        options=(
            Line(
                "taskmanager.network.netty.client.connectTimeoutSec",
                '"120"',
                "Flink's default. Linux gives up after 127 s (net.ipv4.tcp_syn_retries 6)",
            ),
            *COMMON,
        ),
        faults=(
            "- name: cut",
            "  at: deploy                             # before the job is submitted",
            "  duration: 25 s",
            "  target: {taskManagers: {names: [tm-0]}}",
            "  network: {partition: {}}               # between TaskManagers; `plane: both` cuts it off from the JobManager, too",
        ),
        expect=(("{metric: failovers.count, equals: 0}", "no attempt to connect expires"), *SURVIVED),
        observation_s=40,  # Linux repeats the request for the connection after 19 s and after 35 s
        spare=0,
        control=False,
    ),
    Question(
        name="network-buffers",
        question="Has each TaskManager enough network buffers for its tasks? (`headgate plan FILE` computes how many they need.)",
        errors=("Insufficient number of network buffers",),
        keys=(
            "taskmanager.memory.network",
            "taskmanager.network.memory",
            "taskmanager.network.numberOfBuffers",
        ),
        hypothesis="The tasks get their network buffers, and the job starts.",
        options=(
            Line(
                "taskmanager.memory.process.size",
                "1728 mb",
                "yours; slots above and the parallelism below, too",
            ),
            Line(
                "taskmanager.memory.network.fraction",
                '"0.1"',
                "Flink's default: of the process without metaspace and overhead",
            ),
            *COMMON,
        ),
        faults=(),
        expect=(("{metric: failovers.count, equals: 0}", "the first deployment succeeds"), *SURVIVED),
        observation_s=5,
        spare=0,
        control=False,
    ),
    Question(
        name="slow-checkpoints",
        question="The checkpoint store gets slow. Do checkpoints expire, and what does the failover cost?",
        errors=(
            "CheckpointException",
            "Checkpoint expired before completing",
            "expired before completing",
            "Exceeded checkpoint tolerable failure threshold",
        ),
        keys=("execution.checkpointing.timeout", "execution.checkpointing.tolerable-failed-checkpoints"),
        hypothesis="Checkpoints that take 6 s complete, and the job runs on.",
        options=(
            Line("execution.checkpointing.timeout", "10 s", "Flink's default is 10 min"),
            Line(
                "execution.checkpointing.tolerable-failed-checkpoints",
                '"0"',
                "Flink's default: the first one that expires costs a failover",
            ),
            *COMMON,
        ),
        faults=(
            "- name: slow-store",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 20 s",
            "  target: {taskManagers: {}}             # every TaskManager; back-pressure is `headgate new back-pressure`",
            "  store: {slow: {delay: 6 s}}            # added to each read and write",
        ),
        expect=(
            ("{metric: checkpoints.failed, equals: 0}", "none expired"),
            ("{metric: failovers.count, equals: 0}", "a failover also restores from the slow store"),
            *SURVIVED,
        ),
        observation_s=30,
        drain_s=30,
        spare=0,
        control=False,
    ),
    Question(
        name="back-pressure",
        question="The sinks are slower than the sources. How long do checkpoints take, and do they expire?",
        errors=("back-pressure", "backpressure", "back pressure"),
        keys=(
            "execution.checkpointing.unaligned",
            "execution.checkpointing.aligned-checkpoint-timeout",
            "taskmanager.network.memory.buffer-debloat",
        ),
        hypothesis="Under back-pressure, checkpoints take less than a minute.",
        options=(
            Line(
                "execution.checkpointing.unaligned.enabled",
                '"false"',
                "true: barriers overtake the data in flight, which is stored",
            ),
            Line("execution.checkpointing.timeout", "10 min", "Flink's default"),
            *COMMON,
        ),
        faults=(),
        expect=(
            ("{metric: checkpoints.duration, max: 60 s}", "the longest one"),
            ("{metric: checkpoints.completed, min: 1}", "see `alignment` and `backpressured` in the report"),
            ("{metric: failovers.count, equals: 0}", "none expired"),
            *SURVIVED,
        ),
        observation_s=60,
        drain_s=120,
        spare=0,
        overload=True,
        control=False,
    ),
    Question(
        name="jobmanager-paused",
        question="The JobManager stops for a while (garbage collection, a busy node). Does it lose its TaskManagers or its leadership?",
        errors=(
            "Heartbeat of JobManager",
            "Heartbeat of ResourceManager",
            "lost leadership",
            "lost the leadership",
        ),
        keys=("high-availability",),
        hypothesis="A pause of 3 s causes no failover, because heartbeat.timeout and renew-deadline are longer.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line(
                "heartbeat.timeout", "5 s", "Flink's default is 50 s; TaskManagers fail their tasks after it"
            ),
            Line("high-availability.type", "kubernetes", "NONE: there is no leadership to lose"),
            Line(
                "high-availability.kubernetes.leader-election.renew-deadline",
                "15 s",
                "Flink's default; the last renewal is up to one retry-period (5 s) old",
            ),
            *COMMON,
        ),
        faults=(
            "- name: pause",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 3 s                          # the longest pause that you have seen",
            "  target: {jobManager: {}}",
            "  jobmanager: {pause: {}}",
        ),
        expect=(("{metric: failovers.count, equals: 0}", "the pause is survived"), *SURVIVED),
        observation_s=20,
        heartbeats=True,
        spare=0,
    ),
    Question(
        name="jobmanager-killed",
        question="The JobManager dies and is replaced. How long is the job down, and do TaskManagers give up?",
        errors=(
            "JobManager with id * is no longer reachable",
            "ResourceManager with id * is no longer reachable",
            "Could not resolve ResourceManager address",
            "Could not register at the ResourceManager",
            "RegistrationTimeoutException",
        ),
        keys=("taskmanager.registration.timeout", "cluster.registration"),
        hypothesis="A JobManager that is back after 20 s finds its TaskManagers, and the job recovers within 30 s.",
        options=(
            Line("heartbeat.interval", "1 s", "Flink's default is 10 s"),
            Line(
                "taskmanager.registration.timeout",
                "5 min",
                "Flink's default; a TaskManager that cannot register for this long terminates",
            ),
            Line("high-availability.type", "kubernetes", "without high availability, Flink loses the job"),
            *COMMON,
        ),
        faults=(
            "- name: dead",
            "  at: 0 s                                # from the end of the baseline",
            "  duration: 20 s                         # until the next JobManager starts",
            "  target: {jobManager: {}}",
            "  jobmanager: {kill: {}}",
        ),
        expect=(("{metric: recovery.total, max: 30 s}", "the promise that you want to keep"), *SURVIVED),
        observation_s=50,
        heartbeats=True,
        spare=0,
    ),
)
ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere(
        errors=("maximum akka framesize", "maximum pekko framesize", "OversizedPayloadException"),
        keys=("pekko.framesize",),
        answer="messages have no maximum size here. Set pekko.framesize (akka.framesize until Flink 1.17) above the size in the error",
    ),
    Elsewhere(
        errors=("LocalRpcInvocation(RestfulGateway", "/dispatcher"),
        keys=("web.timeout", "akka.client.timeout", "rest"),
        answer="there is no REST API here. web.timeout limits requests of the REST API and the web interface; "
        "pekko.ask.timeout does not",
    ),
    Elsewhere(
        errors=("Task did not exit gracefully", "did not react to cancelling signal"),
        keys=("task.cancellation",),
        answer="tasks react to a cancellation at once here. In Flink, task.cancellation.timeout (180 s by default) passes, then "
        "the TaskManager terminates: add it to the downtime of `headgate new taskmanager-killed`",
    ),
    Elsewhere(
        errors=("OutOfMemoryError", "OOMKilled", "exit code 137"),
        keys=("taskmanager.memory", "jobmanager.memory"),
        answer="`headgate memory --flink-conf FILE` computes how a TaskManager's memory is divided; the heap is not limited here",
    ),
    Elsewhere(
        errors=("Not enough resources available for scheduling",),
        keys=("jobmanager.scheduler", "jobmanager.adaptive-scheduler"),
        answer="the adaptive scheduler is not modelled",
    ),
    Elsewhere(
        errors=("Could not restore keyed state backend",),
        keys=("state.backend", "execution.state-recovery", "execution.checkpointing.local-backup"),
        answer="scenarios/15-local-recovery and 18-incremental-state restore state; the store of `headgate new slow-checkpoints` "
        "can be slow while a TaskManager is lost",
    ),
)
_SUPPRESSED = re.compile(r"^([ \t]+)Suppressed:.*(\n\1.*)*", re.MULTILINE)
"""Exceptions that a stack trace shows below another one although they did not cause it."""
BY_NAME = {question.name: question for question in QUESTIONS}


def about(text: str) -> Question | Elsewhere | None:
    """Return what is about an option, or about an error of Flink's log: its class, a line, or a stack trace, whose last cause decides.
    Pure."""
    topics: tuple[Question | Elsewhere, ...] = (*QUESTIONS, *ELSEWHERE)
    key = judge(key_in(text), LATEST).canonical
    named = [(len(k), t) for t in topics for k in t.keys if key == k or key.startswith((f"{k}.", f"{k}-"))]
    if named:
        return max(named, key=itemgetter(0))[1]
    text = re.sub(r"`[^`]*`", "", text)  # names in an explanation
    text = _SUPPRESSED.sub("", text)
    found = [(m.start(), m.end(), t) for t in topics for e in t.errors for m in _pattern(e).finditer(text)]
    return max(found, key=itemgetter(0, 1))[2] if found else None


def key_in(text: str) -> str:
    """Return the first word, which is a key if the text is an option, with or without its value."""
    return re.split(r"[\s:=]", text.strip(), maxsplit=1)[0]


def _pattern(error: str) -> re.Pattern[str]:
    """Return the pattern of a part of a line."""
    return re.compile(".*?".join(map(re.escape, error.split("*"))), re.IGNORECASE)
