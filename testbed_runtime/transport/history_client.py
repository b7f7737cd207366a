"""Ships opaque segments to the recorder over HTTP: one batch in flight, acknowledged after the recorder's fsync.

What is in a segment, and what happens while the recorder is away, is the sink's business (`history.sink.StreamingSink`,
which process entries use).
"""

from __future__ import annotations

import json

import aiohttp

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.ports.network import Address
from testbed_runtime.transport.names import connector

SHIP_TIMEOUT_S = 5.0
"""A batch is at most a few MiB on a local network; a recorder that takes longer is away."""


class RecorderUnreachable(HeadgateError):
    """Try again later: nothing was acknowledged, and what was perhaps written is a duplicate the next time."""


class RecorderRefused(HeadgateError):
    """Trying again does not help (wrong token, sealed, numbers that do not fit)."""


class HistoryClient:
    """One stream of segments to one recorder. Not for concurrent use: batches are in order because they wait."""

    def __init__(self, address: Address, *, token: str, process: str, stream: str, prefix: str = "") -> None:
        """`prefix` is a path before the recorder's own, `/t/<trial>` where one recorder serves a whole run."""
        self._url = f"http://{address[0]}:{address[1]}{prefix}/segments"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._parameters = {"process": process, "stream": stream}
        self._session: aiohttp.ClientSession | None = None

    async def ship(self, batch: bytes) -> int:
        """The number of the segment that the recorder expects next. An empty batch only asks.
        Raises RecorderUnreachable or RecorderRefused."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SHIP_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                timeout=timeout, headers=self._headers, connector=connector()
            )
        try:
            async with self._session.post(self._url, params=self._parameters, data=batch) as answer:
                return _next_number(answer.status, await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RecorderUnreachable(f"the recorder at {self._url} does not answer: {error}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _next_number(status: int, text: str) -> int:
    if status == 200:
        return int(json.loads(text)["next"])
    if status >= 500:
        raise RecorderUnreachable(f"the recorder answered {status}: {text}")
    raise RecorderRefused(f"the recorder refused the history: {status} {text}")
