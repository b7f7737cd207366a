"""Record how long the pods that replace others waited for a node, and for their image and container.

Kubernetes gives these times in whole seconds of the wall clock, which in pods is the clock of the history.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed_runtime.api import naming
from testbed_runtime.api.views import Pod
from testbed_runtime.core.ids import RUNNER, is_task_manager
from testbed_runtime.core.waits import POD_STEPS, Outcome
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.storage import HistorySink

KUBERNETES = "Kubernetes"
"""The name of the component that waits, as recorded in the history."""
RESOLUTION_S = 1.0
"""The resolution of the times in a pod's status."""
LONGEST_S = 3600.0
"""If a new pod seems older than this, its times come from another clock and are not recorded."""


class PodStarts:
    """The starts of one testbed's TaskManagers since it was opened."""

    def __init__(self, history: HistorySink, now: Callable[[], float]) -> None:
        """`now` is the loop's time in seconds. The runner records the waits."""
        self._waits = WaitLog(history, RUNNER, now)
        self._now = now
        self._since = now()
        self._starting: dict[str, Pod] = {}
        self._done: set[str] = set()

    def see(self, pod: Pod) -> None:
        """Handle a new state of a pod. Its waits are recorded once its containers run."""
        if pod.uid in self._done or not is_task_manager(pod.process) or not self._is_new(pod):
            return
        self._starting[pod.uid] = pod
        if pod.running_since is not None:
            self._record(pod)

    def close(self) -> None:
        """Record what the pods that have not started wait for."""
        for pod in list(self._starting.values()):
            self._record(pod)

    def _is_new(self, pod: Pod) -> bool:
        age_s = self._now() - pod.created
        return pod.created > self._since - RESOLUTION_S and -RESOLUTION_S <= age_s <= LONGEST_S

    def _record(self, pod: Pod) -> None:
        del self._starting[pod.uid]
        self._done.add(pod.uid)
        name = f"{pod.process}-{naming.first_incarnation(pod.incarnation)}"
        begun = pod.created
        for kind, ended in zip(POD_STEPS, (pod.scheduled_since, pod.running_since), strict=True):
            wait = self._waits.begin(kind, KUBERNETES, name, since_s=begun)
            if ended is None:
                wait.end(Outcome.OPEN, cause=pod.problem)
                return
            wait.end(at_s=max(begun, ended))
            begun = max(begun, ended)
