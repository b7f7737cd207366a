"""What a run says of itself in its ConfigMap `<run>-status`: progress events in, at most one write a second out.

Telling never blocks and a write that fails never fails the run: the next one carries everything.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from testbed_runtime.api import naming
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.kube.api import ApiError
from testbed_runtime.runner import progress as p

WRITE_EVERY_S = 1.0
STALE_S = 5.0
"""Numbers that only count down are written this often: each write is an update of etcd."""
WRITE_LIMIT_S = 20.0
"""One write; a server that is slower is tried again with newer words."""
LAST_LIMIT_S = 600.0
"""For the last word and the report: an API server that is away for so long ends the pod with an error, and it is started again."""
RETRY_S = 2.0
REFUSED = frozenset({400, 413, 422})
"""Answers to what is wrong or too large: the same again is refused again."""
MAX_TRIALS = 64
MAX_TEXT = 4_000
MAX_REPORT_BYTES = 900_000
"""Of all files of the report together: a ConfigMap has at most 1 MiB."""
STATUS_KEY = "status.json"
REPORT_TEXTS = ("verdict.json", "report.md", "junit.xml")
"""What matters most is first: there is room for it."""
PAGE = "report.html"


class Writer(Protocol):
    """The part of kube.api that is needed here."""

    async def apply(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]: ...


class RunStatus:
    """`status.json`, kept up by progress events. Pure; `changed` is set by whatever is worth a write of its own."""

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        """`before`: what an earlier runner of this run said last."""
        self.data: dict[str, Any] = {
            "phase": "Starting",
            "trial": "",
            "trialPhase": "",
            "trialsDone": 0,
            "trialsTotal": 0,
            "message": "",
            "jobState": "",
            "trials": [],
            "faults": [],
            **{k: v for k, v in (before or {}).items() if k in ("trials", "trialsTotal")},
        }
        self.changed = True
        self._count()

    def apply(self, event: p.ProgressEvent) -> None:
        match event:
            case p.RunStarted():
                self._set(phase="Running", trialsTotal=event.trials, message="")
            case p.TrialStarted():
                self._set(phase="Running", trial=event.trial, trialPhase="create", jobState="")
            case p.PhaseEntered():
                self._set(trial=event.trial, trialPhase=event.phase, remainingSeconds=event.remaining_s)
            case p.Sample():
                if event.job_state != self.data["jobState"]:
                    self._set(jobState=event.job_state)
                self.data["remainingSeconds"] = event.remaining_s
            case p.Happened():
                self._set(message=event.text[:MAX_TEXT])
            case p.TrialEnded():
                self._ended(event)
            case p.Evaluating():
                self._set(phase="Evaluating", trial="", trialPhase="", message=event.text.strip())
            case p.RunEnded():
                self._set(message="")
        self.data["remainingSeconds"] = _rounded(self.data.get("remainingSeconds"))

    def message(self, text: str) -> None:
        self._set(message=text[:MAX_TEXT])

    def complete(self, verdict: str, *, reason: str, text: str, **more: Any) -> None:
        """The last word."""
        self._set(
            phase="Complete", trial="", trialPhase="", remainingSeconds=None, verdict=verdict, reason=reason,
            text=text[:MAX_TEXT], message="", **more,
        )  # fmt: skip

    def _ended(self, event: p.TrialEnded) -> None:
        known = {
            "name": event.trial,
            "jobState": event.job_state,
            "voided": event.voided,
            "reason": (event.error or event.reason)[:MAX_TEXT],
        }
        others = [t for t in self.data["trials"] if t["name"] != event.trial]
        self._set(trials=[*others, known][-MAX_TRIALS:])
        self._count()

    def _count(self) -> None:
        self.data["trialsDone"] = sum(1 for t in self.data["trials"] if not t["voided"])

    def _set(self, **fields: Any) -> None:
        self.data.update(fields)
        self.changed = True


def _rounded(seconds: Any) -> Any:
    return None if seconds is None else round(float(seconds), 1)


def measured(manifest: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`recovery` and `faults` of the status, from a run's manifest and metric rows: of the newest trial that counts. Pure."""
    counted = [t for t in manifest["trials"] if t["role"] != "control" and not t["voided"]]
    if not counted:
        return {"recovery": {}, "faults": []}
    trial = counted[-1]
    own = [r for r in rows if r["trial"] == trial["trial"]]
    recovery = {
        r["metric"].removeprefix("recovery."): round(float(r["value"]), 3)
        for r in own
        if r["metric"].startswith("recovery.") and r["value"] is not None and not r["phase"]
    }
    verified = {r["text"]: r["value"] == 1 for r in own if r["metric"] == "fault.verified"}
    residue = next((r["value"] for r in own if r["metric"] == "fault.residue"), None)
    faults = [
        {
            "name": f["name"],
            "backend": f["backend"],
            "why": f["why"],
            "verified": verified.get(f["name"]),
            "residue": None if residue is None else bool(residue),
        }
        for f in trial["faults"]
    ]
    return {"recovery": recovery, "faults": faults}


class StatusProgress:
    """A `runner.progress.Progress` that writes. `start` its task, `finish` with the last word, `close` always."""

    def __init__(
        self,
        api: Writer,
        run: Mapping[str, Any],
        *,
        before: Mapping[str, Any] | None = None,
        also: p.Progress | None = None,
    ) -> None:
        """`run` is the ScenarioRun. `also` is told everything too (the pod's log)."""
        self.status = RunStatus(before)
        self._api = api
        self._run = run
        self._also = also
        self._task: asyncio.Task[None] | None = None

    def on_event(self, event: p.ProgressEvent) -> None:
        self.status.apply(event)
        if self._also is not None:
            self._also.on_event(event)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_writing(), name="status")

    async def finish(self, verdict: str, *, reason: str, text: str, **more: Any) -> None:
        """Until it is written. Raises HeadgateError when that could not be done within LAST_LIMIT_S."""
        await self.close()
        self.status.complete(verdict, reason=reason, text=text, **more)
        await self.insist(self._manifest())

    async def insist(self, manifest: Mapping[str, Any]) -> None:
        """Write it, again and again. Raises HeadgateError after LAST_LIMIT_S, and at once for what is refused as it stands."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LAST_LIMIT_S
        while True:
            try:
                await self._api.apply(manifest)
            except HeadgateError as error:
                if loop.time() >= end or (isinstance(error, ApiError) and error.status in REFUSED):
                    raise
                if self._also is not None:
                    self._also.on_event(p.Happened("", f"not written yet: {error}"))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_writing(self) -> None:
        written = ""
        loop = asyncio.get_running_loop()
        at = 0.0
        while True:
            stale = loop.time() >= at + STALE_S
            if (self.status.changed or stale) and (now := json.dumps(self.status.data)) != written:
                self.status.changed = False
                at = loop.time()
                with contextlib.suppress(HeadgateError, TimeoutError):
                    async with asyncio.timeout(WRITE_LIMIT_S):
                        await self._api.apply(self._manifest())
                    written = now
                self.status.changed = self.status.changed or written != now
            await asyncio.sleep(WRITE_EVERY_S)

    def _manifest(self) -> dict[str, Any]:
        data = {**self.status.data, "updated": datetime.now(UTC).isoformat(timespec="seconds")}
        name = naming.status_name(self._run["metadata"]["name"])
        return config_map(self._run, name, {STATUS_KEY: json.dumps(data, ensure_ascii=False)})


def config_map(
    run: Mapping[str, Any], name: str, data: Mapping[str, str], binary: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """A ConfigMap that goes with its ScenarioRun."""
    metadata = run["metadata"]
    owner = {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {naming.LABEL_RUN: metadata["name"], naming.LABEL_MANAGED_BY: naming.MANAGED_BY},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "data": dict(data),
    }
    if binary:
        found["binaryData"] = {k: base64.b64encode(v).decode() for k, v in binary.items()}
    return found


def report_map(run: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """ConfigMap `<run>-report` of a folder in which a run was concluded. What does not fit is left out, and said so."""
    room = MAX_REPORT_BYTES
    texts: dict[str, str] = {}
    left_out: list[str] = []
    for name in REPORT_TEXTS:
        text = (folder / name).read_text(encoding="utf-8")
        if (size := len(text.encode())) <= room:
            texts[name], room = text, room - size
        else:
            left_out.append(name)
    page = gzip.compress((folder / PAGE).read_bytes(), mtime=0)
    binary = {f"{PAGE}.gz": page} if len(page) * 4 // 3 <= room else {}
    left_out += [] if binary else [PAGE]
    if left_out:
        where = ", ".join(f"/files/{name}" for name in left_out)
        texts["too-large"] = f"Too large for a ConfigMap, and in the run's recorder: {where}\n"
    return config_map(run, naming.report_name(run["metadata"]["name"]), texts, binary)


def read_report(manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of ConfigMap `<run>-report`, `report.html` unpacked. Pure."""
    files = {name: text.encode() for name, text in (manifest.get("data") or {}).items()}
    for name, coded in (manifest.get("binaryData") or {}).items():
        data = base64.b64decode(coded)
        files[name.removesuffix(".gz")] = gzip.decompress(data) if name.endswith(".gz") else data
    return files
