"""The typed client of a supervisor's fault API. Faults travel as JSON, with their ids in the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.http import ControlClient
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address

INJECT_LIMIT_S = 14.0
"""Longer than the agent's limits, shorter than the runner's."""
HEAL_LIMIT_S = 14.0


class FaultClient:
    """The client of one supervisor. Calls raise faults.http.Unreachable when it does not answer. `close` ends the HTTP session."""

    def __init__(self, address: Address, token: str) -> None:
        self._address = address
        self._http = ControlClient(token)

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Raises UserError (bad input, or not possible in this environment) or HeadgateError (it could not begin)."""
        body = {"fault": asdict(fault), "fault_id": fault_id, "targets": list(targets), "lease_s": lease_s}
        answer = await self._call("POST", "/v1/faults", body, timeout_s=INJECT_LIMIT_S)
        return FaultHandle(
            str(answer["fault"]), str(answer["backend"]), str(answer["why"]), tuple(answer["targets"])
        )

    async def renew(self, fault_id: str) -> None:
        """Raises HeadgateError when the fault is no longer active."""
        await self._call("POST", "/v1/faults/renew", {"fault_id": fault_id})

    async def heal(self, fault_id: str) -> None:
        """Harmless when it already ended."""
        await self._call("DELETE", "/v1/faults", {"fault_id": fault_id}, timeout_s=HEAL_LIMIT_S)

    async def heal_all(self) -> None:
        await self._call("POST", "/v1/faults/heal-all", timeout_s=HEAL_LIMIT_S)

    async def faults(self) -> list[Mapping[str, Any]]:
        """Return the active faults: id, name, kind, backend, targets, remaining_s, verified."""
        return list((await self._call("GET", "/v1/faults"))["faults"])

    async def residue(self) -> Mapping[str, Any]:
        """`{}` is clean."""
        return dict((await self._call("GET", "/v1/residue", timeout_s=HEAL_LIMIT_S))["residue"])

    async def journal(self, since: int) -> list[Mapping[str, Any]]:
        """Return the rows for the history from that number on: {number, table, row}."""
        return list((await self._call("GET", f"/v1/journal?since={since}"))["rows"])

    async def close(self) -> None:
        await self._http.close()

    async def _call(
        self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        return await self._http.call(method, self._address, path, body, timeout_s=timeout_s)
