"""Streaming to the recorder: over real sockets, with real files; the last ones with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.recording import sink as history_sink
from testbed_runtime.history.recording.recorder import Recorder
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.http import serve
from testbed_runtime.process.clock import CLOCK_VARIABLE, SHARED, wall_offset_ns
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.transport.history_client import HistoryClient, RecorderRefused, RecorderUnreachable

TOKEN = "secret"


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[tuple[Recorder, ProcessConfig]]:
    """Listening, with the configuration of a process that streams to it."""
    made = Recorder(tmp_path / "history" / "main-1", token=TOKEN)
    server, address = await serve(made.application(), ("127.0.0.1", 0))
    yield made, config(tmp_path, address)
    await server.cleanup()
    await made.close()


def config(tmp_path: Path, address: tuple[str, int] | None, *, token: str = TOKEN) -> ProcessConfig:
    file = tmp_path / "token"
    file.write_text(token)
    return ProcessConfig(name="tm-0", run="run", trial="main-1", recorder=address, token_file=str(file))


async def connect(settings: ProcessConfig, **more: Any) -> StreamingSink:
    return await StreamingSink.connect(settings, process="tm-0-1", boot_id="b", **more)


async def seal(settings: ProcessConfig, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    assert settings.recorder is not None
    url = f"http://{settings.recorder[0]}:{settings.recorder[1]}/seal"
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_rows_are_on_the_disk_when_flush_returns(recorder: tuple[Recorder, ProcessConfig]):
    """Acknowledged means fsynced."""
    made, settings = recorder
    sink = await connect(settings)
    sink.append("events", kind="note", text="hello", data={"a": 1})
    await sink.flush()
    (file,) = (made.folder / "segments").iterdir()
    assert file.stat().st_size > 0
    await sink.close()
    status, report = await seal(settings)
    assert (status, report["rows"]["events"], report["problems"]) == (200, 1, [])
    (row,) = read_trial(made.folder).rows("events")
    assert (row["process"], row["boot_id"], row["text"]) == ("tm-0-1", "b", "hello")
    assert abs(row["t_ns"] / 1e9 - asyncio.get_running_loop().time()) < 60


async def test_rows_travel_on_their_own_within_a_moment(recorder: tuple[Recorder, ProcessConfig]):
    """Flushing is automatic: a killed process loses 200 ms at most."""
    made, settings = recorder
    sink = await connect(settings, stream="s")
    sink.append("events")
    async with asyncio.timeout(5):
        while (
            not (file := made.folder / "segments" / "tm-0-1~s.segments").exists() or not file.stat().st_size
        ):
            await asyncio.sleep(0.02)
    await sink.close()


async def test_everything_in_order_from_several_processes(recorder: tuple[Recorder, ProcessConfig]):
    """Thousands of rows, many segments, no gap."""
    made, settings = recorder
    sinks = [await StreamingSink.connect(settings, process=f"tm-{i}-1", boot_id="b") for i in range(3)]
    for number in range(3000):
        for sink in sinks:
            sink.append("tasks", records_in=number)
        if number % 500 == 0:
            await asyncio.sleep(0)
            await sinks[0].flush()
    for sink in sinks:
        await sink.close()
    status, report = await seal(settings)
    assert (status, report["rows"]["tasks"], report["problems"]) == (200, 9000, [])
    rows = [r for r in read_trial(made.folder).rows("tasks") if r["process"] == "tm-1-1"]
    assert [r["records_in"] for r in sorted(rows, key=lambda r: r["seq"])] == list(range(3000))


async def test_rows_are_spooled_while_the_recorder_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And come, once each, when a new one is there."""
    monkeypatch.setattr(history_sink, "RETRY_S", 0.05)
    monkeypatch.setattr(history_sink, "FLUSH_TIMEOUT_S", 0.3)
    folder = tmp_path / "history" / "main-1"
    first = Recorder(folder, token=TOKEN)
    server, address = await serve(first.application(), ("127.0.0.1", 0))
    settings = config(tmp_path, address)
    sink = await connect(settings)
    sink.append("events", text="before")
    await sink.flush()
    await server.cleanup()
    await first.close()
    sink.append("events", text="while away")
    await sink.flush()
    second = Recorder(folder, token=TOKEN)
    server, _ = await serve(second.application(), address)
    sink.append("events", text="after")
    monkeypatch.setattr(history_sink, "FLUSH_TIMEOUT_S", 10.0)
    await sink.close()
    status, report = await seal(settings)
    await server.cleanup()
    await second.close()
    assert (status, report["problems"]) == (200, [])
    assert [r["text"] for r in read_trial(folder).rows("events")] == ["before", "while away", "after"]


async def test_flush_gives_up_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process must be able to end without its recorder."""
    monkeypatch.setattr(history_sink, "FLUSH_TIMEOUT_S", 0.1)
    sink = await connect(config(tmp_path, ("127.0.0.1", 1)))
    sink.append("events")
    async with asyncio.timeout(3):
        assert not await sink.flush()
        await sink.close()


async def test_a_process_without_a_recorder_drops_its_rows(tmp_path: Path):
    """Not every process is part of a trial: nothing is kept, nothing is waited for, nothing is written."""
    sink = await connect(config(tmp_path, None))
    before = sorted(tmp_path.rglob("*"))
    sink.append("events")
    assert await sink.flush()
    await sink.close()
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_wrong_token_is_refused_at_once(recorder: tuple[Recorder, ProcessConfig], tmp_path: Path):
    """On every endpoint."""
    _, settings = recorder
    with pytest.raises(RecorderRefused, match="token"):
        await connect(config(tmp_path, settings.recorder, token="other"))
    assert (await seal(settings, token="other"))[0] == 401


async def test_duplicates_and_gaps_over_the_wire(recorder: tuple[Recorder, ProcessConfig]):
    """A repeated batch is acknowledged and not written; one from the future is refused and reported."""
    from testbed_runtime.history.writer import SegmentWriter

    _, settings = recorder
    writer = SegmentWriter(run="run", trial="main-1", process="p", boot_id="b", now_ns=lambda: 1)
    for _ in range(3):
        writer.append("events", {})
        writer.cut()
    parts = [s.to_bytes() for s in writer.pending(10**9)]
    assert settings.recorder is not None
    client = HistoryClient(settings.recorder, token=TOKEN, process="p", stream="s")
    assert await client.ship(parts[0]) == 1
    assert await client.ship(parts[0] + parts[1]) == 2
    other = HistoryClient(settings.recorder, token=TOKEN, process="q", stream="s")
    with pytest.raises(RecorderRefused, match="expected history segment 0"):
        await other.ship(parts[2])
    await client.close()
    await other.close()
    _, report = await seal(settings)
    assert report["rows"]["events"] == 2
    assert any("expected history segment 0" in p for p in report["problems"])


async def test_a_sealed_trial_takes_nothing_more(recorder: tuple[Recorder, ProcessConfig]):
    """A zombie that wakes up late changes no history; the seal gives the same answer again."""
    _, settings = recorder
    sink = await connect(settings)
    sink.append("events")
    await sink.flush()
    first = await seal(settings)
    sink.append("events")
    await sink.flush()
    assert "sealed" in sink.refused
    sink.append("events")
    await sink.close()
    assert await seal(settings) == first


async def test_a_recorder_that_is_not_there_is_unreachable():
    """Not refused: it may come."""
    client = HistoryClient(("127.0.0.1", 1), token=TOKEN, process="p", stream="s")
    with pytest.raises(RecorderUnreachable):
        await client.ship(b"")
    await client.close()


WRITER = """
import asyncio, os, signal, sys
from testbed_runtime.process.config import ProcessConfig
from testbed_runtime.history.recording.sink import StreamingSink

async def main():
    sink = await StreamingSink.connect(ProcessConfig.load(sys.argv[1]), process="tm-0-1", boot_id="b")
    for number in range(100):
        sink.append("events", text=str(number))
    await sink.flush()
    sink.append("events", text="not acknowledged")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def start_recorder(tmp_path: Path, **more: Any) -> tuple[subprocess.Popen[str], ProcessConfig]:
    """The real process, and the configuration for who streams to it."""
    (tmp_path / "token").write_text(TOKEN)
    settings = ProcessConfig(
        name="recorder", run="run", trial="main-1", history_folder=str(tmp_path / "history" / "main-1"),
        token_file=str(tmp_path / "token"),
    )  # fmt: skip
    settings.save(tmp_path / "recorder.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed_runtime.entry.recorder", str(tmp_path / "recorder.json")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip
    assert process.stdout is not None
    host, port = json.loads(process.stdout.readline())["ready"]["rpc"]
    return process, config(tmp_path, (host, port))


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Close its stdin, as when the runner is gone; exit code and stderr."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.processes
async def test_a_process_killed_with_sigkill_loses_nothing_that_was_acknowledged(tmp_path: Path):
    """The recorder is outside of what dies."""
    process, settings = start_recorder(tmp_path)
    settings.save(tmp_path / "tm.json")
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(tmp_path / "tm.json"))
    assert await killed.wait() == -signal.SIGKILL
    status, report = await seal(settings)
    assert (status, report["problems"]) == (200, [])
    assert finish(process) == (0, "")
    texts = [r["text"] for r in read_trial(tmp_path / "history" / "main-1").rows("events")]
    assert texts[:100] == [str(n) for n in range(100)]


@pytest.mark.processes
async def test_a_clock_that_differs_from_the_recorders_is_recorded_once(tmp_path: Path):
    """The recorder's times are those of the wall clock, as in a cluster, and this process's are not."""
    process, settings = start_recorder(tmp_path, env={**os.environ, CLOCK_VARIABLE: SHARED})
    sink = await connect(settings)
    for _ in range(5):
        sink.append("events", kind="note")
        assert await sink.flush()
    await sink.close()
    assert (await seal(settings))[0] == 200
    assert finish(process) == (0, "")
    rows = read_trial(tmp_path / "history" / "main-1").rows("events")
    offsets = [json.loads(r["data"]) for r in rows if r["kind"] == "clock.offset"]
    assert 1 <= len(offsets) < 5
    for found in offsets:
        assert found["offset_s"] == pytest.approx(-wall_offset_ns() / 1e9, abs=found["uncertainty_s"] + 0.1)


async def test_a_process_with_the_recorders_clock_records_no_difference(
    recorder: tuple[Recorder, ProcessConfig],
):
    """However long an answer takes."""
    made, settings = recorder
    sink = await connect(settings)
    for _ in range(5):
        sink.append("events", kind="note")
        assert await sink.flush()
    await sink.close()
    assert (await seal(settings))[0] == 200
    assert {r["kind"] for r in read_trial(made.folder).rows("events")} == {"note"}


@pytest.mark.processes
async def test_a_full_disk_ends_the_recorder_with_a_message_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file-size limit stands for the disk; the exit code is that of an error."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process, settings = start_recorder(tmp_path, preexec_fn=limit)
    sink = await connect(settings)
    sink.append("events", text="kept")
    await sink.flush()
    for _ in range(3000):
        sink.append("events", text=os.urandom(40).hex())
    await asyncio.to_thread(process.wait, 60)
    code, errors = finish(process)
    assert code == 2
    assert "cannot record the history" in errors
    assert "Traceback" not in errors
    from testbed_runtime.history.sealing import seal as seal_folder

    seal_folder(tmp_path / "history" / "main-1")
    assert read_trial(tmp_path / "history" / "main-1").rows("events")[0]["text"] == "kept"
    monkeypatch.setattr(history_sink, "FLUSH_TIMEOUT_S", 0.1)
    await sink.close()


@pytest.mark.processes
def test_the_recorder_ends_with_sigterm_and_says_when_its_port_is_taken(tmp_path: Path):
    """No stack trace, no process left."""
    process, settings = start_recorder(tmp_path)
    assert settings.recorder is not None
    taken = ProcessConfig.load(tmp_path / "recorder.json")

    replace(taken, bind=settings.recorder).save(tmp_path / "second.json")
    second = subprocess.run(
        [sys.executable, "-m", "testbed_runtime.entry.recorder", str(tmp_path / "second.json")],
        stdin=subprocess.PIPE, capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert second.returncode == 2
    assert "cannot listen on 127.0.0.1" in second.stderr
    assert "Traceback" not in second.stderr
    process.terminate()
    assert finish(process) == (0, "")
