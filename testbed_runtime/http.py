"""HTTP services of Headgate's processes: the bearer token, errors as JSON, and listening. `faults.http` has the clients."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from testbed_runtime.core.errors import FaultHealed, FaultNotApplied, HeadgateError, UserError
from testbed_runtime.ports.network import Address, format_address

SHUTDOWN_TIMEOUT_S = 0.5
HEALTHZ = "/healthz"
READYZ = "/readyz"

_Handler: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"


def bearer_token(token: str, *, open_paths: tuple[str, ...] = ()) -> Middleware:
    """Refuse requests without the token, except to `open_paths`. An empty token refuses everything."""

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        right = bool(token) and hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
        if not right and request.path not in open_paths:
            return web.json_response({"error": "this endpoint needs the testbed's token"}, status=401)
        return await handler(request)

    return check


@web.middleware
async def bad_input(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer errors that Headgate raises as JSON: `{"error", "path", "problem", "hint"}`."""
    try:
        return await handler(request)
    except UserError as error:
        return web.json_response({"error": error.problem, "path": error.path, "hint": error.hint}, status=400)
    except (msgspec.MsgspecError, ValueError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except FaultHealed as error:
        return web.json_response({"error": str(error), "healed": True}, status=409)
    except FaultNotApplied as error:
        return web.json_response({"error": str(error), "not_applied": True}, status=409)
    except HeadgateError as error:
        return web.json_response({"error": str(error)}, status=409)


def disk_errors(whose: str) -> Middleware:
    """Answer errors of the disk with 507."""

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except OSError as error:
            text = f"{whose} disk refuses: {error.strerror or error}"
            return web.json_response({"error": text}, status=507)

    return check


async def healthz(_: web.Request) -> web.Response:
    """Answer that the process runs."""
    return web.json_response({"ok": True})


def service(
    token: str,
    routes: Iterable[web.RouteDef],
    *middlewares: Middleware,
    ready: _Handler | None = None,
    max_bytes: int = 1024 * 1024,
) -> web.Application:
    """Return an application that needs the token, except for HEALTHZ and the readiness that `ready` reports, and answers errors as JSON."""
    probes = [web.get(HEALTHZ, healthz), *([web.get(READYZ, ready)] if ready is not None else [])]
    checks = [bearer_token(token, open_paths=tuple(probe.path for probe in probes)), bad_input, *middlewares]
    app = web.Application(middlewares=checks, client_max_size=max_bytes)
    app.add_routes([*probes, *routes])
    return app


async def serve(app: web.Application, bind: Address) -> tuple[web.AppRunner, Address]:
    """Listen, and return (the runner, whose `cleanup()` ends it, and its address). Raises UserError when the port is in use."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, *bind, reuse_address=True).start()
    except OSError as error:
        await runner.cleanup()
        problem = f"cannot listen on {format_address(bind)}: {error.strerror}"
        raise UserError("bind", problem, "free the port or choose another") from None
    host, port = runner.addresses[0][:2]
    return runner, (str(host), int(port))
