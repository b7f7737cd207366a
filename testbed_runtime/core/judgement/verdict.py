"""Verdicts and their exit codes, the facts about trials on which they depend, and the judged expectations of
a run. `judge.py` decides them."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from testbed_runtime.core.documents import SCHEMA
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.trial.manifest import TrialEntry


class Verdict(enum.IntEnum):
    """Verdicts in order of precedence: the largest wins."""

    PASS = 0
    INCONCLUSIVE = 1
    FAIL = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.capitalize()


NAMED_MAX = 3
"""Maximum number of trials that the summary names for what was not judged in them."""
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 2, Verdict.INCONCLUSIVE: 3}
EXIT_ERROR = EXIT_CODES[Verdict.ERROR]
"""Exit code of every process that fails."""


def aggregate(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; Inconclusive without any."""
    return max(verdicts, default=Verdict.INCONCLUSIVE)


def worst(names: Iterable[str]) -> Verdict:
    """Return the worst of the named verdicts; Inconclusive without any."""
    return aggregate(Verdict[name.upper()] for name in names)


class TrialFacts(Struct, frozen=True, kw_only=True):
    """The facts that the runner recorded about a trial (its entry in the manifest)."""

    trial: str
    variant: str = "main"
    role: str = "fault"
    """`fault` or `control`."""
    voided: bool = False
    replaced: bool = False
    """The trial is void, and a repetition under a new id counts instead."""
    control: str = ""
    """Control trial of another variant with the same settings. Empty: the own variant's control trial, if it has one."""
    error: str = ""
    """Why the trial could not be completed; empty if it was."""
    faults: tuple[str, ...] = ()
    cause: str = ""
    """The last root cause of the job's failure, as the runner saw it; empty if it ran when the trial ended."""
    number: int = 1
    """Trials of different variants with the same number have the same seed."""

    @property
    def counts(self) -> bool:
        """Whether expectations are judged in this trial: it is no control trial, is not void, and was
        completed."""
        return self.role != "control" and not self.voided and not self.error

    @classmethod
    def from_manifest(
        cls, entry: TrialEntry, *, replaced: bool = False, control: str = "", unjudged: str = ""
    ) -> TrialFacts:
        """`unjudged`: why the trial could not be judged."""
        return cls(
            replaced=replaced,
            control=control,
            trial=entry.trial,
            variant=entry.variant,
            role=entry.role,
            voided=entry.voided,
            error=entry.error or unjudged,
            faults=tuple(fault.name for fault in entry.faults),
            cause=entry.cause,
            number=entry.number,
        )


class Judged(Struct, frozen=True, kw_only=True):
    """The judgement of one expectation in one trial. `trial` is empty if it covers all trials of a variant."""

    text: str
    metric: str
    variant: str
    trial: str
    verdict: Verdict
    quantile: float | None = None
    phase: str = ""
    asked: str = ""
    measured: str = ""
    value: float | None = None
    at_least: bool = False
    """The true value is at least `value`."""
    reason: str = ""
    bounded_by: str = ""
    implied: bool
    """A built-in check (safety, fault effect, residue), not an expectation of the scenario."""
    note: str = ""
    """How reliable the judgement is: the false-pass risk of a quantile over trials, or the interval of a
    comparison."""

    @property
    def explanation(self) -> str:
        return m.reason_text(self.reason)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict), "explanation": self.explanation}


class RunVerdict(Struct, frozen=True):
    verdict: Verdict
    judged: tuple[Judged, ...]
    variants: Mapping[str, Verdict]
    causes: Mapping[str, str] = field(default_factory=dict)
    """The last root cause of each trial whose job failed or never ran."""
    stopped: str = ""
    """A sentence that says why the run ended before its last trial, although nothing failed."""

    @property
    def reason(self) -> str:
        """The reason of the first judgement that determined the verdict; empty for Pass."""
        worst = next((j for j in self.judged if j.verdict is self.verdict), None)
        return "" if worst is None or self.verdict is Verdict.PASS else worst.reason

    @property
    def summary(self) -> str:
        """The verdict in one sentence. If the run ended early, a second sentence says why."""
        return f"{self._sentence} {self.stopped}".rstrip()

    @property
    def _sentence(self) -> str:
        if self.verdict is Verdict.PASS:
            return f"All {len(self.judged):,} expectations passed.{self._not_judged}"
        worst = [j for j in self.judged if j.verdict is self.verdict]
        if not worst:
            return "There was nothing to judge."
        first = worst[0]
        where = first.trial or first.variant
        claim = f"{first.text} in {where}" if where else first.text
        if first.reason == m.RUN_FAILED:
            claim = f"{where or 'the run'} could not be completed"
        measured = f"measured {first.measured}" if first.measured else ""
        why = (first.measured if self.verdict is Verdict.ERROR else "") or first.explanation or measured
        why = m.with_rows(first.reason, why, {j.metric: j.measured for j in worst if j.trial == first.trial})
        more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
        # a judgement of no trial in particular may be explained by any of them, which is named
        trial = first.trial or next(iter(self.causes), "")
        cause = self.causes.get(trial, "")
        known = not cause or cause in f"{first.text}{why}"
        last = "" if known else f" Last failure of the job{'' if first.trial else f' in {trial}'}: {cause}"
        return f"{claim}: {why.removesuffix('.')}{more}.{last}"

    @property
    def _not_judged(self) -> str:
        """Name what was not judged, in which trials and why, if everything else passed."""
        trials: dict[tuple[str, str], dict[str, None]] = {}
        for item in self.judged:
            if item.verdict is Verdict.PASS and item.reason:
                trials.setdefault((item.explanation, item.metric), {})[item.trial] = None
        metrics: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (why, metric), where in trials.items():
            metrics.setdefault((why, tuple(where)), []).append(metric)
        if not metrics:
            return ""
        left_out = [
            f"{', '.join(names)}{self._in_trials(where)} ({why})" for (why, where), names in metrics.items()
        ]
        return f" Not judged: {'; '.join(left_out)}."

    def _in_trials(self, trials: Sequence[str]) -> str:
        if len(trials) == len({j.trial for j in self.judged if j.trial}):
            return ""
        return f" in {', '.join(trials) if len(trials) <= NAMED_MAX else f'{len(trials)} trials'}"

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "exitCode": EXIT_CODES[self.verdict],
            "reason": self.reason,
            "summary": self.summary,
            "stopped": self.stopped,
            "variants": [{"variant": v, "verdict": str(x)} for v, x in self.variants.items()],
            "expectations": [j.to_json() for j in self.judged],
            "causes": [{"trial": trial, "cause": cause} for trial, cause in self.causes.items()],
        }


def controls_of(entries: Sequence[TrialEntry]) -> dict[str, str]:
    """Map each variant to its control trial: its own, or one of a variant that differs only in its faults."""
    own: dict[str, str] = {}
    by_setting: dict[Hashable, str] = {}
    for entry in entries:
        if entry.is_control and entry.counts:
            own.setdefault(entry.variant, entry.trial)
            by_setting.setdefault(_setting(entry), entry.trial)
    found = dict(own)
    for entry in entries:
        shared = by_setting.get(_setting(entry))
        if shared is not None and entry.faults:
            found.setdefault(entry.variant, shared)
    return found


def _setting(entry: TrialEntry) -> Hashable:
    return entry.flink_version, frozenset(entry.configuration.items()), entry.job
