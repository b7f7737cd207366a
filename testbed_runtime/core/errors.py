"""All errors that Headgate itself raises. The type says who is to blame: Local* this process, Remote* the peer.

HeadgateError
├── LocalProtocolError          this process violated the protocol (a bug)
├── RemoteProtocolError         the peer violated the protocol: the connection or the channel fails
├── FaultHealed                 the fault ended because all faults were healed
├── FaultLapsed                 the fault ended too early, without being healed
├── AgentSilent                 a fault agent does not respond: its part of the fault is not active, or ends by itself
├── TestbedNotReady             the processes of a testbed did not start in time, for example because no node has room
├── TestbedDisrupted            Kubernetes or a user removed a process of the testbed, and no fault did
├── FlinkError                  a failure with Flink's class name and message, as it appears in a job's cause
│   └── OptionRefused           Flink does not start with this value of an option
└── UserError                   invalid input: names the field, the value and how to fix it
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class HeadgateError(Exception):
    """Base class of Headgate's errors."""


class LocalProtocolError(HeadgateError):
    """This process was about to violate the protocol."""


class RemoteProtocolError(HeadgateError):
    """The peer violated the protocol. The message is Flink's, `java_class` the class of its exception."""

    def __init__(self, message: str, java_class: str = "java.lang.IllegalArgumentException") -> None:
        super().__init__(message)
        self.java_class = java_class


class FaultHealed(HeadgateError):
    """A fault ended because all faults were healed (`headgate heal --all`). Its run ends."""


class FaultLapsed(HeadgateError):
    """A fault ended earlier than requested, for example because its agent died. Its effect did not last."""


class FaultNotApplied(HeadgateError):
    """A process that a fault needs was not running when the fault was due, so the fault did nothing."""


class AgentSilent(HeadgateError):
    """A fault agent does not respond. The other agents' parts were undone; its own part, if any, ends with its lease."""


class TestbedNotReady(HeadgateError):
    """The processes of a testbed did not start within the time limit. The next testbed of the run would wait as long."""

    __test__ = False


class TestbedDisrupted(HeadgateError):
    """Kubernetes or a user removed a process of the testbed, and no fault of the trial did. The trial says nothing about the job."""

    __test__ = False


class StopRefused(HeadgateError):
    """The job cannot be stopped with a final checkpoint. It continues to run."""


class FlinkError(HeadgateError):
    """A failure as Flink would report it: `class_name` is the simple Java class name, `message` is Flink's text.

    `lost_taskmanager` is the ResourceID of the TaskManager whose connection failed, or empty. Failover decides based on
    it, never on the text. `wait` is the kind of the wait that it ended, if its class does not say it (core.job.causes)."""

    def __init__(self, class_name: str, message: str, *, lost_taskmanager: str = "", wait: str = "") -> None:
        super().__init__(message)
        self.class_name = class_name
        self.message = message
        self.lost_taskmanager = lost_taskmanager
        self.wait = wait

    def __str__(self) -> str:
        return f"{self.class_name}: {self.message}"


class OptionRefused(FlinkError):
    """Flink does not start with a value of the option `key`. The message is Flink's; `hint` says how to fix it. Without a hint,
    the default of the Flink version is the advice."""

    def __init__(self, class_name: str, message: str, key: str, hint: str) -> None:
        super().__init__(class_name, message)
        self.key = key
        self.hint = hint


def require_option(holds: bool, text: str, key: str, hint: str = "") -> None:
    """Raise OptionRefused as Flink's Preconditions.checkArgument does."""
    if not holds:
        raise OptionRefused("IllegalArgumentException", text, key, hint)


class UserError(HeadgateError):
    """Invalid input. `path` is the field's path, `hint` says how to fix it."""

    def __init__(self, path: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}" + (f" ({hint})" if hint else ""))
        self.path = path
        self.problem = problem
        self.hint = hint


def nearest(name: str, names: Collection[str], otherwise: str = "") -> str:
    """Return what to write instead of an unknown name, as a hint: the nearest known one, or `otherwise`, or all of them."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(names)}"


def nearest_each(unknown: Collection[str], names: Collection[str]) -> str:
    """Return what to write instead of several unknown names, as a hint: the nearest of each, or all known ones if one has none."""
    near = [difflib.get_close_matches(name, names, n=1, cutoff=0.6) for name in unknown]
    found = dict.fromkeys(match[0] for match in near if match)
    return f"did you mean {', '.join(found)}?" if all(near) else f"there are {', '.join(names)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
