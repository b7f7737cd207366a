"""The root cause of a job that failed or does not run, in Flink's words."""

from __future__ import annotations

from testbed_runtime.checking.common import events
from testbed_runtime.checking.failovers import cause_of, job_state, terminal_failure
from testbed_runtime.history.schema import Trial

_WRAPPED = "; caused by "


def root_cause(trial: Trial, until_ns: int) -> str:
    """Return what last failed a job that is not running at that time, as `class: text`; empty for one that runs or finished."""
    failure = terminal_failure(trial)
    if failure is None:
        if job_state(trial, until_ns) in ("RUNNING", "FINISHED", None):
            return ""
        started = [e for e in events(trial, "failover.started") if int(e["t_ns"]) <= until_ns]
        if not started:
            return ""
        failure = cause_of(started[-1])
    return unwrapped(failure.cause_class, failure.text)


def unwrapped(cause_class: str, text: str) -> str:
    """Return `class: text` of the cause within "Recovery is suppressed by …; caused by …", or of the cause itself."""
    wrapper, separator, inner = text.partition(_WRAPPED)
    if separator and wrapper.startswith("Recovery is suppressed by"):
        return inner
    return f"{cause_class}: {text}" if cause_class else text
