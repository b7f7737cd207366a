"""Blame in the type: Local* is our bug or our machine, Remote* is the peer's. Flink's class name travels along.

HeadgateError
├── LocalProtocolError          we broke the protocol (a bug)
├── RemoteProtocolError         the peer broke it: the connection or the channel fails
├── FaultHealed                 the fault is gone because somebody healed everything
├── FaultLapsed                 the fault was gone before its time, and nobody healed it
├── AgentSilent                 who is to hold a fault does not answer: nothing of it is there, or ends by itself
├── FlinkError                  a failure with Flink's class name and text, as it shows in a job's cause
└── UserError                   bad input: names the field, the value and how to fix it
"""

from __future__ import annotations


class HeadgateError(Exception):
    """Root of everything raised on purpose."""


class LocalProtocolError(HeadgateError):
    """We were about to break the protocol."""


class RemoteProtocolError(HeadgateError):
    """The peer broke the protocol; carries Flink's words."""


class FaultHealed(HeadgateError):
    """A fault is not there any more because somebody healed all faults (`heal --all`): the run that holds it ends."""


class FaultLapsed(HeadgateError):
    """A fault did not last as long as it was asked to: who held it died, say. What was to be seen was not there all the time."""


class AgentSilent(HeadgateError):
    """Who is asked to hold a fault does not answer. What the others began was undone; its own part, if it came about, ends with its lease."""


class FlinkError(HeadgateError):
    """A failure as Flink would report it: `class_name` is the simple Java class name, the message is Flink's text.

    `lost_taskmanager` is the ResourceID of the TaskManager whose connection failed; empty for every other failure. Failover
    decides by it, never by the text."""

    def __init__(self, class_name: str, message: str, *, lost_taskmanager: str = "") -> None:
        super().__init__(message)
        self.class_name = class_name
        self.message = message
        self.lost_taskmanager = lost_taskmanager

    def __str__(self) -> str:
        return f"{self.class_name}: {self.message}"


class UserError(HeadgateError):
    """Bad input. `path` is the field's path, `mend` says what to write instead."""

    def __init__(self, path: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}" + (f" ({hint})" if hint else ""))
        self.path = path
        self.problem = problem
        self.hint = hint
