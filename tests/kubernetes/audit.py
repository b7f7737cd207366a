"""The API server's audit log: which calls the accounts made, and which were refused."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.rendering import Call

DECISION = "authorization.k8s.io/decision"
FORBIDDEN = "forbid"
CREATED = 201
NEVER = datetime.max.replace(tzinfo=UTC)
Used = dict[str, dict[Call, int]]
"""The calls of each account, with the last answer."""


def used(
    lines: Iterable[str], accounts: Collection[str], since: datetime, without: Mapping[str, datetime]
) -> tuple[Used, list[str]]:
    """Return the answered calls, and those that were refused because a right is missing.

    Calls before `since` are left out, and refusals in namespaces `without` rights. A refusal counts only if no such call is
    allowed later in its namespace: an API server that has just started has not read all roles and bindings.
    """
    calls: Used = defaultdict(dict)
    refused: dict[tuple[str, ...], str] = {}
    for event in map(json.loads, lines):
        account = event["user"]["username"].rpartition(":")[2]
        target = event.get("objectRef")
        moment = datetime.fromisoformat(event["requestReceivedTimestamp"])
        if (
            moment < since
            or account not in accounts
            or target is None
            or target.get("apiGroup") == "authorization.k8s.io"
        ):
            continue
        call = _call(event["verb"], target)
        namespace = target.get("namespace", "")
        one = (account, namespace, *call)
        status = event.get("responseStatus", {})
        # admission (Pod Security, a quota, a namespace on its way out) says 403 as well, whatever the rights are
        if event.get("annotations", {}).get(DECISION) == FORBIDDEN:
            if moment < without.get(namespace, NEVER):
                refused[one] = (
                    f"{account} in {namespace or 'the cluster'}: {' '.join(call)}: {status.get('message', '')}"
                )
            continue
        refused.pop(one, None)
        code = status.get("code", 0)
        calls[account][call] = code
        if call[2] == "patch" and code == CREATED:  # an apply of what was not there needs both rights
            calls[account][call[0], call[1], "create"] = code
    return calls, sorted(refused.values())


def _call(verb: str, target: Mapping[str, Any]) -> Call:
    subresource = target.get("subresource")
    resource = target["resource"] + (f"/{subresource}" if subresource else "")
    return target.get("apiGroup", ""), resource, verb
