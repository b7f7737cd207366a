"""Conditions as planners write them: lastTransitionTime moves only when the status of a condition changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from testbed_runtime.api.status import COMPLETE, Condition, Status, rfc3339
from testbed_runtime.api.views import Resource

MAX_MESSAGE = 4096
"""Characters kept of a message. metav1 allows 32,768, which no terminal shows."""
MAX_EVENT_TEXT = 900
"""The API server accepts 1024 characters in an Event."""
S = TypeVar("S", bound=Status)


def yes(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status="True", reason=reason, message=message)


def no(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status="False", reason=reason, message=message)


def unknown(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status="Unknown", reason=reason, message=message)


CORRECT_IT = "correct the spec: see Accepted"


def refused(reason: str, text: str, advice: str = CORRECT_IT) -> list[Condition]:
    """Return the conditions of an object whose spec is not accepted."""
    return [
        no("Accepted", reason, text),
        no("Reconciling", reason),
        no("Ready", reason, text),
        yes("Stalled", reason, advice),
    ]


def ended(reason: str, text: str, *, well: bool) -> list[Condition]:
    """Return the conditions of an accepted object that is complete, either normally (`well`) or because of a problem."""
    return [
        yes("Accepted", "Valid"),
        no("Reconciling", COMPLETE),
        yes("Ready", reason, text) if well else no("Ready", reason, text),
        no("Stalled", COMPLETE) if well else yes("Stalled", reason, text),
    ]


def moment(now: float) -> str:
    """Return the time with milliseconds, for statuses that record the start of a delay."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_conditions(obj: Resource, status: S, wanted: Iterable[Condition], now: float) -> S:
    """Return the status for the object's present generation: `wanted` first, then the other conditions it had."""
    updated = merged(obj, status, wanted, now)
    return msgspec.structs.replace(updated, observed_generation=obj.generation)


def merged(obj: Resource, status: S, wanted: Iterable[Condition], now: float) -> S:
    """Like `with_conditions`, but keep the status's own generation."""
    old = {condition.type: condition for condition in status.conditions}
    new = [_one(old.pop(c.type, None), c, obj.generation, now) for c in wanted]
    return msgspec.structs.replace(status, conditions=(*new, *old.values()))


def _one(before: Condition | None, wanted: Condition, generation: int, now: float) -> Condition:
    same = before is not None and before.status == wanted.status
    return msgspec.structs.replace(
        wanted,
        message=wanted.message[:MAX_MESSAGE],
        observed_generation=generation,
        last_transition_time=before.last_transition_time if same and before else rfc3339(now),
    )


def clip(text: str) -> str:
    """Return the beginning of a text that fits an Event."""
    return text if len(text) <= MAX_EVENT_TEXT else f"{text[: MAX_EVENT_TEXT - 1]}…"


def tail(text: str) -> str:
    """Return the end of a text, short enough to follow a sentence in an Event."""
    return text if len(text) <= MAX_EVENT_TEXT else f"…{text[-MAX_EVENT_TEXT:]}"
