"""The report of many trials and several variants: distributions first, single trials on demand, a small page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement.comparison import Comparison, GroupMeans, Mean, TableMetric
from testbed_runtime.core.judgement.recovery import Recovery, TrialRecovery
from testbed_runtime.core.judgement.series import Mark, Timeseries
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.report import write_report
from testbed_runtime.report.advice import FIRST_MAX, first_things
from testbed_runtime.report.aggregate import by_variant, expectations, faults, listed
from testbed_runtime.report.build import build
from testbed_runtime.report.html import DRAWN_MAX, page
from testbed_runtime.report.markdown import run_markdown
from testbed_runtime.report.model import FaultView, RunView
from tests.report.conftest import Documents
from tests.report.many import comparison, multiply, write_many
from tests.report.recoveries import killed
from tests.report.test_report import structure
from tests.verdicts import judged

MEGABYTE = 1_000_000


def view_of(documents: Documents, *, variants: int, trials: int) -> RunView:
    made, recoveries = multiply(documents, variants=variants, trials=trials)
    return build(**made, recoveries=recoveries, comparison=comparison(recoveries))


def visible(text: str) -> str:
    """The page without what is inside closed details."""
    while True:
        shorter = re.sub(r"<details>(?:(?!<details).)*?</details>|<details class=\"[^\"]*\">(?:(?!<details).)*?</details>", "", text, flags=re.DOTALL)  # fmt: skip
        if shorter == text:
            return text
        text = shorter


@pytest.mark.parametrize(("variants", "trials"), [(1, 100), (5, 20)])
def test_a_hundred_trials_fit_into_two_megabytes_and_a_few_screens(
    documents: Documents, tmp_path: Path, variants: int, trials: int
):
    """Every trial is still there with its own timeline, in closed details."""
    path = write_many(tmp_path, documents, variants=variants, trials=trials)
    text = path.read_text()
    assert path.stat().st_size < 2 * MEGABYTE
    found = structure(text)
    assert not found.problems
    assert len(set(found.ids)) == len(found.ids)
    assert text.count('<title id="t') >= 2 * 100, "a wide and a narrow timeline for each"
    shown = visible(text)
    assert "Timeline of trial" not in shown
    assert shown.count("<tr") < 80
    assert len((tmp_path / "report.md").read_text()) < 20_000


def test_two_thousand_trials_do_not_make_two_thousand_drawings(documents: Documents):
    """Those that failed and the slowest are drawn; the number of the others is said."""
    view = view_of(documents, variants=2, trials=DRAWN_MAX)
    text = page(view)
    assert text.count("Timeline of trial") == 2 * DRAWN_MAX
    assert f"{DRAWN_MAX} more trials" in text


def test_a_fault_with_jitter_is_one_row_of_all_trials():
    """The time is a range, and different targets are listed. A fault without an effect stays a row of its own."""

    def row(number: int, effect: str = "verified") -> FaultView:
        return FaultView(
            trial=f"t-{number}", name="dead", kind="process.kill", effect=effect, residue="clean", backend="supervisor",
            at_s=number / 10, when=f"{number}00 ms after the baseline", asked=f"kill of tm-{number % 2}",
            measured="", after="", why="", text="",
        )  # fmt: skip

    merged, unverified = faults([row(1), row(2), row(7), row(9, "unverified")])
    assert merged.trial == "3 trials"
    assert merged.when == "100 ms to 700 ms after the baseline"
    assert merged.asked == "kill of tm-1, kill of tm-0"
    assert (unverified.trial, unverified.when) == ("t-9", "900 ms after the baseline")


def test_distributions_come_before_single_trials(documents: Documents):
    """Variants side by side, then the mean waits of each variant, then the trials."""
    text = page(view_of(documents, variants=3, trials=6))
    order = [text.index(f'id="{name}"') for name in ("compare", "cost", "timeline", "expectations")]
    assert order == sorted(order)
    assert "timeout-6s against timeout-5s: recovery.downtime 30 % longer" in text
    assert text.count('class="quartiles"') == 2 * 3 * 3, "two layouts, three metrics, three variants"


def test_values_of_variants_have_their_interval_on_a_line_of_its_own_and_stack_on_a_phone(
    documents: Documents,
):
    """With four variants the table is as wide as the page; below 700 px each value names its variant."""
    text = page(view_of(documents, variants=3, trials=8))
    row = re.search(r'<tr><th scope="row">recovery.downtime</th>(.*?)</tr>', text, re.DOTALL)
    assert row is not None
    cell = r'<td class="num" data-label="([^"]+)">[\d.]+ m?s <small>\[[\d.]+, [\d.]+\]</small></td>'
    cells = re.findall(cell, row[1])
    assert cells == ["timeout-5s", "timeout-6s", "timeout-7s"]


def test_the_unit_of_a_rate_is_beside_its_name_and_not_in_each_column(documents: Documents):
    """Seven variants fit beside each other."""
    view = view_of(documents, variants=2, trials=1)
    texts = ("1,000 [900, 1,100] records/s", "7 records/s")
    compared = Comparison(
        metrics=(TableMetric("throughput.goodput", "records/s"),),
        groups=tuple(GroupMeans("a", 20, (Mean(text=text),)) for text in texts),
    )
    table = page(replace(view, comparison=compared)).partition('id="compare"')[2].partition("</table>")[0]
    assert '<th scope="row">throughput.goodput <small>records/s</small></th>' in table
    assert table.count("records/s") == 1
    assert "1,000 <small>[900, 1,100]</small>" in table


def test_the_trials_of_one_variant_are_not_called_variants_and_their_waits_fit_on_a_phone(
    documents: Documents,
):
    """Intervals and ranges are wrapped there, but no value is separated from its unit."""
    text = page(view_of(documents, variants=1, trials=13))
    assert "Trials side by side" in text
    assert "Variants side by side" not in text
    narrow = text[text.index("@media (max-width: 700px)") :]
    assert "table.prices .num { white-space: normal; }" in narrow[: narrow.index("@media print")]
    ranges = re.findall(r'<td class="num">([^<]*…[^<]*)</td>', page(view_of(documents, variants=2, trials=8)))
    assert ranges
    assert all(re.fullmatch(r"\S+&nbsp;\S+ … \S+&nbsp;\S+", shown) for shown in ranges)


def test_trials_are_listed_in_the_order_of_the_variants(documents: Documents):
    """As in every other part of the page, not by their names."""
    view = view_of(documents, variants=3, trials=6)
    view = replace(view, trials=tuple(reversed(view.trials)))
    shown = re.findall(r"<details><summary><strong>(timeout-\ds)</strong>: 6 trials", page(view))
    assert shown == ["timeout-7s", "timeout-6s", "timeout-5s"]


def test_five_variants_of_one_trial_each_are_shown_in_full(documents: Documents):
    """Rounds, prices and margins of every trial, and the table of variants above them."""
    text = page(view_of(documents, variants=5, trials=1))
    for number in range(5):
        assert f"Price list of timeout-{5 + number}s-1" in text
        assert f"Margins of timeout-{5 + number}s-1" in text
    assert "round 4, 10.2 s, because of PartitionNotFoundException" in text
    assert "Variants side by side" in text
    assert 'class="dots"' not in text, "one dot each would say no more than the table"


def test_what_broke_in_every_trial_is_one_line_and_leaves_room_for_the_costs(documents: Documents):
    """Twenty trials that failed for the same reason are one sentence."""
    first = view_of(documents, variants=5, trials=20).first
    assert len(first) <= FIRST_MAX
    assert first[0].startswith("Fail in 20 trials of timeout-5s: latency p99 (observation) at most 1 s")
    assert any("went to heartbeat.interval" in line for line in first)


def test_what_the_trials_show_stands_beside_an_expectation(documents: Documents):
    """The page and the Markdown file have the false-pass risk of a quantile, also when it passed."""
    view = view_of(documents, variants=2, trials=6)
    note = "6 of 6 trials are within the bound"
    item = replace(view.expectations[0], verdict=Verdict.PASS, implied=False, reason="", note=note)
    view = replace(view, expectations=(item,))
    assert f"<small>{note}</small>" in page(view)
    assert f"{note} |" in run_markdown(view)


def test_trials_that_agree_are_one_row():
    """Results are grouped by variant, expectation, verdict and reason; from the fourth on, different values are only counted."""
    items = [judged(variant="v", trial=f"v-{n}", measured=f"{n} s") for n in range(5)]
    items.append(judged(variant="v", trial="v-9", verdict="Fail", measured="9 s"))
    merged, single = expectations(items)
    assert (merged.trial, merged.measured) == ("5 trials of v", "0 s, 1 s, 2 s, and 2 other values")
    assert (single.trial, single.measured) == ("v-9", "9 s")
    assert listed(["", "a", "a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c, and 1 other value"
    assert listed(["a" * 80, "b"]) == "a" * 80 + ", and 1 other value", "long ones would fill the page"


def test_the_mean_waits_of_a_variant_add_up_to_its_mean_total(documents: Documents):
    """Also when an owner occurs in some trials only; its range then begins at 0."""
    for answer in by_variant(view_of(documents, variants=2, trials=4).trials):
        owned = sum(p.seconds for p in answer.prices) + answer.unattributed_s
        assert owned == pytest.approx(answer.total_s, abs=1e-6)
        backoff = [p for p in answer.prices if p.option.endswith("request-backoff.max")]
        assert [answer.spread(p)[0] for p in backoff] == [0.0] * len(backoff)


def test_a_wait_that_took_equally_long_in_every_trial_has_one_value_instead_of_a_range(documents: Documents):
    """`1.90 s … 1.90 s` says no more, and breaks into three lines on a phone."""
    text = page(view_of(documents, variants=2, trials=10)).replace("&nbsp;", " ")
    ranges = [
        r.split(" … ") for r in re.findall(r'<td class="num">([\d.]+ m?s(?: … [\d.]+ m?s)?)</td>', text)
    ]
    assert {len(r) for r in ranges} == {1, 2}
    assert all(len(set(r)) == len(r) for r in ranges)


def test_a_page_of_many_trials_draws_each_kind_of_mark_in_the_shape_of_its_legend(documents: Documents):
    """Strokes of three colours could not tell a lost TaskManager from an exited process."""
    text = page(view_of(documents, variants=1, trials=30))
    assert "shaded by the number of records" not in text, "a heat map is drawn for few trials only"
    legend = text.partition('<ul class="legend">')[2].partition("</ul>")[0]
    shapes = re.findall(r'class="mark (\S+)" d="([^"]+)"', legend)
    assert len(set(shapes)) == len(shapes) > 2
    for css, shape in shapes:
        drawn = re.findall(rf'd="([^"]+)" class="mark {css}"|class="mark {css}" d="(M[^"]+)"', text)
        assert any(shape in "".join(pair) for pair in drawn)


def test_the_control_run_is_not_counted_as_a_trial_of_its_variant(documents: Documents):
    """The comparison above the timelines counts the trials with the fault."""
    view = view_of(documents, variants=1, trials=30)
    first = view.trials[0]
    control = replace(first, trial="control-1", role="control")
    text = page(replace(view, trials=(control, *view.trials)))
    assert f"<strong>{first.variant}</strong>: 30 trials and the control run</summary>" in text


@pytest.mark.parametrize(("variants", "trials"), [(2, 1), (2, 10)])
def test_markdown_has_the_totals_of_the_page(documents: Documents, variants: int, trials: int):
    """The same sentence in both, and the total row of each price list."""
    view = view_of(documents, variants=variants, trials=trials)
    text, markdown = page(view), run_markdown(view)
    totals = re.findall(
        r"<th scope=\"row\">Total</th><td class=\"num\">([^<]+)</td>", text.replace("&nbsp;", " ")
    )
    assert totals == re.findall(r"\| total \| ([^|]+) \|", markdown.replace("\\", ""))
    assert len(totals) == 2
    assert all(("[" in total) == (trials > 1) for total in totals)  # an interval needs several trials
    if trials == 1:
        assert "down for 87.8 s after <code>dead</code>, caught up after 90.8 s, 4 rounds" in text
        assert "down for 87.8 s after `dead`, caught up after 90.8 s, 4 rounds" in markdown


def test_junit_times_add_up_to_the_time_of_the_trials(documents: Documents, tmp_path: Path):
    """Each trial lasted 25.4 s; its cases share that time."""
    made, _ = multiply(documents, variants=1, trials=3)
    write_report(tmp_path, **made)
    root = ET.parse(tmp_path / "junit.xml").getroot()
    cases = root.findall("testsuite/testcase")
    assert sum(float(c.get("time", "0")) for c in cases) == pytest.approx(3 * 25.4, abs=0.1)
    assert float(root.get("time", "0")) == pytest.approx(3 * 25.4, abs=0.1)
    assert all(float(c.get("time", "0")) > 0 for c in cases)


def test_a_run_without_comparison_has_none_on_its_page(documents: Documents):
    """Nor has it prices: without recoveries, nothing is known about them."""
    view = build(documents.manifest, documents.metrics, documents.timeseries, documents.verdict)
    text = page(view)
    assert "Nothing is known about recoveries" in text
    assert "Variants side by side" not in text


def test_the_legend_names_every_mark_that_is_drawn(documents: Documents):
    """The blue diamond of a registered TaskManager is among them; what does not occur is not."""
    series = documents.timeseries.trials[1]
    mark = Mark("taskmanager.registered", 9.0, "tm-1-2")
    with_mark = Timeseries([replace(series, marks=[*series.marks, mark])])
    for timeseries, there in ((documents.timeseries, False), (with_mark, True)):
        view = build(documents.manifest, documents.metrics, timeseries, documents.verdict)
        legend = page(view).partition('<ul class="legend">')[2].partition("</ul>")[0]
        assert ("TaskManager registered" in legend) == there
        assert "TaskManager lost" in legend
        assert "effect of a fault" in legend
    phases = [s for s in series.spans if s.kind == "phase"]
    calm = Timeseries([replace(t, spans=phases) for t in documents.timeseries.trials])
    text = page(build(documents.manifest, documents.metrics, calm, documents.verdict))
    assert "effect of a fault" not in text
    assert "</span>failover" not in text


def test_page_and_markdown_tell_what_only_events_explain(documents: Documents):
    """A quarter of a second of each recovery has an owner without a recorded wait."""
    view = view_of(documents, variants=1, trials=1)
    shown = []
    for trial in view.trials:
        assert trial.answer is not None
        known = tuple(replace(r, from_events_s=0.25) for r in trial.answer.recoveries)
        shown.append(replace(trial, answer=replace(trial.answer, recoveries=known)))
    view = replace(view, trials=tuple(shown))
    for text in (page(view), run_markdown(view)):
        assert "250 ms of these inferred from events (" in text


def test_a_fault_without_an_outage_is_a_line_without_an_empty_price_list(documents: Documents):
    """The fault beside it has its list. Markdown leaves out what cost nothing."""
    view = view_of(documents, variants=1, trials=1)
    (trial,) = (t for t in view.trials if t.answer is not None and t.answer.recoveries)
    recoveries = (Recovery(fault="late", effect_ns=5, end_ns=5), *trial.answer.recoveries)
    view = replace(view, trials=(replace(trial, answer=replace(trial.answer, recoveries=recoveries)),))
    text, markdown = page(view), run_markdown(view)
    assert "no outage after <code>late</code>" in text
    assert text.count(">Total</th>") == markdown.count("| total |") == 1


def test_many_trials_with_several_faults_have_a_price_list_for_each_fault(documents: Documents):
    """A mean over recoveries from two faults is the price of neither: 1.72 s and 5.16 s of heartbeats are no 3.44 s. In one of the 13 trials
    the second one began no recovery."""
    view = view_of(documents, variants=1, trials=13)
    shown = []
    for number, trial in enumerate(t for t in view.trials if not t.is_control):
        (first,), (other,) = killed(trial.trial).recoveries, killed(trial.trial, slower=3).recoveries
        known = (first, replace(other, fault="cut"))[: 1 + (number > 0)]
        shown.append(replace(trial, answer=TrialRecovery(trial=trial.trial, recoveries=known)))
    view = replace(view, trials=tuple(shown))
    assert view.compact
    variant = view.trials[0].variant
    text, markdown = page(view), run_markdown(view)
    assert f"<strong>{variant}</strong> after <code>dead</code>: 13 recoveries in 13 trials" in text
    assert f"<strong>{variant}</strong> after <code>cut</code>: 12 recoveries in 12 trials" in text
    for title in (
        f"{variant} after `dead`: 13 recoveries, mean 3.28 s",
        f"{variant} after `cut`: 12 recoveries, mean 9.84 s",
    ):
        assert f"**{title}**" in markdown
    for both in (text.replace("&nbsp;", " "), markdown):
        assert "1.72 s" in both
        assert "5.16 s" in both
        assert "3.44 s" not in both
    (dead, cut) = (line for line in first_things(view.trials, (), (), ()) if " went to " in line)
    assert dead.startswith(f"{variant} after `dead`: 1.72 s of 3.28 s on average")
    assert cut.startswith(f"{variant} after `cut`: 5.16 s of 9.84 s on average")
