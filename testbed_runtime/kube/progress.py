"""Report a run's progress in its ConfigMap `<run>-status`: progress events in, at most one write a second out.

Reporting never blocks, and a failed write never fails the run: the next one contains everything.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from testbed_runtime.api import naming
from testbed_runtime.api.status import (
    COMPLETE,
    EVALUATING,
    MAX_ANSWER,
    MAX_TEXT,
    MAX_TRIALS,
    STATUS_KEY,
    ActiveFault,
    FaultResult,
    JobNow,
    OutageResult,
    RecoveryResult,
    RoundResult,
    RunReport,
    TrialResult,
    to_json,
)
from testbed_runtime.api.views import Run
from testbed_runtime.checking.prices import prices
from testbed_runtime.core.documents import (
    COMPARISON_FILE,
    JUNIT_FILE,
    PAGE_FILE,
    RECOVERY_FILE,
    SUMMARY_FILE,
    VERDICT_FILE,
)
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import Price, Recovery, Round, TrialRecovery
from testbed_runtime.core.judgement.verdict import RunVerdict
from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.history.manifest import MANIFEST
from testbed_runtime.kube.api import Api
from testbed_runtime.kube.manifests import config_map
from testbed_runtime.report.answer import headline
from testbed_runtime.runner import progress as p
from testbed_runtime.timeouts import cancel_all, repeated, timeout

WRITE_EVERY_S = 1.0
STALE_S = 5.0
"""Interval in which a changed countdown is written, because each write is an update of etcd."""
WRITE_LIMIT_S = 20.0
"""The time limit of one write, which is then retried with newer content."""
LAST_LIMIT_S = 600.0
"""The time limit for the final status and the report. If the API server is away longer, the pod ends with an error and restarts."""
RETRY_S = 2.0
REFUSED = frozenset({400, 413, 422})
"""HTTP status codes for malformed or too large content, which would be rejected again."""
MAX_REPORT_BYTES = 900_000
"""The limit of all files of the report together: a ConfigMap has at most 1 MiB."""
RESIDUE = "residue was measured"
MAX_OUTAGES = 8
MAX_ROUNDS = 16
MAX_OWNERS = 8
MAX_CAUSE = 300
"""Limits of `status.recovery`. The complete recovery is in recovery.json."""
REPORT_TEXTS = (VERDICT_FILE, MANIFEST, JUNIT_FILE, SUMMARY_FILE, COMPARISON_FILE, RECOVERY_FILE)
"""The files of the report, the most important first: there is always room for it."""
NO_JOB: Mapping[str, Any] = {"job": JobNow(), "job_state": "", "remaining_seconds": None}
"""The values of the fields about a job while no job runs."""


class RunStatus:
    """The run's report, updated by progress events. Pure; `changed` is set by every event that deserves a write of its own."""

    def __init__(self, before: RunReport | None = None) -> None:
        """`before`: the last report of an earlier runner of this run."""
        trials, total = (before.trials, before.trials_total) if before else ((), 0)
        self.report = RunReport(
            phase="Starting", trials=trials, trials_total=total, trials_done=_counted(trials)
        )
        self.changed = True

    def apply(self, event: p.ProgressEvent, now: datetime) -> None:
        match event:
            case p.RunStarted():
                self._set(phase="Running", trials_total=event.trials, message="")
            case p.TrialStarted():
                self._set(
                    phase="Running", trial=event.trial, trial_phase="create", active_faults=(), **NO_JOB
                )
            case p.PhaseEntered():
                left = _rounded(event.remaining_s)
                self._set(trial=event.trial, trial_phase=event.phase, remaining_seconds=left)
            case p.Sample():
                if event.job_state != self.report.job_state:
                    self._set(job_state=event.job_state)
                left = _rounded(event.remaining_s)
                self.report = replace(
                    self.report, remaining_seconds=left, job=_with_shown_counters(event.job)
                )
            case p.Suspended():
                self._set(phase="Running", trial="", trial_phase="", message=event.text[:MAX_TEXT])
            case p.Notice():
                self._set(message=event.text[:MAX_TEXT])
            case p.FaultChanged():
                others = (f for f in self.report.active_faults if f.name != event.fault)
                self._set(active_faults=(*others, *_active(event, now)))
            case p.TrialEnded():
                self._ended(event)
            case p.Evaluating():
                self._set(phase=EVALUATING, trial="", trial_phase="", message=event.text.strip(), **NO_JOB)
            case p.RunEnded():
                self._set(message="")

    def complete(self, verdict: str, *, reason: str, text: str, **more: Any) -> None:
        """Set the final report."""
        self._set(
            phase=COMPLETE, trial="", trial_phase="", **NO_JOB, verdict=verdict, reason=reason,
            text=text[:MAX_TEXT], message="", active_faults=(), **more,
        )  # fmt: skip

    def _ended(self, event: p.TrialEnded) -> None:
        reason = (event.error or event.reason)[:MAX_TEXT]
        trial = TrialResult(name=event.trial, job_state=event.job_state, voided=event.voided, reason=reason)
        others = [t for t in self.report.trials if t.name != event.trial]
        trials = (*others, trial)[-MAX_TRIALS:]
        # the testbed of the job is gone
        done = _counted(trials)
        self._set(trials=trials, trials_done=done, trial_phase="", active_faults=(), **NO_JOB)

    def _set(self, **fields: Any) -> None:
        self.report = replace(self.report, **fields)
        self.changed = True


def _with_shown_counters(job: JobNow) -> JobNow:
    counters = {name: round(job.counters[name], 3) for name in p.SHOWN_COUNTERS if name in job.counters}
    return replace(job, counters=counters)


def _active(event: p.FaultChanged, now: datetime) -> tuple[ActiveFault, ...]:
    if event.ends_in_s is None:
        return ()
    deadline = now + timedelta(seconds=event.ends_in_s)
    return (ActiveFault(event.fault, event.kind, deadline.isoformat(timespec="seconds")),)


def _counted(trials: Sequence[TrialResult]) -> int:
    return sum(not trial.voided for trial in trials)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def measured(
    manifest: RunManifest, rows: Sequence[MetricRow], recoveries: Mapping[str, TrialRecovery]
) -> dict[str, Any]:
    """Return `recovery`, `delivery` and `faults` of the report for the newest trial that counts. Pure."""
    counted = [entry for entry in manifest.trials if not entry.is_control and not entry.voided]
    if not counted:
        return {"recovery": RecoveryResult(), "delivery": {}, "faults": ()}
    trial = counted[-1]
    own = [r for r in rows if r.trial == trial.trial]
    phases = {name: round(value, 3) for name, value in _family(own, "recovery.").items()}
    known = recoveries.get(trial.trial)
    outages = tuple(_outage(one) for one in known.recoveries[:MAX_OUTAGES]) if known else ()
    verified = {r.text: r.value == 1 for r in own if r.metric == "fault.verified"}
    value = next((r.value for r in own if r.metric == "fault.residue"), None)
    residue = None if value is None else RESIDUE if value else ""
    faults = tuple(
        FaultResult(
            name=fault.name,
            backend=fault.backend,
            why=fault.why,
            verified=verified.get(fault.name),
            residue=residue,
        )
        for fault in trial.faults
    )
    return {
        "recovery": RecoveryResult(trial=trial.trial, phases=phases, outages=outages),
        "delivery": {name: int(value) for name, value in _family(own, "delivery.").items()},
        "faults": faults,
    }


def answer_of(verdict: RunVerdict) -> tuple[str, ...]:
    """Return `answer` of the report. Pure."""
    lines = [line[:MAX_TEXT] for line in verdict.answer]
    if len(lines) > MAX_ANSWER:
        lines[MAX_ANSWER - 1 :] = [f"… and {len(lines) - MAX_ANSWER + 1} more lines in the report"]
    return tuple(lines)


def _family(rows: Sequence[MetricRow], prefix: str) -> dict[str, float]:
    """Return the values of a family of metrics over the whole trial, by the rest of their names."""
    return {
        r.metric.removeprefix(prefix): r.value
        for r in rows
        if r.metric.startswith(prefix) and r.value is not None and not r.phase
    }


def _outage(found: Recovery) -> OutageResult:
    return OutageResult(
        summary=headline(found),
        seconds=round(found.total_s, 3),
        fault=found.fault,
        recovered=found.recovered,
        reason=found.reason,
        downtime_seconds=None if found.downtime_s is None else round(found.downtime_s, 3),
        unattributed_seconds=round(found.unattributed_s, 3),
        owners=_owners(found.prices),
        rounds=tuple(_round(one) for one in found.rounds[:MAX_ROUNDS]),
    )


def _round(found: Round) -> RoundResult:
    return RoundResult(
        number=found.number,
        seconds=round(found.seconds, 3),
        cause=found.cause[:MAX_CAUSE],
        ended_by=found.ended_by,
        owners=_owners(prices(found.segments)),
    )


def _owners(found: Sequence[Price]) -> tuple[Price, ...]:
    return tuple(msgspec.structs.replace(one, seconds=round(one.seconds, 3)) for one in found[:MAX_OWNERS])


class StatusProgress:
    """A `runner.progress.Progress` that writes the report. `start` its task, `finish` with the verdict, `close` always."""

    def __init__(
        self, api: Api, run: Run, *, before: RunReport | None = None, also: p.Progress | None = None
    ) -> None:
        """`run` is the ScenarioRun. `also` receives every event too (the pod's log)."""
        self.status = RunStatus(before)
        self._api = api
        self._run = run
        self._also = also
        self._task: asyncio.Task[None] | None = None

    def on_event(self, event: p.ProgressEvent) -> None:
        self.status.apply(event, datetime.now(UTC))
        if self._also is not None:
            self._also.on_event(event)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_writing(), name="status")

    async def finish(self, verdict: str, *, reason: str, text: str, **more: Any) -> None:
        """Write the final report. Raises HeadgateError if that fails for LAST_LIMIT_S."""
        await self.close()
        self.status.complete(verdict, reason=reason, text=text, **more)
        await self.write_with_retries(self._manifest())

    async def write_with_retries(self, manifest: Mapping[str, Any]) -> None:
        """Write a manifest with retries. Raises HeadgateError after LAST_LIMIT_S, and at once if the content is rejected."""

        def passes(error: Exception) -> bool:
            again = isinstance(error, HeadgateError) and getattr(error, "status", 0) not in REFUSED
            if again and self._also is not None:
                self._also.on_event(p.Notice(f"not written yet: {error}"))
            return again

        await repeated(lambda: self._api.apply(manifest), passes, limit_s=LAST_LIMIT_S, every_s=RETRY_S)

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        await cancel_all(task)

    async def _keep_writing(self) -> None:
        written = ""
        loop = asyncio.get_running_loop()
        at = 0.0
        while True:
            stale = loop.time() >= at + STALE_S
            if (self.status.changed or stale) and (now := json.dumps(to_json(self.status.report))) != written:
                self.status.changed = False
                at = loop.time()
                with contextlib.suppress(HeadgateError, TimeoutError):
                    async with timeout(WRITE_LIMIT_S):
                        await self._api.apply(self._manifest())
                    written = now
                self.status.changed = self.status.changed or written != now
            await asyncio.sleep(WRITE_EVERY_S)

    def _manifest(self) -> dict[str, Any]:
        report = replace(self.status.report, updated=datetime.now(UTC).isoformat(timespec="seconds"))
        name = naming.status_name(self._run.name)
        return config_map(self._run, name, {STATUS_KEY: json.dumps(to_json(report), ensure_ascii=False)})


def report_map(run: Run, folder: Path) -> dict[str, Any]:
    """Return ConfigMap `<run>-report` with the report of a run's folder. Files that do not fit are listed under `too-large`."""
    room = MAX_REPORT_BYTES
    texts: dict[str, str] = {}
    left_out: list[str] = []
    for name in REPORT_TEXTS:
        if not (folder / name).exists():
            continue  # an evaluation that failed gives no recovery
        text = (folder / name).read_text(encoding="utf-8")
        if (size := len(text.encode())) <= room:
            texts[name], room = text, room - size
        else:
            left_out.append(name)
    page = gzip.compress((folder / PAGE_FILE).read_bytes(), mtime=0)
    binary = {f"{PAGE_FILE}.gz": page} if len(page) * 4 // 3 <= room else {}
    left_out += [] if binary else [PAGE_FILE]
    if left_out:
        where = ", ".join(f"/files/{name}" for name in left_out)
        texts["too-large"] = f"Too large for a ConfigMap, and in the run's recorder: {where}\n"
    return config_map(run, naming.report_name(run.name), texts, binary)


def read_verdict(files: Mapping[str, bytes]) -> RunVerdict:
    """Return the verdict of a report. Raises HeadgateError if another version of Headgate wrote it."""
    try:
        return RunVerdict.from_json(json.loads(files[VERDICT_FILE]))
    except ValueError as error:
        raise HeadgateError(
            f"this version of Headgate cannot read the report's {VERDICT_FILE}: {error}"
        ) from None


def read_report(manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of ConfigMap `<run>-report`, with `report.html` unpacked. Pure."""
    files = {name: text.encode() for name, text in (manifest.get("data") or {}).items()}
    for name, coded in (manifest.get("binaryData") or {}).items():
        data = base64.b64decode(coded)
        files[name.removesuffix(".gz")] = gzip.decompress(data) if name.endswith(".gz") else data
    return files
