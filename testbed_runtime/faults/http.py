"""The client of Headgate's HTTP services, and the fault API: its client and the routes over a fault agent.

POST /v1/faults {fault, fault_id, targets, lease_s} · GET /v1/faults · DELETE /v1/faults {fault_id} · POST /v1/faults/renew {fault_id} ·
POST /v1/faults/heal-all · GET /v1/residue · GET /v1/journal?since=n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from aiohttp import web
from msgspec import to_builtins

from testbed_runtime.core.errors import FaultHealed, FaultNotApplied, HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import Unreachable
from testbed_runtime.ports.hosts import FaultHandle
from testbed_runtime.ports.network import Address, format_address, http_url
from testbed_runtime.transport.names import Session

if TYPE_CHECKING:
    from testbed_runtime.faults.agent import FaultAgent

CONTROL_TIMEOUT_S = 5.0
"""A control endpoint answers in milliseconds; after this time it is paused, overloaded or gone."""
INJECT_LIMIT_S = 14.0
"""Longer than the agent's limits, shorter than the runner's."""
HEAL_LIMIT_S = 14.0


class ControlClient:
    """JSON over HTTP with the token. It has one session, which `close` ends."""

    def __init__(self, token: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session = Session(token, self._timeout)

    async def call(
        self, method: str, address: Address, path: str, body: Any = None, *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """Return the JSON object of the answer. Raises Unreachable, UserError (400 with a path) or HeadgateError (any other refusal)."""
        data = None if body is None else msgspec.json.encode(body)
        limit = self._timeout if timeout_s is None else aiohttp.ClientTimeout(total=timeout_s)
        named = f"{format_address(address)}{path}"
        try:
            async with self._session.open.request(
                method, http_url(address, path), data=data, timeout=limit
            ) as response:
                answer = msgspec.json.decode(await response.read() or b"{}")
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            what = (
                "did not answer in time" if isinstance(error, TimeoutError) else f"does not answer: {error}"
            )
            raise Unreachable(f"{named} {what}") from error
        if response.status >= 400:
            raise _refusal(response.status, answer)
        if not isinstance(answer, dict):
            raise Unreachable(f"{named} did not send a JSON object")
        return answer

    async def close(self) -> None:
        """Idempotent."""
        await self._session.close()


class _Inject(msgspec.Struct, frozen=True):
    fault: Fault
    fault_id: str
    targets: Sequence[str]
    lease_s: float | None = None


class _ById(msgspec.Struct, frozen=True):
    fault_id: str


class FaultClient:
    """The client of one supervisor. Calls raise Unreachable when it does not answer. `close` ends the HTTP session."""

    def __init__(self, address: Address, token: str) -> None:
        self._address = address
        self._http = ControlClient(token)

    async def inject(
        self, fault: Fault, *, fault_id: str, targets: Sequence[str], lease_s: float | None
    ) -> FaultHandle:
        """Inject a fault. Raises UserError (invalid, or not possible in this environment), FaultNotApplied (a process was not
        running) or HeadgateError (it could not begin)."""
        body = _Inject(fault, fault_id, targets, lease_s)
        answer = await self._call("POST", "/v1/faults", body, timeout_s=INJECT_LIMIT_S)
        return msgspec.convert(answer, FaultHandle)

    async def renew(self, fault_id: str) -> None:
        """Renew the lease of a fault. Raises HeadgateError if the fault is no longer active."""
        await self._call("POST", "/v1/faults/renew", _ById(fault_id))

    async def heal(self, fault_id: str) -> None:
        """End a fault. Harmless if it has already ended."""
        await self._call("DELETE", "/v1/faults", _ById(fault_id), timeout_s=HEAL_LIMIT_S)

    async def heal_all(self) -> None:
        await self._call("POST", "/v1/faults/heal-all", timeout_s=HEAL_LIMIT_S)

    async def faults(self) -> list[Mapping[str, Any]]:
        """Return the active faults: id, name, kind, backend, targets, remaining_s, verified."""
        return list((await self._call("GET", "/v1/faults"))["faults"])

    async def residue(self) -> Mapping[str, Any]:
        """Return the residue; `{}` is clean."""
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


def fault_routes(agent: FaultAgent) -> list[web.RouteDef]:
    """Return the routes of the fault API. The server that adds them checks the bearer token."""

    async def inject(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=_Inject)
        handle = await agent.inject(
            body.fault, fault_id=body.fault_id, targets=body.targets, lease_s=body.lease_s
        )
        return web.json_response(to_builtins(handle))

    async def renew(request: web.Request) -> web.Response:
        await agent.renew(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal(request: web.Request) -> web.Response:
        await agent.heal(msgspec.json.decode(await request.read(), type=_ById).fault_id)
        return web.json_response({})

    async def heal_all(_: web.Request) -> web.Response:
        await agent.heal_all()
        return web.json_response({})

    async def faults(_: web.Request) -> web.Response:
        return web.json_response({"faults": agent.active()})

    async def residue(_: web.Request) -> web.Response:
        return web.json_response({"residue": await agent.residue()})

    async def journal(request: web.Request) -> web.Response:
        since = int(request.query.get("since", "0"))
        return web.json_response({"rows": agent.journal.since(since)})

    return [
        web.post("/v1/faults", inject),
        web.get("/v1/faults", faults),
        web.delete("/v1/faults", heal),
        web.post("/v1/faults/renew", renew),
        web.post("/v1/faults/heal-all", heal_all),
        web.get("/v1/residue", residue),
        web.get("/v1/journal", journal),
    ]


def _refusal(status: int, answer: Any) -> HeadgateError:
    fields = answer if isinstance(answer, dict) else {}
    text = str(fields.get("error", f"refused with status {status}"))
    if status == 400 and fields.get("path"):
        return UserError(str(fields["path"]), text, str(fields.get("hint", "")))
    if fields.get("not_applied"):
        return FaultNotApplied(text)
    return FaultHealed(text) if fields.get("healed") else HeadgateError(text)
