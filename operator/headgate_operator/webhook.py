"""The validating webhook. The API server calls it before it stores an object, and gets the texts of `headgate
validate`.

Every replica answers. docs/decisions/0014-webhook.md says why it is not kopf's server."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from testbed_runtime.api.naming import WEBHOOK_PATH
from testbed_runtime.api.validate_kinds import KindFindings, validate_kind

BODY_MAX_BYTES = 8 * 1024 * 1024
"""Maximum size of a review, which contains an object and its previous version. etcd stores at most 1.5 MiB of each."""
RENEWAL_CHECK_S = 60.0
"""Interval in which the certificate's files are checked for changes, and in which a server that could not start is started again."""
CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Files of the mounted Secret, as in every Secret of the type kubernetes.io/tls."""
SNAPSHOT = "..data"
"""The kubelet's link to the folder with all files of one version of the Secret."""


class Reviewed(Protocol):
    """Counts the answers."""

    def __call__(self, *, allowed: bool) -> None: ...


log = logging.getLogger("headgate.operator")


def answer(review: Mapping[str, Any]) -> dict[str, Any]:
    """Return the AdmissionReview that answers this one. An error that the object already had is only a warning, so that the object can
    still be suspended or changed. Raises KeyError if the review has no request or no uid."""
    request = review["request"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    answered = {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
    if request.get("object") is None:  # the object is being deleted
        return answered
    findings = validate_kind(request["object"])
    before = _errors(validate_kind(request["oldObject"])) if request.get("oldObject") else []
    found = _errors(findings)
    if new := [text for text in found if text not in before]:
        response["allowed"] = False
        response["status"] = {"code": 400, "reason": "BadRequest", "message": "\n".join(new)}
    if warnings := [*(text for text in found if text in before), *findings.notes]:
        response["warnings"] = warnings
    return answered


def _errors(findings: KindFindings) -> list[str]:
    return [str(error) for error in findings.errors]


def application(reviewed: Reviewed) -> web.Application:
    """Return the route. Each answer is reported to `reviewed`."""

    async def validate(request: web.Request) -> web.Response:
        try:
            review = await request.json()
            _ = review["request"]["uid"], review["apiVersion"], review["kind"]
        except (ValueError, KeyError, TypeError) as error:
            raise web.HTTPBadRequest(text=f"this is no AdmissionReview: {error!r}") from None
        answered = answer(review)
        reviewed(allowed=answered["response"]["allowed"])
        response = web.json_response(answered)
        response.force_close()  # kopf would wait for the task of an open connection when it ends
        return response

    app = web.Application(client_max_size=BODY_MAX_BYTES)
    app.router.add_post(WEBHOOK_PATH, validate)
    return app


async def serve(folder: Path, port: int, reviewed: Reviewed) -> None:
    """Serve HTTPS on every address until cancelled. Without a usable certificate or the port, the operator continues and the webhook is
    started again later."""
    while True:
        try:
            used, context = _version(folder), _load(folder)
            server = await _start(application(reviewed), port, context)
        except OSError as error:  # also what OpenSSL does not accept
            log.error("the webhook is not served", extra={"error": f"{folder}, port {port}: {error}"})  # noqa: TRY400
            await asyncio.sleep(RENEWAL_CHECK_S)
            continue
        try:
            await _renew(context, folder, used)
        finally:
            await server.cleanup()


async def _start(app: web.Application, port: int, context: ssl.SSLContext) -> web.AppRunner:
    server = web.AppRunner(app, access_log=None)
    await server.setup()
    try:
        await web.TCPSite(server, "0.0.0.0", port, ssl_context=context).start()  # noqa: S104 - the API server may run on any node
    except OSError:
        await server.cleanup()
        raise
    return server


async def _renew(context: ssl.SSLContext, folder: Path, used: bytes) -> None:
    """Use a renewed certificate for new connections, forever. One that cannot be used leaves the old one in use."""
    while True:
        await asyncio.sleep(RENEWAL_CHECK_S)
        try:
            if (found := _version(folder)) == used:
                continue
            # a separate context, because OpenSSL already uses a certificate when it refuses its key
            renewed = _load(folder)
        except OSError as error:
            log.warning("the renewed certificate of the webhook cannot be used", extra={"error": str(error)})
            continue
        _use(context, renewed)
        used = found
        log.info("the webhook uses a renewed certificate")


def _use(context: ssl.SSLContext, renewed: ssl.SSLContext) -> None:
    def exchange(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = renewed

    context.sni_callback = exchange


def _load(folder: Path) -> ssl.SSLContext:
    """Raises OSError if a file cannot be read, or if the key is not that of the certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    snapshot = _snapshot(folder)
    context.load_cert_chain(snapshot / CERTIFICATE, snapshot / KEY)
    return context


def _version(folder: Path) -> bytes:
    snapshot = _snapshot(folder)
    return (snapshot / CERTIFICATE).read_bytes() + (snapshot / KEY).read_bytes()


def _snapshot(folder: Path) -> Path:
    """Return the folder in which both files are of one version."""
    return (folder / SNAPSHOT).resolve() if (folder / SNAPSHOT).exists() else folder
