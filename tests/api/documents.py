"""Objects of the five kinds for tests: good ones, bad ones with what is to be said of them, and a strategy that mutates."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from testbed_runtime.api import naming
from testbed_runtime.api.validate_kinds import KindFindings

TESTBED: dict[str, Any] = {
    "flinkVersion": "2.x",
    "taskManagers": {"replicas": 5, "slots": 1, "replaceLost": "Never"},
    "flinkConfiguration": {"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"},
    "job": {
        "vertices": [
            {"name": "source", "parallelism": 2, "slotSharingGroup": "src", "source": {"keySkew": "1.1"}},
            {"name": "count", "parallelism": 2, "operator": "keyed-count", "serviceTime": "5us"},
            {"name": "sink", "parallelism": 2, "sink": "ledger"},
        ],
        "edges": [{"from": "source", "to": "count"}, {"from": "count", "to": "sink", "partitioning": "forward"}],
    },
}  # fmt: skip
FAULT: dict[str, Any] = {
    "duration": "2 s",
    "target": {"taskManagers": {"mode": "one"}},
    "network": {"latency": {"delay": "20 ms", "mode": "one-way", "jitter": "5 ms", "correlation": 20}},
}
SCENARIO: dict[str, Any] = {
    "seed": 7,
    "testbed": TESTBED,
    "timeline": {"warmUp": "3s", "baseline": "4s", "observation": "12s"},
    "faults": [{"name": "slow", "at": "1 s", **FAULT}],
    "variants": [
        {"name": "short", "expect": [{"metric": "recovery.detect", "max": "5.5s"}]},
        {"name": "long", "flinkConfiguration": {"heartbeat.timeout": "12 s"}},
    ],
    "expect": [{"metric": "delivery.lost", "equals": 0}],
}
GOOD: dict[str, dict[str, Any]] = {
    "Testbed": {**TESTBED, "pods": {"packetFaults": True, "storage": {"size": "1Gi"}}},
    "Fault": {**FAULT, "testbedRef": {"name": "bed"}},
    "Scenario": SCENARIO,
    "ScenarioRun": {"scenario": SCENARIO, "scenarioName": "slow", "ttlSecondsAfterFinished": 3600},
    "TuningStudy": {
        "scenarios": [{"name": "late-producer"}],
        "options": [{"key": "taskmanager.network.request-backoff.max", "values": ["2000", "10000"]}],
        "objectives": [{"metric": "recovery.total"}],
        "budget": {"runs": 4},
    },
}


def good(kind: str) -> dict[str, Any]:
    return {
        "apiVersion": naming.API_VERSION,
        "kind": kind,
        "metadata": {"name": "good"},
        "spec": copy.deepcopy(GOOD[kind]),
    }


BAD: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "two fault kinds": (
        "Fault",
        {"process": {"kill": {}}},
        ("needs exactly one fault kind of network, frames, registration",),
    ),
    "no fault kind": ("Fault", {"network": None}, ("needs exactly one fault kind",)),
    "no kind of network fault": ("Fault", {"network": {}}, ("spec.network", "needs exactly one kind of network fault")),
    "a duration without sense": (
        "Fault",
        {"duration": "1.5 s"},
        ("spec.duration", "'1.5 s' is not a duration: write an integer and a unit, as in '500 ms' or '10 s'"),
    ),
    "jitter above the delay": (
        "Fault",
        {"network": {"latency": {"delay": "5 ms", "mode": "one-way", "jitter": "1 s"}}},
        ("make it at most the delay",),
    ),
    "a fault without a duration": ("Fault", {"duration": None}, ("spec.duration: Required value",)),
    "a fault that is of a timeline": ("Fault", {"at": "3 s"}, ('unknown field "spec.at"',)),
    "an unknown field": ("Testbed", {"replicas": 3}, ('unknown field "spec.replicas"',)),
    "too many TaskManagers": (
        "Testbed",
        {"taskManagers": {"replicas": 2000}},
        ("spec.taskManagers.replicas", "less than or equal to 128"),
    ),
    "an unknown version of Flink": ("Testbed", {"flinkVersion": "3.0"}, ('"1.12", "1.13"', '"2.x"')),
    "a vertex with two roles": (
        "Testbed",
        {"job": {"vertices": [{"name": "a", "source": {}, "sink": "ledger"}]}},
        ("needs exactly one source, operator, sink",),
    ),
    "executors without a claim": (
        "ScenarioRun",
        {"evaluation": {"executors": 2}},
        ("name a volume claim that several nodes can mount, or write executors: 0",),
    ),
    "an expectation without a bound": (
        "Scenario",
        {"expect": [{"metric": "delivery.lost"}]},
        ("set either `equals`, or `min`, `max` or both",),
    ),
    "a study without values": (
        "TuningStudy",
        {"options": [{"key": "heartbeat.timeout", "values": []}]},
        ("spec.options[0].values", "at least 1 items"),
    ),
}  # fmt: skip


def bad(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(document, words of the refusal)."""
    kind, changes, words = BAD[name]
    document = good(kind)
    for key, value in changes.items():
        if value is None:
            del document["spec"][key]
        else:
            document["spec"][key] = value
    return document, words


def class_a_holds(findings: KindFindings) -> bool:
    """The models accept it, and what CEL can say beyond them (two fields of one object) holds too."""
    beyond = ("would come early", "executors in their own pods")
    return findings.resource is not None and not any(
        words in str(error) for error in findings.errors for words in beyond
    )


# ---- mutated

VALUES = st.one_of(
    st.sampled_from([
        0, 1, -1, 2, 100, 101, 128, 129, 1000, 10**6, 2**40 + 1, True, False, 1.5,
        "", "x", "a" * 41, "a" * 1001, "Never", "deploy", "10 s", "5ms", "1.5 s", "-3 s", "3 sec", "7 DAYS", "10 parsecs",
        "one-way", "round-trip", "Never ", "tm-0", "TM", "-a", "0", "1.25", "1.", "512Mi", "1Gi", "10%", "RUNNING",
        "none", "hash", "ledger", "generated", "all", "fixed",
    ]),
    st.just({}),
    st.just([]),
    st.just({"name": "a"}),
    st.just(["tm-0"]),
    st.just([{"name": "a", "sink": "ledger"}]),
)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "x", "a" * 40, "a" * 41, "a" * 1001, "Never", "deploy", "10 s", "5ms", "0 ms", "1.5 s", "-3 s", "3 sec", "7 DAYS", "2 Min",
     " 4 h ", "4 hh", "12", "10 parsecs", "one-way", "round-trip", "tm-0", "TM", "-a", "a-", "0", "1.25", "1.", "512Mi", "10%"]
)  # fmt: skip
NUMBERS = st.sampled_from(
    [
        -1,
        0,
        1,
        2,
        40,
        47,
        48,
        64,
        65,
        100,
        101,
        128,
        129,
        512,
        513,
        1000,
        1001,
        10**6,
        2**40,
        2**40 + 1,
        2**62,
    ]
)
SWITCHED: dict[str, list[Any]] = {
    "target": [{"jobManager": {}}, {"taskManagers": {}, "peers": {"names": ["tm-1"]}}, {"taskManagers": {}, "jobManager": {}}, {}],
    "network": [{"reset": {}}, {"halfOpen": {}}, {"bandwidth": {"bytesPerSecond": 7}}, {"reset": {}, "stall": {}}, {}],
    "expect": [[], [{"metric": "x", "min": 1, "max": "2 s"}], [{"metric": "x", "min": 1, "equals": 2}], [{"metric": "x", "equals": "y"}]],
    "operator": ["map", "window", "python", "filter"],
    "partitioning": ["hash", "forward", "rebalance", "range"],
    "mode": ["one", "all", "fixed", "percent", "one-way", "some"],
    "flinkVersion": ["1.12", "1.20", "2.x", "1.17", "1.11"],
    "flinkConfiguration": [{}, {"a": "b"}, {"a": 1}, {"a" * 200: "b"}, {"a" * 201: "b"}, {"": "b"}],
    "values": [["1 s"], [], ["1"] * 16, ["1"] * 17],
}  # fmt: skip
"""Field → other values of its own kind, right and wrong ones."""
EXTRA_KEYS = st.sampled_from(
    ["extra", "replicas", "loss", "kill", "pause", "partition", "names", "running", "mode", "value", "jitter", "min", "max",
     "equals", "drop", "withholdCredit", "attempts", "delay", "duplicate", "reorder", "process", "pod", "store", "frames"]
)  # fmt: skip
FAULT_KINDS = (
    {"network": {"loss": {"percent": 5, "burst": 3}}},
    {"network": {"reorder": {"percent": 5}}},
    {"network": {"duplicate": {"percent": 5}}},
    {"network": {"partition": {}}},
    {"frames": {"delay": {"frameClass": "credit", "delay": "50 ms"}}},
    {"frames": {"drop": {"frameClass": "buffer", "percent": 20}}},
    {"registration": {"delay": {"attempts": 3}}},
    {"heartbeats": {"mute": {"direction": "request"}}},
    {"rpc": {"delay": {"method": "SubmitTask", "delay": "1 s"}}},
    {"process": {"pause": {}}},
    {"pod": {"delete": {}}},
    {"jobmanager": {"kill": {}}},
    {"store": {"slow": {"delay": "1 s"}}},
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value below `node`."""
    if isinstance(node, dict):
        return [p for key, value in node.items() for p in ((*path, key), *places(value, (*path, key)))]
    if isinstance(node, list):
        return [p for i, value in enumerate(node) for p in ((*path, i), *places(value, (*path, i)))]
    return []


@st.composite
def any_document(draw: st.DrawFn) -> dict[str, Any]:
    """A good object with nought to three changes: a value, a key more, a key less."""
    document = good(draw(st.sampled_from(sorted(GOOD))))
    if document["kind"] == "Fault" and draw(st.booleans()):
        del document["spec"]["network"]
        document["spec"] |= copy.deepcopy(draw(st.sampled_from(FAULT_KINDS)))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))):
        mutate(document["spec"], draw)
    return document


def mutate(spec: dict[str, Any], draw: st.DrawFn) -> None:
    """One change somewhere below `spec`; a map of options gets only keys of options."""
    *way, last = draw(st.sampled_from(places(spec) or [("seed",)]))
    parent: Any = spec
    for step in way:
        parent = parent[step]
    change = draw(st.sampled_from(["value", "value", "value", "value", "more", "less", "less"]))
    if change == "less" and isinstance(parent, dict):
        parent.pop(last, None)
    elif change == "more" and isinstance(parent, dict):
        parent[draw(EXTRA_KEYS)] = copy.deepcopy(draw(VALUES))
    else:
        parent[last] = copy.deepcopy(
            draw(st.one_of(like(last, parent.get(last) if isinstance(parent, dict) else None), VALUES))
        )


def like(field: Any, old: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, so that only bounds and words decide."""
    if field in SWITCHED:
        return st.sampled_from(SWITCHED[field])
    if isinstance(old, bool):
        return st.booleans()
    return NUMBERS if isinstance(old, int) else TEXTS
