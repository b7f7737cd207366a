"""The kind of wait that a failure ended. It decides to which wait the time before the failure is attributed.
It is recorded with the failure, instead of being derived from the failure's text."""

from __future__ import annotations

FAILURE_REPORT = "failure-report"
"""The kind of wait for failures that no other kind explains."""
FUNCTION = "function"
"""Used instead of a kind: a function of the scenario raised an error, so no fault caused the failure and it ended no wait."""
RECOVERED = "JobManagerRestarted"
"""The class of the cause when a new JobManager recovers the job."""
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
"""The exception classes with a single meaning. For other classes, the component that fails knows the kind."""


def ended_wait(class_name: str, known: str = "") -> str:
    """Return the kind of wait (core.waits) that a failure ended. The component that failed may have `known`
    it; otherwise it follows from the class."""
    return known or _BY_CLASS.get(class_name, FAILURE_REPORT)
