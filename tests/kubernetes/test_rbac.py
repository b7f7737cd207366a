"""Rights against calls, both ways, by the API server's audit log: nothing was refused, nothing is granted that nobody uses."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pytest

from testbed_runtime.api import naming
from tests.kubernetes.cluster import LAYOUT, Cluster
from tests.kubernetes.rendering import OVERLAY, Call, kustomize, role
from tests.kubernetes.spaces import WITHOUT_RIGHTS

pytestmark = pytest.mark.cluster

LOGS = LAYOUT.run / "logs"
STARTED = datetime.now(UTC)
"""When the tests were collected: what an earlier operator did in the same cluster is not judged by this checkout's roles."""
ROLES = {
    "headgate-operator": ("headgate-operator", "headgate-operator-lease"),
    naming.RUNNER_ACCOUNT: (naming.RUNNER_ACCOUNT,),
    naming.STUDY_ACCOUNT: (naming.STUDY_ACCOUNT,),
    naming.SPARK_ACCOUNT: (naming.SPARK_ACCOUNT,),
}
"""Account → its roles."""
NOT_A_CALL = {("rbac.authorization.k8s.io", "clusterroles", "bind")}
"""Asked of the authorizer when a RoleBinding is made: never a request of its own."""
DECISION = "authorization.k8s.io/decision"
FORBIDDEN = "forbid"
CREATED = 201
OTHERS = {f"test_{n}.py" for n in ("testbed", "runs", "faults", "resources", "tuning", "pod_loss")}
"""Who together do all that there is to do."""
ONLY_WITH_EXECUTORS = naming.SPARK_ACCOUNT
"""Runs that ask for executors are rare: what was not used there proves nothing."""
Used = dict[str, dict[Call, int]]
"""By account: what it called, and how the first answer was."""


def used(lines: Iterable[str], since: datetime, without: Mapping[str, datetime]) -> tuple[Used, list[str]]:
    """(calls that were answered, calls that were refused for want of a right), those before `since` and refusals where there were no
    rights to be had left out."""
    calls: Used = defaultdict(dict)
    refused = []
    for line in lines:
        event = json.loads(line)
        moment = datetime.fromisoformat(event["requestReceivedTimestamp"])
        if moment < since:
            continue
        account = event["user"]["username"].rpartition(":")[2]
        target = event.get("objectRef")
        if account not in ROLES or target is None or target.get("apiGroup") == "authorization.k8s.io":
            continue
        subresource = target.get("subresource")
        resource = target["resource"] + (f"/{subresource}" if subresource else "")
        call = (target.get("apiGroup", ""), resource, event["verb"])
        status = event.get("responseStatus", {}).get("code", 0)
        # admission (Pod Security, a quota, a namespace on its way out) says 403 as well, whatever the rights are
        if event.get("annotations", {}).get(DECISION) == FORBIDDEN:
            if moment >= without.get(target.get("namespace", ""), datetime.max.replace(tzinfo=UTC)):
                continue
            reason = event.get("responseStatus", {}).get("message", "")
            refused.append(
                f"{account} in {target.get('namespace', 'the cluster')}: {' '.join(call)}: {reason}"
            )
        else:
            calls[account][call] = status
            if call[2] == "patch" and status == CREATED:  # an apply of what was not there needs both rights
                calls[account][call[0], call[1], "create"] = status
    return calls, refused


@pytest.fixture(scope="module")
def audited(cluster: Cluster) -> tuple[Used, list[str]]:
    logs = sorted(LOGS.glob("audit*.log"))  # the older one has a time in its name
    if not (cluster.own and logs):
        pytest.skip("needs the audit log of a cluster of `make cluster`")
    # the API server writes while this reads: the last line may be half of one
    lines = (line for log in logs for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n")
    return used(lines, STARTED, WITHOUT_RIGHTS)


def test_no_call_was_refused(audited: tuple[Used, list[str]]):
    """Nothing is missing."""
    assert sorted(set(audited[1])) == []


@pytest.mark.parametrize("account", ROLES)
def test_every_call_is_one_that_its_own_role_lists(audited: tuple[Used, list[str]], account: str):
    """Not one that works by the grace of another role."""
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account]))
    assert set(audited[0].get(account, {})) - granted == set()


@pytest.mark.parametrize("account", [a for a in ROLES if a != ONLY_WITH_EXECUTORS])
def test_nothing_is_granted_that_is_not_used(
    audited: tuple[Used, list[str]], account: str, request: pytest.FixtureRequest
):
    """Only after the whole of the cluster tests: before, little was called."""
    there = {item.path.name for item in request.session.items}
    if missing := OTHERS - there:
        pytest.skip(f"needs the other cluster tests in the same session: {', '.join(sorted(missing))}")
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account])) - NOT_A_CALL
    assert granted - set(audited[0].get(account, {})) == set()
