"""Compare recoveries of a real Flink on this machine with what Headgate says about the same options, fault and topology.

    python benchmarks/flink_recovery_bench.py [--cases killed-consumer …] [--run killed-consumer …] [--flink-version 1.20.1] [--out runs.jsonl]
    python benchmarks/flink_recovery_bench.py --tables runs.jsonl

Every process of Flink has a network namespace of its own, which needs root. Flink's times are read from the JobManager's log, from the REST
API (texts of the failures) and from the files of the job's sink. Each case (recovery_cases.py) is also run with `headgate simulate`, and those of
`--run` with `headgate run`. With --out, cases that the file already has are left out. Without Maven, a JDK or the network it says so.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from flink_bench import (
    JOBMANAGER,
    OPENS,
    TASKMANAGER,
    NoFlinkError,
    class_path,
    configuration,
    process,
    wait_for,
)
from pyarrow.parquet import read_table
from recovery_cases import CASES, OPTIONS, RATE, WARM_UP_S, Case, Fault, function, scenario, written

from testbed_runtime.local import namespaces

VERSION = "2.3.0"
START_LIMIT_S, RECOVERY_LIMIT_S, RUN_LIMIT_S = 120.0, 60.0, 300.0
QUIET_S = 3.0
"""A job that has made progress without a failure for this long after the end of its fault has recovered."""
HEAP = [
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
]
"""Small processes, which compile little: the machine has two cores."""
TEXT_CHARACTERS = 120
FAILURE = r"(\d+) tasks will be restarted to recover "
"""The line of the JobMaster's log for each failure."""
CHAINED = ("throws-", "sink-")
"""Tasks that are part of the count's in Flink."""
LOG = [
    f"-Dorg.slf4j.simpleLogger.{word}"
    for word in ("showDateTime=true", "dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS", "logFile=System.err")
]
MEMORY = {
    "taskmanager.memory.task.heap.size": "128m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
}
STANDALONE = {"resourcemanager.standalone.start-up-time": "86400000"}
"""Flink's standalone ResourceManager waits so long for TaskManagers, as one on Kubernetes always does. 1.18 reads milliseconds only."""
RPC_PORT, REST_PORT = 6123, 8081
PLACES = 12
"""Network namespaces for TaskManagers; the one that was left longest ago is used next."""


class TooSlowError(Exception):
    """Flink did not get there in time."""


class Cluster:
    """A JobManager and a changing number of TaskManagers. Every process ends with the stack."""

    def __init__(self, classes: str, version: str, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack, self.version = folder, stack, version
        if why := namespaces.why_not():
            raise NoFlinkError(why)
        places = [f"tm{number}" for number in range(PLACES)]
        network = namespaces.create(["jm", *places])
        stack.callback(namespaces.remove, network.id)
        self.place = network.members["jm"]
        self.address = self.place.address
        self._places = [network.members[place] for place in places]
        hosts = [f"{member.address} {member.name}" for member in network.members.values()]
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        names = f"-Djdk.net.hosts.file={folder}/hosts"  # no name server is reachable from a namespace
        self.java = ["java", *OPENS, *HEAP, *LOG, names, "-cp", classes]
        self._options: dict[str, str] | None = None
        self._count = self._starts = 0
        self.jobmanager: subprocess.Popen[bytes] | None = None
        self.taskmanagers: dict[str, tuple[subprocess.Popen[bytes], namespaces.Member]] = {}

    def stop(self) -> None:
        self.resize(0)
        if self.jobmanager is not None:
            self.jobmanager.kill()
            self.jobmanager.wait()
            self.jobmanager, self._options = None, None

    def start(self, options: dict[str, str]) -> None:
        """Have a JobManager with these options."""
        if options == self._options:
            return
        self.stop()
        self._options = options
        hosts = {
            "jobmanager.rpc.address": self.address,
            "jobmanager.bind-host": self.address,
            "rest.address": self.address,
            "rest.bind-address": self.address,
        }
        merged = configuration(RPC_PORT, REST_PORT, 1) | MEMORY | STANDALONE | hosts
        merged |= written(OPTIONS | options, self.version)
        del merged["taskmanager.host"]
        name = "flink-conf.yaml" if self.version.startswith("1.18") else "config.yaml"
        text = "\n".join(f"{key}: {value}" for key, value in merged.items())
        (self.folder / name).write_text(text + "\n")
        self._starts += 1
        self.jobmanager = self._start(f"jobmanager-{self._starts}", self.place, JOBMANAGER)
        wait_for(REST_PORT, self.address)

    def _start(self, name: str, place: namespaces.Member, *words: str) -> subprocess.Popen[bytes]:
        command = [*place.prefix, *self.java, *words, "--configDir", str(self.folder)]
        return self._stack.enter_context(process(self.folder / f"{name}.log", *command))

    def add(self) -> None:
        name = f"tm-{self._count}"
        self._count += 1
        place = self._places.pop(0)
        words = [f"-Dtaskmanager.resource-id={name}", f"-Dtaskmanager.host={place.address}"]
        self.taskmanagers[name] = self._start(name, place, TASKMANAGER, *words), place

    def kill(self, name: str) -> None:
        started, place = self.taskmanagers.pop(name)
        started.kill()
        self._places.append(place)

    def resize(self, number: int) -> None:
        """Have this many registered TaskManagers, all with a free slot."""
        while len(self.taskmanagers) > number:
            self.kill(next(iter(self.taskmanagers)))
        while len(self.taskmanagers) < number:
            self.add()
        ids = set(self.taskmanagers)
        self.until(
            lambda: (
                not ids
                or {t["id"] for t in self.ask("/taskmanagers")["taskmanagers"] if t["freeSlots"]} == ids
            )
        )

    def ask(self, path: str, method: str = "GET") -> Any:
        asked = urllib.request.Request(f"http://{self.address}:{REST_PORT}{path}", method=method)
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
        raise TooSlowError(f"Flink did not get there within {limit_s:.0f} s (logs in {self.folder})")

    def log(self) -> list[tuple[float, str]]:
        """Return the JobManager's log with times in seconds since the epoch."""
        found = []
        for line in (self.folder / f"jobmanager-{self._starts}.log").read_text(errors="replace").splitlines():
            stamp, _, text = line.partition(" ")
            if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+", stamp):
                found.append((datetime.fromisoformat(stamp).timestamp(), text))
        return found


def progress(folder: Path) -> list[list[tuple[float, int]]]:
    """Return (seconds since the epoch, number of the record) of the lines of each subtask of the sink."""
    found = []
    for path in sorted(folder.glob("progress-*")):
        lines = path.read_text().splitlines()
        found.append(
            [(int(line.split()[0]) / 1000, int(line.split()[1])) for line in lines if line.count(" ") == 1]
        )
    return found


def run_flink(cluster: Cluster, case: Case, folder: Path) -> dict[str, Any]:
    """Run the job with the faults once. Return what Flink did."""
    folder.mkdir(exist_ok=True)
    cluster.start(case.cluster)
    cluster.resize(case.taskmanagers)
    words: dict[str, Any] = {"host": cluster.address, "port": REST_PORT, "folder": folder, "rate": RATE}
    words |= {"parallelism": case.parallelism, "busy": case.busy_ms} | written(case.options, cluster.version)
    words |= ({"forward": True} if case.forward else {}) | ({"finishes": RATE} if case.finishes else {})
    made = subprocess.run(
        [*cluster.java, "dev.headgate.bench.Recovery", *(f"{key}={value}" for key, value in words.items())],
        check=True,
        stdout=subprocess.PIPE,
        timeout=START_LIMIT_S,
    )
    job = made.stdout.decode().split()[-1]
    cluster.until(lambda: caught_up(folder, case))
    time.sleep(WARM_UP_S)
    began, ends = inject(cluster, case, job, folder)
    cluster.until(lambda: recovered(cluster, job, folder, ends), RECOVERY_LIMIT_S + ends - began)
    row = figures(cluster.log(), progress(folder), job, began)
    history = cluster.ask(f"/jobs/{job}/exceptions?maxExceptions=20")["exceptionHistory"]["entries"]
    row["texts"] = [entry["stacktrace"].splitlines()[0] for entry in reversed(history)]
    registered = [at - began for at, text in cluster.log() if " Registering TaskManager with Res" in text]
    row["registered"] = None if case.replaced is None else registered[-1]
    if cluster.ask(f"/jobs/{job}")["state"] != "FAILED":
        cluster.ask(f"/jobs/{job}?mode=cancel", "PATCH")
        cluster.until(lambda: cluster.ask(f"/jobs/{job}")["state"] == "CANCELED")
    return row


def caught_up(folder: Path, case: Case) -> bool:
    """Whether every sink has reached the records that are due now, half a second at most behind; a busy one has begun."""
    found = progress(folder)
    rate = RATE / case.parallelism
    return len(found) == case.parallelism and all(
        len(one) > 1 and (one[-1][1] - one[0][1] >= (one[-1][0] - one[0][0] - 0.5) * rate > 0 or case.busy_ms)
        for one in found
    )


def inject(cluster: Cluster, case: Case, job: str, folder: Path) -> tuple[float, float]:
    """Inject the faults. Return when the first one began and when the last one ends."""
    steps: list[tuple[float, Callable[[], object]]] = []
    places = tasks(cluster, job)
    for fault in case.faults:
        steps += actions(cluster, fault, places, folder)
    if case.replaced is not None:
        steps.append((case.replaced, cluster.add))
    began = time.time()
    for at, act in sorted(steps, key=lambda step: step[0]):
        time.sleep(max(0.0, began + at - time.time()))
        act()
    ended = time.time()
    if case.faults[0].what == "throw":
        cluster.until(lambda: bool((folder / "thrown").read_text()))
        began = int((folder / "thrown").read_text().split()[0]) / 1000
    return began, ended


def tasks(cluster: Cluster, job: str) -> dict[tuple[str, int], str]:
    """Return the TaskManagers by vertex and subtask, and one without a task."""
    found = {}
    for vertex in cluster.ask(f"/jobs/{job}")["vertices"]:
        name = vertex["name"].removeprefix("Source: ").split(" ")[0]
        for subtask in cluster.ask(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]:
            found[name, subtask["subtask"]] = subtask["taskmanager-id"]
    idle = set(cluster.taskmanagers) - set(found.values())
    return found | dict.fromkeys([("spare", 0)], next(iter(idle), ""))


def actions(
    cluster: Cluster, fault: Fault, places: dict[tuple[str, int], str], folder: Path
) -> Iterator[tuple[float, Callable[[], object]]]:
    """Yield what begins and what ends a fault, with the times."""
    if fault.what == "throw":
        yield fault.at, lambda: (folder / "throw").write_text("x\n" * fault.times)
        return
    name = places.get((fault.target, fault.subtask), "")
    if fault.what == "kill":
        yield fault.at, lambda: cluster.kill(name)
        return
    assert cluster.jobmanager is not None
    started, place = (
        (cluster.jobmanager, cluster.place) if fault.target == "jobmanager" else cluster.taskmanagers[name]
    )
    if fault.what == "pause":
        yield fault.at, lambda: os.kill(started.pid, signal.SIGSTOP)
        yield fault.at + fault.seconds, lambda: os.kill(started.pid, signal.SIGCONT)
        return
    others = [other for _, other in cluster.taskmanagers.values() if other != place]
    peers = {"jobmanager": [cluster.place], "taskmanagers": others}
    far = peers.get(fault.peers, [other for other in (cluster.place, *others) if other != place])
    cut = {place: rules(far), **dict.fromkeys(far, rules([place]))}
    yield fault.at, lambda: nft(cut)
    yield fault.at + fault.seconds, lambda: nft(dict.fromkeys(cut, "delete table ip cut"))


def rules(senders: list[namespaces.Member]) -> str:
    """Drop what arrives from them, as a network loses it. The kernel of a sender that drops it itself knows, and does not wait."""
    listed = ", ".join(sender.address for sender in senders)
    return (
        f"table ip cut {{ chain in {{ type filter hook input priority 0; ip saddr {{ {listed} }} drop; }}; }}"
    )


def nft(texts: Mapping[namespaces.Member, str]) -> None:
    """Apply the text of each namespace."""
    for place, text in texts.items():
        subprocess.run([*place.prefix, "nft", "-f", "-"], input=text.encode(), check=True)


def recovered(cluster: Cluster, job: str, folder: Path, ends: float) -> bool:
    """Whether the job has failed, or has run for a while since the end of the faults and its last change of state."""
    details = cluster.ask(f"/jobs/{job}")
    if details["state"] in ("FAILED", "FINISHED", "CANCELED"):
        return True
    states = {vertex["status"] for vertex in details["vertices"]} - {"FINISHED"}
    changed = [at for at, text in cluster.log() if " switched from " in text][-1]
    quiet = time.time() - max(ends, changed) > QUIET_S
    return quiet and states == {"RUNNING"} and all(time.time() - one[-1][0] < 1 for one in progress(folder))


def figures(
    log: list[tuple[float, str]], sinks: list[list[tuple[float, int]]], job: str, began: float
) -> dict[str, Any]:
    """Return the times of one recovery, in seconds since the fault."""
    log = [(at - began, text) for at, text in log if at >= began - 0.005]
    jobs = [
        (at, text.rpartition(" state ")[2])
        for at, text in log
        if f"Job recovery ({job}) switched from" in text
    ]
    handled = [(at, found) for at, text in log if (found := re.search(FAILURE, text))]
    failed = [at for at, _ in handled] + [at for at, text in jobs if text.startswith("RUNNING to FAILING")]
    changes = [
        (at, text.rpartition(" switched from ")[2])
        for at, text in log
        if re.search(r"\(\d+/\d+\)", text) and " switched from " in text
    ]

    def last(change: str) -> float | None:
        return max((at for at, text in changes if text.startswith(change)), default=None)

    row: dict[str, Any] = {"failed": [round(at, 3) for at in sorted(failed)], "state": "RUNNING"}
    row["restarted"] = [int(found[1]) for _, found in handled]
    if any(text.startswith("FAILING to FAILED") for _, text in jobs):
        return row | {"state": "FAILED"}
    if handled:
        row["deploying"], row["running"] = last("SCHEDULED to DEPLOYING"), last("INITIALIZING to RUNNING")
    row["down"] = max((at for sink in sinks if (at := down(sink, began, row.get("deploying")))), default=None)
    return row


def down(sink: list[tuple[float, int]], began: float, deployed: float | None) -> float | None:
    """Return when a sink wrote its first new record after the last deployment; without one, after a gap of a second."""
    before = max(number for at, number in sink if at <= began)
    new = [at - began for at, number in sink if at > began and number > before]
    if deployed is not None:
        return next((at for at in new if at > deployed), None)
    return next((end for start, end in pairwise([0.0, *new]) if end - start > 1), None)


def run_headgate(
    command: str, name: str, case: Case, folder: Path, *, version: str, fenced: bool
) -> dict[str, Any]:
    """Run the case once with `headgate simulate` or `headgate run`. Return what its history and its answer say."""
    folder.mkdir(exist_ok=True)
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(scenario(name, case, version, fenced=fenced)))
    (folder / "throws.py").write_text(function(case))
    words = [sys.executable, "-m", "testbed_runtime.cli.main", command, "-q", str(path), "--out", str(folder)]
    made = subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    runs = list(folder.glob(f"{name}-*"))
    if not runs:
        raise SystemExit(f"headgate {command}: {made.stderr or made.stdout}")
    [run] = runs
    history = run / "history" / "main-1"
    events = read_table(history / "events.parquet").to_pylist()
    faults = read_table(history / "faults.parquet").to_pylist()
    failures = [event for event in events if event["kind"] == "failover.failure"]
    injected = [fault["t_ns"] for fault in faults if fault["state"] == "injected"]
    if case.faults[0].what == "throw":
        injected = []
    began = min(injected or [failure["t_ns"] for failure in failures])

    def times(kind: str) -> list[float]:
        return [round((event["t_ns"] - began) / 1e9, 3) for event in events if event["kind"] == kind]

    ends = [e["text"] for e in events if e["kind"] == "job.state" and '"to": "FAILED"' in e["data"]]
    recoveries = json.loads((run / "recovery.json").read_text())["main-1"]["recoveries"]
    recovery = max(recoveries, key=lambda one: one["downtime_s"] or 0, default=None)
    started = [event for event in events if event["kind"] == "failover.started"]
    row: dict[str, Any] = {"failed": times("failover.failure"), "state": "RUNNING"}
    row["restarted"] = [
        sum(not task.startswith(CHAINED) for task in json.loads(event["data"])["region"]) for event in started
    ]
    row["texts"] = [f"{json.loads(f['data'])['cause_class']}: {f['text']}" for f in failures]
    if ends:
        row["texts"][-1] = f"JobException: {ends[0]}"  # as Flink, which keeps the cause below it
        return row | {"state": "FAILED"}
    for key, kind in (("deploying", "failover.slots"), ("running", "failover.deployed")):
        if found := times(kind):
            row[key] = found[-1]
    if recovery is not None and recovery["downtime_s"] is not None:
        row["down"] = (recovery["effect_ns"] - began) / 1e9 + recovery["downtime_s"]
        row["owners"] = [
            (p["text"], round(p["seconds"], 3)) for p in recovery["prices"] if p["seconds"] > 0.01
        ]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--run", nargs="*", default=["killed-consumer", "paused-long"], choices=CASES)
    parser.add_argument("--flink-version", default=VERSION)
    parser.add_argument("--folder", help="keep Flink's logs in this folder")
    parser.add_argument("--out", default="/dev/null")
    parser.add_argument("--tables", nargs="+", help="files that --out has written: only print the tables")
    asked = parser.parse_args()
    if asked.tables:
        print(tables([row for name in asked.tables for row in rows_of(Path(name))]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes too
    version = asked.flink_version
    done = {row["case"] for row in rows_of(Path(asked.out)) if row["version"] == version}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(asked.folder or name)
        try:
            cluster = Cluster(class_path(folder, version, "Recovery.java"), version, folder, stack)
        except NoFlinkError as error:
            parser.exit(1, f"Flink cannot run here: {error}\n")
        for case in (case for case in asked.cases if case not in done):
            try:
                rows = [
                    row | {"case": case, "version": version, "load": round(os.getloadavg()[0], 1)}
                    for row in compare(cluster, version, case, folder / case, run=case in asked.run)
                ]
            except TooSlowError as error:
                print(f"{case}: {error}", file=sys.stderr, flush=True)
                cluster.stop()
                continue
            with Path(asked.out).open("a") as out:
                for row in rows:
                    print(json.dumps(row), file=out)
                    print(json.dumps(row), flush=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def compare(cluster: Cluster, full: str, name: str, folder: Path, *, run: bool) -> Iterator[dict[str, Any]]:
    """Run a case in Flink, and with Headgate as Flink had it."""
    folder.mkdir(exist_ok=True)
    case, version = CASES[name], full.rpartition(".")[0]
    row = run_flink(cluster, case, folder / "flink")
    yield row | {"engine": "Flink"}
    if row["registered"] is not None:
        case = replace(case, replaced=row["registered"])
    engines = [("simulate", True)] + ([("run", True)] if run else [])
    if case.suspects:
        engines.append(("simulate", False))
    for command, fenced in engines:
        engine = command if fenced else f"{command}, fence-dead-slots: false"
        place = folder / engine.partition(":")[0]
        yield run_headgate(command, name, case, place, version=version, fenced=fenced) | {"engine": engine}


def tables(rows: list[dict[str, Any]]) -> str:
    """Return Markdown tables: the times since the fault, as the range of the runs, and the texts. Headgate's rows are those of the newest version."""
    columns = (
        "failures",
        "tasks restarted",
        "first failure",
        "last failure",
        "deploying",
        "running",
        "new record",
        "largest share",
    )
    lines = [f"| case | | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    texts = ["| case | | failures |", "|---|---|---|"]
    newest = max((row["version"] for row in rows), key=lambda text: [int(part) for part in text.split(".")])
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (list(CASES).index(row["case"]), row["engine"] != "Flink")):
        engine = row["engine"]
        if engine == "Flink":
            engine += f" {row['version']}"
        elif row["version"] != newest:
            continue
        groups.setdefault((row["case"], engine), []).append(row)
    for (case, engine), found in groups.items():
        failed = [row["failed"] for row in found]
        values = [
            spread([len(times) for times in failed], "d"),
            "FAILED" if found[0]["state"] == "FAILED" else counted(found[0]["restarted"]),
            *(spread([times[i] for times in failed if times]) for i in (0, -1)),
            *(
                spread([row[key] for row in found if row.get(key)])
                for key in ("deploying", "running", "down")
            ),
            max(found[0].get("owners", []), key=lambda owner: owner[1], default=[""])[0],
        ]
        lines.append(f"| {case} | {engine} | {' | '.join(values)} |")
        seen = dict.fromkeys(shortened(text) for row in found for text in row.get("texts", []))
        if seen and engine in (f"Flink {newest}", "simulate"):
            texts.append(f"| {case} | {engine} | {'<br>'.join(seen)} |")
    return "\n".join([*lines, "", *texts])


def counted(numbers: list[int]) -> str:
    """Return a list of numbers with repetitions counted: 2 × 4."""
    return ", ".join(
        f"{len(same)} × {number}" if len(same := list(group)) > 1 else str(number)
        for number, group in groupby(numbers)
    )


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
