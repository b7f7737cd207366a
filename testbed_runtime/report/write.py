"""Write the files of a report (HTML, Markdown, JUnit), each atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement.comparison import COMPARISON_FILE
from testbed_runtime.files import write_whole
from testbed_runtime.report.answer import read_recoveries
from testbed_runtime.report.build import build
from testbed_runtime.report.html import page
from testbed_runtime.report.junit import junit_xml
from testbed_runtime.report.markdown import run_markdown, summary_markdown
from testbed_runtime.report.model import RunView

Document = Mapping[str, Any]


def write_report(
    folder: Path,
    *,
    manifest: Document,
    metrics: Sequence[Document],
    timeseries: Document,
    verdict: Document,
    inconclusive: str = "skip",
) -> Path:
    """Write `report.html`, `report.md` and `junit.xml` into `folder` and return the path of the page.

    `recovery.json` and `comparison.json` are read from `folder`, if they exist; the former not without metrics, because it
    is that of an earlier evaluation then. `metrics` holds the rows of metrics.json; `timeseries` and `verdict` are the files of those names.
    `inconclusive` says how junit.xml reports an Inconclusive expectation (`skip`, `error`, `fail`, `pass`).
    """
    view = build(
        manifest,
        metrics,
        timeseries,
        verdict,
        recoveries=read_recoveries(folder) if metrics else {},
        comparison=_comparison(folder),
    )
    put(folder / "report.md", run_markdown(view))
    put(folder / "junit.xml", junit_xml([view], inconclusive=inconclusive))
    return put(folder / "report.html", page(view))


def write_summary(
    folder: Path,
    runs: Sequence[Path],
    *,
    refused: Sequence[tuple[str, str]] = (),
    inconclusive: str = "skip",
) -> Path:
    """Write `summary.md` and `junit.xml` of several runs (`headgate ci`) and return the path of `summary.md`.

    `refused` lists scenarios that could not run, with the reason; both files report them as errors. A run without
    metrics or time series is shown with what it has. Raises HeadgateError for a run without a manifest or verdict.
    """
    views = [*(_read(run) for run in runs), *(_refused(name, why) for name, why in refused)]
    put(folder / "junit.xml", junit_xml(views, inconclusive=inconclusive))
    return put(folder / "summary.md", summary_markdown(views))


def _refused(name: str, why: str) -> RunView:
    judged = {
        "text": "the scenario can run in this environment",
        "verdict": "Error",
        "measured": why,
        "variant": "",
        "trial": "",
        "implied": True,
    }
    document = {"metadata": {"name": name}}
    return build(
        {"scenario": document}, [], {}, {"verdict": "Error", "summary": why, "expectations": [judged]}
    )


def _read(run: Path) -> RunView:
    documents: list[Any] = []
    for name, otherwise in (("manifest", None), ("metrics", []), ("timeseries", {}), ("verdict", None)):
        path = run / f"{name}.json"
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            if otherwise is None:
                raise HeadgateError(f"cannot read {path}: {error}") from None
            documents.append(otherwise)
    return build(*documents, recoveries=read_recoveries(run), comparison=_comparison(run))


def _comparison(run: Path) -> dict[str, Any]:
    """Read comparison.json. Empty if it is missing or damaged."""
    try:
        found = json.loads((run / COMPARISON_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def put(path: Path, text: str) -> Path:
    """Write a file and its folder. A reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text.encode(), durable=False)
