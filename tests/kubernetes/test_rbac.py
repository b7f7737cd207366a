"""Compare granted rights with the calls in the API server's audit log: no call was refused, and every right is used."""

from __future__ import annotations

import pytest

from testbed_runtime.api import naming
from tests.kubernetes import journal
from tests.kubernetes.audit import Used, used
from tests.kubernetes.cluster import LAYOUT, Cluster
from tests.kubernetes.rendering import OVERLAY, kustomize, role

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
OTHERS = {f"test_{n}.py" for n in ("testbed", "runs", "faults", "resources", "tuning", "pod_loss")}
"""Together they make every call."""
ONLY_WITH_EXECUTORS = naming.SPARK_ACCOUNT
"""Runs that ask for executors are rare: what was not used there proves nothing."""


@pytest.fixture(scope="module")
def audited(cluster: Cluster) -> tuple[Used, list[str]]:
    logs = sorted(LOGS.glob("audit*.log"))  # the older one has a time in its name
    if not (cluster.own and logs):
        pytest.skip("needs the audit log of a cluster of `make cluster`")
    # the API server writes while this reads: the last line may be half of one
    lines = (line for log in logs for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n")
    return used(lines, ROLES, journal.began(), journal.without_rights())


def test_no_call_was_refused(audited: tuple[Used, list[str]]):
    """No right is missing."""
    assert audited[1] == []


@pytest.mark.parametrize("account", ROLES)
def test_every_call_is_one_that_its_own_role_lists(audited: tuple[Used, list[str]], account: str):
    """No account depends on the role of another."""
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account]))
    assert audited[0].get(account, set()) - granted == set()


@pytest.mark.parametrize("account", [a for a in ROLES if a != ONLY_WITH_EXECUTORS])
def test_nothing_is_granted_that_is_not_used(audited: tuple[Used, list[str]], account: str):
    """Checked only after all cluster tests, since each of them makes few calls."""
    if missing := OTHERS - journal.files():
        pytest.skip(
            f"needs the other cluster tests in the same `make test-cluster`: {', '.join(sorted(missing))}"
        )
    objects = kustomize(OVERLAY)
    granted = set().union(*(role(objects, name) for name in ROLES[account])) - NOT_A_CALL
    assert granted - audited[0].get(account, set()) == set()
