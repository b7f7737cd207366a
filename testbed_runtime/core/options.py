"""Flink's configuration options that have an effect here: keys, types, defaults by version (Flink's *Options classes).

`api.catalogue` uses EFFECTIVE to recognise typos, aliases and keys without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.exchange.frames import WireVersion
from testbed_runtime.core.values import (
    PARSERS,
    SIGNED,
    is_bare,
    parse_duration,
)
from testbed_runtime.core.versions import (
    BUFFERS_TIMEOUT_RENAMED,
    CHECKPOINTS_AFTER_FINISH,
    LATEST,
    ONE_CONNECTION,
    PARTIAL_BUFFERS,
    PEKKO,
    REQUESTS_WAIT_AT_PRODUCER,
    REQUIRED_BUFFERS_LIMITED,
    VERSIONS,
    has,
    nearest_version,
    number,
)

_KUBERNETES_HA = "org.apache.flink.kubernetes.highavailability.KubernetesHaServicesFactory"
"""Value of `high-availability` for Kubernetes until 1.14; later versions accept it too."""
LATENCY_INTERVAL = "metrics.latency.interval"
LOCAL_BACKUP = "execution.checkpointing.local-backup.enabled"
LOCAL_RECOVERY = "execution.state-recovery.from-local"
MAX_TCP_CONNECTIONS = "taskmanager.network.max-num-tcp-connections"
STANDALONE_START_UP = "resourcemanager.standalone.start-up-time"
LONGS = "1.19"
"""The last version in which several durations are whole milliseconds (FLINK-35359)."""
OWN_PREFIX = "headgate."
"""Headgate's own keys; an unknown one is always an error."""
HEAP_MB = "taskmanager.heap.mb"
"""An older name of an option for a memory size, whose value is a number of megabytes."""
EXCLUSIVE_BUFFERS = "taskmanager.network.memory.buffers-per-channel"
FLOATING_BUFFERS = "taskmanager.network.memory.floating-buffers-per-gate"
REQUIRED_PER_GATE = "taskmanager.network.memory.read-buffer.required-per-gate.max"
SAMPLES = "web.backpressure.num-samples"
SORT_MIN_BUFFERS = "taskmanager.network.sort-shuffle.min-buffers"
SORT_MIN_PARALLELISM = "taskmanager.network.sort-shuffle.min-parallelism"


class Option(Struct, frozen=True):
    """An option. `default` is the newest one, in Flink's syntax, or empty if there is none. `until` lists older ones in order:
    the last version that had it, and the default. `choices` are all values, in any case; `synonyms` are other spellings of them."""

    key: str
    type: str
    default: str
    doc: str
    aliases: tuple[str, ...] = ()
    until: tuple[tuple[str, str], ...] = ()
    choices: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, str], ...] = ()
    fallback: str = ""
    """Key of the option whose value counts if this one is not set."""
    since: str = ""
    """The first version of Flink that has it; empty if unknown."""
    removed: str = ""
    """The version of Flink that no longer knows it."""
    millis_until: str = ""
    """The last version of Flink that reads a whole number of milliseconds, and refuses a unit."""

    def default_in(self, flink_version: str) -> str:
        """Return the default of a version of Flink."""
        wanted = number(flink_version)
        return next((text for last, text in self.until if wanted <= number(last)), self.default)

    def is_removed_in(self, flink_version: str) -> bool:
        """Whether a version of Flink no longer reads it."""
        return self.removed != "" and number(self.removed) <= number(flink_version)

    def in_millis(self, flink_version: str) -> bool:
        """Whether a version of Flink reads a whole number of milliseconds, and refuses a unit."""
        return self.millis_until != "" and number(flink_version) <= number(self.millis_until)

    def written(self, text: str, flink_version: str) -> str:
        """Return a duration as a version of Flink reads it: without a unit if it refuses one."""
        if not self.in_millis(flink_version):
            return text
        return f"{self.parse(text, flink_version) * 1000:.0f}"

    def is_newer_than(self, flink_version: str) -> bool:
        """Whether its key came after a version of Flink, which reads only its older names, if there are any."""
        return self.since != "" and number(flink_version) < number(self.since)

    def name_in(self, flink_version: str) -> str:
        """Return the key by which a version of Flink knows it: the older one before it was renamed."""
        return self.aliases[0] if self.aliases and self.is_newer_than(flink_version) else self.key

    def parse(self, text: str, flink_version: str = LATEST) -> Any:
        """Return a value as Flink reads it: seconds, bytes, a number, a boolean, or a text. Raises ValueError."""
        if self.in_millis(flink_version) and SIGNED.fullmatch(text):
            return int(text) / 1000
        if self.type == "duration":
            return parse_duration(text, flink_version)
        parsed = PARSERS[self.type](text)
        if not self.choices:
            return parsed
        spelled = dict(self.synonyms).get(parsed.lower(), parsed).lower()
        for choice in self.choices:
            if choice.lower() == spelled:
                return choice
        raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")


EFFECTIVE: tuple[Option, ...] = (
    Option("taskmanager.memory.segment-size", "memory", "32 kb", "Size of a network buffer."),
    Option("taskmanager.memory.process.size", "memory", "1728 mb", "Memory of a TaskManager's process. The default is that of Flink's shipped configuration; it is used if no other size is set.", since="1.10"),
    Option("taskmanager.memory.flink.size", "memory", "", "Total Flink memory: the process without JVM metaspace and overhead.", aliases=("taskmanager.heap.size", HEAP_MB), since="1.10"),
    Option("taskmanager.memory.network.fraction", "double", "0.1", "Share of Flink memory for network buffers.", aliases=("taskmanager.network.memory.fraction",), since="1.10"),
    Option("taskmanager.memory.network.min", "memory", "64 mb", "Minimum network memory.", aliases=("taskmanager.network.memory.min",), since="1.10"),
    Option("taskmanager.memory.network.max", "memory", "9223372036854775807 b", "Maximum network memory.", until=(("1.16", "1 gb"),), aliases=("taskmanager.network.memory.max",), since="1.10"),
    Option("taskmanager.memory.managed.fraction", "double", "0.4", "Share of Flink memory for state backends; it reduces the task heap.", since="1.10"),
    Option("taskmanager.memory.managed.size", "memory", "", "Managed memory, instead of its fraction.", aliases=("taskmanager.memory.size",), since="1.10"),
    Option("taskmanager.memory.task.heap.size", "memory", "", "Task heap. If it is set, network memory is what is left over.", since="1.10"),
    Option("taskmanager.memory.task.off-heap.size", "memory", "0 b", "Task off-heap memory.", since="1.10"),
    Option("taskmanager.memory.framework.heap.size", "memory", "128 mb", "Heap of the TaskExecutor itself.", since="1.10"),
    Option("taskmanager.memory.framework.off-heap.size", "memory", "128 mb", "Off-heap memory of the TaskExecutor itself.", since="1.10"),
    Option("taskmanager.memory.jvm-metaspace.size", "memory", "256 mb", "Metaspace of the JVM.", since="1.10"),
    Option("taskmanager.memory.jvm-overhead.fraction", "double", "0.1", "Share of the process for the JVM's overhead.", since="1.10"),
    Option("taskmanager.memory.jvm-overhead.min", "memory", "192 mb", "Minimum overhead.", since="1.10"),
    Option("taskmanager.memory.jvm-overhead.max", "memory", "1 gb", "Maximum overhead.", since="1.10"),
    Option(EXCLUSIVE_BUFFERS, "integer", "2", "Exclusive buffers per channel.", since="1.3", removed="2.0"),
    Option(FLOATING_BUFFERS, "integer", "8", "Floating buffers per gate.", since="1.3", removed="2.0"),
    Option(REQUIRED_PER_GATE, "integer", "", "Most buffers that an input gate requires; more are taken if they are free. Unset: 1000 for a blocking result, no limit for others (from 1.17).", since=REQUIRED_BUFFERS_LIMITED.since),
    Option("taskmanager.network.memory.max-buffers-per-channel", "integer", "10", "Maximum buffers of a subpartition.", since="1.11", removed="2.0"),
    Option("taskmanager.network.memory.max-overdraft-buffers-per-gate", "integer", "20", "Overdraft buffers that a result partition may request.", until=(("1.15", "0"), ("1.20", "5")), since="1.16", removed="2.0"),
    Option(SORT_MIN_BUFFERS, "integer", "512", "Buffers that a sorted blocking result requires.", until=(("1.14", "64"),), since="1.12"),
    Option(SORT_MIN_PARALLELISM, "integer", "1", "Subpartitions from which on a blocking result is sorted (`SortMergeResultPartition`); before 1.15, none is by default. It decides the size of the pool; the file is the same.", until=(("1.14", "2147483647"),), since="1.12", removed="2.0"),
    Option("taskmanager.memory.min-segment-size", "memory", "256 b", "Minimum size of a buffer with debloating.", until=(("1.14", "1 kb"),), since="1.14"),
    Option("taskmanager.memory.starting-segment-size", "memory", "1 kb", "Size of a buffer with debloating before the first announcement (from 2.0).", since="2.0"),
    Option("taskmanager.network.memory.buffer-debloat.enabled", "boolean", "false", "Let buffers shrink so that data in flight is consumed within the target time.", since="1.14"),
    Option("taskmanager.network.memory.buffer-debloat.target", "duration", "1 s", "Time in which data in flight should be consumed.", since="1.14"),
    Option("taskmanager.network.memory.buffer-debloat.period", "duration", "200 ms", "Time between two calculations of the buffer size.", until=(("1.14", "500 ms"),), since="1.14"),
    Option("taskmanager.network.memory.buffer-debloat.samples", "integer", "20", "Number of calculations of the buffer size that are averaged.", since="1.14"),
    Option("taskmanager.network.memory.buffer-debloat.threshold-percentages", "integer", "25", "Changes of the buffer size below this percentage are not announced.", until=(("1.14", "50"),), since="1.14"),
    Option("taskmanager.network.memory.buffers-request-timeout", "duration", "30 s", "Timeout of a request for exclusive buffers.", aliases=("taskmanager.network.memory.exclusive-buffers-request-timeout-ms",), since=BUFFERS_TIMEOUT_RENAMED.since, millis_until=LONGS),
    Option("taskmanager.network.request-backoff.initial", "duration", "100", "First backoff of a partition request, in milliseconds.", aliases=("taskmanager.net.request-backoff.initial",), since="1.3", millis_until=LATEST),
    Option("taskmanager.network.request-backoff.max", "duration", "10000", "Maximum backoff, in milliseconds. From 1.19 on it limits the retriggers of remote channels.", aliases=("taskmanager.net.request-backoff.max",), since="1.3", millis_until=LATEST),
    Option("taskmanager.network.partition-request-timeout", "duration", "10 s", "How long a request waits at the producer (from 1.19).", since="1.19"),
    Option("taskmanager.network.retries", "integer", "0", "Additional TCP connect attempts after the first.", since="1.12"),
    Option(MAX_TCP_CONNECTIONS, "integer", "1", "Most TCP connections for data from one TaskManager to another; less than 1 counts as 1. Before 1.15, each exchange has its own.", since=ONE_CONNECTION.since, removed="2.0"),
    Option("taskmanager.network.netty.client.connectTimeoutSec", "integer", "120", "TCP connect timeout in seconds. 0: none. A negative one: 30 s, the default of Netty.", aliases=("taskmanager.net.client.connectTimeoutSec",)),
    Option("taskmanager.network.netty.sendReceiveBufferSize", "integer", "0", "Size of the send and receive buffers of a data socket in bytes; 0 or less: the default of the operating system. No effect in virtual time.", aliases=("taskmanager.net.sendReceiveBufferSize",), removed="2.0"),
    Option("taskmanager.network.tcp-connection.enable-reuse-across-jobs", "boolean", "true", "Keep a connection open after its last channel.", since="1.15"),
    Option("taskmanager.network.credit-model", "boolean", "true", "false: legacy mode without credit.", aliases=("taskmanager.network.credit-model.enabled",), since="1.5", removed="1.10"),
    Option("security.ssl.internal.enabled", "boolean", "false", "TLS between TaskManagers, on the data port; both ends show the certificate of the testbed. RPC stays HTTP with a token. No effect in virtual time.", aliases=("security.ssl.enabled",), since="1.6"),
    Option("taskmanager.data.ssl.enabled", "boolean", "true", "false: no TLS on the data port, although `security.ssl.internal.enabled` is true.", since="1.2"),
    Option("security.ssl.algorithms", "string", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "Cipher suites of TLS 1.2 with an RSA key, in order of preference, separated by commas. The default until 2.2 costs much more CPU.", until=(("2.2", "TLS_RSA_WITH_AES_128_CBC_SHA"),)),
    Option("security.ssl.internal.handshake-timeout", "integer", "-1", "Time limit of a TLS handshake in milliseconds; 0: none; less: 10 s.", aliases=("security.ssl.handshake-timeout",)),
    Option("taskmanager.numberOfTaskSlots", "integer", "1", "Slots of a TaskManager; refused here, write `taskManagers.slots`."),
    Option("execution.buffer-timeout.interval", "duration", "100 ms", "Interval of the output flusher; 0 flushes after every record.", aliases=("execution.buffer-timeout",), since="1.18"),
    Option("execution.buffer-timeout.enabled", "boolean", "true", "false: only full buffers are sent (a timeout of -1).", since="1.18"),
    Option("pipeline.object-reuse", "boolean", "false", "A `python` operator gives its function the same record object each time, which the function must not keep. Other operators never copy records.", since="1.10"),
    Option(LATENCY_INTERVAL, "duration", "0 ms", "Time between the latency markers of a source subtask; 0: none. They are recorded per source subtask and receiving subtask (Flink's granularity `subtask`).", millis_until=LONGS),
    Option("execution.checkpointing.interval", "duration", "0 ms", "Time between checkpoints, at least 10 ms; if unset, there are no checkpoints."),
    Option("execution.checkpointing.timeout", "duration", "10 min", "A checkpoint that takes longer expires."),
    Option("execution.checkpointing.min-pause", "duration", "0 ms", "Minimum pause between checkpoints."),
    Option("execution.checkpointing.max-concurrent-checkpoints", "integer", "1", "Maximum concurrent checkpoints."),
    Option("execution.checkpointing.mode", "string", "EXACTLY_ONCE", "`EXACTLY_ONCE` aligns barriers, `AT_LEAST_ONCE` does not.", choices=("EXACTLY_ONCE", "AT_LEAST_ONCE")),
    Option("execution.checkpointing.unaligned.enabled", "boolean", "false", "Barriers overtake data, which becomes part of the checkpoint.", aliases=("execution.checkpointing.unaligned",), since="1.17"),
    Option("execution.checkpointing.aligned-checkpoint-timeout", "duration", "0 ms", "Age at which an aligned checkpoint becomes unaligned; 0: it is unaligned from the start.", aliases=("execution.checkpointing.alignment-timeout",), since="1.14"),
    Option("execution.checkpointing.tolerable-failed-checkpoints", "integer", "0", "Failed checkpoints that are tolerated before the job fails."),
    Option("execution.checkpointing.checkpoints-after-tasks-finish", "boolean", "true", "Take checkpoints after some tasks have finished; a bounded source then waits for a final one. No effect before 1.14.", until=(("1.14", "false"),), aliases=("execution.checkpointing.checkpoints-after-tasks-finish.enabled",), since="1.20"),
    Option("restart-strategy.type", "string", "exponential-delay", "Restart strategy. If unset, a job without checkpoints never restarts.", until=(("1.18", "fixed-delay"),), aliases=("restart-strategy",), since="1.17", choices=("none", "fixed-delay", "failure-rate", "exponential-delay"), synonyms=(("disable", "none"), ("off", "none"), ("fixeddelay", "fixed-delay"), ("failurerate", "failure-rate"), ("exponentialdelay", "exponential-delay"))),
    Option("jobmanager.execution.failover-strategy", "string", "region", "`region`: a failure restarts the region of the failed task, and those that depend on it. `full`: it restarts all tasks.", choices=("region", "full")),
    Option("restart-strategy.fixed-delay.attempts", "integer", "1", "Maximum restarts before the job fails. Until 1.18, unlimited if `restart-strategy.type` is unset."),
    Option("restart-strategy.fixed-delay.delay", "duration", "1 s", "Delay before a restart."),
    Option("restart-strategy.failure-rate.max-failures-per-interval", "integer", "1", "Failures allowed per interval."),
    Option("restart-strategy.failure-rate.failure-rate-interval", "duration", "1 min", "The interval in which failures are counted."),
    Option("restart-strategy.failure-rate.delay", "duration", "1 s", "Delay before a restart."),
    Option("restart-strategy.exponential-delay.initial-backoff", "duration", "1 s", "First delay.", since="1.13"),
    Option("restart-strategy.exponential-delay.max-backoff", "duration", "1 min", "Largest delay.", until=(("1.18", "5 min"),), since="1.13"),
    Option("restart-strategy.exponential-delay.backoff-multiplier", "double", "1.5", "Factor by which the delay grows with each failure.", until=(("1.18", "2.0"),), since="1.13"),
    Option("restart-strategy.exponential-delay.reset-backoff-threshold", "duration", "1 h", "Time without failures after which the backoff is reset.", since="1.13"),
    Option("restart-strategy.exponential-delay.jitter-factor", "double", "0.1", "Random share by which each delay is longer or shorter.", since="1.13"),
    Option("restart-strategy.exponential-delay.attempts-before-reset-backoff", "integer", "2147483647", "Restarts before the job fails. The count restarts when the backoff is reset.", since="1.19"),
    Option("heartbeat.interval", "duration", "10 s", "Time between heartbeats.", since="1.3", millis_until=LONGS),
    Option("heartbeat.timeout", "duration", "50 s", "A peer that is silent for this long is marked as lost.", since="1.3", millis_until=LONGS),
    Option("heartbeat.rpc-failure-threshold", "integer", "2", "Consecutive failed heartbeat RPCs after which a peer is unreachable; -1 disables it.", until=(("1.13", "-1"),), since="1.14"),
    Option("high-availability.type", "string", "NONE", "`kubernetes`: the JobManager leads as long as it renews a lease in the checkpoint store. There is no standby.", aliases=("high-availability", "recovery.mode"), choices=("NONE", "kubernetes"), synonyms=((_KUBERNETES_HA.lower(), "kubernetes"),), since="1.17"),
    Option("high-availability.kubernetes.leader-election.lease-duration", "duration", "15 s", "A lease that is not renewed for this long may be taken over: a JobManager that replaces a killed one waits this long.", since="1.12"),
    Option("high-availability.kubernetes.leader-election.renew-deadline", "duration", "15 s", "A JobManager that cannot renew its lease for this long gives up its leadership: its job restarts.", since="1.12"),
    Option("high-availability.kubernetes.leader-election.retry-period", "duration", "5 s", "Time between attempts to renew or to acquire the lease.", since="1.12"),
    Option("pekko.ask.timeout", "duration", "10 s", "Timeout of an RPC.", aliases=("akka.ask.timeout",), since=PEKKO.since),
    Option("pekko.tcp.timeout", "duration", "20 s", "Timeout of an RPC connection; 0: none.", aliases=("akka.tcp.timeout",), since=PEKKO.since),
    Option("cluster.registration.initial-timeout", "duration", "100 ms", "Timeout of the first registration attempt; it doubles with each attempt.", millis_until=LONGS),
    Option("cluster.registration.max-timeout", "duration", "30 s", "Maximum timeout of a registration attempt.", millis_until=LONGS),
    Option("cluster.registration.error-delay", "duration", "10 s", "Pause after an error.", millis_until=LONGS),
    Option("cluster.registration.refused-registration-delay", "duration", "30 s", "Pause after a refusal.", millis_until=LONGS),
    Option("taskmanager.registration.timeout", "duration", "5 min", "A TaskManager that cannot register with a ResourceManager for this long terminates.", aliases=("taskmanager.maxRegistrationDuration",)),
    Option("taskmanager.slot.timeout", "duration", "10 s", "An allocated slot is freed if no JobMaster accepts it for this long; `pekko.ask.timeout` if unset.", fallback="pekko.ask.timeout", since="1.13"),
    Option("slot.request.timeout", "duration", "5 min", "A job that does not get its slots for this long fails.", millis_until=LONGS),
    Option("slot.request.max-interval", "duration", "20 ms", "Time from the last change of the slots that a job requires until the JobMaster requests them (from 2.0).", until=(("1.20", "0 ms"),), since="2.0"),
    Option("slotmanager.requirement-check.delay", "duration", "50 ms", "Time from a change of the slots, or of those that a job requires, until the ResourceManager allocates slots (from 1.16). Changes during this time do not extend it.", until=(("1.15", "0 ms"),), since="1.16"),
    Option(STANDALONE_START_UP, "duration", "0 ms", "A standalone ResourceManager that has run for this long fails requests for more slots than are free at once (from 1.13). 0: it never does, as an active ResourceManager. Less than 0, until 1.19: `slot.request.timeout`. 0 is Headgate's default; that of a standalone Flink is `slot.request.timeout`.", since="1.9", millis_until=LONGS),
    Option("cluster.evenly-spread-out-slots", "boolean", "true", "`true`: slots are spread over all TaskManagers. `false`: one TaskManager is filled after the other, which is Flink's default. Headgate's default is `true`, so that every TaskManager has tasks. Flink 2 has only `taskmanager.load-balance.mode`.", since="1.10", removed="2.0"),
    Option("taskmanager.load-balance.mode", "string", "NONE", "`SLOTS`: as `cluster.evenly-spread-out-slots: true`. `NONE`: that option decides, and if it is not set either, one TaskManager is filled after the other. `TASKS` is not implemented.", choices=("NONE", "SLOTS"), since="1.19"),
    Option("task.cancellation.timeout", "duration", "180 s", "A task that takes longer to cancel terminates its TaskManager.", millis_until=LONGS),
    Option(SAMPLES, "integer", "100", "Samples of back-pressure in one round.", aliases=("jobmanager.web.backpressure.num-samples",), removed="1.13"),
    Option("web.backpressure.delay-between-samples", "duration", "50", "Time between two of them, in milliseconds.", aliases=("jobmanager.web.backpressure.delay-between-samples",), removed="1.13", millis_until=LATEST),
    Option("web.backpressure.refresh-interval", "duration", "60000", "Time from the beginning of one round of samples to the next, in milliseconds.", aliases=("jobmanager.web.backpressure.refresh-interval",), removed="1.13", millis_until=LATEST),
    Option("execution.checkpointing.externalized-checkpoint-retention", "string", "NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION keeps the last checkpoints of a trial in the run's folder, below files/<trial>/jobs.", choices=("RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"), since="1.11"),
    Option("execution.checkpointing.num-retained", "integer", "2", "Completed checkpoints that a job keeps in its store. Flink's default is 1, which also counts if the value is less than 1. Headgate's default is 2.", aliases=("state.checkpoints.num-retained",), since="1.20"),
    Option("execution.state-recovery.path", "string", "", "Folder files/<trial> of a kept checkpoint from which the job starts. For a run in a cluster, use `headgate run --from-checkpoint`, which copies the checkpoint there.", aliases=("execution.savepoint.path",), since="1.20"),
    Option("execution.checkpointing.incremental", "boolean", "false", "Store only the files that no earlier checkpoint has stored (rocksdb).", aliases=("state.backend.incremental",), since="1.20"),
    Option("state.backend.type", "string", "hashmap", "Keyed state: in memory, or in sorted files on the TaskManager's disk.", aliases=("state.backend",), choices=("hashmap", "rocksdb"), since="1.17"),
    Option("state.backend.rocksdb.memory.managed", "boolean", "true", "The stores of a slot share its managed memory; false: each has 64 mb of write buffers and 8 mb of cache.", since="1.10"),
    Option("state.backend.rocksdb.memory.fixed-per-slot", "memory", "", "The stores of a slot share this much memory instead of managed memory, whatever `state.backend.rocksdb.memory.managed` says.", since="1.10"),
    Option("state.backend.rocksdb.memory.write-buffer-ratio", "double", "0.5", "Share of that memory for write buffers; the rest caches blocks of files.", since="1.10"),
    Option("state.backend.rocksdb.memory.high-prio-pool-ratio", "double", "0.1", "Share of the cache for index and filter blocks. Headgate's stores have none, so only its limit counts: together with the write buffers, it must be less than the cache.", since="1.10"),
    Option("state.backend.rocksdb.checkpoint.transfer.thread.num", "integer", "4", "Files that a task uploads or downloads at a time. 0 counts as 1, and -1 as the default. Less counts as 1 until 1.19, and is refused later.", until=(("1.12", "1"),), since="1.8"),
    Option(LOCAL_RECOVERY, "boolean", "false", "Restore from a copy on the TaskManager if it has one.", aliases=("state.backend.local-recovery",), since="1.20"),
    Option(LOCAL_BACKUP, "boolean", "false", f"Keep copies of snapshots on the TaskManager; `{LOCAL_RECOVERY}` if unset.", fallback=LOCAL_RECOVERY, since="1.20"),
    Option("taskmanager.cpu.cores", "double", "", "Cores of a TaskManager in virtual time with headgate.simulation.cost. Unset: one core per slot, as in Flink."),
    Option("headgate.simulation.cost", "string", "none", "In virtual time, records, buffers and flushes take as much processor time as in a real Flink of this version, and tasks wait for a free core; none: they take no time. No effect on real processes.", choices=("none", "flink-2.3")),
    Option("headgate.restart.fence-dead-slots", "boolean", "true", "Wait until a dead TaskManager's slots are fenced before redeploying; false is Flink's behaviour."),
    Option("headgate.flow-control", "string", "network", "What limits a source whose consumer is slower: credit (network), the TCP window alone (tcp, the legacy mode), nothing (none), a PID rate controller as in Spark Streaming, or watermarks as in Storm. The last three receive into a queue that pushes back only while a checkpoint barrier or a latency marker waits in it.", choices=("network", "tcp", "none", "pid", "watermark")),
    Option("headgate.flow-control.rate", "integer", "0", "Static limit of each source in records per second, over all its subtasks; 0 for none."),
    Option("headgate.flow-control.queue", "memory", "5 mb", "Size of the receive queue of a task without flow control by the network."),
    Option("headgate.flow-control.overflow", "string", "fail", "What a full receive queue does: fail with an OutOfMemoryError, or drop records.", choices=("fail", "drop")),
    Option("headgate.flow-control.interval", "duration", "1 s", "How often receivers report their queues to the coordinator of pid and watermark."),
    Option("headgate.jobmanager.service-time", "duration", "0 ms", "Service time of each message in the JobMaster's mailbox."),
    Option("headgate.taskmanager.service-time", "duration", "0 ms", "Service time of each message in a TaskExecutor's mailbox."),
)  # fmt: skip

BY_KEY: dict[str, Option] = {o.key: o for o in EFFECTIVE}
ALIASES: dict[str, str] = {alias: o.key for o in EFFECTIVE for alias in o.aliases}


def equal_values(key: str, one: str, other: str) -> bool:
    """Return whether two values of an option mean the same, as `60 s` and `1 min` do. Values that cannot be parsed are compared as text."""
    known = BY_KEY.get(ALIASES.get(key, key))
    try:
        return one == other or (known is not None and bool(known.parse(one) == known.parse(other)))
    except ValueError:
        return False


def unknown_version(path: str, version: object) -> UserError:
    """Return the error of a `flinkVersion` that is not reproduced, with the nearest one that is."""
    listed = ", ".join(VERSIONS)
    near = nearest_version(str(version))
    hint = f"the nearest is '{near}'; known are {listed}" if near else f"use one of {listed}"
    return UserError(path, f"{version!r} is not a known version of Flink", hint)


def value_of(key: str, text: str) -> str:
    """Return a value that is written under a name of an option as its newest name has it."""
    return f"{text} mb" if key == HEAP_MB and is_bare(text) else text


def _counting(key: str, configuration: Mapping[str, str], flink_version: str) -> str:
    """Return the name whose value counts if a configuration has several of an option: that of this version, then the newest, then the
    older ones in their order (Configuration.getRawValueFromOption)."""
    option = BY_KEY.get(ALIASES.get(key, key))
    if option is None or not option.aliases:
        return key
    names = (option.name_in(flink_version), option.key, *option.aliases)
    return next(name for name in names if name in configuration)


def _ignored(key: str, flink_version: str) -> bool:
    """Whether a version of Flink does not have the option of a key yet, under any name."""
    option = BY_KEY.get(key)
    return option is not None and not option.aliases and option.is_newer_than(flink_version)


class Options:
    """A configuration, read with Flink's rules. Unknown keys and options that this version does not have are ignored; `api` has
    already judged them."""

    def __init__(self, configuration: Mapping[str, str], *, flink_version: str = "2.x") -> None:
        if flink_version not in VERSIONS:
            raise unknown_version("flinkVersion", flink_version)
        self.flink_version = flink_version
        self._values = {
            ALIASES.get(key, key): value_of(name, configuration[name])
            for key in configuration
            for name in (_counting(key, configuration, flink_version),)
            if not _ignored(key, flink_version)
        }
        self._parsed: dict[str, Any] = {}

    def text(self, key: str) -> str:
        """Return the configured value as text, or this version's default."""
        option = BY_KEY[key]
        if key not in self._values and option.fallback:
            return self.text(option.fallback)
        return self._values.get(key, option.default_in(self.flink_version))

    def shown(self, key: str) -> str:
        """Return the value in effect as text with its unit: a bare duration is in milliseconds."""
        text = self.text(key)
        bare = BY_KEY[key].type == "duration" and is_bare(text)
        return f"{text.strip()} ms" if bare else text

    def name_of(self, key: str) -> str:
        """Return the key of an option in this version's messages."""
        return BY_KEY[key].name_in(self.flink_version)

    def _parse(self, key: str) -> Any:
        """Return the value of an option. It is parsed once: a task reads some of them for each message."""
        if key not in self._parsed:
            try:
                self._parsed[key] = BY_KEY[key].parse(self.text(key), self.flink_version)
            except ValueError as error:
                raise UserError(f"flinkConfiguration[{key}]", str(error)) from None
        return self._parsed[key]

    def duration(self, key: str) -> float:
        """Return a duration option in seconds."""
        return float(self._parse(key))

    def memory(self, key: str) -> int:
        """Return a memory option in bytes."""
        return int(self._parse(key))

    def integer(self, key: str) -> int:
        return int(self._parse(key))

    def number(self, key: str) -> float:
        return float(self._parse(key))

    def boolean(self, key: str) -> bool:
        return bool(self._parse(key))

    def string(self, key: str) -> str:
        return str(self._parse(key))

    def with_values(self, values: Mapping[str, str]) -> Options:
        """Return a configuration in which these keys have other values."""
        others = Options(values, flink_version=self.flink_version).as_map()
        return Options(self._values | others, flink_version=self.flink_version)

    def of_job(self, *, batch: bool) -> Options:
        """Return the configuration of a job. A batch job ignores checkpointing, as Flink's StreamGraphGenerator decides."""
        key = "execution.checkpointing.interval"
        if not batch or not self.is_set(key):
            return self
        kept = {k: v for k, v in self._values.items() if k != key}
        return Options(kept, flink_version=self.flink_version)

    def with_defaults(self, values: Mapping[str, str]) -> Options:
        """Return a configuration in which these values are the defaults."""
        return Options(values, flink_version=self.flink_version).with_values(self._values)

    def is_set(self, key: str) -> bool:
        return key in self._values

    def as_map(self) -> dict[str, str]:
        return dict(self._values)

    @property
    def buffer_timeout_s(self) -> float:
        """The interval of the output flusher; -1 if it is disabled."""
        enabled = self.boolean("execution.buffer-timeout.enabled")
        return self.duration("execution.buffer-timeout.interval") if enabled else -1.0

    @property
    def wire_version(self) -> WireVersion:
        return WireVersion.V2 if has(self.flink_version, PARTIAL_BUFFERS) else WireVersion.V1_20

    @property
    def requests_wait_at_producer(self) -> bool:
        """Whether partition requests wait at the producer, as from Flink 1.19 on (FLINK-25055)."""
        return has(self.flink_version, REQUESTS_WAIT_AT_PRODUCER)

    @property
    def checkpoints_after_finish(self) -> bool:
        """Whether there are checkpoints after tasks have finished (FLIP-147)."""
        key = "execution.checkpointing.checkpoints-after-tasks-finish"
        return has(self.flink_version, CHECKPOINTS_AFTER_FINISH) and self.boolean(key)

    @property
    def ends_uncovered(self) -> bool:
        """Whether no checkpoint covers the end of a bounded source, although there are checkpoints."""
        return self.duration("execution.checkpointing.interval") > 0 and not self.checkpoints_after_finish

    @property
    def credit_based(self) -> bool:
        """False in the legacy mode, in which only the TCP window pushes back."""
        return (
            self.boolean("taskmanager.network.credit-model") and self.string("headgate.flow-control") != "tcp"
        )
