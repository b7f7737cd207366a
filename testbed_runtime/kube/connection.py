"""Login and bytes: the `kubernetes` client's configuration and its connection pool, blocking. Only kube.api calls it."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import HeadgateError

CONNECT_LIMIT_S = 5.0
"""To a server that is there a connection takes milliseconds."""
POOL_CONNECTIONS = 64
"""One for each thread of kube.api, and some."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MAX_LINE_BYTES = 8 * 1024 * 1024
"""An event of a watch: an object is at most 1.5 MiB in etcd."""


class LoginFailed(HeadgateError):
    """No usable kubeconfig, and not inside a cluster."""


class Unreachable(HeadgateError):
    """No answer; `answer` is there when a stream was refused with one."""

    def __init__(self, text: str, answer: Answer | None = None) -> None:
        super().__init__(text)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Stream:
    """Lines of an answer that goes on. `line` blocks; `end` may be called from another thread."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._chunks = response.stream(amt=None, decode_content=True)
        self._rest = b""
        self._ended = False

    def line(self) -> bytes | None:
        """The next line; None at the end. Raises Unreachable when the connection broke or was silent too long."""
        while b"\n" not in self._rest:
            try:
                chunk = next(self._chunks, None)
            except Exception as error:
                if self._ended:
                    return None
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            if chunk is None or self._ended:
                return None
            self._rest += chunk
            if len(self._rest) > MAX_LINE_BYTES:
                raise Unreachable(f"a line of more than {MAX_LINE_BYTES} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        self._ended = True
        with contextlib.suppress(Exception):  # it may have ended already
            self._response.shutdown()


class Connection:
    """The API server of one login. Thread-safe."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.namespace = namespace
        self.server: str = client.configuration.host
        self._client = client

    def call(self, method: str, path: str, body: bytes | None, content_type: str, limit_s: float) -> Answer:
        """Blocking. Raises Unreachable; any status is an answer."""
        response = self._request(method, path, body, content_type, limit_s, stream=False)
        return Answer(response.status, response.data)

    def stream(self, path: str, silence_s: float) -> Stream:
        """Blocking until the answer begins. `silence_s`: how long nothing may come before it counts as broken."""
        response = self._request("GET", path, None, "application/json", silence_s, stream=True)
        if response.status >= 400:
            answer = Answer(response.status, response.read())
            response.release_conn()
            raise Unreachable(f"status {answer.status}", answer)
        return Stream(response)

    def _request(
        self, method: str, path: str, body: bytes | None, content_type: str, limit_s: float, *, stream: bool
    ) -> Any:
        import urllib3

        headers = {"Accept": "application/json", "User-Agent": "headgate"}
        if path.partition("?")[0].endswith("/log"):
            headers["Accept"] = "*/*"
        if body is not None:
            headers["Content-Type"] = content_type
        for setting in self._client.configuration.auth_settings().values():
            if setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        try:
            return self._client.rest_client.pool_manager.request(
                method,
                self.server + path,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_LIMIT_S, read=limit_s),
                retries=False,
                redirect=False,
                preload_content=not stream,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{self.server}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._client.close()


def connect(*, kubeconfig: str = "", context: str = "", namespace: str = "") -> Connection:
    """By the given kubeconfig, else in-cluster, else `KUBECONFIG`, else the user's own. Blocking; raises LoginFailed."""
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    settings = client.Configuration()
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    inside = not kubeconfig and not context and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    try:
        if inside and not chosen:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            found = NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else ""
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=chosen or None, context=context or None, client_configuration=settings
            )
            found = _context_namespace(config, chosen, context)
    except (ConfigException, OSError) as error:
        where = f"kubeconfig {chosen}" if chosen else "no KUBECONFIG, and not inside a cluster"
        raise LoginFailed(f"{where}: {error} (set KUBECONFIG, or give --kubeconfig and --context)") from error
    settings.connection_pool_maxsize = POOL_CONNECTIONS
    return Connection(client.ApiClient(settings), namespace or found or "default")


def _context_namespace(config: Any, chosen: str, context: str) -> str:
    contexts, active = config.list_kube_config_contexts(config_file=chosen or None)
    known = next((c for c in contexts if c["name"] == context), active)
    return str(known["context"].get("namespace", ""))
