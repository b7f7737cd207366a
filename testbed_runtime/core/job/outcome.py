"""Whether a failure cancels a task or fails it (Flink's Task.doRun)."""

from __future__ import annotations

from collections.abc import Iterator

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.versions import CANCELLED_BY_CAUSE, has

PRODUCER_FAILED = "ProducerFailedException"
"""The error that the readers of a failed producer get. It is a CancelTaskException."""
CANCELLING = frozenset(("CancelTaskException", PRODUCER_FAILED))


def _chain(failure: FlinkError) -> Iterator[FlinkError]:
    error: BaseException | None = failure
    while isinstance(error, FlinkError):
        yield error
        error = error.__cause__


def cancels(failure: FlinkError, flink_version: str) -> bool:
    """Return whether a task ends CANCELED because of this failure, instead of FAILED."""
    if has(flink_version, CANCELLED_BY_CAUSE):
        return any(error.class_name in CANCELLING for error in _chain(failure))
    return failure.class_name in CANCELLING


def reported(failure: FlinkError, *, cancelled: bool) -> FlinkError | None:
    """Return the failure that a task reports with its last state. A cancelled one reports only that a producer has failed."""
    if not cancelled:
        return failure
    return next((error for error in _chain(failure) if error.class_name == PRODUCER_FAILED), None)
