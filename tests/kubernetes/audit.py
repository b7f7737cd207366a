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
NAMED = {("coordination.k8s.io", "leases")}
"""Resources that a role grants by name."""
NEVER = datetime.max.replace(tzinfo=UTC)
Used = dict[str, set[Call]]
"""The calls of each account."""


def used(
    lines: Iterable[str], accounts: Collection[str], since: datetime, without: Mapping[str, datetime]
) -> tuple[Used, list[str]]:
    """Return the answered calls, and those that were refused because a right is missing.

    Calls before `since` are left out, and refusals in namespaces `without` rights. A refusal counts only if no such call is
    allowed later in its namespace: an API server that has just started has not read all roles and bindings.
    """
    calls: Used = defaultdict(set)
    allowed: dict[tuple[str, ...], datetime] = {}
    refused: dict[tuple[str, ...], tuple[datetime, str]] = {}
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
        name = target.get("name", "") if call[:2] in NAMED else ""
        one = (account, namespace, *call, name)
        status = event.get("responseStatus", {})
        # admission (Pod Security, a quota, a namespace on its way out) says 403 as well, whatever the rights are
        if event.get("annotations", {}).get(DECISION) == FORBIDDEN:
            if moment < without.get(namespace, NEVER):
                place, why = namespace or "the cluster", status.get("message", "")
                refused[one] = moment, f"{account} in {place}: {' '.join(call)} {name}: {why}"
            continue
        allowed[one] = max(moment, allowed.get(one, moment))
        calls[account].add(call)
        # an apply of what was not there needs both rights
        if call[2] == "patch" and status.get("code") == CREATED:
            calls[account].add((call[0], call[1], "create"))
    lasting = (text for one, (moment, text) in refused.items() if allowed.get(one, since) <= moment)
    return calls, sorted(lasting)


def _call(verb: str, target: Mapping[str, Any]) -> Call:
    subresource = target.get("subresource")
    resource = target["resource"] + (f"/{subresource}" if subresource else "")
    return target.get("apiGroup", ""), resource, verb
