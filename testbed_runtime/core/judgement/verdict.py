"""Verdicts and their exit codes, the facts about trials on which they depend, and the judged expectations of
a run. `judge.py` decides them."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from testbed_runtime.core.documents import SCHEMA
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.trial.manifest import TrialEntry


class Verdict(enum.StrEnum):
    """Verdicts, the least severe first."""

    PASS = "Pass"  # noqa: S105 - a verdict
    INCONCLUSIVE = "Inconclusive"
    FAIL = "Fail"
    ERROR = "Error"

    @property
    def severity(self) -> int:
        return tuple(Verdict).index(self)


NAMED_MAX = 3
"""Maximum number of trials that the summary names for what was not judged in them."""
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 2, Verdict.INCONCLUSIVE: 3}
EXIT_ERROR = EXIT_CODES[Verdict.ERROR]
"""Exit code of every process that fails."""


def most_severe(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict; Inconclusive without any."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.INCONCLUSIVE)


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
    verdict: Verdict
    metric: str = ""
    variant: str = ""
    trial: str = ""
    quantile: float | None = None
    phase: str = ""
    asked: str = ""
    measured: str = ""
    value: float | None = None
    at_least: bool = False
    """The true value is at least `value`."""
    reason: str = ""
    bounded_by: str = ""
    implied: bool = False
    """A built-in check (safety, fault effect, residue), not an expectation of the scenario."""
    note: str = ""
    """How reliable the judgement is: the false-pass risk of a quantile over trials, or the interval of a
    comparison."""

    @property
    def explanation(self) -> str:
        return m.reason_text(self.reason)

    @property
    def where(self) -> str:
        """The trial, or the variant for a judgement of all its trials."""
        return self.trial or self.variant


class VariantVerdict(Struct, frozen=True):
    variant: str
    verdict: Verdict


class TrialCause(Struct, frozen=True):
    """The last root cause of a trial whose job failed or never ran."""

    trial: str
    cause: str


class RunVerdict(Struct, frozen=True, kw_only=True):
    """The verdict of a run, as verdict.json has it."""

    verdict: Verdict
    reason: str = ""
    """The reason of the first judgement that determined the verdict; empty for Pass."""
    summary: str = ""
    """The verdict in one sentence. If the run ended early, a second sentence says why."""
    stopped: str = ""
    """A sentence that says why the run ended before its last trial, although nothing failed."""
    variants: tuple[VariantVerdict, ...] = ()
    judged: tuple[Judged, ...] = field(default=(), name="expectations")
    causes: tuple[TrialCause, ...] = ()
    answer: tuple[str, ...] = ()
    """The cost of each recovery, as the terminal shows it."""

    @classmethod
    def of(
        cls,
        judged: Sequence[Judged],
        *,
        variants: Mapping[str, Verdict],
        causes: Mapping[str, str],
        stopped: str = "",
    ) -> Self:
        verdict = most_severe(item.verdict for item in judged)
        worst = next((item for item in judged if item.verdict is verdict), None)
        made = cls(
            verdict=verdict,
            reason="" if worst is None or verdict is Verdict.PASS else worst.reason,
            stopped=stopped,
            variants=tuple(VariantVerdict(name, found) for name, found in variants.items()),
            judged=tuple(judged),
            causes=tuple(TrialCause(trial, cause) for trial, cause in causes.items()),
        )
        return replace(made, summary=f"{made._sentence} {stopped}".rstrip())

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Return the verdict with this content. Raises ValueError, which names the field."""
        return convert(data, cls)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        items = [{**to_builtins(item), "explanation": item.explanation} for item in self.judged]
        known = {"schema": SCHEMA, "verdict": self.verdict, "exitCode": EXIT_CODES[self.verdict]}
        return {**known, **to_builtins(replace(self, judged=())), "expectations": items}

    @property
    def _sentence(self) -> str:
        if self.verdict is Verdict.PASS:
            return f"All {len(self.judged):,} expectations passed.{self._not_judged}"
        worst = [j for j in self.judged if j.verdict is self.verdict]
        if not worst:
            return "There was nothing to judge."
        first = worst[0]
        claim = f"{first.text} in {first.where}" if first.where else first.text
        if first.reason == m.RUN_FAILED:
            claim = f"{first.where or 'the run'} could not be completed"
        measured = f"measured {first.measured}" if first.measured else ""
        why = (first.measured if self.verdict is Verdict.ERROR else "") or first.explanation or measured
        why = m.with_rows(first.reason, why, {j.metric: j.measured for j in worst if j.trial == first.trial})
        more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
        # a judgement of no trial in particular may be explained by any of them, which is named
        causes = {one.trial: one.cause for one in self.causes}
        trial = first.trial or next(iter(causes), "")
        cause = causes.get(trial, "")
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
