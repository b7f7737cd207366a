"""Write the files of a report (HTML, Markdown, JUnit), each atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed_runtime.core.documents import (
    JUNIT_FILE,
    METRICS_FILE,
    PAGE_FILE,
    SUMMARY_FILE,
    VERDICT_FILE,
)
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.judgement.verdict import Judged, RunVerdict, Verdict
from testbed_runtime.core.trial.manifest import RunManifest, ScenarioEntry
from testbed_runtime.files import read_document, write_whole
from testbed_runtime.history.manifest import read_manifest
from testbed_runtime.report.build import build
from testbed_runtime.report.html import page
from testbed_runtime.report.junit import junit_xml
from testbed_runtime.report.markdown import run_markdown, summary_markdown
from testbed_runtime.report.model import RunView
from testbed_runtime.results import read_comparison, read_recoveries, read_rows, read_series

Document = Mapping[str, Any]


def write_report(
    folder: Path,
    *,
    manifest: RunManifest,
    metrics: Sequence[MetricRow],
    timeseries: Timeseries,
    verdict: RunVerdict,
    inconclusive: str = "skip",
) -> Path:
    """Write `report.html`, `report.md` and `junit.xml` into `folder` and return the path of the page.

    `recovery.json` and `comparison.json` are read from `folder`, if they exist. Without metrics, `recovery.json` is not read,
    because it is from an earlier evaluation. `metrics` holds the rows of metrics.json.
    `inconclusive` says how junit.xml reports an Inconclusive expectation (`skip`, `error`, `fail`, `pass`).
    """
    view = build(
        manifest,
        metrics,
        timeseries,
        verdict,
        recoveries=read_recoveries(folder) if metrics else {},
        comparison=read_comparison(folder),
    )
    put(folder / SUMMARY_FILE, run_markdown(view))
    put(folder / JUNIT_FILE, junit_xml([view], inconclusive=inconclusive))
    return put(folder / PAGE_FILE, page(view))


def write_summary(
    folder: Path, runs: Sequence[Path], *, refused: Sequence[tuple[str, str]] = (), inconclusive: str = "skip"
) -> Path:
    """Write `summary.md` and `junit.xml` of several runs (`headgate ci`) and return the path of `summary.md`.

    `refused` lists scenarios that could not run, with the reason; both files report them as errors. A run without
    metrics or time series is shown with what it has. Raises HeadgateError for a run without a manifest or verdict.
    """
    views = [*(_read(run) for run in runs), *(_refused(name, why) for name, why in refused)]
    put(folder / JUNIT_FILE, junit_xml(views, inconclusive=inconclusive))
    return put(folder / "summary.md", summary_markdown(views))


def _refused(name: str, why: str) -> RunView:
    text = "the scenario can run in this environment"
    judged = Judged(text=text, verdict=Verdict.ERROR, measured=why, implied=True)
    scenario = ScenarioEntry(metadata={"name": name})
    verdict = RunVerdict(verdict=Verdict.ERROR, summary=why, judged=(judged,))
    return build(RunManifest(run="", expectations={}, scenario=scenario), [], Timeseries(), verdict)


def _read(run: Path) -> RunView:
    manifest, path = read_manifest(run), run / VERDICT_FILE
    try:
        verdict = RunVerdict.from_json(read_document(path))
    except (OSError, ValueError) as error:
        raise HeadgateError(f"cannot read {path}: {error}") from None
    return build(
        manifest,
        read_rows(run, manifest) if (run / METRICS_FILE).exists() else [],
        read_series(run),
        verdict,
        recoveries=read_recoveries(run),
        comparison=read_comparison(run),
    )


def put(path: Path, text: str) -> Path:
    """Write a file and its folder. A reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text.encode(), durable=False)
