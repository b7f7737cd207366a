"""`exchange serve` and `exchange fetch` as processes: one JSON object each, and they agree."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARTITION = "a0" * 16 + "00" * 4 + "b0" * 16 + "c0" * 16 + "00" * 8
KEYS = ["index", "buffers", "bytes", "records", "sha256", "events", "credits", "spilled"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "testbed_runtime.cli.exchange", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(("records", "record_bytes", "spilled"), [(10_000, 100, 0), (2, 6_000_000, 2)])
def test_serve_and_fetch_agree(records: int, record_bytes: int, spilled: int) -> None:
    """Both count and hash the same of two subpartitions. A reader keeps records above 5 MiB in a file until they end."""
    arguments = ["--port", "0", "--partition", PARTITION, "--subpartitions", "2", "--records", str(records)]
    server = subprocess.Popen(
        command("serve", *arguments, "--record-bytes", str(record_bytes), "--seed", "7"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = server.stderr.readline()
        assert line.startswith("listening on 127.0.0.1:")
        port = line.strip().rpartition(":")[2]
        fetched = []
        for index in ("0", "1"):
            done = run(
                "fetch", "--host", "127.0.0.1", "--port", port, "--partition", PARTITION,
                "--subpartition", index, "--exclusive", "2", "--floating", "8",
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.count("\n") == 1
            fetched += json.loads(done.stdout)["subpartitions"]
        out, _ = server.communicate(timeout=20)
    finally:
        server.kill()
        server.wait()
    assert server.returncode == 0
    assert out.count("\n") == 1
    assert [list(entry) for entry in fetched] == [KEYS, KEYS]
    assert [entry["records"] for entry in fetched] == [records, records]
    assert [entry["spilled"] for entry in fetched] == [spilled, spilled]
    assert json.loads(out) == {"subpartitions": [{**entry, "spilled": 0} for entry in fetched]}


@pytest.mark.processes
def test_bad_input_is_a_sentence_and_exit_code_2() -> None:
    """A port in use, an invalid partition, a port without a listener: no stack trace, nothing on stdout."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        in_use = run("serve", "--port", port, "--partition", PARTITION)
    unserved = run("fetch", "--port", port, "--partition", PARTITION)
    wrong = run("fetch", "--port", port, "--partition", "abc")
    negative = run("serve", "--port", "0", "--partition", "ff" * 60)
    for done, text in (
        (in_use, f"port: {port} on 127.0.0.1 is in use by another process (choose another port"),
        (
            unserved,
            f"Connecting to remote task manager '127.0.0.1/127.0.0.1:{port} [ producer ] ' has failed.",
        ),
        (
            wrong,
            "--partition: 'abc' is not a ResultPartitionID (write its 60 bytes as 120 hexadecimal digits)",
        ),
        (
            negative,
            "--partition: its producer has subtask -1 and attempt -1, and Flink refuses negative ones",
        ),
    ):
        assert done.returncode == 2
        assert done.stdout == ""
        assert text in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serve", "--port", "0", "--seed", "-3"), "--seed: -3 is out of range (choose 0 to"),
        (("fetch", "--port", "0"), "--port: 0 is not a port (choose 1 to 65535)"),
        (
            ("serve", "--port", "0", "-D", "taskmanager.netwrok.retries=3"),
            "-D taskmanager.netwrok.retries: is not a Flink option (did you mean taskmanager.network.retries?)",
        ),
        (
            ("fetch", "--port", "1", "-D", "taskmanager.memory.segment-size=5000"),
            "5000 bytes is not a valid segment size (choose a power of two from 4096",
        ),
        (
            ("serve", "--port", "0", "-D", "security.ssl.internal.enabled=true"),
            "-D security.ssl.internal.enabled: this command has no certificate, so it cannot use TLS (leave it out",
        ),
        (("fetch", "--port", "1", "--host", "no.such.host.invalid"), "has failed. "),
    ],
)
def test_wrong_arguments_name_the_argument_and_the_fix(arguments: tuple[str, ...], text: str) -> None:
    """Exit code 2, one sentence."""
    done = run(*arguments, "--partition", PARTITION)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.processes
def test_a_producer_that_is_not_flink_is_named_with_the_fix() -> None:
    """An HTTP server answers with bytes that are no frame."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with subprocess.Popen(
            command("fetch", "--port", str(server.getsockname()[1]), "--partition", PARTITION),
            stderr=subprocess.PIPE,
            text=True,
        ) as reader:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                said = reader.communicate(timeout=20)[1]
    assert reader.returncode == 2
    assert said.splitlines()[-1].startswith(
        "headgate: the other end does not speak Flink's protocol: use the port of taskmanager.data.port"
    )


LOST = r"RemoteTransportException: (Connection unexpectedly closed by remote|Lost connection to) task manager '127\.0\.0\.1/127\.0\.0\.1:"
"""A connection ends with an end of file, or with a reset if credit had arrived that was not read. Flink has a sentence for each."""


@pytest.mark.processes
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_both_ends_with_a_sentence(ended_by: signal.Signals) -> None:
    """The one that was interrupted exits with 130, its peer says that the connection ended."""
    with subprocess.Popen(
        command("serve", "--port", "0", "--partition", PARTITION, "--records", "1000000000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        port = server.stderr.readline().strip().rpartition(":")[2]
        with subprocess.Popen(
            command("fetch", "--port", port, "--partition", PARTITION, "--flink-version", "2.x"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as reader:
            try:
                _until_connected(int(port))
                server.send_signal(ended_by)
                out, said = server.communicate(timeout=20)
                heard = reader.communicate(timeout=20)[1]
            finally:
                server.kill()
                reader.kill()
    assert (server.returncode, out) == (130, "")
    assert said == "headgate: interrupted before the end of the partition\n"
    assert reader.returncode == 2
    assert re.search(LOST, heard), heard


def _until_connected(port: int) -> None:
    """A connection to the port is established."""
    wanted = f":{port:04X}"
    for _ in range(400):
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if any(row[1].endswith(wanted) and row[3] == "01" for row in rows):
            return
        time.sleep(0.05)
    raise AssertionError(f"no client connected to {port}")
