"""The evaluation service as its pod runs it: a real recorder, a real Spark that stays warm, the runner's own client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import to_builtins

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.history.recording.run_recorder import RunRecorder
from testbed_runtime.http import serve
from testbed_runtime.kube.spark.client import KubeEvaluator
from tests.report import synthetic

pytestmark = [pytest.mark.processes, pytest.mark.spark]
SPARK_TOKEN, RUN_TOKEN = "of-spark", "of-the-run"
READY_LIMIT_S = 120.0


@dataclass
class Service:
    process: asyncio.subprocess.Process
    address: tuple[str, int]
    recorder: tuple[str, int]
    folder: Path
    stages: list[str]

    def client(self, *, spark_token: str = SPARK_TOKEN, run_token: str = RUN_TOKEN) -> KubeEvaluator:
        return KubeEvaluator(
            spark=self.address,
            spark_token=spark_token,
            recorder=self.recorder,
            recorder_token=run_token,
            on_progress=lambda line: self.stages.append(line.get("stage", "waiting")),
            away_limit_s=90.0,
        )

    async def progress(self) -> dict[str, Any]:
        url = f"http://{self.address[0]}:{self.address[1]}/v1/progress"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"Authorization": f"Bearer {SPARK_TOKEN}"}) as answer,
        ):
            return await answer.json()

    async def status(self, path: str) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.address[0]}:{self.address[1]}{path}") as answer,
        ):
            return answer.status


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Service]:
    """The Spark entry as a process, and the recorder of the run in `folder`."""
    token_file = folder.parent / "token"
    token_file.write_text(SPARK_TOKEN)
    recorder = RunRecorder(folder, token=RUN_TOKEN)
    runner, address = await serve(recorder.application(), ("127.0.0.1", 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "testbed_runtime.entry.spark",
        env={**os.environ, "HEADGATE_TOKEN_FILE": str(token_file), "HEADGATE_SPARK_PORT": "0"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), READY_LIMIT_S))
        found = Service(process, tuple(ready["ready"]["control"]), address, folder, [])
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        await runner.cleanup()
        await recorder.close()


def workers_of(pid: int) -> list[int]:
    """The Spark processes that the service started."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_warm_spark_evaluates_one_run_after_another_and_restarts_when_it_dies(tmp_path: Path):
    """The rows are those of one machine, the results are at the recorder. Also: token, bad histories, a killed driver."""
    folder = tmp_path / synthetic.RUN
    folder.mkdir()
    synthetic.write_run(folder)
    mine = tmp_path / "runner"
    mine.mkdir()
    shutil.copy(folder / "manifest.json", mine)
    async with service(folder) as there:
        assert await there.status("/healthz") == 200
        with pytest.raises(HeadgateError, match="401"):
            await there.client(spark_token="wrong").evaluate(mine)

        rows = await there.client().evaluate(mine)
        assert {"fetch", "trials", "results"} <= set(there.stages)
        assert "waiting" not in there.stages, "it waited for Spark, not for another run"
        assert to_builtins(rows) == json.loads((folder / "metrics.json").read_text())
        for name in ("timeseries.json", "recovery.json"):
            assert (mine / name).read_bytes() == (folder / name).read_bytes()
        assert await there.status("/readyz") == 200
        assert (await there.progress())["starts"] == 1

        with pytest.raises(HeadgateError, match="recorder refused"):
            await there.client(run_token="wrong").evaluate(mine)
        shutil.move(folder / "history", folder / "elsewhere")
        with pytest.raises(HeadgateError, match="not sealed"):
            await there.client().evaluate(mine)
        shutil.move(folder / "elsewhere", folder / "history")

        os.killpg(workers_of(there.process.pid)[0], signal.SIGKILL)
        assert await there.client().evaluate(mine) == rows
        assert (await there.progress())["starts"] == 2
    assert there.process.returncode == 0
