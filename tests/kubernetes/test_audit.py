"""Find missing rights in the audit log of an API server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.kubernetes.audit import used

ACCOUNT = "headgate-operator"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
READ = ("coordination.k8s.io", "leases", "get")


def line(
    second: int, decision: str, namespace: str = "system", verb: str = "get", name: str = "lease"
) -> str:
    return json.dumps(
        {
            "requestReceivedTimestamp": (BEGAN + timedelta(seconds=second)).isoformat(),
            "user": {"username": f"system:serviceaccount:{namespace}:{ACCOUNT}"},
            "verb": verb,
            "objectRef": {
                "apiGroup": "coordination.k8s.io",
                "resource": "leases",
                "namespace": namespace,
                "name": name,
            },
            "responseStatus": {"code": 403 if decision == "forbid" else 200, "message": "no"},
            "annotations": {"authorization.k8s.io/decision": decision},
        }
    )


REFUSED, ALLOWED = line(1, "forbid"), line(2, "allow")


@pytest.mark.parametrize(
    ("lines", "refusals"),
    [
        ([ALLOWED], 0),
        ([REFUSED], 1),
        ([REFUSED, REFUSED], 1),
        ([REFUSED, ALLOWED], 0),
        ([ALLOWED, line(3, "forbid")], 1),
        ([REFUSED, line(2, "allow", namespace="other")], 1),
        ([REFUSED, line(2, "allow", verb="list")], 1),
        ([REFUSED, line(2, "allow", name="other")], 1),
        ([REFUSED, line(0, "allow")], 1),
        ([line(-1, "forbid")], 0),
        ([line(9, "forbid", namespace="gone")], 1),
        ([line(11, "forbid", namespace="gone")], 0),
    ],
    ids=[
        "allowed",
        "refused",
        "refused twice",
        "refused until the API server had read its roles",
        "a right that was lost",
        "another namespace",
        "another verb",
        "another lease",
        "a watch that began before and ended later",
        "before the tests",
        "before its rights were taken",
        "after its rights were taken",
    ],
)
def test_a_refusal_counts_unless_the_same_call_is_allowed_later(lines: list[str], refusals: int):
    """An API server that has just started refuses calls until it has read its roles: no right is missing then."""
    _, refused = used(lines, [ACCOUNT], BEGAN, {"gone": BEGAN + timedelta(seconds=10)})
    assert len(refused) == refusals


def test_an_apply_that_creates_uses_the_right_to_create_too():
    """Server-side apply is a patch that needs both rights if the object did not exist."""
    event = json.loads(line(1, "allow", verb="patch"))
    event["responseStatus"]["code"] = 201
    calls, _ = used([json.dumps(event)], [ACCOUNT], BEGAN, {})
    assert calls[ACCOUNT] == {(*READ[:2], "patch"), (*READ[:2], "create")}
