"""The wait that a failure ended: it says whose seconds they were. Recorded with the failure instead of being read from its text."""

from __future__ import annotations

FAILURE_REPORT = "failure-report"
"""The kind of the wait that no other kind explains."""
FUNCTION = "function"
"""Used instead of a kind: a function of the scenario raised an error, so no fault caused the failure and it ended no wait."""
RECOVERED = "JobManagerRestarted"
"""The class of the cause with which a new JobManager recovers the job."""
_BY_CLASS = {
    "PartitionNotFoundException": "partition",
    "NoResourceAvailableException": "slot",
    "JobMasterException": "heartbeat",
    "ResourceManagerException": "heartbeat",
    "TaskManagerException": "heartbeat",
    RECOVERED: "jobmanager",
    "RemoteTransportException": "connection",
    "LocalTransportException": "connection",
    "PartitionConnectionException": "connection",
    "RecipientUnreachableException": "connection",
}
"""The classes with a single meaning. For other classes, the component that fails knows the kind."""


def ended_wait(class_name: str, known: str = "") -> str:
    """Return the kind of the wait (core.waits) that a failure ended: from its origin if that knows it, otherwise from its class."""
    return known or _BY_CLASS.get(class_name, FAILURE_REPORT)
