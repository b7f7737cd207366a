"""A scenario drawn from a seed: versions, options, one or two faults; and what must hold whatever was drawn."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.simulating import Ran, run_one

RECOVERY_MS = 15_000
"""After the last fault: longer than the largest timeouts that are drawn, one after the other."""
SAFETY = ("delivery.lost", "delivery.duplicated", "delivery.corrupted", "delivery.out-of-order")


def scenario(seed: int) -> dict[str, Any]:
    """The document of a seed: drawn once, in this order, so that a seed keeps its meaning."""
    random = Random(f"swarm/{seed}")
    replace = random.choice(["Never", "Never", "2 s"])
    # four slots are needed; two of one process have local channels
    replicas, slots = random.choice([(5, 1), (5, 1), (3, 2)])
    faults = [_fault(random, 0)]
    if random.random() < 0.5:
        faults = _together(faults[0], _fault(random, 1), shared=slots > 1)
    if replace == "Never" and sum("kill" in f.get("process", {}) for f in faults) > 1:
        replace = "1 s"  # there is one TaskManager to spare
    end = max(_ms(f["at"]) + _ms(f["duration"]) for f in faults)
    version = random.choice(["1.12", "1.20", "2.x"])
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": f"swarm-{seed}"},
        "spec": {
            "hypothesis": "Nothing is lost, and it goes on.",
            "seed": seed,
            "testbed": {
                "flinkVersion": version,
                "taskManagers": {"replicas": replicas, "slots": slots, "replaceLost": replace},
                "flinkConfiguration": _options(random, least_exclusive="1" if version == "1.12" else "0"),
                "job": _job(random),
            },
            "timeline": {
                "warmUp": "1 s",
                "baseline": "1 s",
                "observation": f"{end + RECOVERY_MS} ms",
                "drain": "30 s",
            },
            "faults": faults,
            "control": False,
            "trials": 1,
            "expect": [{"metric": "job.state", "equals": "RUNNING"}],
        },
    }


def _together(first: dict[str, Any], second: dict[str, Any], *, shared: bool) -> list[dict[str, Any]]:
    """A fault in a process that another one has killed or stopped cannot be injected: it goes to the other vertex, or away
    when both vertices may share a process."""
    at_jobmanager = ["jobmanager" in f or _holder_is_jobmanager(f) for f in (first, second)]
    if all(at_jobmanager) and ("jobmanager" in first or "jobmanager" in second):
        return [first]
    stops = "process" in first or "process" in second
    if stops and (shared or "frames" in first or "frames" in second):
        return [first]  # its effect is measured at everybody's tap
    ours, theirs = (fault["target"].get("taskManagers", {}) for fault in (first, second))
    if stops and ours.get("running") == theirs.get("running"):
        other = "source" if ours["running"] == "count" else "count"
        second["target"] = {"taskManagers": {**theirs, "running": other}}
    return [first, second]


def _holder_is_jobmanager(fault: dict[str, Any]) -> bool:
    mute = fault.get("heartbeats", {}).get("mute", {})
    return bool(mute.get("direction") == "response")


def _ms(text: str) -> int:
    return 0 if text == "deploy" else int(text.removesuffix(" ms"))


def _options(random: Random, *, least_exclusive: str) -> dict[str, str]:
    return {
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": random.choice(["3 s", "5 s"]),
        "heartbeat.rpc-failure-threshold": random.choice(["-1", "2"]),
        "execution.checkpointing.interval": random.choice(["300 ms", "1 s"]),
        "execution.checkpointing.timeout": random.choice(["2 s", "10 min"]),
        "execution.checkpointing.tolerable-failed-checkpoints": "1000",
        "execution.buffer-timeout.interval": random.choice(["0 ms", "10 ms", "100 ms"]),
        "pekko.ask.timeout": random.choice(["1 s", "10 s"]),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "100000",
        "restart-strategy.fixed-delay.delay": random.choice(["50 ms", "500 ms"]),
        "taskmanager.network.memory.buffers-per-channel": random.choice([least_exclusive, "1", "2"]),
        "taskmanager.network.memory.floating-buffers-per-gate": random.choice(["1", "8"]),
        "headgate.restart.fence-dead-slots": random.choice(["true", "true", "false"]),
    }


def _job(random: Random) -> dict[str, Any]:
    rate = random.choice([30, 80, 200])
    job: dict[str, Any] = {
        "vertices": [
            {
                "name": "source",
                "parallelism": 2,
                "slotSharingGroup": "src",
                "source": {"recordsPerSecond": rate, "recordBytes": random.choice([60, 8000]), "keys": 50},
            },
            {"name": "count", "parallelism": 2, "slotSharingGroup": "main", "operator": "keyed-count"},
            {
                "name": "sink",
                "parallelism": 2,
                "slotSharingGroup": "main",
                "sink": "ledger",
                "delivery": random.choice(["exactly-once", "exactly-once", "at-least-once"]),
            },
        ],
        "edges": [
            {"from": "source", "to": "count", "partitioning": random.choice(["hash", "rebalance"])},
            {"from": "count", "to": "sink", "partitioning": random.choice(["forward", "rebalance"])},
        ],
    }
    if job["edges"][0]["partitioning"] != "hash":
        job["vertices"][1]["operator"] = "map"
    return job


def _fault(random: Random, number: int) -> dict[str, Any]:
    on = {
        "taskManagers": {"running": random.choice(["source", "count"]), "mode": random.choice(["one", "all"])}
    }
    one = {"taskManagers": {**on["taskManagers"], "mode": "one"}}
    plane = random.choice(["data", "rpc", "both"])
    duration = random.choice([200, 1_000, 4_000, 8_000])
    delay = f"{random.choice([5, 50, 400])} ms"
    method = random.choice(["SubmitTask", "CancelTask", "TriggerCheckpoint", "RequestSlot"])
    klass = random.choice(["buffer", "credit", "barrier", "request"])
    kinds: list[dict[str, Any]] = [
        {"target": one, "process": {"kill": {}}},
        {"target": on, "process": {"pause": {}}},
        {
            "target": on,
            "plane": plane,
            "network": {"latency": {"delay": delay, "mode": "one-way", "jitter": "2 ms"}},
        },
        {"target": on, "plane": plane, "network": {"partition": {}}},
        {"target": on, "network": {"stall": {}}},
        {"target": on, "network": {"reset": {}}},
        {"target": on, "heartbeats": {"mute": {"direction": random.choice(["request", "response"])}}},
        {"target": on, "rpc": {"delay": {"method": method, "delay": delay}}},
        {"target": on, "registration": {"delay": {"delay": delay}}},
        {"target": on, "frames": {"delay": {"frameClass": klass, "delay": delay}}},
        {"target": on, "frames": {"withholdCredit": {}}},
        {"target": {"jobManager": {}}, "jobmanager": {random.choice(["kill", "pause"]): {}}},
        {"target": on, "store": {random.choice(["slow", "failing"]): {}}},
    ]
    drawn = random.choice(kinds)
    if "slow" in drawn.get("store", {}):
        drawn["store"]["slow"] = {"delay": delay}
    at = random.randint(0, 2_000)
    if ("rpc" in drawn or "registration" in drawn) and random.random() < 0.6:
        everywhere = {"taskManagers": {}}
        return {
            "name": f"fault-{number}",
            **drawn,
            "at": "deploy",
            "duration": f"{duration} ms",
            "target": everywhere,
        }
    return {"name": f"fault-{number}", "at": f"{at} ms", "duration": f"{duration} ms", **drawn}


def run_seed(seed: int, folder: Path) -> Ran:
    return run_one(scenario(seed), folder)


def violations(ran: Ran) -> list[str]:
    """The invariants that do not hold. Empty is good."""
    if ran.result.verdict.verdict == "Error":
        return [ran.result.verdict.summary]
    sinks = [vertex for vertex in ran.entry.job.vertices if vertex.role == "sink"]
    twice = any(sink.delivery == "at-least-once" for sink in sinks)
    asked = [
        name for name in SAFETY if not (twice and name in ("delivery.duplicated", "delivery.out-of-order"))
    ]
    found = [f"{name} is {ran.metrics.get(name)}" for name in asked if ran.metrics.get(name) != 0]
    if ran.metrics.get("credit.violations") != 0:
        found.append(f"credit.violations is {ran.metrics.get('credit.violations')}")
    if ran.entry.voided:
        found.append(f"the trial is void: {ran.entry.voided}")
    if not ran.entry.drained:
        found.append(f"the job did not drain: {ran.entry.job_state}")
    if ran.metrics.get("job.state") != "RUNNING":
        found.append(f"the job is {ran.metrics.get('job.state')} after the faults")
    if not ran.metrics.get("delivery.committed"):
        found.append("nothing was committed")
    found += [f"asyncio: {text}" for text in ran.complaints]
    return found + _words_of_the_dead(ran) + _unclean(ran)


def _words_of_the_dead(ran: Ran) -> list[str]:
    events = ran.trial.rows("events")
    died = {row["subject"]: row["t_ns"] for row in events if row["kind"] == "process.exit"}
    return [
        f"{row['process']} wrote {row['kind']} after its death"
        for row in events
        if row["process"] in died and row["t_ns"] > died[row["process"]]
    ]


def _unclean(ran: Ran) -> list[str]:
    rows = ran.trial.rows("faults")
    return [
        f"fault {r['fault']} {r['state']}: {r['text']}" for r in rows if r["state"] in ("residue", "failed")
    ]


def with_leadership(seed: int) -> dict[str, Any]:
    """The document of a seed, with a JobManager that keeps its leadership by a short lease, and a fault that may cost it."""
    document = scenario(seed)
    random = Random(f"swarm/leadership/{seed}")
    spec = document["spec"]
    election = "high-availability.kubernetes.leader-election"
    spec["testbed"]["flinkConfiguration"] |= {
        "high-availability.type": "kubernetes",
        f"{election}.lease-duration": random.choice(["1 s", "5 s"]),
        f"{election}.renew-deadline": random.choice(["1 s", "2 s"]),
        f"{election}.retry-period": random.choice(["100 ms", "500 ms"]),
    }
    kinds: list[dict[str, Any]] = [{"jobmanager": {"pause": {}}}, {"store": {"failing": {}}}]
    fault = random.choice([*kinds, {"store": {"slow": {"delay": "1500 ms"}}}, {"jobmanager": {"kill": {}}}])
    length = random.choice([700, 2_500, 6_000])
    at = random.randint(0, 2_000)
    lasting = {"name": "leader", "at": f"{at} ms", "duration": f"{length} ms", "target": {"jobManager": {}}}
    if not any("jobmanager" in f or _holder_is_jobmanager(f) for f in spec["faults"]):
        spec["faults"] = [*spec["faults"], {**lasting, **fault}]
    spec["timeline"]["observation"] = "35 s"
    return document
