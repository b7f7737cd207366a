"""Flink's option keys: those with an effect here (core.options.EFFECTIVE), and all others that Flink knows.

`judge` classifies a key: effective, known without effect, a typo of a known key, or unknown. Defaults, versions and aliases are
those of Flink's configuration reference and its `*Options` classes.
"""

from __future__ import annotations

import difflib
import enum

from msgspec import Struct

from testbed_runtime.core.options import (
    ALIASES,
    BY_KEY,
    HEAP_MB,
    MAX_TCP_CONNECTIONS,
    OWN_PREFIX,
    REQUIRED_PER_GATE,
    SORT_MIN_BUFFERS,
    Option,
)
from testbed_runtime.core.values import SIGNED, is_bare, missing_unit
from testbed_runtime.core.versions import LATEST, number

TYPO_EDITS = 2
"""Largest edit distance (insertions, deletions, substitutions, swaps) at which a key counts as a typo of a known one."""


class KnownKey(Struct, frozen=True):
    """A Flink option. `since` and `removed` are Flink versions; empty: since the first one, or not removed. `aliases` are older names."""

    key: str
    default: str
    since: str = ""
    removed: str = ""
    aliases: tuple[str, ...] = ()


KNOWN: tuple[KnownKey, ...] = (
    KnownKey("taskmanager.memory.fraction", "0.7", "", "1.10"),
    KnownKey("taskmanager.memory.managed.consumer-weights", "", "1.12"),
    KnownKey("taskmanager.memory.framework.off-heap.batch-shuffle.size", "64 mb", "1.13"),
    KnownKey("taskmanager.network.numberOfBuffers", "2048", "0.6", "1.9"),
    KnownKey("taskmanager.network.netty.num-arenas", "-1", "", "2.0", ("taskmanager.net.num-arenas",)),
    KnownKey("taskmanager.network.netty.server.numThreads", "-1", "", "2.0", ("taskmanager.net.server.numThreads",)),
    KnownKey("taskmanager.network.netty.client.numThreads", "-1", "", "2.0", ("taskmanager.net.client.numThreads",)),
    KnownKey("taskmanager.network.netty.server.backlog", "0", "", "2.0", ("taskmanager.net.server.backlog",)),
    KnownKey("taskmanager.network.netty.transport", "auto", "", "2.0", ("taskmanager.net.transport",)),
    KnownKey("taskmanager.network.netty.client.tcp.keepIdleSec", "", "1.18"),
    KnownKey("taskmanager.network.netty.client.tcp.keepIntervalSec", "", "1.18"),
    KnownKey("taskmanager.network.netty.client.tcp.keepCount", "", "1.18"),
    KnownKey("taskmanager.network.compression.codec", "LZ4", "1.10"),
    KnownKey("taskmanager.network.batch-shuffle.compression.enabled", "true", "1.16", "2.0", ("taskmanager.network.blocking-shuffle.compression.enabled",)),
    KnownKey("taskmanager.network.detailed-metrics", "false", "1.3"),
    KnownKey("taskmanager.network.bind-policy", "ip", "1.7"),
    KnownKey("taskmanager.network.adaptive-partitioner.enabled", "false", "2.3"),
    KnownKey("taskmanager.network.adaptive-partitioner.max-traverse-size", "4", "2.3"),
    KnownKey("taskmanager.data.port", "0", "0.6"),
    KnownKey("taskmanager.data.bind-port", "", "1.11"),
    KnownKey("taskmanager.rpc.port", "0"),
    KnownKey("taskmanager.rpc.bind-port", "", "1.11"),
    KnownKey("taskmanager.host", ""),
    KnownKey("taskmanager.bind-host", "", "1.11"),
    KnownKey("taskmanager.exit-on-fatal-akka-error", "false", "", "2.0"),
    KnownKey("taskmanager.debug.memory.log", "false", "", "", ("taskmanager.debug.memory.startLogThread",)),
    KnownKey("taskmanager.runtime.fs-timeout", "0", "", "", ("taskmanager.runtime.fs_timeout",)),
    KnownKey("taskmanager.jvm-exit-on-oom", "false"),
    KnownKey("task.cancellation.interval", "30 s", "", "", ("task.cancellation-interval",)),
    KnownKey("task.cancellation.timers.timeout", "7.5 s", "", "", ("timerservice.exceptional.shutdown.timeout",)),
    KnownKey("jobmanager.rpc.address", ""),
    KnownKey("jobmanager.rpc.port", "6123"),
    KnownKey("jobmanager.rpc.bind-port", "", "1.11"),
    KnownKey("jobmanager.bind-host", "", "1.11"),
    KnownKey("jobmanager.memory.process.size", "", "1.11"),
    KnownKey("jobmanager.memory.flink.size", "", "1.11"),
    KnownKey("jobmanager.memory.heap.size", "", "1.11", "", ("jobmanager.heap.size",)),
    KnownKey("jobmanager.memory.off-heap.size", "128 mb", "1.11"),
    KnownKey("jobmanager.memory.jvm-metaspace.size", "256 mb", "1.11"),
    KnownKey("jobmanager.memory.jvm-overhead.fraction", "0.1", "1.11"),
    KnownKey("jobmanager.execution.attempts-history-size", "16", "", "", ("job-manager.max-attempts-history-size",)),
    KnownKey("jobmanager.archive.fs.dir", ""),
    KnownKey("jobmanager.scheduler", "default", "1.13"),
    KnownKey("jobmanager.adaptive-scheduler.resource-wait-timeout", "5 min", "1.13"),
    KnownKey("jobmanager.adaptive-scheduler.resource-stabilization-timeout", "10 s", "1.13"),
    KnownKey("jobmanager.future-pool.size", ""),
    KnownKey("jobmanager.io-pool.size", ""),
    KnownKey("pekko.lookup.timeout", "10 s", "1.18", "", ("akka.lookup.timeout",)),
    KnownKey("pekko.framesize", "10485760b", "1.18", "", ("akka.framesize",)),
    KnownKey("pekko.retry-gate-closed-for", "50", "1.18", "", ("akka.retry-gate-closed-for",)),
    KnownKey("pekko.throughput", "15", "1.18", "", ("akka.throughput",)),
    KnownKey("pekko.ssl.enabled", "true", "1.18", "", ("akka.ssl.enabled",)),
    KnownKey("pekko.log.lifecycle.events", "false", "1.18", "", ("akka.log.lifecycle.events",)),
    KnownKey("pekko.fork-join-executor.parallelism-factor", "2.0", "1.18", "", ("akka.fork-join-executor.parallelism-factor",)),
    KnownKey("pekko.fork-join-executor.parallelism-min", "8", "1.18", "", ("akka.fork-join-executor.parallelism-min",)),
    KnownKey("pekko.fork-join-executor.parallelism-max", "64", "1.18", "", ("akka.fork-join-executor.parallelism-max",)),
    KnownKey("pekko.startup-timeout", "", "1.18", "", ("akka.startup-timeout",)),
    KnownKey("akka.client.timeout", "60 s", "", "2.0"),
    KnownKey("web.timeout", "10 min"),
    KnownKey("web.refresh-interval", "3000", "", "", ("jobmanager.web.refresh-interval",)),
    KnownKey("rest.port", "8081", "", "", ("web.port", "jobmanager.web.port")),
    KnownKey("rest.address", ""),
    KnownKey("rest.bind-port", "8081"),
    KnownKey("rest.bind-address", "", "", "", ("web.address", "jobmanager.web.address")),
    KnownKey("slot.idle.timeout", "50 s"),
    KnownKey("slotmanager.number-of-slots.min", "0", "1.19"),
    KnownKey("slotmanager.number-of-slots.max", "", "1.11"),
    KnownKey("slotmanager.redundant-taskmanager-num", "0", "1.12"),
    KnownKey("resourcemanager.taskmanager-timeout", "30 s", "", "", ("slotmanager.taskmanager-timeout",)),
    KnownKey("resourcemanager.taskmanager-registration.timeout", "5 min"),
    KnownKey("resourcemanager.job.timeout", "5 min"),
    KnownKey("resourcemanager.start-worker.retry-interval", "3 s", "1.13"),
    KnownKey("parallelism.default", "1"),
    KnownKey("pipeline.max-parallelism", "-1", "1.10"),
    KnownKey("pipeline.operator-chaining.enabled", "true", "1.18", "", ("pipeline.operator-chaining",)),
    KnownKey("pipeline.auto-watermark-interval", "200 ms", "1.10"),
    KnownKey("pipeline.name", "", "1.12"),
    KnownKey("execution.runtime-mode", "STREAMING", "1.12"),
    KnownKey("execution.batch-shuffle-mode", "ALL_EXCHANGES_BLOCKING", "1.14"),
    KnownKey("execution.checkpointing.unaligned.forced", "false", "1.13"),
    KnownKey("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", "5", "1.17"),
    KnownKey("execution.checkpointing.dir", "", "1.20", "", ("state.checkpoints.dir", "state.backend.fs.checkpointdir")),
    KnownKey("execution.checkpointing.savepoint-dir", "", "1.20", "", ("state.savepoints.dir", "savepoints.state.backend.fs.dir")),
    KnownKey("execution.checkpointing.storage", "", "1.20", "", ("state.checkpoint-storage",)),
    KnownKey("state.backend.rocksdb.memory.high-prio-pool-ratio", "0.1", "1.10"),
    KnownKey("state.backend.rocksdb.localdir", ""),
    KnownKey("state.backend.rocksdb.timer-service.factory", "ROCKSDB", "1.8"),
    KnownKey("state.backend.rocksdb.predefined-options", "DEFAULT"),
    KnownKey("execution.checkpointing.data-inline-threshold", "20 kb", "1.20", "", ("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold")),
    KnownKey("execution.checkpointing.write-buffer-size", "4096", "1.20", "", ("state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size")),
    KnownKey("high-availability.storageDir", "", "", "", ("high-availability.zookeeper.storageDir", "recovery.zookeeper.storageDir")),
    KnownKey("high-availability.cluster-id", "/default", "", "", ("high-availability.zookeeper.path.namespace", "recovery.zookeeper.path.namespace")),
    KnownKey("kubernetes.cluster-id", "", "1.10"),
    KnownKey("kubernetes.namespace", "default", "1.10"),
    KnownKey("kubernetes.container.image.ref", "", "1.17", "", ("kubernetes.container.image",)),
    KnownKey("metrics.latency.granularity", "operator"),
    KnownKey("metrics.latency.history-size", "128"),
    KnownKey("metrics.reporters", ""),
    KnownKey("metrics.system-resource", "false"),
    KnownKey("blob.server.port", "0"),
    KnownKey("blob.fetch.retries", "5"),
    KnownKey("io.tmp.dirs", "", "", "", ("taskmanager.tmp.dirs",)),
    KnownKey("env.java.opts.all", "", "1.17", "", ("env.java.opts",)),
    KnownKey("env.java.opts.taskmanager", ""),
    KnownKey("env.java.opts.jobmanager", ""),
    KnownKey("classloader.resolve-order", "child-first"),
    KnownKey("security.ssl.protocol", "TLSv1.2"),
    KnownKey("security.ssl.provider", "JDK", "1.9"),
    KnownKey("security.ssl.verify-hostname", "true"),
    KnownKey("security.ssl.internal.keystore", "", "1.6", "", ("security.ssl.keystore",)),
    KnownKey("security.ssl.internal.keystore-password", "", "1.6", "", ("security.ssl.keystore-password",)),
    KnownKey("security.ssl.internal.key-password", "", "1.6", "", ("security.ssl.key-password",)),
    KnownKey("security.ssl.internal.truststore", "", "1.6", "", ("security.ssl.truststore",)),
    KnownKey("security.ssl.internal.truststore-password", "", "1.6", "", ("security.ssl.truststore-password",)),
    KnownKey("security.ssl.internal.cert.fingerprint", ""),
    KnownKey("security.ssl.internal.session-cache-size", "-1", "", "", ("security.ssl.session-cache-size",)),
    KnownKey("security.ssl.internal.session-timeout", "-1", "", "", ("security.ssl.session-timeout",)),
    KnownKey("security.ssl.internal.close-notify-flush-timeout", "-1", "", "", ("security.ssl.close-notify-flush-timeout",)),
    KnownKey("security.ssl.rest.enabled", "false", "1.6"),
    KnownKey("blob.service.ssl.enabled", "true"),
)  # fmt: skip
"""Keys that Flink knows and that have no effect on a testbed."""

WITHOUT_EFFECT: dict[str, KnownKey] = {
    **{k.key: k for k in KNOWN},
    **{a: k for k in KNOWN for a in k.aliases if a not in ALIASES},
}
AREAS_WITHOUT_EFFECT = (
    "akka.", "blob.", "classloader.", "cleanup-strategy", "client.", "containerized.", "dstl.", "env.", "external-resource", "flink.hadoop.",
    "fs.", "high-availability.kubernetes.", "high-availability.zookeeper.", "historyserver.", "jmx.", "job-event.", "job-result-store.",
    "jobstore.", "kubernetes.", "metrics.", "pekko.", "process.", "python.", "queryable-state.", "rest.", "s3.", "security.",
    "slow-task-detector.", "sql-client.", "sql-gateway.", "state.", "table.", "traces.", "user.", "web.", "yarn.", "zookeeper.",
)  # fmt: skip
"""Prefixes of keys about components that a testbed does not have, for example a REST server, metric reporters, or file systems. A key
with such a prefix that is neither effective nor a typo of a known key has no effect."""
_TYPO_TARGETS = sorted({*BY_KEY, *ALIASES, *WITHOUT_EFFECT})


class Standing(enum.Enum):
    """How a key is classified."""

    EFFECTIVE = "effective"
    WITHOUT_EFFECT = "without effect here"
    TYPO = "typo"
    UNKNOWN = "unknown"


class Judgement(Struct, frozen=True):
    """The classification of a key. `canonical` is the key to use instead of an alias or a typo; `note` is a message, often empty."""

    standing: Standing
    canonical: str
    note: str = ""


def judge(key: str, flink_version: str) -> Judgement:
    """Classify a key for a version of Flink. Pure and total."""
    canonical = ALIASES.get(key, key)
    if canonical in BY_KEY:
        return Judgement(Standing.EFFECTIVE, canonical, _version_note(key, BY_KEY[canonical], flink_version))
    if key in WITHOUT_EFFECT:
        known = WITHOUT_EFFECT[key]
        return Judgement(
            Standing.WITHOUT_EFFECT,
            known.key,
            _note(key, known.key, known.since, known.removed, flink_version),
        )
    near = _typo_of(key)
    if near:
        return Judgement(Standing.TYPO, near)
    if key.startswith(AREAS_WITHOUT_EFFECT):
        return Judgement(Standing.WITHOUT_EFFECT, key)
    if key.startswith(OWN_PREFIX):
        own = [k for k in _TYPO_TARGETS if k.startswith(OWN_PREFIX)]
        return Judgement(Standing.TYPO, difflib.get_close_matches(key, own, n=1, cutoff=0.0)[0])
    return Judgement(Standing.UNKNOWN, key)


def _typo_of(key: str) -> str:
    """Return the nearest known key within TYPO_EDITS of this one, or an empty string."""
    candidates = difflib.get_close_matches(key, _TYPO_TARGETS, n=5, cutoff=0.8)
    near = min(candidates, key=lambda known: edits(key, known), default="")
    return near if near and edits(key, near) <= TYPO_EDITS else ""


def edits(a: str, b: str) -> int:
    """Return the edit distance: insertions, deletions, substitutions and swaps of neighbours."""
    before, row = list[int](), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        oldest, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, oldest[j - 2] + 1)
            row.append(best)
    return row[-1]


_NOT_READ_BY_2 = ("security.ssl.enabled", "jobmanager.heap.size", "taskmanager.heap.size", HEAP_MB)
"""Older names of options that Flink 2 does not read. It reads all other older names, as deprecated keys."""


def _version_note(key: str, option: Option, flink_version: str) -> str:
    # an older name is correct in versions before the rename
    since = option.since if key == option.key else ""
    if key == option.key and (older := option.name_in(flink_version)) != key:
        return f"{key} came with Flink {since}; {flink_version} ignores it and reads {older}, but here it has its effect"
    return _note(key, option.key, since, option.removed, flink_version)


def _note(key: str, canonical: str, since: str, removed: str, flink_version: str) -> str:
    if since and number(since) > number(flink_version):
        return f"{key} came with Flink {since}; {flink_version} ignores it (leave it out, or choose {since} or later)"
    if removed and number(removed) <= number(flink_version):
        return f"{key} was removed in Flink {removed}; {flink_version} does not read it, but here the key still has its effect"
    if key != canonical and number(flink_version) >= (2, 0):
        if key in _NOT_READ_BY_2:
            effect = ", but here the key still has its effect" if canonical in BY_KEY else ""
            return f"{key} was removed in Flink 2.0; {flink_version} reads only {canonical}{effect}"
        return f"{key} is called {canonical} today, and Flink {flink_version} still reads {key}"
    return ""


def is_read(key: str, flink_version: str) -> bool:
    """Return whether a version of Flink reads an option with an effect here by this key."""
    option, version = BY_KEY[ALIASES.get(key, key)], number(flink_version)
    is_new = key == option.key and option.since and number(option.since) > version
    return not is_new and not (option.removed and number(option.removed) <= version)


def value_problem(option: Option, value: str, version: str = LATEST) -> str:
    """Return why a value does not fit its option in a version of Flink, or an empty string if it does."""
    try:
        parsed = option.parse(value, version)
    except ValueError as error:
        if option.in_millis(version):
            default = option.written(option.default_in(version), version)
            return f"{value!r} is not a duration: write whole milliseconds, as in {default!r}"
        return str(error)
    least = _LEAST.get(option.key)
    if least is not None and float(parsed) < least:
        return (
            f"{value!r} is too small: it must be at least {least}{' byte' if option.type == 'memory' else ''}"
        )
    return ""


_LEAST = {
    "taskmanager.memory.segment-size": 1,
    "taskmanager.network.memory.buffers-per-channel": 0,
    "taskmanager.network.memory.floating-buffers-per-gate": 1,
    REQUIRED_PER_GATE: 1,
    SORT_MIN_BUFFERS: 1,
    MAX_TCP_CONNECTIONS: 1,
    "taskmanager.network.request-backoff.initial": 0,
    "taskmanager.network.request-backoff.max": 0,
    "web.backpressure.delay-between-samples": 0,
    "web.backpressure.refresh-interval": 0,
}
"""The smallest values of options from which sizes and times are calculated."""

_SHARES = ("restart-strategy.exponential-delay.jitter-factor",)
"""Options whose value is a share. A value above 1 was probably meant as a percentage."""


def value_doubt(option: Option, value: str, version: str, *, written: str = "") -> str:
    """Return why a value that fits its option was probably not meant, or is not read by this version of Flink; empty without a doubt.
    `written` is the key as the user wrote it."""
    if option.in_millis(version):
        millis = option.written(value, version)
        until = "" if option.millis_until == LATEST else f" {version}"
        return (
            ""
            if is_bare(value) or SIGNED.fullmatch(value)
            else f"Flink{until} reads whole milliseconds here, without a unit (write {millis!r})"
        )
    if option.type == "duration" and not written.endswith("-ms"):
        return missing_unit(value)
    if option.key in _SHARES and option.parse(value) > 1:
        return f"{value} is a share of {option.parse(value) * 100:,.0f} % (write '0.1' for 10 %)"
    return ""
