"""The recorder of a run: trials beside each other, files, restarts, and what is refused."""

import asyncio

import aiohttp
import pytest
from yarl import URL

from testbed_runtime.faults.http import ControlClient
from testbed_runtime.history.recording import run_recorder
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.history.recording.sink import StreamingSink
from testbed_runtime.history.sealing import read_sealed
from testbed_runtime.http import serve
from testbed_runtime.process.config import ProcessConfig

TOKEN = "secret"


class Served:
    """A RunRecorder in this loop that can be stopped and started again at its address."""

    def __init__(self, folder):
        self.folder = folder
        self.address = ("127.0.0.1", 0)
        self.recorder = self.runner = None
        (folder.parent / "token").write_text(TOKEN)

    async def start(self):
        self.recorder = RunRecorder(self.folder, token=TOKEN)
        self.runner, self.address = await serve(self.recorder.application(), self.address)

    async def stop(self):
        if self.runner is not None:
            await self.runner.cleanup()
            await self.recorder.close()
            self.runner = None

    async def call(self, method, path, data=None, token=TOKEN):
        url = URL(f"http://{self.address[0]}:{self.address[1]}{path}", encoded=True)
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, url, data=data) as answer,
        ):
            return answer.status, await answer.read()

    async def sink(self, trial, process="tm-0-1"):
        config = ProcessConfig(
            name=process,
            run="run",
            trial=trial,
            recorder=self.address,
            recorder_path=f"/t/{trial}",
            token_file=str(self.folder.parent / "token"),
        )
        return await StreamingSink.connect(config, process=process, boot_id="boot")


@pytest.fixture
async def served(tmp_path):
    served = Served(tmp_path / "run")
    await served.start()
    yield served
    await served.stop()


async def test_each_trial_has_a_record_of_its_own(served):
    """Rows of two trials at once, sealed apart; sealing twice gives the same answer."""
    sinks = [await served.sink(trial) for trial in ("main-1", "main-2")]
    for count, sink in enumerate(sinks, 1):
        for _ in range(count):
            sink.append("events", kind="note", subject="tm-0-1", text="hello")
        await sink.close()
    control = ControlClient(TOKEN)
    first = await control.call("POST", served.address, "/t/main-1/seal")
    second = await control.call("POST", served.address, "/t/main-2/seal")
    again = await control.call("POST", served.address, "/t/main-1/seal")
    await control.close()
    assert (first["rows"]["events"], second["rows"]["events"]) == (1, 2)
    assert again["rows"] == first["rows"]
    assert read_sealed(served.folder / "history" / "main-1") is not None
    status, body = await served.call("GET", "/t/main-1/status")
    assert status == 200
    assert b'"sealed": true' in body
    status, _ = await served.call("POST", "/t/main-1/segments")
    assert status == 410, "it is sealed"


async def test_rows_that_were_spooled_while_it_was_away_arrive_after_its_restart(served):
    """Nothing is lost, nothing comes twice."""
    sink = await served.sink("main-1")
    sink.append("events", kind="note", subject="a", text="before")
    assert await sink.flush()
    await served.stop()
    sink.append("events", kind="note", subject="a", text="meanwhile")
    await asyncio.sleep(0)
    await served.start()
    assert await sink.flush()
    await sink.close()
    control = ControlClient(TOKEN)
    sealed = await control.call("POST", served.address, "/t/main-1/seal")
    await control.close()
    assert sealed["rows"]["events"] == 2
    assert sealed["problems"] == []


async def test_a_run_with_many_trials_does_not_hold_all_their_files_open(served, monkeypatch):
    """The oldest recorder is closed, and opens again with its number when it is spoken to."""
    monkeypatch.setattr(run_recorder, "MAX_OPEN_TRIALS", 2)
    sinks = [await served.sink(f"main-{n}") for n in range(4)]
    for sink in sinks * 2:
        sink.append("events", kind="note", subject="a", text="x")
        assert await sink.flush()
    for sink in sinks:
        await sink.close()
    assert len(served.recorder._trials) == 2
    _, body = await served.call("POST", "/t/main-0/seal")
    assert b'"events": 2' in body


async def test_files_are_kept_listed_and_deleted_whole(served):
    """Put, put again, get, list by prefix, restart, delete."""
    assert (await served.call("PUT", "/files/manifest.json", b"{}"))[0] == 200
    await served.call("PUT", "/files/files/main-1/part-0", b"x" * 1000)
    await served.call("PUT", "/files/manifest.json", b'{"a": 1}')
    await served.stop()
    await served.start()
    assert await served.call("GET", "/files/manifest.json") == (200, b'{"a": 1}')
    _, listed = await served.call("GET", "/files/?prefix=files/")
    assert listed == b'{"files": [{"path": "files/main-1/part-0", "bytes": 1000}]}'
    assert (await served.call("DELETE", "/files/manifest.json"))[0] == 200
    assert (await served.call("GET", "/files/manifest.json"))[0] == 404
    assert not [p for p in served.folder.rglob("*") if p.name.startswith(".")]


@pytest.mark.parametrize(
    "path",
    [
        "..%2Fsecret",
        "a/..%2F..%2Fsecret",
        "%2Fetc%2Fpasswd",
        ".hidden",
        "a//b",
        "/".join("abcdefghij"),
        "x" * 200,
    ],
)
async def test_paths_that_leave_the_folder_are_refused(served, path):
    """Reading, writing and deleting alike."""
    for method in ("GET", "PUT", "DELETE"):
        status, body = await served.call(method, f"/files/{path}", b"x" if method == "PUT" else None)
        assert status == 400, (method, body)
    assert not (served.folder.parent / "secret").exists()


async def test_the_history_is_read_and_not_written_as_files(served):
    """Only the Recorders write it."""
    sink = await served.sink("main-1")
    sink.append("events", kind="note", subject="a", text="x")
    await sink.close()
    await served.call("POST", "/t/main-1/seal")
    assert (await served.call("GET", "/files/history/main-1/sealed.json"))[0] == 200
    for method in ("PUT", "DELETE"):
        status, body = await served.call(method, "/files/history/main-1/sealed.json", b"{}")
        assert status == 400
        assert b"belongs to the recorder" in body


@pytest.mark.parametrize("trial", ["..", ".x", "a b", "x" * 101])
async def test_a_trial_that_is_no_name_is_refused(served, trial):
    """400, with the name."""
    status, _ = await served.call("POST", f"/t/{trial.replace(' ', '%20').replace('..', '%2E%2E%2Fx')}/seal")
    assert status in (400, 404)
    assert list((served.folder / "history").iterdir()) == []


async def test_a_file_that_is_too_large_leaves_nothing(served, monkeypatch):
    """It is refused by its announced length, or by the bytes received if it announces none."""
    monkeypatch.setattr(run_recorder, "MAX_FILE_BYTES", 1000)

    async def stream():
        for _ in range(20):
            yield b"x" * 100

    assert (await served.call("PUT", "/files/a", b"x" * 1001))[0] == 413
    assert (await served.call("PUT", "/files/a", stream()))[0] == 413
    assert [p for p in served.folder.rglob("*") if p.is_file()] == []


async def test_a_request_without_the_token_is_refused(served):
    """But the probe."""
    for method, path in (("GET", "/files/"), ("POST", "/t/main-1/seal"), ("PUT", "/files/a")):
        assert (await served.call(method, path, token="wrong"))[0] == 401
    assert (await served.call("GET", "/healthz", token="wrong"))[0] == 200
