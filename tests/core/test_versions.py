"""Versions of Flink: what each one does, and the nearest one to an unknown one."""

from __future__ import annotations

import pytest

from testbed_runtime.api.catalogue import Standing, judge
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.restart import ExponentialDelay, FixedDelay, restart_strategy
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.versions import CHANGES, LATEST, VERSIONS, nearest_version, number

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}


def test_versions_are_listed_in_order():
    """Each minor once, the alias of the newest last."""
    assert [number(v) for v in VERSIONS] == sorted({number(v) for v in VERSIONS})
    assert VERSIONS[0] == "1.12"
    assert VERSIONS[-1] == LATEST


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.text[:30])
def test_every_change_names_a_known_version(change):
    """A change came with one of the listed minors, and not with the oldest."""
    assert change.since in VERSIONS[1:-1]


@pytest.mark.parametrize(
    ("version", "threshold", "overdraft", "network_max", "waits", "key", "wire"),
    [
        ("1.12", -1, 0, 2**30, False, "akka.ask.timeout", "1.20"),
        ("1.13", -1, 0, 2**30, False, "akka.ask.timeout", "1.20"),
        ("1.14", 2, 0, 2**30, False, "akka.ask.timeout", "1.20"),
        ("1.15", 2, 0, 2**30, False, "akka.ask.timeout", "1.20"),
        ("1.16", 2, 5, 2**30, False, "akka.ask.timeout", "1.20"),
        ("1.17", 2, 5, 2**63 - 1, False, "akka.ask.timeout", "1.20"),
        ("1.18", 2, 5, 2**63 - 1, False, "pekko.ask.timeout", "1.20"),
        ("1.19", 2, 5, 2**63 - 1, True, "pekko.ask.timeout", "1.20"),
        ("1.20", 2, 5, 2**63 - 1, True, "pekko.ask.timeout", "1.20"),
        ("2.0", 2, 20, 2**63 - 1, True, "pekko.ask.timeout", "2.x"),
        ("2.x", 2, 20, 2**63 - 1, True, "pekko.ask.timeout", "2.x"),
    ],
)
def test_each_minor_has_its_own_defaults(version, threshold, overdraft, network_max, waits, key, wire):
    """Defaults and behaviour change in the minor in which Flink changed them."""
    options = Options({}, flink_version=version)
    assert options.integer("heartbeat.rpc-failure-threshold") == threshold
    assert options.integer("taskmanager.network.memory.max-overdraft-buffers-per-gate") == overdraft
    assert options.memory("taskmanager.memory.network.max") == network_max
    assert options.requests_wait_at_producer is waits
    assert options.name_of("pekko.ask.timeout") == key
    assert options.wire_version.value == wire


@pytest.mark.parametrize(
    ("version", "key", "expected"),
    [
        ("1.14", "taskmanager.memory.min-segment-size", "1 kb"),
        ("1.15", "taskmanager.memory.min-segment-size", "256 b"),
        ("1.14", "taskmanager.network.memory.buffer-debloat.period", "500 ms"),
        ("1.15", "taskmanager.network.memory.buffer-debloat.period", "200 ms"),
        ("1.14", "taskmanager.network.memory.buffer-debloat.threshold-percentages", "50"),
        ("1.15", "taskmanager.network.memory.buffer-debloat.threshold-percentages", "25"),
        ("1.12", "state.backend.rocksdb.checkpoint.transfer.thread.num", "1"),
        ("1.13", "state.backend.rocksdb.checkpoint.transfer.thread.num", "4"),
        ("2.2", "security.ssl.algorithms", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        (
            "2.3",
            "security.ssl.algorithms",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ),
    ],
)
def test_a_default_changes_in_the_minor_in_which_flink_changed_it(version, key, expected):
    """Compared with Flink's *Options classes of 1.12 to 2.3."""
    assert Options({}, flink_version=version).text(key) == expected


@pytest.mark.parametrize(("version", "seconds"), [("1.17", 1), ("1.18", 2), ("2.3", 2)])
@pytest.mark.parametrize(
    "names", [("akka.ask.timeout", "pekko.ask.timeout"), ("pekko.ask.timeout", "akka.ask.timeout")]
)
def test_of_several_names_of_an_option_that_of_the_version_counts(names, version, seconds):
    """J-173: Configuration.getRawValueFromOption reads the key before its older names, in whatever order they are written."""
    values = {"akka.ask.timeout": "1 s", "pekko.ask.timeout": "2 s"}
    options = Options({name: values[name] for name in names}, flink_version=version)
    assert options.duration("pekko.ask.timeout") == seconds
    changed = options.with_values({"akka.ask.timeout": "3 s"})
    assert changed.duration("pekko.ask.timeout") == 3


@pytest.mark.parametrize("version", ["1.12", "1.13", "1.20", "2.x"])
def test_the_slot_timeout_is_the_ask_timeout_if_it_is_not_set(version):
    """TaskManagerOptions.SLOT_TIMEOUT.withFallbackKeys; by hand in 1.13; 1.12 has only the ask timeout."""
    slot, ask = "taskmanager.slot.timeout", "akka.ask.timeout"
    timeouts = [
        Options(values, flink_version=version).duration(slot)
        for values in ({}, {ask: "3 s"}, {ask: "3 s", slot: "7 s"})
    ]
    assert timeouts == [10.0, 3.0, 3.0 if version == "1.12" else 7.0]


@pytest.mark.parametrize(("version", "kind"), [("1.18", FixedDelay), ("1.19", ExponentialDelay)])
def test_the_default_restart_strategy_changed_in_1_19(version, kind):
    """With checkpoints and without a configured strategy (FLINK-33738)."""
    strategy = restart_strategy(Options(CHECKPOINTS, flink_version=version), lambda low, _high: low)
    assert isinstance(strategy, kind)


def test_older_defaults_of_an_option_are_in_order():
    """The first entry that is not older than the version decides."""
    for option in BY_KEY.values():
        last = [number(version) for version, _ in option.until]
        assert last == sorted(last), option.key


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("1.11", "1.12"), ("0.9", "1.12"), ("1.17.2", "1.17"), ("1.21", "1.20"), ("2.7", "2.x"), ("2", "2.0"),
        ("3.0", "2.x"), ("v1.18", "1.18"), ("v1_20", "1.20"), ("V2_1", "2.1"), ("latest", ""), ("", ""),
    ],
)  # fmt: skip
def test_an_unknown_version_maps_to_the_nearest(text, near):
    """Versions compare by number, not by spelling."""
    assert nearest_version(text) == near


def test_an_unknown_version_is_refused_with_the_nearest():
    """Options name the version to write instead."""
    with pytest.raises(UserError, match=r"the nearest is '1\.12'"):
        Options({}, flink_version="1.9")


@pytest.mark.parametrize(
    ("configuration", "size"),
    [
        ({"taskmanager.heap.mb": "1024"}, 2**30),
        ({"taskmanager.heap.mb": "1024", "taskmanager.heap.size": "2 gb"}, 2**31),
        ({"taskmanager.heap.mb": "1024", "taskmanager.memory.flink.size": "3 gb"}, 3 * 2**30),
    ],
)
def test_the_oldest_name_of_flinks_memory_is_in_megabytes(configuration, size):
    """MemoryBackwardsCompatibilityUtils: taskmanager.heap.size counts before it, and the newest name before both."""
    assert Options(configuration, flink_version="1.20").memory("taskmanager.memory.flink.size") == size


@pytest.mark.parametrize(("version", "threshold", "effect"), [("1.13", -1, False), ("1.14", 7, True)])
def test_an_option_that_a_version_does_not_have_yet_has_no_effect(version, threshold, effect):
    """Flink 1.13 has no heartbeat.rpc-failure-threshold. Its heartbeat.timeout detects a killed TaskManager."""
    key = "heartbeat.rpc-failure-threshold"
    options = Options({key: "7"}, flink_version=version)
    assert options.integer(key) == threshold
    assert options.is_set(key) is effect
    assert (judge(key, version).standing is Standing.EFFECTIVE) is effect
