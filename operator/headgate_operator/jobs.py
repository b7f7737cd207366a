"""Asks JobManagers for the state of their job, by HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp

from testbed_runtime.api import naming

ANSWER_LIMIT_S = 2.0
"""A JobManager answers in milliseconds; the operator does not wait for one that is paused."""
ANSWER_BYTES_MAX = 256 * 1024
"""The placement of 512 subtasks takes some tens of KiB."""


class HttpJobs:
    """Calls `GET http://<address>:6123/v1/job`."""

    def __init__(self, port: int = naming.JOBMANAGER_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpJobs:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_LIMIT_S))
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def job(self, address: str, token: str) -> Mapping[str, Any] | None:
        """Return the answer; None if it was not reached, rejected the request, or sent no JSON object."""
        if self._session is None:
            return None
        headers = {"Authorization": f"Bearer {token}"}
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{self._port}/v1/job", headers=headers) as answer:
                if answer.status != 200:
                    return None
                found = json.loads(await answer.content.read(ANSWER_BYTES_MAX))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None
