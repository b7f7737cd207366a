"""metav1.Condition: type, status, reason, message, observedGeneration; lastTransitionTime moves only when the status does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

TRUE: Literal["True"] = "True"
FALSE: Literal["False"] = "False"
UNKNOWN: Literal["Unknown"] = "Unknown"
Status = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 4096
"""Characters kept of a message; metav1 allows 32,768, a terminal does not."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`reason` in CamelCase, never empty."""

    type: str
    status: Status
    reason: str
    message: str = ""


def yes(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type_, TRUE, reason, message)


def no(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type_, FALSE, reason, message)


def unknown(type_: str, reason: str, message: str = "") -> Condition:
    return Condition(type_, UNKNOWN, reason, message)


def rfc3339(now: float) -> str:
    """Seconds since the epoch as the API writes times: whole seconds, UTC."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(now: float) -> str:
    """As `rfc3339`, with milliseconds: for what a delay is counted from."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """The inverse of `rfc3339`; fractions are understood."""
    return datetime.fromisoformat(text).timestamp()


def merged(
    before: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], *, generation: int, now: float
) -> list[dict[str, Any]]:
    """The list as it is to be written: `wanted` in their order, then those of `before` that nobody speaks of."""
    old = {condition["type"]: condition for condition in before}
    new = [_one(old.pop(c.type, None), c, generation, now) for c in wanted]
    return new + [dict(condition) for condition in old.values()]


def _one(before: Mapping[str, Any] | None, wanted: Condition, generation: int, now: float) -> dict[str, Any]:
    same = before is not None and before.get("status") == wanted.status
    return {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if same and before else rfc3339(now),
    }


def find(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    return next((c for c in status.get("conditions") or () if c["type"] == type_), None)


def is_true(status: Mapping[str, Any], type_: str) -> bool:
    found = find(status, type_)
    return found is not None and found["status"] == TRUE
