"""Send opaque segments to the recorder over HTTP: one batch at a time, acknowledged after the recorder's fsync.

The sink (`history.recording.sink.StreamingSink`) decides what a segment contains and what happens while the recorder is
unreachable.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from testbed_runtime.core.clocks import ClockOffset
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.ports.network import Address, http_url
from testbed_runtime.transport.names import Session

SHIP_TIMEOUT_S = 5.0
"""A batch is at most a few MiB on a local network; a recorder that takes longer counts as unreachable."""


class RecorderUnreachable(HeadgateError):
    """The recorder acknowledged nothing: retry later. If it stored the batch anyway, it recognises the duplicate."""


class RecorderRefused(HeadgateError):
    """The recorder rejected the batch, and retrying does not help (wrong token, sealed trial, wrong numbers)."""


class HistoryClient:
    """One stream of segments to one recorder. Not for concurrent use: each batch waits for the previous one."""

    def __init__(self, address: Address, *, token: str, process: str, stream: str, prefix: str = "") -> None:
        """`prefix` precedes the recorder's paths: `/t/<trial>` if one recorder serves a whole run."""
        self._url = http_url(address, f"{prefix}/segments")
        self._parameters = {"process": process, "stream": stream}
        self._session = Session(token, aiohttp.ClientTimeout(total=SHIP_TIMEOUT_S))
        self.clock: ClockOffset | None = None
        """The offset between the clocks of this process and of the recorder, measured with the last answer."""

    async def ship(self, batch: bytes) -> int:
        """Send a batch and return the segment number that the recorder expects next. An empty batch only queries that number.
        Raises RecorderUnreachable or RecorderRefused."""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        try:
            async with self._session.open.post(self._url, params=self._parameters, data=batch) as answer:
                found = _answer(answer.status, await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RecorderUnreachable(f"the recorder at {self._url} does not respond: {error}") from error
        self.clock = ClockOffset.measured(sent, found["now"], loop.time()) if "now" in found else None
        return int(found["next"])

    async def close(self) -> None:
        await self._session.close()


def _answer(status: int, text: str) -> dict[str, Any]:
    if status == 200:
        return dict(json.loads(text))
    if status >= 500:
        raise RecorderUnreachable(f"the recorder responded with {status}: {text}")
    raise RecorderRefused(f"the recorder rejected the history: {status} {text}")
