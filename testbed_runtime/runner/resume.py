"""Where a run goes on whose runner died: decided from its manifest. Pure.

A trial that ended stays. The one that was open is void, because nobody renewed its leases and nobody knows what it missed; it is
repeated under a new id, so nothing is injected twice within a trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed_runtime.runner.plan import TrialPlan

MAX_ATTEMPTS = 3
"""Of one trial: a lease that lapses three times is the machine's fault, not chance."""
MAX_REPEATS = 10
"""Of one trial with those that a dead runner left open: above the restarts that an operator grants."""
OPEN_TEXT = "the runner ended while this trial was on"

Entry = Mapping[str, Any]


def open_entries(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials that began and did not end."""
    return [entry for entry in entries if not entry.get("ended", True)]


def void_open(entry: dict[str, Any]) -> None:
    """Close it as void: it has no sealed history and is not judged."""
    entry.update(voided=True, ended=True, abandoned=True, void_reason=OPEN_TEXT)


def next_attempt(plan: TrialPlan, entries: Sequence[Entry]) -> TrialPlan | None:
    """What is still to do of this trial (`plan` is its first attempt); None: nothing, it counts or was tried often enough."""
    key = (plan.variant, plan.role, plan.number)
    own = [e for e in entries if (e["variant"], e["role"], e["number"]) == key]
    if not own:
        return plan
    if not own[-1].get("voided"):
        return None
    lapsed = sum(1 for e in own if not e.get("abandoned"))
    if lapsed >= MAX_ATTEMPTS or len(own) >= MAX_REPEATS:
        return None
    return replace(plan, attempt=len(own) + 1)
