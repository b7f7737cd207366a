"""The runner's `ports.hosts.Evaluator` in a cluster: asks the Spark pod, which reads the histories from the run's recorder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.spark_files import RESULTS, RunFiles
from testbed_runtime.ports.network import Address
from testbed_runtime.transport.names import connector

AWAY_LIMIT_S = 300.0
"""A Spark pod that is gone is made again, its image may have to be pulled."""
BROKEN_MAX = 3
"""Evaluations that began and broke off: what ends so many Spark pods would end the next one too."""
PAUSE_S = 1.0
SILENT_LIMIT_S = 30.0
"""The Spark pod says something every 5 s."""
CONNECT_LIMIT_S = 5.0
LINE_MAX_BYTES = 1 << 26
"""The last line holds all metric rows."""

OnProgress = Callable[[Mapping[str, Any]], None]


class KubeEvaluator:
    """`ports.hosts.Evaluator`. A Spark pod that dies meanwhile is waited for and asked again; bad histories are a HeadgateError."""

    def __init__(
        self,
        *,
        spark: Address,
        spark_token: str,
        recorder: Address,
        recorder_token: str,
        run: str = "",
        on_progress: OnProgress | None = None,
        away_limit_s: float = AWAY_LIMIT_S,
    ) -> None:
        self._url = f"http://{spark[0]}:{spark[1]}/v1/evaluate"
        self._headers = {"Authorization": f"Bearer {spark_token}"}
        self._recorder = recorder
        self._recorder_token = recorder_token
        self._run = run
        self._on_progress = on_progress
        self._away_limit_s = away_limit_s
        self._heard = 0.0
        self._began = False

    async def evaluate(self, run_folder: str, trials: Sequence[str]) -> list[dict[str, Any]]:
        """Metric rows of the `trials` (all when empty). metrics.json and timeseries.json are in the folder afterwards, as on one machine."""
        body = {
            "run": self._run or Path(run_folder).name,
            "trials": list(trials),
            "recorder": list(self._recorder),
            "token": self._recorder_token,
        }
        rows = await self._patiently(body)
        async with RunFiles(self._recorder, self._recorder_token) as files:
            for name in RESULTS:
                await files.fetch(name, Path(run_folder))
        return rows

    async def _patiently(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        broken = 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S, sock_read=SILENT_LIMIT_S)
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=connector(), read_bufsize=LINE_MAX_BYTES
        ) as session:
            while True:
                self._began = False
                try:
                    return await self._ask(session, body)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    broken += self._began
                    if broken >= BROKEN_MAX:
                        raise HeadgateError(
                            f"The Spark pod ended {broken} times during this evaluation: {error!r}"
                        ) from None
                    if loop.time() + PAUSE_S >= self._heard + self._away_limit_s:
                        raise HeadgateError(
                            f"The Spark pod did not answer for {self._away_limit_s:g} s: {error!r}"
                        ) from None
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with session.post(self._url, json=body) as response:
            if response.status >= 500:
                raise ConnectionError(f"status {response.status}: {(await response.text())[:300]}")
            if response.status >= 400:
                raise HeadgateError(
                    f"The Spark pod refused: {response.status} {(await response.text())[:300]}"
                )
            async for line in response.content:
                self._heard = asyncio.get_running_loop().time()
                said = json.loads(line)
                if "rows" in said:
                    rows: list[dict[str, Any]] = said["rows"]
                    return rows
                if "error" in said:
                    raise HeadgateError(str(said["error"]))
                if "stage" in said:
                    self._began = True
                    if self._on_progress is not None:
                        self._on_progress(said)
        raise ConnectionError("the answer ended before the result")
