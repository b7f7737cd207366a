"""Compare granted rights with the calls in the API server's audit log: no call was refused, and every right is used."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pytest

from testbed_runtime.api import naming
from tests.kubernetes import journal
from tests.kubernetes.cluster import LAYOUT, Cluster
from tests.kubernetes.rendering import OVERLAY, Call, kustomize, role

pytestmark = [pytest.mark.cluster, pytest.mark.disruptive]  # after all others

LOGS = LAYOUT.run / "logs"
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
ROLES_NOT_READ = 'clusterrole.rbac.authorization.k8s.io "system:discovery" not found'
"""A refusal of an API server that has just started, and has not read any role yet: it always has this one."""
CREATED = 201
OTHERS = {f"test_{n}.py" for n in ("testbed", "runs", "faults", "resources", "tuning", "pod_loss")}
"""Together they make every call."""
ONLY_WITH_EXECUTORS = naming.SPARK_ACCOUNT
"""Runs that ask for executors are rare: what was not used there proves nothing."""
Used = dict[str, dict[Call, int]]
"""The calls of each account, with the first answer."""


def used(lines: Iterable[str], since: datetime, without: Mapping[str, datetime]) -> tuple[Used, list[str]]:
    """Return the answered calls, and those that were refused because a right is missing. Calls before `since` are left out, and
    refusals in namespaces `without` rights."""
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
            if ROLES_NOT_READ in reason:
                continue
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
    return used(lines, journal.began(), journal.without_rights())


def test_no_call_was_refused(audited: tuple[Used, list[str]]):
    """No right is missing."""
    assert sorted(set(audited[1])) == []


@pytest.mark.parametrize("account", ROLES)
def test_every_call_is_one_that_its_own_role_lists(audited: tuple[Used, list[str]], account: str):
    """No account depends on the role of another."""
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account]))
    assert set(audited[0].get(account, {})) - granted == set()


@pytest.mark.parametrize("account", [a for a in ROLES if a != ONLY_WITH_EXECUTORS])
def test_nothing_is_granted_that_is_not_used(audited: tuple[Used, list[str]], account: str):
    """Checked only after all cluster tests, since each of them makes few calls."""
    if missing := OTHERS - journal.files():
        pytest.skip(
            f"needs the other cluster tests in the same `make test-cluster`: {', '.join(sorted(missing))}"
        )
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account])) - NOT_A_CALL
    assert granted - set(audited[0].get(account, {})) == set()
