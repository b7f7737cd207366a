"""The page, Markdown and JUnit: what they say, and that they stand alone."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from subprocess import run as run_process
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from testbed_runtime.core.documents import RECOVERY_FILE
from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.judgement import metrics as m
from testbed_runtime.core.judgement.recovery import Price, Recovery, Round, SharedFault, TrialRecovery
from testbed_runtime.core.judgement.series import Timeseries
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.core.trial.manifest import ScenarioEntry
from testbed_runtime.history.manifest import manifest_of
from testbed_runtime.report import write_report, write_summary
from testbed_runtime.report.advice import first_things
from testbed_runtime.report.build import build
from testbed_runtime.report.html import breakable, page
from testbed_runtime.report.junit import junit_xml
from testbed_runtime.report.markdown import cell, expectations, run_markdown, summary_markdown
from testbed_runtime.report.model import RunView
from tests.manifests import run_manifest, trial_entry
from tests.metricrows import metric_row
from tests.report import synthetic
from tests.report.conftest import Documents
from tests.report.recoveries import killed
from tests.verdicts import judged, run_verdict

GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "br", "wbr", "link", "img", "hr", "input"}


@pytest.fixture
def view(documents: Documents) -> RunView:
    return build(
        documents.manifest,
        documents.metrics,
        documents.timeseries,
        documents.verdict,
        recoveries=documents.recoveries,
    )


class Structure(HTMLParser):
    """Open elements, ids and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.labels: list[str] = []
        self.counts: dict[str, int] = {}
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.references.append(value or "")
            if name == "aria-labelledby":
                self.labels += (value or "").split()
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.stack or self.stack.pop() != tag):
            self.problems.append(f"</{tag}> closes nothing")


def structure(text: str) -> Structure:
    parser = Structure()
    parser.feed(text)
    parser.close()
    return parser


def test_the_page_loads_nothing_from_anywhere(view: RunView):
    """No address, no link, no script; and a policy that forbids all of it."""
    text = page(view)
    found = structure(text)
    assert {reference[1:] for reference in found.references} <= set(found.ids)
    assert all(reference.startswith("#") for reference in found.references), "only shapes of the page itself"
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_page_is_well_formed_and_its_labels_exist(view: RunView):
    """Every element is closed in order, ids are unique, every aria-labelledby names one."""
    found = structure(page(view))
    assert not found.problems
    assert not found.stack
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.labels) <= set(found.ids)


def test_every_drawing_has_a_title_a_description_and_a_table_beside_it(view: RunView):
    """Screen readers get the description."""
    text = page(view)
    for drawing in re.findall(r'<svg class="chart.*?</svg>', text, re.DOTALL):
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]+</desc>", drawing)
    assert structure(text).counts["table"] >= 10


def test_the_page_says_which_option_cost_most(view: RunView):
    """The product's heart stands among the first things, and in the table."""
    assert view.first[1] == "short-timeout: 4.61 s of 8.83 s (52 %) went to heartbeat.timeout = 5 s."
    assert "heartbeat.<wbr>timeout = 5 s" in page(view)


def test_what_failed_comes_first(view: RunView):
    """The expectation that does not hold leads the list, with what was measured."""
    assert view.verdict == "Fail"
    assert view.first[0].startswith(
        "Fail in short-timeout-1: latency p99 (observation) at most 1 s (measured 1.2"
    )


def test_the_configuration_shows_what_differs_from_the_defaults_and_between_variants(view: RunView):
    """heartbeat.timeout varies; the restart strategy is the default."""
    settings = {s.key: s for s in view.settings}
    assert settings["heartbeat.timeout"].values == ("5 s", "12 s")
    assert settings["heartbeat.timeout"].by_variant
    assert settings["heartbeat.timeout"].default == "50 s"
    assert not settings["restart-strategy.type"].differs


def changed_first(documents: Documents, *, text: str, name: str = "") -> Timeseries:
    """The drawings with another text of the first mark of the second trial, and another name of its fault."""
    first, found, *others = documents.timeseries.trials
    spans = [replace(s, name=name) if name and s.kind == "fault" else s for s in found.spans]
    marks = [replace(found.marks[0], text=text), *found.marks[1:]]
    return Timeseries([first, replace(found, spans=spans, marks=marks), *others])


def test_text_from_a_scenario_cannot_become_markup(documents: Documents):
    """Names and hypotheses are escaped in the page, in Markdown, in JUnit."""
    evil = "<script>alert('|')</script>\x00 | `x`"
    scenario = {"spec": {"hypothesis": evil}, "metadata": {"name": evil}}
    faults = changed_first(documents, name=evil, text=evil)
    manifest = replace(documents.manifest, scenario=ScenarioEntry(**scenario))
    view = build(manifest, documents.metrics, faults, documents.verdict)
    assert "<script" not in page(view)
    assert not re.search(r"(?<!\\)<script|\x00", run_markdown(view))
    ET.fromstring(junit_xml([view]))


def test_names_between_backticks_are_code_on_both_pages_and_plain_in_drawings(documents: Documents):
    """A bar in one does not end the cell, and a single backtick is shown as it is."""
    verdict = replace(documents.verdict, summary="limited by `a|b_c` and one ` more")
    marked = changed_first(documents, text="spare capacity of `sink`")
    view = build(documents.manifest, documents.metrics, marked, verdict, recoveries=documents.recoveries)
    assert "limited by <code>a|b_c</code> and one ` more" in page(view)
    assert "limited by `a\\|b_c` and one \\` more" in run_markdown(view)
    drawings = re.findall(r"<svg.*?</svg>", page(view), re.DOTALL)
    assert any("spare capacity of sink" in drawing for drawing in drawings)
    assert not any("`" in drawing for drawing in drawings)


@pytest.mark.parametrize("keep", ["nothing", "manifest", "no-history"])
def test_a_run_that_was_cut_off_still_gets_its_report(documents: Documents, keep: str, tmp_path: Path):
    """Whatever is missing, the page says what is known."""
    manifest = run_manifest() if keep == "nothing" else replace(documents.manifest, interrupted=True)
    metrics = documents.metrics if keep == "no-history" else []
    verdict = run_verdict("Error", summary="The evaluation failed.")
    path = write_report(
        tmp_path, manifest=manifest, metrics=metrics, timeseries=Timeseries(), verdict=verdict
    )
    text = path.read_text()
    assert "The evaluation failed." in text
    assert not structure(text).problems
    assert (tmp_path / "junit.xml").exists()


def test_the_same_tables_give_the_same_page(view: RunView):
    """No time, no random id, no order of a set."""
    assert page(view) == page(view)


def golden_documents() -> dict[str, Any]:
    """Small and written by hand, so that only a change of format changes the golden files."""
    entry = synthetic.entry(synthetic.PLANS[1])
    rows = [metric_row("recovery.detect", 4.608, trial=entry.trial, bounded_by="heartbeat.timeout = 5 s")]
    item = {
        "variant": "short-timeout",
        "trial": entry.trial,
        "reason": "",
        "bounded_by": "",
        "implied": False,
    }
    items = [
        {**item, "text": "recovery.detect at most 4 s", "asked": "at most 4 s", "measured": "4.61 s", "verdict": "Fail",
         "bounded_by": "heartbeat.timeout = 5 s"},
        {**item, "text": "delivery.lost equals 0", "measured": "0", "verdict": "Pass"},
        {**item, "text": "fault long-gc takes effect", "metric": "fault.verified", "measured": "", "verdict": "Inconclusive", "implied": True,
         "reason": "FaultNotVerified"},
        {**item, "text": "credit.violations equals 0", "measured": "0", "verdict": "Pass", "implied": True},
        {**item, "text": "the run completes", "trial": "", "measured": "port in use", "verdict": "Error",
         "reason": "RunFailed", "implied": True},
    ]  # fmt: skip
    verdict = run_verdict(
        "Error",
        summary="the run completes: the run could not be completed (and 1 more).",
        variants=[{"variant": "short-timeout", "verdict": "Error"}],
        expectations=items,
    )
    return {
        "manifest": replace(manifest_of(synthetic.manifest()), trials=(entry,)),
        "metrics": rows,
        "timeseries": Timeseries(),
        "verdict": verdict,
    }


@pytest.mark.parametrize("name", ["report.md", "junit.xml"])
def test_markdown_and_junit_match_the_golden_files(tmp_path: Path, name: str):
    """A changed format must be a deliberate decision."""
    documents = golden_documents()
    recovery = {"short-timeout-1": killed("short-timeout-1").to_json()}
    (tmp_path / RECOVERY_FILE).write_text(json.dumps(recovery))
    write_report(tmp_path, **documents)
    assert (tmp_path / name).read_text() == (GOLDEN / name).read_text()


def inconclusive_view(view: RunView) -> RunView:
    item = judged(
        text="fault long-gc takes effect", variant="short-timeout", trial="short-timeout-1",
        verdict="Inconclusive", reason="FaultNotVerified", implied=True,
    )  # fmt: skip
    return replace(view, verdict=Verdict.INCONCLUSIVE, expectations=(item,))


@pytest.mark.parametrize(
    ("policy", "element"), [("skip", "skipped"), ("error", "error"), ("fail", "failure"), ("pass", None)]
)
def test_what_is_inconclusive_follows_the_policy(view: RunView, policy: str, element: str | None):
    """Skipped by default; never silently passed unless asked for."""
    root = ET.fromstring(junit_xml([inconclusive_view(view)], inconclusive=policy))
    case = root.find("testsuite/testcase")
    assert case is not None
    assert [child.tag for child in case] == ([element] if element else [])
    if element:
        assert "the fault was not observed to take effect" in (case[0].get("message") or "")


def test_an_unknown_policy_is_refused(view: RunView):
    """The message lists the known policies."""
    with pytest.raises(ValueError, match="skip, error, fail, pass"):
        junit_xml([view], inconclusive="ignore")


def test_junit_counts_what_it_holds(view: RunView):
    """tests, failures and errors of the whole and of each suite."""
    root = ET.fromstring(junit_xml([view]))
    cases = root.findall("testsuite/testcase")
    assert root.get("tests") == str(len(cases)) == str(len(view.expectations))
    assert root.get("failures") == "1"
    assert [s.get("name") for s in root] == [
        "taskmanager-paused.short-timeout",
        "taskmanager-paused.long-timeout",
    ]


def test_a_summary_of_several_runs_leads_with_the_worst_verdict(view: RunView):
    """One table, then only those that did not pass."""
    text = summary_markdown([replace(view, name="first", verdict=Verdict.PASS), view])
    assert text.startswith("# ❌ Headgate: Fail")
    assert "## ❌ taskmanager-paused: Fail" in text
    assert "## ✅ first" not in text


def test_a_summary_is_written_from_the_folders_of_runs(documents: Documents, tmp_path: Path):
    """`headgate ci` calls this. A run without a manifest or verdict is refused by name."""
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(HeadgateError, match=r"has no manifest\.json"):
        write_summary(tmp_path, [run])
    (run / "manifest.json").write_text(json.dumps(synthetic.manifest()))
    (run / "verdict.json").write_text(json.dumps(documents.verdict.to_json()))
    path = write_summary(tmp_path / "out", [run])
    assert "taskmanager-paused" in path.read_text()
    assert ET.parse(path.with_name("junit.xml")).getroot().get("failures") == "1"


def test_a_scenario_that_was_refused_is_an_error_in_the_summary(tmp_path: Path):
    """Nothing ran, so there is no folder; a reader of junit.xml must not take that for success."""
    path = write_summary(tmp_path, [], refused=[("lossy", "network.loss: no packet backend here")])
    assert "# 💥 Headgate: Error" in path.read_text()
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert "no packet backend here" in (tmp_path / "junit.xml").read_text()


def test_what_did_not_hold_for_one_reason_is_said_once():
    """The first of them, how many more, and what to do about it, unless something failed."""
    items = [
        judged(verdict="Inconclusive", trial="t-1", text=text, reason="FaultNotVerified", metric="job.state")
        for text in ("a", "b", "c")
    ]
    (said,) = first_things((), items, (), ())
    assert said.startswith("Inconclusive in t-1: a (")
    assert ", and 2 more for the same reason. The report shows the measured effect beside" in said
    failed = judged(verdict="Fail", trial="t-1", text="d")
    assert first_things((), [*items, failed], (), ())[-1].endswith(", and 2 more for the same reason.")


@pytest.mark.parametrize(
    ("recovery", "said"),
    [
        (Recovery(fault="late", effect_ns=5, end_ns=5), "No recovery was needed"),
        (Recovery(fault="late", effect_ns=5, end_ns=5, recovered=False, ended="FAILED"), "short-timeout-1: outage after <code>late</code>"),
    ],
)  # fmt: skip
def test_an_outage_without_a_second_is_said_where_its_seconds_would_be(
    view: RunView, recovery: Recovery, said: str
):
    """A fault that held nothing up, and a job that failed at once: the section is not empty."""
    trials = [
        replace(t, answer=None if t.answer is None else TrialRecovery(trial=t.trial, recoveries=(recovery,)))
        for t in view.trials
    ]
    section = page(replace(view, trials=tuple(trials))).partition('id="cost"')[2].partition("</section>")[0]
    assert said in section


def test_a_job_that_failed_at_once_has_a_sentence_instead_of_a_bar(view: RunView):
    """No wait of microseconds explains it. The sentence is that of the terminal."""
    failed = Round(
        number=1,
        start_ns=0,
        end_ns=400_000,
        failure="Insufficient number of network buffers: required 2. Raise it",
    )
    start = Recovery(
        fault="",
        effect_ns=0,
        end_ns=400_000,
        recovered=False,
        reason=m.JOB_FAILED,
        ended="FAILED",
        rounds=(failed,),
        limit="restart-strategy.type = none",
    )
    trials = [replace(t, answer=TrialRecovery(trial=t.trial, start=start)) for t in view.trials]
    section = page(replace(view, trials=tuple(trials))).partition('id="cost"')[2].partition("</section>")[0]
    said = "the job failed at once after its submission (restart-strategy.type = none allows no more restarts): Insufficient number of network buffers"
    assert f"<p>short-timeout-1: {said}: required 2</p>" in section
    assert "<svg" not in section
    assert "No recovery was needed" not in section


def test_the_cost_follows_what_failed_and_precedes_what_is_unknown(view: RunView):
    """It explains why the recovery took too long. That records of an undrained job cannot be counted is only a consequence."""
    price = Price(text="a slot for each task", seconds=3.0, kind="slot")
    slow = Recovery(fault="f", effect_ns=0, end_ns=4_000_000_000, prices=(price,))
    (trial,) = (t for t in view.trials if t.trial == "short-timeout-1")
    items = [judged(verdict=v, trial="t-1", text=v) for v in ("Inconclusive", "Fail")]
    shown = [replace(trial, answer=TrialRecovery(trial="t", recoveries=(slow,)))]
    assert [line.split(" ")[0] for line in first_things(shown, items, (), ())[:3]] == [
        "Fail",
        "short-timeout:",
        "Inconclusive",
    ]
    assert first_things(shown, items[:1], (), ())[0].startswith("Inconclusive")


def test_a_cost_names_every_fault_of_its_outage(view: RunView):
    """The sentence and the heading of the outage name the same faults."""
    price = Price(text="o = 1", seconds=3.0, kind="slot", option="o")
    both = Recovery(
        fault="f",
        effect_ns=0,
        end_ns=4_000_000_000,
        prices=(price,),
        shared=(SharedFault(fault="g", effect_ns=1),),
    )
    alone = replace(both, fault="h", shared=())
    (trial,) = (t for t in view.trials if t.trial == "short-timeout-1")
    said = first_things(
        [replace(trial, answer=TrialRecovery(trial="t", recoveries=(both, alone)))], (), (), ()
    )
    assert [line.partition(":")[0] for line in said[:2]] == [
        "short-timeout after `f` and `g`",
        "short-timeout after `h`",
    ]


def test_the_first_sentence_says_what_most_seconds_were_spent_on(view: RunView):
    """They went to an option, or were spent waiting for a cause that no option limits."""
    price = Price(text="a slot for each task", seconds=3.0, kind="slot")
    slow = Recovery(fault="f", effect_ns=0, end_ns=4_000_000_000, prices=(price,))
    (trial,) = (t for t in view.trials if t.trial == "short-timeout-1")
    said = [
        first_things([replace(trial, answer=TrialRecovery(trial="t", recoveries=(found,)))], (), (), ())[0]
        for found in (
            slow,
            replace(slow, prices=(replace(price, text="o = 1", option="o"),)),
            replace(slow, prices=(replace(price, text="end of the fault `f`"),)),
        )
    ]
    assert said == [
        "short-timeout: 3.00 s of 4.00 s (75 %) was spent waiting for a slot for each task.",
        "short-timeout: 3.00 s of 4.00 s (75 %) went to o = 1.",
        "short-timeout: 3.00 s of 4.00 s (75 %) was spent waiting for the end of the fault `f`.",
    ]
    both = TrialRecovery(trial="t", recoveries=(slow, replace(slow, fault="g")))
    mixed = first_things([replace(trial, answer=both)], (), (), ())
    spent = "3.00 s of 4.00 s (75 %) was spent waiting for a slot for each task."
    assert mixed[:2] == [f"short-timeout after `{fault}`: {spent}" for fault in "fg"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"job_state": "FAILED", "cause": "OutOfMemoryError: heap"}, "The job of t failed, so its delivery cannot be judged: OutOfMemoryError: heap."),
        ({"job_state": "FAILED", "cause": "IOException: no buffers."}, "The job of t failed, so its delivery cannot be judged: IOException: no buffers."),
        ({"job_state": "FAILED", "cause": "TimeoutException: An ask timed out. This is usually caused by: 1) Pekko"}, "The job of t failed, so its delivery cannot be judged: TimeoutException: An ask timed out."),
        ({"job_state": "FAILED", "cause": "ValueError: no key. This row has none: 7"}, "The job of t failed, so its delivery cannot be judged: ValueError: no key. This row has none: 7."),
        ({"job_state": "FAILED", "cause": ""}, "The job of t failed, so its delivery cannot be judged."),
        ({"job_state": "RUNNING", "stop_refused": "Not all tasks run."}, "Trial t was not drained: Not all tasks run. Its delivery cannot be judged."),
        ({"job_state": "RUNNING"}, "Trial t was not drained in time, so its delivery cannot be judged."),
    ],
)  # fmt: skip
def test_a_trial_that_was_not_drained_says_why(entry: dict[str, str], said: str):
    """A job that failed has its root cause there."""
    assert first_things((), (), (), [trial_entry(entry, trial="t", drained=False)]) == [said]


def test_a_trial_that_was_not_drained_is_said_once():
    """The first expectation that it leaves undecided names it, unless the reason of the trial says more."""
    items = [judged(verdict="Inconclusive", trial="t", text="delivery.lost equals 0", reason=m.NOT_DRAINED)]
    entry = trial_entry(trial="t", drained=False)
    assert len(first_things((), items, (), (entry,))) == 1
    assert len(first_things((), items, (), (replace(entry, stop_refused="A checkpoint failed."),))) == 2
    assert len(first_things((), items, (), (replace(entry, trial="u"),))) == 2


def test_a_trial_that_could_not_be_completed_is_not_also_called_undrained():
    """It says once what happened."""
    item = judged(
        trial="t",
        text="the run completes",
        verdict="Error",
        measured="tm-0 was not ready.",
        reason=m.RUN_FAILED,
    )
    entry = trial_entry(trial="t", drained=False, error="tm-0 was not ready.")
    assert first_things((), (item,), (), [entry]) == ["Error: t could not be completed: tm-0 was not ready."]


def test_markdown_lists_the_expectations_of_the_scenario_before_built_in_checks():
    """A verdict has the built-in checks first."""
    items = [judged(verdict="Fail", text="safe", implied=True), judged()]
    rows = [line.split(" | ")[2] for line in expectations(items)[2:4]]
    assert rows == ["asked", "safe"]


def test_markdown_cells_cannot_break_the_table():
    """Bars, line breaks and markup are disarmed, and a long text ends with an ellipsis."""
    assert cell("a | b\nc <i> `x|y` `") == "a \\| b c \\<i\\> `x\\|y` \\`"
    assert (cell("x" * 200), cell("x" * 201)) == ("x" * 200, "x" * 199 + "…")


def test_sentences_of_the_markdown_are_whole(view: RunView):
    """A summary and the sentences to look at first are not cells of a table: the cause of a failure may be long."""
    said = "All expectations passed. " + "Not judged: " + "delivery.lost " * 20 + "end."
    assert run_markdown(replace(view, summary=said, first=(said,))).count(" end.") == 2


def test_the_report_needs_neither_spark_nor_asyncio():
    """Tables in: importing the package loads neither."""
    code = "import sys, testbed_runtime.report; sys.exit(any(m in sys.modules for m in ('pyspark', 'asyncio', 'pyarrow')))"
    assert run_process([sys.executable, "-c", code], check=False).returncode == 0


def test_a_line_breaks_in_the_name_of_an_option_and_not_in_a_number():
    """A number that continues on the next line reads as two."""
    assert breakable("heartbeat.timeout, 1.90 s of 5/6") == "heartbeat.<wbr>timeout, 1.90 s of 5/6"
