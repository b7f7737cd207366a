"""Prices and margins of a study's options, from the recoveries of its runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from testbed_runtime.core.judgement.quantities import apart, seconds
from testbed_runtime.core.judgement.recovery import Margin, Recovery, TrialRecovery
from testbed_runtime.core.options import ALIASES
from testbed_runtime.core.waits import PRODUCT, named_today


class Cost(Struct, frozen=True, kw_only=True):
    """The price of an option's value, and how close a wait came to its limit."""

    price_s: float = 0.0
    """Seconds of outage that the value decided (waits that expired or fired), per trial."""
    expired: int = 0
    """Number of those waits."""
    margin: Margin | None = None
    """The wait that came closest to the limit without reaching it."""

    @property
    def text(self) -> str:
        """The cost in words: `22.0 s of 22.7 s used, 0.7 s left`, `cost 68.1 s (3 waits)`."""
        found = []
        if self.expired:
            waits = "wait" if self.expired == 1 else "waits"
            found.append(f"cost {seconds(self.price_s)} ({self.expired} {waits})")
        if self.margin is not None:
            limit, used = apart(self.margin.budget_s, self.margin.waited_s)
            limited = f"may die from {limit} on" if self.margin.exceeded else f"dies at {limit}"
            found.append(f"{limited}, used {used}")
        return ", ".join(found)


def costs(keys: Sequence[str], recoveries: Sequence[Mapping[str, Any]]) -> dict[str, Cost]:
    """Return the cost of each option that some wait names. `recoveries`: the content of recovery.json of each run."""
    trials = [trial for run in recoveries for trial in _with_costs(run)]
    found: dict[str, Cost] = {}
    for key in keys:
        name = ALIASES.get(key, key)
        spans = [span for trial in trials for span in _spans(trial)]
        prices = [p for span in spans for p in span.prices if _names(p.option, name)]
        margins = [m for span in spans for m in span.margins if _names(m.option, name)]
        if prices or margins:
            found[key] = Cost(
                price_s=sum(p.seconds for p in prices) / len(trials),
                expired=sum(p.count for p in prices),
                margin=min(margins, key=lambda m: m.left_s, default=None),
            )
    return found


def _with_costs(run: Mapping[str, Any]) -> list[TrialRecovery]:
    """Return the trials of a run that had something to recover from, which a control trial has not. If none had, return all:
    their first start may have waited."""
    known = [TrialRecovery.from_json(value) for value in run.values()]
    return [trial for trial in known if trial.recoveries] or known


def _spans(trial: TrialRecovery) -> Iterator[Recovery]:
    """Yield the first start, then the recoveries. A fault before the submission has the first start as its recovery."""
    if trial.own_start is not None:
        yield trial.own_start
    yield from trial.recoveries


def _names(text: str, key: str) -> bool:
    """Return whether an owner's option text names the option: alone, or in a product such as `interval × threshold`."""
    return key in named_today(text).split(PRODUCT)
