"""The runner's evaluator in a cluster: it asks the Spark pod, which reads the histories from the run's recorder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.kube.recorder import RESULTS, RecorderFiles
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.results import read_rows
from testbed_runtime.transport.names import connector

AWAY_LIMIT_S = 300.0
"""How long the runner waits for a lost Spark pod, which is recreated and may have to pull its image."""
BROKEN_MAX = 3
"""Maximum evaluations that begin and break off. After that, the next Spark pod would probably fail as well."""
PAUSE_S = 1.0
SILENT_LIMIT_S = 30.0
"""Maximum silence within an answer. The Spark pod sends a line every 5 s."""
CONNECT_LIMIT_S = 5.0

OnProgress = Callable[[Mapping[str, Any]], None]


class KubeEvaluator:
    """A `ports.hosts.Evaluator`. The request is repeated if the Spark pod dies; bad histories raise HeadgateError."""

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
        self._url = http_url(spark, "/v1/evaluate")
        self._headers = {"Authorization": f"Bearer {spark_token}"}
        self._recorder = recorder
        self._recorder_token = recorder_token
        self._run = run
        self._on_progress = on_progress
        self._away_limit_s = away_limit_s
        self._last_answer = 0.0
        self._began = False

    async def evaluate(self, folder: Path) -> list[MetricRow]:
        body = {
            "run": self._run or folder.name,
            "recorder": list(self._recorder),
            "token": self._recorder_token,
        }
        await self._repeat(body)
        async with RecorderFiles(self._recorder, self._recorder_token) as files:
            for name in RESULTS:
                await files.fetch(name, folder)
        return read_rows(folder, read_manifest(folder))

    async def _repeat(self, body: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._last_answer = loop.time()
        broken = 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S, sock_read=SILENT_LIMIT_S)
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=connector()
        ) as session:
            while True:
                self._began = False
                try:
                    await self._ask(session, body)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    broken += self._began
                    if broken >= BROKEN_MAX:
                        raise HeadgateError(
                            f"The Spark pod ended {broken} times during this evaluation: {error!r}"
                        ) from None
                    if loop.time() + PAUSE_S >= self._last_answer + self._away_limit_s:
                        raise HeadgateError(
                            f"The Spark pod did not answer for {self._away_limit_s:g} s: {error!r}"
                        ) from None
                else:
                    return
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> None:
        async with session.post(self._url, json=body) as response:
            if response.status >= 500:
                raise ConnectionError(f"status {response.status}: {(await response.text())[:300]}")
            if response.status >= 400:
                raise HeadgateError(
                    f"The Spark pod refused: {response.status} {(await response.text())[:300]}"
                )
            async for text in response.content:
                self._last_answer = asyncio.get_running_loop().time()
                line = json.loads(text)
                if "result" in line:
                    return
                if "error" in line:
                    raise HeadgateError(str(line["error"]))
                self._began = self._began or "stage" in line
                if self._on_progress is not None and ("stage" in line or "waiting" in line):
                    self._on_progress(line)
        raise ConnectionError("the answer ended before the result")
