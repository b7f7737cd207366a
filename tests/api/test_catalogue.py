"""The catalogue of options: standing of keys, typos, versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.api.catalogue import (
    KNOWN,
    WITHOUT_EFFECT,
    Standing,
    edits,
    judge,
    value_doubt,
    value_problem,
)
from testbed_runtime.core.exchange.backpressure import SamplePlan
from testbed_runtime.core.options import (
    ALIASES,
    BY_KEY,
    EFFECTIVE,
    MAX_TCP_CONNECTIONS,
    REQUIRED_PER_GATE,
    SAMPLES,
    Options,
)
from testbed_runtime.core.versions import VERSIONS


@pytest.mark.parametrize(
    "key",
    [
        "execution.checkpointing.interval-during-backlog",
        "execution.state-recovery.claim-mode",
        "jobmanager.adaptive-scheduler.scaling-interval.min",
        "pipeline.force-kryo",
        "resourcemanager.previous-worker.recovery.timeout",
        "scheduler-mode",
        "state.backend.rocksdb.thread.num",
        "taskmanager.resource-id",
    ],
)
def test_an_option_that_only_flink_has_is_neither_unknown_nor_a_typo(key):
    """They are declared in Flink's Options classes."""
    assert judge(key, "2.x").standing is Standing.WITHOUT_EFFECT


@pytest.mark.parametrize("key", [*BY_KEY, *ALIASES])
def test_every_effective_key_and_alias_is_effective(key):
    """Under the name of today."""
    judgement = judge(key, "2.x")
    assert judgement.standing is Standing.EFFECTIVE
    assert judgement.canonical in BY_KEY


def test_no_key_is_both_with_and_without_effect():
    """And none is listed twice."""
    assert not set(WITHOUT_EFFECT) & {*BY_KEY, *ALIASES}
    keys = [k for known in KNOWN for k in (known.key, *known.aliases)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("option", EFFECTIVE, ids=lambda o: o.key)
def test_every_default_fits_its_option(option):
    """In every version. An option without a default is a size, a limit or a number of cores that Flink derives, or the path of a checkpoint."""
    derived = ("execution.state-recovery.path", REQUIRED_PER_GATE, "taskmanager.cpu.cores")
    assert option.default or option.type == "memory" or option.key in derived
    defaults = [text for text in (option.default, *(text for _, text in option.until)) if text]
    assert [value_problem(option, text) for text in defaults] == [""] * len(defaults)


@pytest.mark.parametrize(
    ("key", "version", "value", "doubt"),
    [
        ("taskmanager.network.request-backoff.max", "2.3", "60000", ""),
        ("taskmanager.network.request-backoff.max", "2.x", "60 s", "Flink reads whole milliseconds here, without a unit (write '60000')"),
        ("taskmanager.network.request-backoff.max", "1.12", "400ms", "Flink reads whole milliseconds here, without a unit (write '400')"),
        ("heartbeat.timeout", "1.19", "50000", ""),
        ("heartbeat.timeout", "1.19", "50 s", "Flink 1.19 reads whole milliseconds here, without a unit (write '50000')"),
        ("heartbeat.timeout", "1.20", "50 s", ""),
        ("heartbeat.timeout", "1.20", "50", "'50' has no unit, so it is 50 ms (write '50 s' or '50 ms')"),
        ("pekko.ask.timeout", "1.19", "10 s", ""),
    ],
)  # fmt: skip
def test_an_option_that_flink_reads_as_whole_milliseconds_has_no_unit(key, version, value, doubt):
    """An int until today, or a long until 1.19: with a unit, Flink does not start."""
    assert value_doubt(BY_KEY[key], value, version, written=key) == doubt


def test_the_error_of_a_value_in_whole_milliseconds_suggests_no_unit():
    """A value that follows it has no warning."""
    problem = "'abc' is not a duration: write whole milliseconds, as in '10000'"
    assert value_problem(BY_KEY["taskmanager.network.request-backoff.max"], "abc") == problem


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("heartbeat.timout", "heartbeat.timeout"),
        ("heartbeat.intreval", "heartbeat.interval"),
        ("taskmanager.network.request-backof.max", "taskmanager.network.request-backoff.max"),
        ("akka.ask.timout", "akka.ask.timeout"),
        ("execution.checkpointing.intervall", "execution.checkpointing.interval"),
        ("rest.prt", "rest.port"),
        (
            "taskmanager.network.max-overdraft-buffers-per-gate",
            "taskmanager.network.memory.max-overdraft-buffers-per-gate",
        ),
        ("taskmanager.buffers-per-channel", "taskmanager.network.memory.buffers-per-channel"),
        ("restart-strategy.attempts", "restart-strategy.fixed-delay.attempts"),
    ],
)
def test_a_typo_is_reported_with_the_key_that_was_meant(key, meant):
    """One or two letters, or a part in the middle that is missing."""
    assert (judge(key, "2.x").standing, judge(key, "2.x").canonical) == (Standing.TYPO, meant)


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        ("taskmanager.net.request-backoff.initial", "taskmanager.network.request-backoff.initial"),
        ("taskmanager.net.request-backoff.max", "taskmanager.network.request-backoff.max"),
        ("taskmanager.maxRegistrationDuration", "taskmanager.registration.timeout"),
        ("recovery.mode", "high-availability.type"),
        ("taskmanager.net.client.connectTimeoutSec", "taskmanager.network.netty.client.connectTimeoutSec"),
        ("taskmanager.net.sendReceiveBufferSize", "taskmanager.network.netty.sendReceiveBufferSize"),
        ("taskmanager.heap.size", "taskmanager.memory.flink.size"),
        ("taskmanager.heap.mb", "taskmanager.memory.flink.size"),
        ("jobmanager.web.backpressure.refresh-interval", "web.backpressure.refresh-interval"),
    ],
)
def test_the_oldest_names_that_flink_still_reads_are_effective(key, canonical):
    """Their options have them as deprecated keys, or Flink's start scripts copy their values."""
    judgement = judge(key, "1.20")
    assert (judgement.standing, judgement.canonical) == (Standing.EFFECTIVE, canonical)


@pytest.mark.parametrize("key", ["my.own.key", "taskmanager.memory.network.share", "heartbeat"])
def test_what_is_far_from_every_key_is_unknown(key):
    """Not called a typo."""
    assert judge(key, "2.x").standing is Standing.UNKNOWN


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.service-account",
        "metrics.reporter.prom.port",
        "s3.path.style.access",
        "state.backend.rocksdb.log.level",
    ],
)
def test_keys_of_what_a_testbed_does_not_have_are_without_effect(key):
    """A configuration of production has dozens of them; none is called unknown or a typo."""
    assert judge(key, "2.x").standing is Standing.WITHOUT_EFFECT


@pytest.mark.parametrize(
    "key", ["pekko.fork-join-executor.parallelism-min", "slotmanager.number-of-slots.min"]
)
def test_a_key_that_differs_in_min_and_max_is_no_typo(key):
    """Flink has both."""
    assert judge(key, "2.x").standing is Standing.WITHOUT_EFFECT


@given(key=st.text(max_size=60), version=st.sampled_from(VERSIONS))
def test_judging_is_total(key, version):
    """Any text in any version has a standing."""
    assert judge(key, version).standing in Standing


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        ("", "", 0),
        ("ab", "ab", 0),
        ("ab", "ba", 1),
        ("abc", "ac", 1),
        ("abc", "axc", 1),
        ("kitten", "sitting", 3),
    ],
)
def test_edits_counts_additions_omissions_changes_and_swaps(a, b, count):
    """In both directions."""
    assert edits(a, b) == edits(b, a) == count


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("taskmanager.memory.segment-size", 1),
        ("taskmanager.network.memory.buffers-per-channel", 0),
        ("taskmanager.network.memory.floating-buffers-per-gate", 1),
        (REQUIRED_PER_GATE, 1),
        (SAMPLES, 1),
    ],
)
def test_sizes_that_flink_refuses_are_too_small(key, least):
    """The least value is accepted, and the one below it is not."""
    option = BY_KEY[key]
    assert value_problem(option, str(least), "1.12") == ""
    assert value_problem(option, str(least - 1), "1.12") != ""


def test_a_number_of_samples_that_flink_no_longer_reads_is_not_refused():
    """It counts as 1 here."""
    assert value_problem(BY_KEY[SAMPLES], "0", "1.13") == ""
    assert SamplePlan.read(Options({SAMPLES: "0"}, flink_version="1.13")).samples == 1


def test_no_connection_at_all_counts_as_one():
    """NettyShuffleEnvironmentConfiguration.fromConfiguration raises `max-num-tcp-connections` to 1."""
    assert [value_problem(BY_KEY[MAX_TCP_CONNECTIONS], text) for text in ("1", "0", "-1")] == [""] * 3


def test_an_alias_that_the_version_no_longer_reads_says_so():
    """security.ssl.enabled went with Flink 2.0."""

    def note(version):
        return judge("security.ssl.enabled", version).note

    assert note("1.20") == ""
    removed = "security.ssl.enabled was removed in Flink 2.0; 2.x reads only security.ssl.internal.enabled"
    assert note("2.x") == removed + ", but here the key still has its effect"


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        ("task.cancellation-interval", "task.cancellation.interval"),
        ("taskmanager.runtime.fs_timeout", "taskmanager.runtime.fs-timeout"),
        ("akka.startup-timeout", "pekko.startup-timeout"),
        ("taskmanager.network.blocking-shuffle.compression.enabled", "taskmanager.network.batch-shuffle.compression.enabled"),
    ],
)  # fmt: skip
def test_an_older_name_of_an_option_without_effect_is_no_typo(key, canonical):
    """Flink reads it as a deprecated key."""
    judgement = judge(key, "1.20")
    assert (judgement.standing, judgement.canonical) == (Standing.WITHOUT_EFFECT, canonical)


@pytest.mark.parametrize(
    ("key", "version", "older"),
    [
        ("restart-strategy.type", "1.16", "restart-strategy"),
        ("state.backend.type", "1.16", "state.backend"),
        ("execution.checkpointing.unaligned.enabled", "1.16", "execution.checkpointing.unaligned"),
        ("execution.checkpointing.checkpoints-after-tasks-finish", "1.19", "execution.checkpointing.checkpoints-after-tasks-finish.enabled"),
    ],
)  # fmt: skip
def test_a_name_that_a_version_does_not_read_yet_is_noted(key, version, older):
    """The next version reads both."""
    assert f"{version} ignores it and reads {older}" in judge(key, version).note
    minor = int(version[2:]) + 1
    assert judge(key, f"1.{minor}").note == judge(older, f"1.{minor}").note == ""


def test_a_value_that_an_older_version_cannot_convert_is_doubted_or_refused():
    """A count of bytes until 1.20, and of milliseconds until 1.19."""
    size = BY_KEY["taskmanager.network.netty.sendReceiveBufferSize"]
    assert "is not an integer" in value_problem(size, "64 kb", "1.20")
    assert value_problem(size, "65536", "1.20") == ""
    timeout = BY_KEY["taskmanager.network.memory.buffers-request-timeout"]
    assert "write '30000'" in value_doubt(timeout, "30 s", "1.19")
    assert value_doubt(timeout, "30 s", "1.20") == ""
    assert "as in '30000'" in value_problem(timeout, "soon", "1.19")
    assert value_doubt(BY_KEY["resourcemanager.standalone.start-up-time"], "-1", "1.19") == ""


def test_a_key_without_effect_gets_no_note_that_it_has_one():
    """An older name is right before the rename, as for options with an effect."""
    assert judge("akka.framesize", "1.15").note == ""
    assert (
        judge("pekko.framesize", "1.15").note
        == "pekko.framesize came with Flink 1.18; 1.15 ignores it and reads akka.framesize"
    )
    removed = "taskmanager.network.numberOfBuffers was removed in Flink 1.9; 1.20 does not read it"
    assert judge("taskmanager.network.numberOfBuffers", "1.20").note == removed


@pytest.mark.parametrize(
    ("key", "version", "is_read"),
    [
        ("pekko.ask.timeout", "1.17", False), ("akka.ask.timeout", "1.17", True), ("akka.ask.timeout", "2.x", True),
        ("security.ssl.enabled", "1.20", True), ("security.ssl.enabled", "2.0", False),
        ("web.backpressure.num-samples", "1.12", True), ("web.backpressure.num-samples", "1.13", False),
    ],
)  # fmt: skip
def test_a_key_is_read_from_its_first_version_until_it_is_removed(key, version, is_read):
    """An older name is read until Flink 2 drops it."""
    assert judge(key, version).is_read is is_read
