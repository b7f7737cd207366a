"""The typed client of a supervisor's fault API. Knows core, ports, the fault model and aiohttp, nothing else of ours.

`Fault` travels as JSON. Ids may hold anything; they travel in the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from testbed_runtime.faults.http import ControlClient
from testbed_runtime.faults.model import Fault
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address

INJECT_LIMIT_S = 14.0
"""Above the agent's own limits, below the runner's."""
HEAL_LIMIT_S = 14.0


class FaultClient:
    """One supervisor. `close` ends its HTTP session. Raises faults.http.Unreachable when the supervisor is gone."""

    def __init__(self, address: Address, token: str) -> None:
        self._address = address
        self._http = ControlClient(token)

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Raises UserError (bad input, or the place cannot do it) or HeadgateError (it could not be begun)."""
        body = {"fault": asdict(fault), "fault_id": fault_id, "targets": list(targets), "lease_s": lease_s}
        answer = await self._call("POST", "/v1/faults", body, timeout_s=INJECT_LIMIT_S)
        return FaultHandle(
            str(answer["fault"]), str(answer["backend"]), str(answer["why"]), tuple(answer["targets"])
        )

    async def renew(self, fault_id: str) -> None:
        """Raises HeadgateError when the fault is not there any more."""
        await self._call("POST", "/v1/faults/renew", {"fault_id": fault_id})

    async def heal(self, fault_id: str) -> None:
        """Harmless when it already ended."""
        await self._call("DELETE", "/v1/faults", {"fault_id": fault_id}, timeout_s=HEAL_LIMIT_S)

    async def heal_all(self) -> None:
        await self._call("POST", "/v1/faults/heal-all", timeout_s=HEAL_LIMIT_S)

    async def faults(self) -> list[Mapping[str, Any]]:
        """The active ones: id, name, kind, backend, targets, remaining_s, verified."""
        return list((await self._call("GET", "/v1/faults"))["faults"])

    async def residue(self) -> Mapping[str, Any]:
        """`{}` is clean."""
        return dict((await self._call("GET", "/v1/residue", timeout_s=HEAL_LIMIT_S))["residue"])

    async def journal(self, since: int) -> list[Mapping[str, Any]]:
        """Rows for the history from that number on: {number, table, row}."""
        return list((await self._call("GET", f"/v1/journal?since={since}"))["rows"])

    async def close(self) -> None:
        await self._http.close()

    async def _call(
        self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        return await self._http.call(method, self._address, path, body, timeout_s=timeout_s)
