"""Flink's own, unchanged classes as the peer: resolved by Maven into its cache, driven by the sources in `java/`."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent / "java"
VERSIONS = {"2.x": "2.3.0", "1.20": "1.20.3"}
"""The Flink release that is tested for each `--flink-version`."""
DOWNLOAD_LIMIT_S = 240.0
"""The jars of one version, about 60 MiB."""
LIMIT_S = 90.0
PARTITION = "a0" * 16 + "00" * 4 + "b0" * 16 + "c0" * 16 + "00" * 8
OTHER_PARTITION = "a1" + PARTITION[2:]
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
AGREED = ("index", "buffers", "bytes", "records", "sha256")


class NoFlinkError(Exception):
    """This machine cannot run Flink; the text gives the reason."""


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def subpartitions(self) -> list[dict[str, Any]]:
        assert self.stdout.count("\n") == 1, (self.returncode, self.stdout, self.stderr)
        return json.loads(self.stdout)["subpartitions"]


class Running:
    """A process, which reports its address on stderr if it listens."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.port = 0

    def listening(self) -> Running:
        said = ""
        while not said.startswith("listening on 127.0.0.1:"):
            said = self.process.stderr.readline()
            assert said, self.process.stdout.read()
        self.port = int(said.rpartition(":")[2])
        return self

    def result(self, limit_s: float = LIMIT_S) -> Done:
        out, err = self.process.communicate(timeout=limit_s)
        return Done(self.process.returncode, out, err)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@dataclass
class Flink:
    """One compiled Flink version, and Headgate's command with the same version."""

    name: str
    class_path: str
    scratch: Path
    """Flink's folder for records that are larger than a buffer, and for partitions on disk."""

    def java(self, mode: str, *arguments: str, **options: object) -> list[str]:
        """Run the command. `_` in a name stands for `-`; Flink's keys go into `flink={…}`."""
        flink = options.pop("flink", {})
        words = [*arguments]
        words += [f"{key.replace('_', '-')}={value}" for key, value in options.items()]
        words += [f"{key}={value}" for key, value in flink.items()]
        jvm = [*QUICK_JVM, f"-Djava.io.tmpdir={self.scratch}"]
        return ["java", *jvm, "-cp", self.class_path, "dev.headgate.interop.Main", mode, *words]

    def serve(self, **options: object) -> Running:
        return Running(self.java("serve", **{"partition": PARTITION} | options)).listening()

    def fetch(self, port: int, **options: object) -> Running:
        return Running(self.java("fetch", port=port, **{"partition": PARTITION} | options))

    def headgate(self, mode: str, *words: object, **options: object) -> Running:
        command = [sys.executable, "-m", "testbed_runtime.cli.exchange", mode, "--flink-version", self.name]
        for key, value in ({"partition": PARTITION} | options).items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        running = Running([*command, *map(str, words)])
        return running.listening() if mode == "serve" else running


def build(name: str, folder: Path) -> Flink:
    """Resolve and compile, or take what another process has compiled in this folder. Raises NoFlinkError if something is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    kept, failed = folder / "compiled", folder / "failed"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            raise NoFlinkError(failed.read_text())
        if not kept.exists():
            try:
                kept.write_text(_compiled(name, folder))
            except NoFlinkError as error:
                failed.write_text(str(error))
                raise
    (scratch := folder / "scratch").mkdir(exist_ok=True)
    return Flink(name, kept.read_text(), scratch)


def _compiled(name: str, folder: Path) -> str:
    """Return the class path of Flink and the drivers."""
    for tool, what in (("mvn", "Maven"), ("javac", "a JDK (javac)"), ("java", "Java")):
        if shutil.which(tool) is None:
            raise NoFlinkError(f"{what} is not installed")
    listed = folder / "class-path"
    if not (_resolved(name, listed, "-o") or _resolved(name, listed)):
        raise NoFlinkError(f"Maven cannot get flink-runtime {VERSIONS[name]} (no network?)")
    jars = listed.read_text().strip()
    classes = folder / "classes"
    sources = sorted(map(str, [*SOURCES.glob("*.java"), *(SOURCES / name).glob("*.java")]))
    done = subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", jars, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return f"{classes}:{jars}"


def _resolved(name: str, listed: Path, *words: str) -> bool:
    command = ["mvn", "-q", "-B", *words, "-f", str(SOURCES / "pom.xml"), f"-Dflink.version={VERSIONS[name]}"]
    command += ["dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DOWNLOAD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and listed.exists()
