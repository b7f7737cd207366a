"""Compare recoveries of a real Flink on this machine with what Headgate says about the same options, fault and topology.

    python benchmarks/flink_recovery_bench.py [--rounds 3] [--cases killed-consumer …] [--run killed-consumer …] [--out runs.jsonl]
    python benchmarks/flink_recovery_bench.py --tables runs.jsonl

One cluster (flink_bench.py) runs all cases in turns. Flink's times are read from the JobManager's log, from the REST API (texts of the failures) and from the
file of the job's sink. Each case is also run with `headgate simulate`, and those of `--run` with `headgate run`. Without Maven, a JDK or the
network it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from flink_bench import (
    JOBMANAGER,
    OPENS,
    TASKMANAGER,
    NoFlinkError,
    class_path,
    configuration,
    free_port,
    process,
    wait_for,
)
from pyarrow.parquet import read_table

RATE = 2000
WARM_UP_S = 6.0
THROWS_AT = int((WARM_UP_S + 2) * RATE)
START_LIMIT_S, RECOVERY_LIMIT_S, RUN_LIMIT_S = 120.0, 60.0, 300.0
QUIET_S = 4.0
"""A job that has made progress without a failure for this long after the end of its fault has recovered."""
HEAP = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1"]
"""Small processes, which compile little: the machine has two cores."""
TEXT_CHARACTERS = 120
LOG = [
    f"-Dorg.slf4j.simpleLogger.{word}"
    for word in ("showDateTime=true", "dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS", "logFile=System.err")
]
MEMORY = {
    "taskmanager.memory.task.heap.size": "128m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
}
OPTIONS = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "slot.request.timeout": "12 s",
    "slotmanager.requirement-check.delay": "50 ms",
}
STANDALONE = {"resourcemanager.standalone.start-up-time": "10 min"}
"""Flink's standalone ResourceManager waits so long for TaskManagers, as one on Kubernetes always does."""
FIXED = {
    "execution.checkpointing.interval": "1 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "1 s",
}
QUICK = FIXED | {"restart-strategy.fixed-delay.delay": "200 ms"}
EXPONENTIAL = {
    "execution.checkpointing.interval": "1 s",
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 s",
    "restart-strategy.exponential-delay.backoff-multiplier": "2.0",
    "restart-strategy.exponential-delay.max-backoff": "10 s",
    "restart-strategy.exponential-delay.jitter-factor": "0",
}


@dataclass(frozen=True)
class Case:
    """A fault: a signal for the TaskManager of a vertex or the JobManager, or a task that throws."""

    target: str
    kill: bool = False
    seconds: float = 1.0
    """The length of a pause, or the delay after which a killed TaskManager is replaced: a JVM is started then. Headgate's
    replacement registers when Flink's did."""
    spare: bool = True
    throws: int = 0
    options: dict[str, str] = field(default_factory=lambda: FIXED)


CASES = {
    "killed-consumer": Case("count", kill=True),
    "killed-producer": Case("source", kill=True),
    "killed-producer-quick": Case("source", kill=True, options=QUICK),
    "paused-long": Case("count", seconds=9),
    "paused-short": Case("count", seconds=3),
    "paused-jobmanager": Case("jobmanager", seconds=9),
    "replaced": Case("count", kill=True, seconds=0, spare=False),
    "replaced-late": Case("count", kill=True, seconds=13, spare=False),
    "throws-fixed": Case("count", throws=3),
    "throws-exponential": Case("count", throws=3, options=EXPONENTIAL),
}


class Cluster:
    """A JobManager and a changing number of TaskManagers. Every process ends with the stack."""

    def __init__(self, classes: str, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        rpc, self.rest = free_port(), free_port()
        options = configuration(rpc, self.rest, 1) | MEMORY | OPTIONS | STANDALONE
        text = "\n".join(f"{key}: {value}" for key, value in options.items())
        (folder / "config.yaml").write_text(text + "\n")
        self.java = ["java", *OPENS, *HEAP, *LOG, "-cp", classes]
        self.jobmanager = self._start("jobmanager", JOBMANAGER)
        self._count = 0
        self.taskmanagers: dict[str, subprocess.Popen[bytes]] = {}
        wait_for(self.rest)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = [*self.java, *words, "--configDir", str(self.folder)]
        return self._stack.enter_context(process(self.folder / f"{name}.log", *command))

    def add(self) -> None:
        name = f"tm-{self._count}"
        self._count += 1
        self.taskmanagers[name] = self._start(name, TASKMANAGER, f"-Dtaskmanager.resource-id={name}")

    def resize(self, number: int) -> None:
        """Have this many registered TaskManagers, all with a free slot."""
        while len(self.taskmanagers) > number:
            self.taskmanagers.popitem()[1].kill()
        while len(self.taskmanagers) < number:
            self.add()
        ids = set(self.taskmanagers)
        self.until(
            lambda: {t["id"] for t in self.ask("/taskmanagers")["taskmanagers"] if t["freeSlots"]} == ids
        )

    def ask(self, path: str, method: str = "GET") -> Any:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.rest}{path}", method=method)
        with urllib.request.urlopen(asked, timeout=START_LIMIT_S) as answer:
            return json.load(answer)

    def until(self, condition: Callable[[], bool], limit_s: float = START_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (OSError, KeyError, IndexError):
                pass
            time.sleep(0.1)
        raise SystemExit(f"Flink did not get there within {limit_s:.0f} s (logs in {self.folder})")

    def log(self) -> list[tuple[float, str]]:
        """Return the JobManager's log with times in seconds since the epoch."""
        found = []
        for line in (self.folder / "jobmanager.log").read_text(errors="replace").splitlines():
            stamp, _, text = line.partition(" ")
            if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+", stamp):
                found.append((datetime.fromisoformat(stamp).timestamp(), text))
        return found


def progress(folder: Path) -> list[tuple[float, int]]:
    """Return (seconds since the epoch, number of the record) of the sink's lines."""
    path = folder / "progress"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]) / 1000, int(line.split()[1])) for line in lines if line.count(" ") == 1]


def run_flink(cluster: Cluster, case: Case, folder: Path) -> dict[str, Any]:
    """Run the job with the fault once. Return what Flink did."""
    folder.mkdir(exist_ok=True)
    cluster.resize(3 if case.spare else 2)
    options = [f"{key}={value}" for key, value in case.options.items()]
    words = [cluster.rest, folder, RATE, case.throws, THROWS_AT]
    made = subprocess.run(
        [*cluster.java, "dev.headgate.bench.Recovery", *map(str, words), *options],
        check=True,
        stdout=subprocess.PIPE,
        timeout=START_LIMIT_S,
    )
    job = made.stdout.decode().split()[-1]
    cluster.until(lambda: caught_up(folder))
    time.sleep(0 if case.throws else WARM_UP_S)
    began, ends = inject(cluster, case, job, folder)
    cluster.until(lambda: recovered(cluster, job, folder, ends), RECOVERY_LIMIT_S + case.seconds)
    row = figures(cluster.log(), progress(folder), job, began)
    history = cluster.ask(f"/jobs/{job}/exceptions?maxExceptions=20")["exceptionHistory"]["entries"]
    row["texts"] = [entry["stacktrace"].splitlines()[0] for entry in reversed(history)]
    registered = [at - began for at, text in cluster.log() if " Registering TaskManager with Res" in text]
    row["registered"] = registered[-1] if not case.spare else None
    cluster.ask(f"/jobs/{job}?mode=cancel", "PATCH")
    cluster.until(lambda: cluster.ask(f"/jobs/{job}")["state"] == "CANCELED")
    return row


def caught_up(folder: Path) -> bool:
    """Whether the sink has reached the records that are due now, half a second at most behind."""
    found = progress(folder)
    return len(found) > 1 and found[-1][1] - found[0][1] >= (found[-1][0] - found[0][0] - 0.5) * RATE > 0


def inject(cluster: Cluster, case: Case, job: str, folder: Path) -> tuple[float, float]:
    """Inject the fault. Return when it began and when it ends."""
    if case.throws:
        cluster.until(lambda: bool((folder / "thrown").read_text()))
        return int((folder / "thrown").read_text().split()[0]) / 1000, time.time()
    victim, name = cluster.jobmanager, ""
    if case.target != "jobmanager":
        vertices = cluster.ask(f"/jobs/{job}")["vertices"]
        [vertex] = [v["id"] for v in vertices if case.target in v["name"].lower()]
        name = cluster.ask(f"/jobs/{job}/vertices/{vertex}/subtasks/0")["taskmanager-id"]
        victim = cluster.taskmanagers[name]
    began = time.time()
    os.kill(victim.pid, signal.SIGKILL if case.kill else signal.SIGSTOP)
    if case.kill:
        del cluster.taskmanagers[name]
    if not case.kill or not case.spare:
        time.sleep(case.seconds)
    if not case.kill:
        os.kill(victim.pid, signal.SIGCONT)
    elif not case.spare:
        cluster.add()
    return began, time.time()


def recovered(cluster: Cluster, job: str, folder: Path, ends: float) -> bool:
    """Whether the job has run for a while since the end of the fault and its last change of state."""
    details = cluster.ask(f"/jobs/{job}")
    if details["state"] in ("FAILED", "FINISHED", "CANCELED"):
        return True
    states = [vertex["status"] for vertex in details["vertices"]]
    changed = [at for at, text in cluster.log() if " switched from " in text][-1]
    quiet = time.time() - max(ends, changed) > QUIET_S
    return quiet and set(states) == {"RUNNING"} and time.time() - progress(folder)[-1][0] < 1


def figures(
    log: list[tuple[float, str]], sink: list[tuple[float, int]], job: str, began: float
) -> dict[str, Any]:
    """Return the times of one recovery, in seconds since the fault."""
    log = [(at - began, text) for at, text in log if at >= began - 0.005]
    jobs = [(at, text.rpartition(" state ")[2]) for at, text in log if f"({job}) switched from" in text]
    failed = [at for at, text in jobs if text.startswith("RUNNING to RESTARTING")]
    tasks = [
        (at, text.rpartition(" switched from ")[2])
        for at, text in log
        if "(1/1)" in text and " switched from " in text
    ]

    def last(change: str) -> float | None:
        return max((at for at, text in tasks if text.startswith(change)), default=None)

    before = max(number for at, number in sink if at <= began)
    new = [at - began for at, number in sink if at > began and number > before]
    pairs = list(zip([0.0, *new], new, strict=False))
    gap = max(pairs, key=lambda pair: pair[1] - pair[0])
    row: dict[str, Any] = {"failed": [round(at, 3) for at in failed]}
    if failed:
        row["down"] = min((at for at in new if at > failed[-1]), default=None)
        row["deploying"], row["running"] = last("SCHEDULED to DEPLOYING"), last("INITIALIZING to RUNNING")
    else:
        row["down"] = gap[1]
    return row


FUNCTION = """
from pathlib import Path

THROWN = Path(__file__).with_name("thrown")

def throw(record):
    if record.sequence == {at} and (not THROWN.exists() or THROWN.stat().st_size < {throws}):
        with THROWN.open("a") as file:
            file.write("x")
        raise RuntimeError("record {at}")
    return record
"""


def scenario(name: str, case: Case, *, fenced: bool) -> dict[str, Any]:
    """Return the case as a scenario. `fenced`: Headgate's default, not to deploy to slots that may be dead."""
    source = {"recordsPerSecond": RATE, "recordBytes": 100, "keys": 1000}
    main: dict[str, Any] = {"parallelism": 1, "slotSharingGroup": "main"}
    names = ["source", "count", "sink"]
    vertices = [
        {"name": "source", "parallelism": 1, "slotSharingGroup": "source", "source": source},
        main | {"name": "count", "operator": "keyed-count"},
        main | {"name": "sink", "sink": "ledger"},
    ]
    if case.throws:
        names.insert(2, "throws")
        vertices.insert(2, main | {"name": "throws", "operator": "python", "function": "throws.py:throw"})
    kind = "kill" if case.kill else "pause"
    fault: dict[str, Any] = {"name": name, "at": "0 s", "duration": f"{round(case.seconds * 1000)} ms"}
    if case.target == "jobmanager":
        fault["jobmanager"] = {kind: {}}
    else:
        fault["target"] = {"taskManagers": {"running": case.target, "mode": "one"}}
        fault["process"] = {kind: {}}
    replaced = "Never" if case.spare else f"{round(case.seconds * 1000)} ms"
    fence = {"headgate.restart.fence-dead-slots": str(fenced).lower()}
    testbed = {
        "flinkVersion": "2.3",
        "taskManagers": {"replicas": 3 if case.spare else 2, "slots": 1, "replaceLost": replaced},
        "flinkConfiguration": OPTIONS | case.options | fence,
        "job": {
            "vertices": vertices,
            "edges": [
                {"from": one, "to": other, "partitioning": "hash" if one == "source" else "forward"}
                for one, other in pairwise(names)
            ],
        },
    }
    spec = {
        "testbed": testbed,
        "timeline": {
            "warmUp": f"{WARM_UP_S - 2:g} s",
            "baseline": "2 s",
            "observation": "25 s" if case.spare else "60 s",
            "drain": "30 s",
        },
        "faults": [] if case.throws else [fault],
        "control": False,
    }
    return {
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": name},
        "spec": spec,
    }


def run_headgate(command: str, name: str, case: Case, folder: Path, *, fenced: bool) -> dict[str, Any]:
    """Run the case once with `headgate simulate` or `headgate run`. Return what its history and its answer say."""
    folder.mkdir(exist_ok=True)
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(scenario(name, case, fenced=fenced)))
    (folder / "throws.py").write_text(FUNCTION.format(at=THROWS_AT, throws=case.throws))
    words = [sys.executable, "-m", "testbed_runtime.cli.main", command, "-q", str(path), "--out", str(folder)]
    made = subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    found = list(folder.glob(f"{name}-*"))
    if not found:
        raise SystemExit(f"headgate {command}: {made.stderr or made.stdout}")
    [run] = found
    history = run / "history" / "main-1"
    events = read_table(history / "events.parquet").to_pylist()
    faults = read_table(history / "faults.parquet").to_pylist()
    failures = [event for event in events if event["kind"] == "failover.failure"]
    injected = [fault["t_ns"] for fault in faults if fault["state"] == "injected"]
    began = min(injected or [failure["t_ns"] for failure in failures])

    def times(kind: str) -> list[float]:
        return [(event["t_ns"] - began) / 1e9 for event in events if event["kind"] == kind]

    recovery = next(iter(json.loads((run / "recovery.json").read_text())["main-1"]["recoveries"]), None)
    row: dict[str, Any] = {"failed": times("failover.started")}
    if row["failed"]:
        row |= {"deploying": times("failover.slots")[-1], "running": times("failover.deployed")[-1]}
        row["texts"] = [f"{json.loads(f['data'])['cause_class']}: {f['text']}" for f in failures]
    if recovery is not None:
        row["down"] = recovery["downtime_s"]
        row["owners"] = [
            (p["text"], round(p["seconds"], 3)) for p in recovery["prices"] if p["seconds"] > 0.01
        ]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--run", nargs="*", default=["killed-consumer", "paused-long"], choices=CASES)
    parser.add_argument("--folder", help="keep Flink's logs in this folder")
    parser.add_argument("--out", default="/dev/null")
    parser.add_argument("--tables", nargs="+", help="files that --out has written: only print the tables")
    asked = parser.parse_args()
    if asked.tables:
        print(
            tables(
                [json.loads(line) for name in asked.tables for line in Path(name).read_text().splitlines()]
            )
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes too
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(asked.folder or name)
        try:
            cluster = Cluster(class_path(folder), folder, stack)
        except NoFlinkError as error:
            parser.exit(1, f"Flink cannot run here: {error}\n")
        for number in range(asked.rounds):
            for case in asked.cases:
                for row in compare(cluster, case, folder / f"{case}-{number}", run=case in asked.run):
                    row |= {"case": case, "load": round(os.getloadavg()[0], 1)}
                    with Path(asked.out).open("a") as out:
                        print(json.dumps(row), file=out)
                    print(json.dumps(row), flush=True)


def compare(cluster: Cluster, name: str, folder: Path, *, run: bool) -> Iterator[dict[str, Any]]:
    """Run a case in Flink, and with Headgate as Flink had it."""
    folder.mkdir(exist_ok=True)
    case = CASES[name]
    row = run_flink(cluster, case, folder / "flink")
    yield row | {"engine": "Flink"}
    if row["registered"] is not None:
        case = replace(case, seconds=round(row["registered"], 3))
    yield run_headgate("simulate", name, case, folder / "simulate", fenced=True) | {"engine": "simulate"}
    unfenced = {"engine": "simulate, fence-dead-slots: false"}
    if case.target == "source":
        yield run_headgate("simulate", name, case, folder / "unfenced", fenced=False) | unfenced
    if run:
        yield run_headgate("run", name, case, folder / "run", fenced=True) | {"engine": "run"}


def tables(rows: list[dict[str, Any]]) -> str:
    """Return Markdown tables: the times since the fault, as the range of the rounds, and the texts."""
    columns = ("failovers", "first failure", "last failure", "deploying", "running", "new record")
    lines = [f"| case | | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    texts = ["| case | | failures |", "|---|---|---|"]
    owners = ["| case | | owners of the seconds until the job has caught up |", "|---|---|---|"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["engine"]), []).append(row)
    for (case, engine), found in groups.items():
        failed = [row["failed"] for row in found]
        values = [
            spread([len(times) for times in failed], "d"),
            *(spread([times[i] for times in failed if times]) for i in (0, -1)),
            *(
                spread([row[key] for row in found if row.get(key)])
                for key in ("deploying", "running", "down")
            ),
        ]
        lines.append(f"| {case} | {engine} | {' | '.join(values)} |")
        seen = {shortened(text) for row in found for text in row.get("texts", [])}
        if seen:
            texts.append(f"| {case} | {engine} | {'<br>'.join(sorted(seen))} |")
        if priced := found[0].get("owners"):
            owned = ", ".join(f"{seconds:.2f} s {text}" for text, seconds in priced)
            owners.append(f"| {case} | {engine} | {owned} |")
    return "\n".join([*lines, "", *texts, "", *owners])


def shortened(text: str) -> str:
    """Return the class and the beginning of a failure, without ids and addresses."""
    text = re.sub(r"^(java.util.concurrent.CompletionException: )+", "", text)
    text = re.sub(r"^[\w.]+[.](?=\w+: )", "", text)
    return re.sub(r"'\S+ \[ \S+ \] '|\btm-[\d-]+|\b[0-9a-f]{32}\b", "*", text)[:TEXT_CHARACTERS]


def spread(values: list[float], how: str = ".2f") -> str:
    least, most = (format(end, how) for end in (min(values), max(values))) if values else ("–", "–")
    return least if least == most else f"{least} … {most}"


if __name__ == "__main__":
    main()
