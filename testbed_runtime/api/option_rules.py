"""Rules of flinkConfiguration that a schema cannot express: whether each key is known, whether its value fits, and rules between options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from testbed_runtime.api import models
from testbed_runtime.api.catalogue import SLOTS_KEY, Standing, judge, value_doubt, value_problem
from testbed_runtime.api.iteration_rules import iterations
from testbed_runtime.api.job_rules import has_blocking
from testbed_runtime.core.errors import FlinkError, OptionRefused, UserError, nearest
from testbed_runtime.core.exchange import tls
from testbed_runtime.core.exchange.alignment import BarrierPolicy
from testbed_runtime.core.exchange.debloat import check_debloating
from testbed_runtime.core.exchange.sizing import BUFFERS_TIMEOUT
from testbed_runtime.core.job import restore
from testbed_runtime.core.job.checkpoints import CheckpointConfig
from testbed_runtime.core.job.cost import COST, cores, prices
from testbed_runtime.core.job.flowcontrol import FlowControl
from testbed_runtime.core.job.heartbeat import HeartbeatConfig
from testbed_runtime.core.job.leaderelection import RENEW_DEADLINE, RETRY_PERIOD
from testbed_runtime.core.job.registration import RegistrationConfig
from testbed_runtime.core.job.restart import TYPE as RESTART_TYPE
from testbed_runtime.core.job.restart import ignored_settings, restart_strategy
from testbed_runtime.core.job.statememory import (
    FIXED_PER_SLOT,
    TRANSFER_THREADS,
    check_state_memory,
    share_problems,
    transfer_problem,
)
from testbed_runtime.core.options import ALIASES, BY_KEY, LATENCY_INTERVAL, OWN_PREFIX, Option, Options
from testbed_runtime.core.processmemory import MANAGED, memory_doubts, process_memory
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.core.versions import NO_EXCLUSIVE_BUFFERS, SLOT_DELAYS, has

CHECKPOINTS = "execution.checkpointing.interval"
MILLISECOND = 0.001
_SENSITIVE = re.compile(
    r"password|secret|fs\.azure\.account\.key\.|api-?key|auth-params|service-key|token|basic-auth|jaas\.config|http-headers"
)
"""Marks options whose values must not be recorded, such as `s3.secret-key` (Flink's GlobalConfiguration.isSensitive)."""
_SWITCHES = ("true", "false")
_HARMLESS = re.compile(
    r"kubernetes\.(secrets|env\.secretkeyref|container\.image\.pull-secrets)|security\.(delegation|kerberos)\.tokens?\.renewal\..*"
    r"|security\.delegation\.token\.provider\..*\.region|yarn\.security\.appmaster\.delegation\.token\.services"
    r"|.*\.token\.(provider(\.impl|\.type(\..*)?)?|file(\..*)?)|.*-env-variable"
)
"""Keys that Flink hides too, but whose values are names, times, regions, classes and paths."""


@dataclass(slots=True)
class Collected:
    """Errors, warnings and keys without effect, over all settings of a scenario."""

    errors: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)


def judge_testbed(testbed: models.TestbedSpec, path: str, collected: Collected) -> None:
    """Check every key of the flinkConfiguration at `path`, then the rules between keys if all values can be parsed."""
    before = len(collected.errors)
    written: dict[str, str] = {}
    for key, value in testbed.flink_configuration.items():
        judge_key(
            key,
            value,
            version=testbed.flink_version,
            where=f"{path}[{key}]",
            written=written,
            collected=collected,
        )
    if len(collected.errors) == before:
        options = Options(testbed.flink_configuration, flink_version=testbed.flink_version)
        collected.errors.extend(judge_together(options, path, written))
        collected.errors.extend(_batch(testbed.job, options, path))
        collected.warnings.extend(_doubtful(testbed, options, path, written))


def _batch(job: models.Job, options: Options, path: str) -> Iterator[UserError]:
    """Yield an error for each option that a job with bounded sources cannot have."""
    why = "a blocking result" if has_blocking(job) else "an iteration" if iterations(job) else ""
    if why and options.duration(CHECKPOINTS) > 0:
        text = f"a job with {why} takes no checkpoints"
        yield UserError(f"{path}[{CHECKPOINTS}]", text, "leave it out")
    if why and options.text(restore.STATE_RECOVERY):
        text = f"a job with {why} does not start from a checkpoint"
        yield UserError(f"{path}[{restore.STATE_RECOVERY}]", text, "leave it out")
    if iterations(job) and options.duration(LATENCY_INTERVAL) > 0:
        text = "latency markers do not pass through an iteration"
        yield UserError(f"{path}[{LATENCY_INTERVAL}]", text, "leave it out")
    if iterations(job) and FlowControl.read(options).queued:
        text = "the end of a superstep does not wait for the receive queue of a task"
        yield UserError(f"{path}[headgate.flow-control]", text, "write network or tcp")


def checkpoint_problems(
    configuration: Mapping[str, str], place: Callable[[str], str], *, alone: bool = False
) -> list[UserError]:
    """Return why jobs in pods cannot start from the kept checkpoint of the options. `place` gives the path of a key; `alone`:
    no runner uploads the checkpoint."""
    found = []
    for key, value in configuration.items():
        if ALIASES.get(key, key) != restore.STATE_RECOVERY:
            continue
        if alone:
            problem = "only the job of a run can start from a kept checkpoint"
            found.append(UserError(place(key), problem, "leave it out, or run a scenario with it"))
        elif not value.strip().startswith(restore.IN_CLUSTER):
            problem = f"{value!r} is a folder of the machine that ran the earlier job, which pods cannot read"
            hint = "`headgate run --on kubernetes --from-checkpoint FOLDER` brings the checkpoint into the cluster"
            found.append(UserError(place(key), problem, hint))
    return found


def judge_key(
    key: str,
    value: str,
    *,
    version: str,
    where: str,
    written: dict[str, str],
    collected: Collected,
    flink_reads: bool = False,
) -> None:
    """Check the option at `where`: its key, its value, and whether another key in `written` is the same option. `flink_reads`: the file is
    one of Flink, so a value with which Flink does not start is an error."""
    judgement = judge(key, version)
    if judgement.note:
        collected.warnings.append(f"{where}: {judgement.note}")
    match judgement.standing:
        case Standing.TYPO:
            problem, hint = "is not a Flink option", f"did you mean {judgement.canonical}?"
            if key.startswith(OWN_PREFIX):
                own = [k for k in BY_KEY if k.startswith(OWN_PREFIX)]
                problem, hint = "is not an option of Headgate", nearest(key, own)
            collected.errors.append(UserError(where, problem, hint))
        case Standing.WITHOUT_EFFECT | Standing.UNKNOWN if is_secret(key, value):
            problem = "is a secret, which would become part of the run's record"
            collected.errors.append(UserError(where, problem, "leave it out: it has no effect here"))
        case Standing.WITHOUT_EFFECT if judgement.canonical not in BY_KEY:  # otherwise, the note says so
            collected.without_effect.append(key)
        case Standing.UNKNOWN:
            collected.warnings.append(f"{where}: is not known; it changes nothing here")
        case Standing.EFFECTIVE:
            option = BY_KEY[judgement.canonical]
            if problem := _value_problem(option, value, version):
                collected.errors.append(UserError(where, problem))
            doubt = "" if problem else value_doubt(option, value, version, written=key)
            if doubt and flink_reads and option.in_millis(version) and judgement.is_read:
                collected.errors.append(UserError(where, f"Flink does not accept it: {doubt}"))
            elif doubt:
                collected.warnings.append(f"{where}: {doubt}")
            if judgement.canonical in written:
                other = written[judgement.canonical]
                problem = (
                    "is a duplicate" if other == key and key in where else f"is the same option as {other}"
                )
                collected.errors.append(UserError(where, problem, "keep one of them"))
            written[judgement.canonical] = key


def is_secret(key: str, value: str) -> bool:
    """Return whether a value must not be recorded. A switch is no secret, and neither is the name of a Kubernetes Secret."""
    lower = key.lower()
    if _HARMLESS.fullmatch(lower) or value.lower() in _SWITCHES:
        return False
    return _SENSITIVE.search(lower) is not None


def _value_problem(option: Option, value: str, version: str) -> str:
    """Return why an option cannot have this value in a testbed, or an empty string if it can."""
    if option.key == SLOTS_KEY:
        return "is set by the testbed itself (write it as taskManagers.slots)"
    return value_problem(option, value, version)


def judge_together(options: Options, path: str, written: Mapping[str, str]) -> Iterator[UserError]:
    """Yield values that contradict each other, or with which no process would start. `written`: the key of each option in the document."""
    for key, problem, hint in (*_limits(options), *_refused(options)):
        yield UserError(f"{path}[{_shown_key(key, options, written)}]", problem, hint)


def _shown_key(key: str, options: Options, written: Mapping[str, str]) -> str:
    """Return the key of an option as the document has it. If it does not set the option, return the key that its version of Flink reads."""
    return written.get(key) or options.name_of(key)


def _limits(options: Options) -> Iterator[tuple[str, str, str]]:
    """Yield the key, problem and hint of each value that is out of range, either by itself or in combination with another option."""
    if options.duration(RETRY_PERIOD) <= 0:
        yield RETRY_PERIOD, "must be greater than 0", "the default is 5 s"
    if options.duration(RETRY_PERIOD) >= options.duration(RENEW_DEADLINE):
        problem = f"{options.text(RENEW_DEADLINE)!r} is not more than {RETRY_PERIOD} ({options.text(RETRY_PERIOD)!r}): the lease would be "
        yield RENEW_DEADLINE, f"{problem}too old before each renewal", "make the deadline a few retry periods"
    low, high = "taskmanager.network.request-backoff.initial", "taskmanager.network.request-backoff.max"
    if options.duration(low) > options.duration(high):
        yield high, f"{options.text(high)!r} is less than {low} ({options.text(low)!r})", "make it larger"
    for key in (low, high):
        if options.duration(key) * 1000 > MAX_INT:
            yield key, f"must be at most {MAX_INT} ms (an int in Flink)", "make it smaller"
    if options.duration(BUFFERS_TIMEOUT) < MILLISECOND:
        problem = "Flink does not start: The timeout for requesting exclusive buffers should be positive."
        yield BUFFERS_TIMEOUT, problem, "write at least 1 ms"
    if problem := transfer_problem(options):
        yield TRANSFER_THREADS, problem, "-1 stands for the default"
    yield from share_problems(options)
    if options.duration("pekko.ask.timeout") <= 0:
        problem = "must be greater than 0: Flink's components send no RPC without time for the answer"
        yield "pekko.ask.timeout", problem, "the default is 10 s"


def _refused(options: Options) -> Iterator[tuple[str, str, str]]:
    """Yield the key, problem and hint of each combination that is refused by the component that it configures."""
    for read in (
        process_memory,
        HeartbeatConfig.of,
        CheckpointConfig.of,
        RegistrationConfig.of,
        check_debloating,
        check_state_memory,
        lambda o: cores(o, slots=1),
        lambda o: restart_strategy(o, lambda low, _: low),
    ):
        try:
            read(options)
        except OptionRefused as error:
            given = f"it is {options.text(error.key)!r}: " if options.text(error.key) else ""
            hint = error.hint or f"the default is {BY_KEY[error.key].default_in(options.flink_version)}"
            yield error.key, f"Flink does not start: {error.message}", given + hint
    unaligned = "execution.checkpointing.unaligned.enabled"
    try:
        BarrierPolicy.of(options)
    except FlinkError as error:
        yield unaligned, error.message, "use EXACTLY_ONCE and one concurrent checkpoint, or set it to false"
    if FlowControl.read(options).queued and options.boolean(unaligned):
        flow = f"headgate.flow-control {options.string('headgate.flow-control')}"
        problem = f"{flow} queues records in the task, and unaligned checkpoints would not contain them"
        yield unaligned, problem, "set it to false, or headgate.flow-control to network"
    try:
        tls.TlsSettings.read(options)
    except UserError as error:
        yield error.path.removeprefix("flinkConfiguration[").removesuffix("]"), error.problem, error.hint


def _doubtful(
    testbed: models.TestbedSpec, options: Options, path: str, written: Mapping[str, str]
) -> Iterator[str]:
    yield from doubts_together(options, path, written)
    ends = has_blocking(testbed.job) or iterations(testbed.job)
    if options.duration(CHECKPOINTS) == 0 and not ends:
        final = (
            "" if options.is_set(RESTART_TYPE) else f"and {RESTART_TYPE} the first failure ends the job, and "
        )
        yield f"{path}: without {CHECKPOINTS} {final}an exactly-once sink commits only when the job is drained"


def doubts_together(options: Options, path: str, written: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about values that are allowed, but are probably mistakes in any job. `written`: see `judge_together`."""
    for key, doubt in _doubts(options):
        yield f"{path}[{_shown_key(key, options, written)}]: {doubt}"


def _pool_doubts(options: Options) -> Iterator[tuple[str, str]]:
    """Yield warnings about the limits of the pools of results. Flink reads them unchecked, and its LocalBufferPool refuses them in each task.
    Flink 2.0 has removed both, but they still have their effect here."""
    most = "taskmanager.network.memory.max-buffers-per-channel"
    also = "" if BY_KEY[most].is_removed_in(options.flink_version) else ", in Flink too"
    if options.integer(most) == 1:
        doubt = f"with 1, a task that has begun a buffer processes nothing more until a checkpoint barrier ends it{also}"
        yield most, f"{doubt} (write at least 2)"
    if (found := options.integer(most)) < 1:
        why = f"Maximum number of buffers for each channel ({found}) should be larger than 0."
        yield most, f"every task with a consumer fails{also}: {why} (write at least 2)"
    overdraft = "taskmanager.network.memory.max-overdraft-buffers-per-gate"
    if (found := options.integer(overdraft)) < 0:
        why = f"Maximum number of overdraft buffers for each gate ({found}) should not be less than 0."
        yield overdraft, f"every task with a consumer fails{also}: {why} (write 0 for none)"


def _doubts(options: Options) -> Iterator[tuple[str, str]]:
    used = FIXED_PER_SLOT if options.is_set(FIXED_PER_SLOT) else MANAGED
    if (
        options.string("state.backend.type") == "rocksdb"
        and (used == FIXED_PER_SLOT or options.boolean("state.backend.rocksdb.memory.managed"))
        and options.is_set(used)
        and not options.memory(used)
    ):
        yield used, "0 leaves no write buffer and no cache, so every record goes to a file of its own"
    exclusive = "taskmanager.network.memory.buffers-per-channel"
    if options.integer(exclusive) == 0 and not has(options.flink_version, NO_EXCLUSIVE_BUFFERS):
        yield (
            exclusive,
            "before 1.14, every task with a channel from another TaskManager fails without exclusive buffers",
        )
    yield from _pool_doubts(options)
    if options.duration("heartbeat.timeout") == options.duration("heartbeat.interval"):
        yield (
            "heartbeat.timeout",
            "is not more than heartbeat.interval, so a TaskManager can be lost without a fault",
        )
    delays = ((key, change) for key, change in SLOT_DELAYS.items() if has(options.flink_version, change))
    if sum(options.duration(key) for key, _ in delays) >= options.duration("slot.request.timeout"):
        sums = f"is not more than {' and '.join(SLOT_DELAYS)} together"
        yield "slot.request.timeout", f"{sums}, so every request for a slot expires before it is looked at"
    yield from ((key, doubt) for key, doubt in memory_doubts(options) if options.is_set(key))
    for key in ignored_settings(options):
        now = options.string(RESTART_TYPE) if options.is_set(RESTART_TYPE) else "not set"
        yield (
            key,
            f"has no effect, in Flink too, because {RESTART_TYPE} is {now} (write {RESTART_TYPE}: {key.split('.')[1]})",
        )
    if prices(options) is not None:
        yield (
            COST,
            "has an effect in virtual time only; real processes ignore it, because their work takes real time",
        )
