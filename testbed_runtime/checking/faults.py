"""Faults: was each seen to take effect, and did it leave anything behind? Asked alone is no evidence."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_runtime.checking.common import Entry
from testbed_runtime.core.judgement.metrics import FAULT_NOT_VERIFIED, RESIDUE_NOT_MEASURED, VOIDED
from testbed_runtime.history.schema import Trial

VERDICTS = ("verified", "unverified", "failed")


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """`residue` None: nobody looked."""

    fault: str
    kind: str
    verified: bool
    injected_ns: int | None
    ended_ns: int | None
    residue: bool | None
    targets: str
    text: str
    voided: bool = False
    """Its lease lapsed: it did not last as long as was asked."""

    @property
    def reason(self) -> str:
        if self.voided:
            return VOIDED
        return "" if self.verified else FAULT_NOT_VERIFIED


def check_faults(trial: Trial, entry: Entry) -> list[FaultEffect]:
    """One for each fault that the manifest asked for, and for those only the history knows."""
    rows = trial.rows("faults")
    asked = [str(f["name"]) for f in entry.get("faults") or ()]
    if entry.get("role") == "control":
        asked = []
    names = dict.fromkeys([*asked, *(r["fault"] for r in rows if r["fault"])])
    return [_effect(trial, name) for name in names]


def residue_of(effects: list[FaultEffect]) -> tuple[int | None, str]:
    """How many faults left something, and why that is not known."""
    if any(e.residue is None for e in effects):
        return (1, "") if any(e.residue for e in effects) else (None, RESIDUE_NOT_MEASURED)
    return sum(1 for e in effects if e.residue), ""


def _effect(trial: Trial, name: str) -> FaultEffect:
    """Verified when the last word about every target was that it is. A fault whose injection failed or whose lease lapsed is not."""
    rows = [r for r in trial.rows("faults") if r["fault"] == name]
    last: dict[str, str] = {}
    for row in rows:
        if row["state"] in VERDICTS:
            last[row["targets"]] = row["state"]
    voided = any(r["state"] == "voided" for r in rows)
    verified = bool(last) and not voided and all(state == "verified" for state in last.values())
    found = [r["state"] for r in rows if r["state"] in ("clean", "residue")]
    return FaultEffect(
        fault=name,
        kind=next((r["kind"] for r in rows if r["kind"]), ""),
        verified=verified,
        injected_ns=next((int(r["t_ns"]) for r in rows if r["state"] == "injected"), None),
        ended_ns=next((int(r["t_ns"]) for r in reversed(rows) if r["state"] == "ended"), None),
        residue="residue" in found if found else None,
        targets=next((r["targets"] for r in rows if r["targets"]), ""),
        text="; ".join(dict.fromkeys(r["text"] for r in rows if r["text"])),
        voided=voided,
    )
