"""The validating webhook: before the API server stores an object, it asks here, and gets the texts of `headgate validate`.

Every replica answers. Why it is not kopf's server: docs/decisions/0014-webhook.md."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from testbed_runtime.api.naming import WEBHOOK_PATH
from testbed_runtime.api.validate_kinds import validate_kind

BODY_MAX_BYTES = 8 * 1024 * 1024
"""A review contains an object and the version before it. etcd stores at most 1.5 MiB of each."""
RENEWAL_CHECK_S = 60.0
"""How often the certificate's files are compared with those that were read."""
CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Files of the mounted Secret, as in every Secret of the type kubernetes.io/tls."""


class Reviewed(Protocol):
    """Counts the answers."""

    def __call__(self, *, allowed: bool) -> None: ...


log = logging.getLogger("headgate.operator")


def answer(review: Mapping[str, Any]) -> dict[str, Any]:
    """Return the AdmissionReview that answers one about a new or changed object. Raises KeyError if a field is missing."""
    request = review["request"]
    findings = validate_kind(request["object"])
    response: dict[str, Any] = {"uid": request["uid"], "allowed": not findings.errors}
    if findings.errors:
        text = "\n".join(str(error) for error in findings.errors)
        response["status"] = {"code": 400, "reason": "BadRequest", "message": text}
    if findings.notes:
        response["warnings"] = list(findings.notes)
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def application(folder: Path, reviewed: Reviewed) -> tuple[web.Application, ssl.SSLContext]:
    """Return the route and its TLS. Each answer is reported to `reviewed`. Raises OSError if a file cannot be read."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)

    async def validate(request: web.Request) -> web.Response:
        review = await request.json()
        try:
            answered = answer(review)
        except (KeyError, TypeError) as error:
            raise web.HTTPBadRequest(text=f"this is no AdmissionReview of an object: {error!r}") from error
        reviewed(allowed=answered["response"]["allowed"])
        return web.json_response(answered)

    async def renewing(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(_renew(context, folder), name="webhook-certificate")
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app = web.Application(client_max_size=BODY_MAX_BYTES)
    app.router.add_post(WEBHOOK_PATH, validate)
    app.cleanup_ctx.append(renewing)
    return app, context


async def _renew(context: ssl.SSLContext, folder: Path) -> None:
    """Use a renewed certificate for new connections, forever. The kubelet exchanges both files at once."""
    used = _version(folder)
    while True:
        await asyncio.sleep(RENEWAL_CHECK_S)
        try:
            if (found := _version(folder)) == used:
                continue
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
        except OSError as error:  # also what OpenSSL cannot read
            log.warning("the renewed certificate of the webhook cannot be read", extra={"error": str(error)})
        else:
            used = found
            log.info("the webhook uses a renewed certificate")


def _version(folder: Path) -> tuple[bytes, bytes]:
    return (folder / CERTIFICATE).read_bytes(), (folder / KEY).read_bytes()


async def serve(folder: Path, port: int, reviewed: Reviewed) -> web.AppRunner:
    """Serve HTTPS on every address. Raises OSError if the certificate cannot be read or the port is taken."""
    app, context = application(folder, reviewed)
    server = web.AppRunner(app, access_log=None)
    await server.setup()
    try:
        await web.TCPSite(server, "0.0.0.0", port, ssl_context=context).start()  # noqa: S104 - the API server may run on any node
    except OSError:
        await server.cleanup()
        raise
    return server
