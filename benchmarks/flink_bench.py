"""Measure records per second of a real Flink on this machine: JobManager and two TaskManagers in processes of their own.

    python benchmarks/flink_bench.py [--records 20000000] [--record-bytes 100] [--rounds 1]

Flink's jars come from Maven Central (60 MB, once); without Maven, a JDK or the network it says so. The job has a source and a sink with
object reuse, checkpoints every second, and the network memory of job_bench.py. Measured is the second half of the records, when
the code is compiled: Flink starts slowly, and Headgate does not. Figures are as in job_bench.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SOURCES = Path(__file__).with_name("flink")
JOBMANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASKMANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
RESOLVE_LIMIT_S, START_LIMIT_S, RUN_LIMIT_S = 240.0, 180.0, 600.0
OPENS = [
    word
    for package in ("lang", "lang.invoke", "util", "util.concurrent", "nio", "net", "time", "io")
    for word in ("--add-opens", f"java.base/java.{package}=ALL-UNNAMED")
]
"""Flink's start scripts open these packages on Java 17."""


class NoFlinkError(Exception):
    """This machine cannot run Flink; the text gives the reason."""


def class_path(folder: Path, version: str = "", job: str = "*.java") -> str:
    """Resolve Flink's jars and compile the jobs. `version`: other than that of pom.xml. Raises NoFlinkError."""
    for tool in ("mvn", "javac", "java"):
        if shutil.which(tool) is None:
            raise NoFlinkError(f"{tool} is not installed")
    listed, classes = folder / "class-path", folder / "classes"
    command = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={listed}"] + ([f"-Dflink.version={version}"] if version else [])
    for words in (["-o"], []):
        subprocess.run([*command, *words], capture_output=True, timeout=RESOLVE_LIMIT_S, check=False)
        if listed.exists():
            break
    else:
        raise NoFlinkError("Maven cannot get flink-clients (no network?)")
    jars = listed.read_text().strip()
    sources = SOURCES.glob(job)
    subprocess.run(
        ["javac", "-nowarn", "-d", classes, "-cp", jars, *sources], check=True, capture_output=True
    )
    return f"{classes}:{jars}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def configuration(rpc: int, rest: int, slots: int) -> dict[str, object]:
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc,
        "rest.address": "127.0.0.1",
        "rest.port": rest,
        "rest.bind-port": rest,
        "taskmanager.host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.cpu.cores": 1.0,
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.task.heap.size": "512m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.managed.size": "0m",
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "taskmanager.memory.jvm-metaspace.size": "128m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
    }


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def cluster(classes: str, folder: Path, *, slots: int = 1) -> Iterator[tuple[list[str], int]]:
    """Start a JobManager and two TaskManagers. Yield the words that start a Java class, and the REST port."""
    rpc, rest = free_port(), free_port()
    text = "\n".join(f"{key}: {value}" for key, value in configuration(rpc, rest, slots).items())
    (folder / "config.yaml").write_text(text + "\n")
    java = ["java", *OPENS, "-cp", classes]
    with ExitStack() as stack:
        stack.enter_context(
            process(folder / "jm.log", *java, "-Xmx512m", JOBMANAGER, "--configDir", str(folder))
        )
        for number in range(2):
            words = [*java, "-Xms1g", "-Xmx1g", TASKMANAGER, "--configDir", str(folder)]
            stack.enter_context(process(folder / f"tm-{number}.log", *words))
        wait_for(rest)
        yield java, rest


def measure(records: int, record_bytes: int, classes: str, folder: Path) -> list[dict[str, float | str]]:
    """Run the job once in a new cluster. Return the two vertices' rates."""
    with cluster(classes, folder) as (java, rest):
        words = [str(rest), str(records), str(record_bytes), str(folder)]
        job = [*java, "dev.headgate.bench.Throughput", *words]
        subprocess.run(job, check=True, capture_output=True, timeout=RUN_LIMIT_S)
    return [rates(folder, vertex) for vertex in ("source", "sink")]


def wait_for(port: int, address: str = "127.0.0.1") -> None:
    """Wait until the REST endpoint listens: the client retries everything else."""
    for _ in range(int(START_LIMIT_S / 0.2)):
        try:
            socket.create_connection((address, port)).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise NoFlinkError("Flink's JobManager did not start")


def rates(folder: Path, vertex: str) -> dict[str, float | str]:
    noted = (folder / vertex).read_text().splitlines()
    (first, wall, cpu), (last, wall_end, cpu_end) = (map(int, line.split()) for line in noted)
    records = (last - first) * 1e9
    return {
        "vertex": vertex,
        "records/s": records / (wall_end - wall),
        "records/s of CPU": records / (cpu_end - cpu),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            classes = class_path(Path(folder))
        except NoFlinkError as error:
            parser.exit(1, f"Flink cannot run here: {error}\n")
        for number in range(asked.rounds):
            place = Path(folder) / str(number)
            place.mkdir()
            for row in measure(asked.records, asked.record_bytes, classes, place):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
