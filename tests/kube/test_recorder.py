"""The client of a recorder's files, against a real recorder over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.history.manifest import MANIFEST
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.http import serve
from testbed_runtime.kube.recorder import RecorderFiles

TOKEN = "of-the-run"


def test_a_request_is_repeated_while_the_recorder_restarts(tmp_path: Path) -> None:
    """A killed container is back within seconds, which is no reason for the verdict Error."""

    async def scenario() -> str:
        kept, here = tmp_path / "kept", tmp_path / "here"
        recorder = RunRecorder(kept, token=TOKEN)
        (kept / MANIFEST).write_text("{}")
        runner, address = await serve(recorder.application(), ("127.0.0.1", 0))
        await runner.cleanup()
        async with RecorderFiles(address, TOKEN) as files:
            fetch = asyncio.create_task(files.fetch(MANIFEST, here))
            await asyncio.wait({fetch}, timeout=0.1)
            assert not fetch.done()
            runner, _ = await serve(recorder.application(), address)
            try:
                await fetch
            finally:
                await runner.cleanup()
                await recorder.close()
        return (here / MANIFEST).read_text()

    assert asyncio.run(scenario()) == "{}"


def test_a_recorder_that_stays_unreachable_is_an_error(tmp_path: Path) -> None:
    """After the time limit, and the error names the file."""

    async def scenario() -> None:
        runner, address = await serve(RunRecorder(tmp_path, token=TOKEN).application(), ("127.0.0.1", 0))
        await runner.cleanup()
        async with RecorderFiles(address, TOKEN, away_limit_s=0.0) as files:
            await files.fetch(MANIFEST, tmp_path / "here")

    with pytest.raises(HeadgateError, match=f"did not send {MANIFEST}"):
        asyncio.run(scenario())
