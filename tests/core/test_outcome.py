"""Whether a failure cancels a task or fails it."""

from itertools import pairwise

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.outcome import cancels, reported


def failure(*names: str) -> FlinkError:
    """Return an error with its causes, the outermost first."""
    chain = [FlinkError(name, f"text of {name}") for name in names]
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    return chain[0]


@pytest.mark.parametrize(
    ("names", "old", "new"),
    [
        pytest.param(["Exception"], False, False, id="of its own"),
        pytest.param(["CancelTaskException"], True, True, id="a released partition"),
        pytest.param(["ProducerFailedException"], True, True, id="a local producer"),
        pytest.param(["RemoteTransportException", "ProducerFailedException"], False, True, id="a remote producer"),
        pytest.param(["RemoteTransportException", "IOException", "CancelTaskException"], False, True, id="deeper"),
        pytest.param(["RemoteTransportException"], False, False, id="a lost connection"),
    ],
)  # fmt: skip
def test_a_failed_producer_cancels_its_consumers(names: list[str], old: bool, new: bool) -> None:
    """Task.doRun looks at the exception itself until 1.14, at its causes from 1.15 on."""
    assert [cancels(failure(*names), version) for version in ("1.12", "1.14")] == [old, old]
    assert [cancels(failure(*names), version) for version in ("1.15", "2.x")] == [new, new]


def test_a_cancelled_task_reports_the_failure_of_its_producer_and_no_other() -> None:
    """Only then the JobMaster knows that another report brings the cause."""
    remote = failure("RemoteTransportException", "ProducerFailedException")
    found = reported(remote, cancelled=True)
    assert found is not None
    assert found.class_name == "ProducerFailedException"
    assert reported(remote, cancelled=False) is remote
    assert reported(failure("CancelTaskException"), cancelled=True) is None
