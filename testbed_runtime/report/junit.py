"""Write JUnit XML: one test suite per variant, one test case per expectation and trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as ET  # nosec - written, never parsed

from testbed_runtime.core.judgement.verdict import Judged, Verdict
from testbed_runtime.report.model import RunView

POLICIES = ("skip", "error", "fail", "pass")
"""How the file reports an Inconclusive expectation: as skipped, an error, a failure, or passed."""
_FORBIDDEN = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(55296, 57344), 65534, 65535), "�")
"""Characters that XML 1.0 does not allow, not even escaped, and what is written instead. As a regular expression they would take
5 ms to compile."""


def junit_xml(views: Sequence[RunView], *, inconclusive: str = "skip") -> str:
    """Return the JUnit file of one or more runs. Raises ValueError for an unknown policy."""
    if inconclusive not in POLICIES:
        raise ValueError(f"unknown policy {inconclusive!r}: use one of {', '.join(POLICIES)}")
    root = ET.Element("testsuites", {"name": "headgate"})
    for view in views:
        # in the verdict's order; the empty name holds what belongs to no variant
        judged = [item.variant for item in view.expectations]
        for variant in dict.fromkeys([*judged, *(one.variant for one in view.variants)]):
            items = [i for i in view.expectations if i.variant == variant]
            _suite(root, view, variant, items, inconclusive)
    _count(root, list(root))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, view: RunView, variant: str, items: Sequence[Judged], inconclusive: str) -> None:
    name = clean(f"{view.name}.{variant}" if variant else view.name)
    suite = ET.SubElement(root, "testsuite", {"name": name})
    if view.started:
        suite.set("timestamp", clean(view.started.removesuffix(" UTC").replace(" ", "T")))
    seconds = _seconds(view, items)
    suite.set("time", f"{sum(seconds):.3f}")
    for item, took in zip(items, seconds, strict=True):
        text = clean(f"{item.text} [{item.trial}]" if item.trial else item.text)
        case = ET.SubElement(suite, "testcase", {"classname": name, "name": text, "time": f"{took:.3f}"})
        _outcome(case, item, inconclusive)
    _count(suite, [suite])


def _seconds(view: RunView, items: Sequence[Judged]) -> list[float]:
    """Return the time of each case: an equal share of its trial's time, so that the cases of a trial add up to it."""
    durations = {t.trial: t.duration_s for t in view.trials}
    counts = Counter(item.trial for item in items)
    return [durations.get(item.trial, 0.0) / counts[item.trial] for item in items]


def _outcome(case: ET.Element, item: Judged, inconclusive: str) -> None:
    kind = {Verdict.FAIL: "failure", Verdict.ERROR: "error"}.get(item.verdict, "")
    if item.verdict is Verdict.INCONCLUSIVE:
        kind = {"skip": "skipped", "error": "error", "fail": "failure", "pass": ""}[inconclusive]
    if not kind:
        return
    details = [
        f"expected: {item.asked}" if item.asked else "",
        f"measured: {item.measured}" if item.measured else "",
        item.explanation,
        f"bounded by: {item.bounded_by}" if item.bounded_by else "",
    ]
    lines = [line for line in details if line]
    element = ET.SubElement(case, kind, {"message": clean("; ".join(lines) or item.verdict)})
    if kind != "skipped":
        element.set("type", clean(item.reason or item.verdict))
        element.text = clean("\n".join(lines))


def _count(target: ET.Element, suites: Sequence[ET.Element]) -> None:
    def found(path: str) -> str:
        return str(sum(len(suite.findall(path)) for suite in suites))

    target.set("tests", found("testcase"))
    target.set("failures", found("testcase/failure"))
    target.set("errors", found("testcase/error"))
    if target.tag == "testsuite":
        target.set("skipped", found("testcase/skipped"))


def clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return text.translate(_FORBIDDEN)
