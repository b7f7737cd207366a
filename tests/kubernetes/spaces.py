"""A namespace of one test: objects in it, bounded waits by watch, and what was going on in it when something fails."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed_runtime.api import naming
from tests.kubernetes import journal
from tests.kubernetes.cluster import Cluster

OPERATOR_NAMESPACE = "headgate-system"
OPERATOR = "deployment/headgate-operator"
OVERLAY = Path(__file__).resolve().parents[2] / "manifests" / "overlays" / "test"
GONE_LIMIT_S = 90  # a namespace with runs and faults: finalizers heal first, at most 60 s
WATCH_ROUND_S = 10.0
"""Then the object is read anew: a kubectl that hangs is not taken for an operator that does nothing."""
PROCESS_LIMIT_S = 120.0
LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""
LOG_LINES = 40
READ_BYTES = 65536
ENFORCE = "pod-security.kubernetes.io/enforce"
RESTRICTED = "restricted"
PRIVILEGED = "privileged"
"""The level that admits the agent of packet faults: NET_ADMIN is refused by the other two."""
OF_NO_NAMESPACE = (
    "clusterroles,clusterrolebindings,customresourcedefinitions,validatingwebhookconfigurations,priorityclasses,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
ORDINARY = ("Scheduled", "Pulling", "Pulled", "Created")
"""Events of every pod, which would hide the others in a failed test's report."""
GOING: list[str] = []
"""Namespaces of earlier tests that were deleted and perhaps are not gone yet."""


@dataclass(frozen=True, slots=True)
class Space:
    """One namespace of a cluster."""

    cluster: Cluster
    name: str

    def kubectl(self, *arguments: str, text: str = "", check: bool = True) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, text=text, check=check)

    def apply(self, *documents: dict[str, Any]) -> None:
        self.cluster.apply(self.name, *documents)

    def create(self, document: dict[str, Any]) -> str:
        """Create an object with `generateName` and return its name."""
        return self.kubectl("create", "-f", "-", "-o", "jsonpath={.metadata.name}", text=json.dumps(document))

    def get(self, *what: str) -> Any:
        return self.cluster.get("-n", self.name, *what)

    def refused(self, document: dict[str, Any]) -> str:
        """The API server's words for what it does not take; fails when it takes it."""
        return self.cluster.refused("-n", self.name, "create", "-f", "-", text=json.dumps(document))

    def until(self, what: str, holds: Callable[[Any], object], limit: float, because: str = "") -> Any:
        """Watch one object (`run/name`) until `holds(object)`; gives the object. A time-out tells the whole story of the namespace."""
        seen: Any = None
        kind, _, name = what.partition("/")
        for seen in self.watched(kind, f"metadata.name={name}", limit):
            if holds(seen):
                return seen
        last = "it was never seen" if seen is None else json.dumps(seen.get("status"), indent=1)
        now = self.kubectl("get", what, "-o", "jsonpath={.status}", check=False)
        raise AssertionError(
            f"{what}: not within {limit} s: {because or 'the condition'}; last seen: {last}; now: {now}\n{self.story()}"
        )

    def watched(self, kind: str, fields: str, limit: float) -> Iterator[Any]:
        """Each state of the objects that these fields select, for at most `limit` seconds; of those that come later, too."""
        ends = time.monotonic() + limit
        while (left := ends - time.monotonic()) > 0:
            # a list, also of one: `get NAME --watch` leaves out the first news, which may be the last
            arguments = ["-n", self.name, "get", kind, "--field-selector", fields, "--watch", "-o", "json"]
            yield from _stream(self.cluster, arguments, time.monotonic() + min(left, WATCH_ROUND_S))

    def event(self, reason: str, words: str, limit: float) -> str:
        """Wait for an Event with that reason and these words; gives its text."""
        messages = []
        for seen in self.watched("events", f"reason={reason}", limit):
            messages.append(seen["message"])
            if words in messages[-1]:
                return str(messages[-1])
        raise AssertionError(
            f"no Event {reason} with {words!r} within {limit} s, but {messages}\n{self.story()}"
        )

    def condition(self, what: str, kind: str, limit: float, status: str = "True") -> dict[str, Any]:
        """Wait for a condition; gives it."""
        found = self.until(what, lambda o: condition(o, kind, status), limit, f"condition {kind}={status}")
        return condition(found, kind, status) or {}

    def admit(self, level: str) -> None:
        """Pods of this security level from now on."""
        self.cluster.kubectl("label", "namespace", self.name, f"{ENFORCE}={level}", "--overwrite")

    def gone(self, what: str, limit: float) -> None:
        arguments = ("-n", self.name, "wait", "--for=delete", what, f"--timeout={limit:.0f}s")
        self.cluster.run("kubectl", *arguments, limit=limit + 10)

    def story(self) -> str:
        """Objects, events, the end of each pod's log, and of the operator's."""
        parts = [
            self._kubectl_output("get", "headgate,pods,jobs", "-o", "wide"),
            self._kubectl_output(
                "get",
                "events",
                "--sort-by=.lastTimestamp",
                "--field-selector",
                ",".join(f"reason!={reason}" for reason in ORDINARY),
                "-o",
                "custom-columns=WHY:.reason,WHAT:.involvedObject.name,TEXT:.message",
            ),
        ]
        for pod in self._kubectl_output("get", "pods", "-o", "name").split():
            for more in ([], ["--previous"]):
                said = self._kubectl_output("logs", pod, "--all-containers", f"--tail={LOG_LINES}", *more)
                parts += [f"--- {' '.join([pod, *more])}\n{said}"] if said else []
        parts.append(f"--- operator\n{operator_log(self.cluster)}")
        return "\n".join(parts)

    def _kubectl_output(self, *arguments: str) -> str:
        return self.kubectl(*arguments, check=False)


def condition(document: Any, kind: str, status: str = "True") -> dict[str, Any] | None:
    """The condition of that type, if it has that status (and speaks of the present generation, when it says of which)."""
    generation = document["metadata"].get("generation")
    for found in (document.get("status") or {}).get("conditions") or []:
        current = found.get("observedGeneration", generation) == generation
        if found["type"] == kind and found["status"] == status and current:
            return dict(found)
    return None


def operator_log(cluster: Cluster, lines: int = LOG_LINES) -> str:
    return cluster.kubectl(
        "-n", OPERATOR_NAMESPACE, "logs", OPERATOR, "--all-containers", f"--tail={lines}", check=False
    )


def _stream(cluster: Cluster, arguments: list[str], ends: float) -> Iterator[Any]:
    """JSON documents one after the other from a program that is ended with the iterator."""
    process = subprocess.Popen(
        [cluster.program("kubectl"), *arguments],
        env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    decoder, text = json.JSONDecoder(), b""
    try:
        with process.stdout, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := ends - time.monotonic()) > 0 and selector.select(left):
                if not (read := os.read(process.stdout.fileno(), READ_BYTES)):
                    return
                text += read
                while text.strip():
                    try:
                        found, used = decoder.raw_decode(text.decode().lstrip())
                    except (json.JSONDecodeError, UnicodeDecodeError):
                        break  # the rest comes with the next read
                    text = text.decode().lstrip()[used:].encode()
                    yield found
    finally:
        process.kill()
        process.wait()


AGENT = "testbed_runtime.entry.agent"
RECORDER = "testbed_runtime.entry.run_recorder"
STORE = "testbed_runtime.entry.store"
JAVA = "org.apache.spark.deploy.SparkSubmit"
RUNNER = "testbed_runtime.entry.runner"


class PodGone(Exception):
    """The pod of a process that was awaited no longer exists."""


def agent_of(space: Space, pod: str) -> int:
    """The agent's process as this machine sees it; awaited: the kubelet may be about to start it again."""
    return _awaited(space, pod, AGENT, lambda _: True)


def recorder_of(space: Space, pod: str) -> int:
    """The recorder's process as this machine sees it, once it listens: one that dies before it is ready is given up with its pod."""
    return _awaited(space, pod, RECORDER, lambda pid: _listens(pid, naming.RECORDER_PORT))


def _awaited(space: Space, pod: str, program: str, holds: Callable[[int], bool]) -> int:
    ends = time.monotonic() + PROCESS_LIMIT_S
    while (pid := process_of(space, pod, program)) is None or not holds(pid):
        if pid is None and not space.kubectl("get", "pod", pod, "-o", "name", "--ignore-not-found"):
            raise PodGone(pod)
        assert time.monotonic() < ends, f"no {program} of {pod} on this machine\n{space.story()}"
        time.sleep(0.05)
    return pid


def _listens(pid: int, port: int) -> bool:
    """Whether a socket of the process's network namespace listens on the port."""
    try:
        sockets = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(local.endswith(f":{port:04X}") and state == LISTEN for _, local, _, state, *_ in sockets)


def process_of(space: Space, pod: str, program: str) -> int | None:
    """The process of a pod with this word in its command line (a Python module, a Java class), as this machine sees it."""
    uid = space.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}", check=False)
    return next(iter(_processes([uid] if uid else [], program)), None)


def processes_of(space: Space, program: str) -> list[int]:
    """The processes with this word in their command line in all pods of the namespace."""
    return _processes([pod["metadata"]["uid"] for pod in space.get("pods")["items"]], program)


def _processes(uids: Sequence[str], program: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir() if uids else ():
        try:
            group, command = (folder / "cgroup").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        here = any(uid in group or uid.replace("-", "_") in group for uid in uids)
        if here and program.encode() in command.split(b"\0"):
            found.append(int(folder.name))
    return found


def _empty(space: Space) -> None:
    """Delete first what takes time to end: the deletion of a namespace checks only every 5 to 10 s."""
    space.kubectl("delete", "headgate", "--all", "--wait=false", check=False)
    space.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false", check=False)


@contextmanager
def fresh(
    cluster: Cluster, label: str = "", *, level: str = RESTRICTED, emptied: bool = True
) -> Iterator[Space]:
    """A namespace that is restricted by default (pods that ask for more are refused), deleted at the end and not awaited (`settle`);
    `emptied` before that, unless its deletion is what a test is about."""
    with cluster.namespace() as name:
        cluster.kubectl("label", "namespace", name, f"{ENFORCE}={level}", *([label] if label else []))
        space = Space(cluster, name)
        try:
            yield space
        finally:
            if emptied:
                _empty(space)
            journal.no_rights_from_now_on(name)
            GOING.append(name)


def give_back(space: Space) -> None:
    """Delete the recorders of finished runs, which keep their share of the node's processors. The runs stay: they own the warm Spark,
    which would be deleted with the last of them and start anew in the next test."""
    recorders = f"{naming.LABEL_ROLE}=recorder"
    space.kubectl("delete", "pods", "-l", recorders, "--wait=false", "--grace-period=1")


def settle(cluster: Cluster) -> None:
    """Wait until the namespaces of earlier tests are gone. Fails when one remains."""
    while GOING:
        cluster.kubectl("wait", "--for=delete", f"namespace/{GOING[-1]}", f"--timeout={GONE_LIMIT_S}s")
        GOING.pop()


def names(cluster: Cluster) -> set[str]:
    """Everything of the whole cluster that an installation could leave."""
    spaces = ("get", "namespaces", "--field-selector", "status.phase=Active", "-o", "name")
    found = cluster.kubectl("get", OF_NO_NAMESPACE, "-o", "name")
    return set(found.split()) | set(cluster.kubectl(*spaces).split())


def install(cluster: Cluster, image: str) -> None:
    """Definitions and operator of this checkout; a pod of an older image is replaced. Fails with the operator's own words."""
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=headgate-tests", "-k", str(OVERLAY)
    )
    mark = {"spec": {"template": {"metadata": {"annotations": {"headgate.dev/image": image}}}}}
    cluster.kubectl("-n", OPERATOR_NAMESPACE, "patch", OPERATOR, "-p", json.dumps(mark))
    for definition in cluster.kubectl("get", "crd", "-o", "name").split():
        if definition.endswith(".headgate.dev"):
            cluster.kubectl("wait", "--for=condition=Established", "--timeout=110s", definition)
    cluster.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", OPERATOR, "--timeout=110s", check=False)
    status = cluster.get("-n", OPERATOR_NAMESPACE, OPERATOR)["status"]
    ready = status.get("readyReplicas", 0) >= 1 and status.get("updatedReplicas", 0) >= 1
    assert ready, f"the operator is not Ready after 110 s: {status}\n{operator_log(cluster)}"


def uninstall(cluster: Cluster) -> None:
    cluster.kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=90s", "-k", str(OVERLAY))
