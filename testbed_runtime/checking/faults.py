"""Check for each fault whether it was seen to take effect and whether it left residue. Requesting a fault is no evidence of either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import data, events, windows
from testbed_runtime.core.faults.kinds import FAMILIES, per_direction
from testbed_runtime.core.faults.kinds import KINDS as FAULTS
from testbed_runtime.core.faults.links import PLANES
from testbed_runtime.core.faults.vocabulary import Hides
from testbed_runtime.core.job.messages import TERMINAL_JOB_STATES
from testbed_runtime.core.judgement.metrics import (
    FAULT_NOT_VERIFIED,
    JOB_ENDED,
    RESIDUE_NOT_MEASURED,
    VOIDED,
)
from testbed_runtime.core.trial.manifest import TrialEntry
from testbed_runtime.core.values import NS
from testbed_runtime.history.columns import parsed, targets_in
from testbed_runtime.history.schema import Trial

_DELAYS = ("latency_s", "delay_s")
"""The parameters that delay what passes."""
_HELD_MAX_S = 1e9
"""The largest time that is believed: a damaged history may have any number."""
VERDICTS = ("verified", "unverified", "failed")
ON_THE_EXCHANGE = ("network", "frames")
"""Groups of faults that delay records while the job runs."""


class FaultEffect(Struct, frozen=True):
    """One fault as the history shows it. `residue` is None when it was not measured."""

    fault: str
    kind: str
    verified: bool
    injected_ns: int | None
    ended_ns: int | None
    residue: bool | None
    targets: str
    text: str
    voided: bool = False
    """The lease of the fault lapsed, so the fault did not last as long as requested."""
    too_late: bool = False
    """The job had ended before the fault could begin."""
    sent_again_ns: int = 0
    """How long TCP took to retransmit what the fault had dropped. This time is part of the fault: `ended_ns` includes it."""
    plane: str = PLANES[0]
    """The plane on which the fault acts, one of core.faults.links.PLANES. Only network faults act on other
    planes than that of the data."""

    @property
    def group(self) -> str:
        """The first part of the fault's kind, such as `network`."""
        return self.kind.partition(".")[0]

    @property
    def hides_link(self) -> bool:
        """Whether the fault lets nothing pass on a connection."""
        return self.kind in FAULTS and FAULTS[self.kind].hides is Hides.LINK

    @property
    def on_exchange(self) -> bool:
        """Whether the fault delays records while the job runs."""
        return self.group in ON_THE_EXCHANGE and not self.on_rpc_alone

    @property
    def on_rpc_alone(self) -> bool:
        """Whether the fault acts on messages of the control plane, and on no data."""
        return self.plane == PLANES[1]

    @property
    def on_data_alone(self) -> bool:
        """Whether the fault acts on the exchange of data, and on no message of the control plane."""
        return self.group == "frames" or (self.group == "network" and self.plane == PLANES[0])

    @property
    def moves_tasks(self) -> bool:
        """Whether the fault can make the job move its tasks to other TaskManagers."""
        known = self.group in FAMILIES and FAMILIES[self.group].moves_tasks
        return known and not self.on_data_alone

    @property
    def begun_ns(self) -> int:
        """When the fault was injected; 0 if it was not."""
        return self.injected_ns or 0

    @property
    def reason(self) -> str:
        if self.voided:
            return VOIDED
        if self.too_late:
            return JOB_ENDED
        return "" if self.verified else FAULT_NOT_VERIFIED


def check_faults(trial: Trial, entry: TrialEntry) -> list[FaultEffect]:
    """Return an effect for each fault in the manifest, and for each fault that only the history has."""
    rows = trial.rows("faults")
    planes = {fault.name: fault.plane for fault in entry.faults}
    asked = [] if entry.is_control else planes
    names = dict.fromkeys([*asked, *(r["fault"] for r in rows if r["fault"])])
    end = windows(trial, entry).end
    # by itself, before the drain
    states = [e for e in events(trial, "job.state") if e["t_ns"] < end]
    ended = any(data(e).get("to") in TERMINAL_JOB_STATES for e in states)
    return [_effect(trial, name, planes.get(name, PLANES[0]), ended=ended) for name in names]


def residue_of(effects: list[FaultEffect]) -> tuple[int | None, str]:
    """Return how many faults left residue, or the reason why that is unknown."""
    if any(e.residue is None for e in effects):
        return (1, "") if any(e.residue for e in effects) else (None, RESIDUE_NOT_MEASURED)
    return sum(1 for e in effects if e.residue), ""


def _effect(trial: Trial, name: str, plane: str, *, ended: bool) -> FaultEffect:
    """Return the effect of one fault. It is verified when the last row of every target says so, unless its
    injection failed or its lease lapsed. The runner injects no more faults when the job has `ended`. Such a
    fault leaves no residue."""
    rows = [r for r in trial.rows("faults") if r["fault"] == name]
    too_late = ended and not rows
    last = {row["targets"]: row["state"] for row in rows if row["state"] in VERDICTS}
    voided = any(r["state"] == "voided" for r in rows)
    verified = bool(last) and not voided and all(state == "verified" for state in last.values())
    found = [r["state"] for r in rows if r["state"] in ("clean", "residue")]
    ended_ns = next((r["t_ns"] for r in reversed(rows) if r["state"] == "ended"), None)
    sent_again_ns = max(map(sent_again_ns_of, rows), default=0)
    return FaultEffect(
        fault=name,
        kind=next((r["kind"] for r in rows if r["kind"]), ""),
        verified=verified,
        injected_ns=next((r["t_ns"] for r in rows if r["state"] == "injected"), None),
        ended_ns=None if ended_ns is None else ended_ns + sent_again_ns,
        residue="residue" in found if found or too_late else None,
        targets=next((r["targets"] for r in rows if r["targets"]), ""),
        text="; ".join(dict.fromkeys(r["text"] for r in rows if r["text"])),
        voided=voided,
        too_late=too_late,
        sent_again_ns=sent_again_ns,
        plane=plane,
    )


def sent_again_ns_of(row: Mapping[str, Any]) -> int:
    """Return how long after the end of the fault TCP retransmits what was dropped, if this row says so; otherwise 0."""
    found = parsed(row["measured"]).get("sent_again_s")
    if not isinstance(found, int | float) or isinstance(found, bool):
        return 0
    return round(found * NS) if 0 < found < _HELD_MAX_S else 0


def targets_of(effect: FaultEffect) -> list[str]:
    """Return the ordinal names that the fault hit."""
    return targets_in(effect.targets) or []


def added_delays(entry: TrialEntry) -> dict[str, int]:
    """Map each fault of a trial to the delay that it adds to what passes in one direction, or to each message."""
    own = {fault.name: per_direction(fault.params) for fault in entry.faults}
    return {name: round(max(float(p.get(key) or 0) for key in _DELAYS) * NS) for name, p in own.items()}


def round_trip_delays(entry: TrialEntry) -> dict[str, int]:
    """Map each fault of a trial to the delay that it adds to a round trip."""
    one_way = {fault.name for fault in entry.faults if fault.direction != "both"}
    return {name: delay if name in one_way else 2 * delay for name, delay in added_delays(entry).items()}


def held_times(trial: Trial, entry: TrialEntry) -> dict[str, int]:
    """Map each fault of a trial to how long it may have kept one target from handling other messages: its
    delay of one message, or the delays of all messages, as the targets counted them."""
    found = added_delays(entry)
    for row in trial.rows("faults"):
        counters = parsed(row["measured"]).get("counters")
        of_targets = counters.values() if isinstance(counters, dict) else ()
        held = [own.get("delay_s") for own in of_targets if isinstance(own, dict)]
        numbers = [s for s in held if isinstance(s, int | float) and not isinstance(s, bool)]
        held_s = max((s for s in numbers if 0 < s < _HELD_MAX_S), default=0.0)
        found[row["fault"]] = max(found.get(row["fault"], 0), round(held_s * NS))
    return found
