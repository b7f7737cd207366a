"""The answer in a few lines: prices, margins, medians."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement.recovery import Margin, Price, Recovery, TrialRecovery
from testbed_runtime.report.answer import (
    VariantAnswer,
    answer_lines,
    headline,
    margin_words,
    savings,
    typical_prices,
)
from tests.manifests import trial_entry
from tests.report.recoveries import BACKOFF, killed, late_producer, recovery, segments, unfinished


def lines(*trials: TrialRecovery, **more: object) -> list[str]:
    entries = [trial_entry(trial=t.trial, **more) for t in trials]
    return answer_lines(entries, {t.trial: t for t in trials})


def test_the_line_names_the_price_of_each_option_largest_first():
    """The headline, then the owners of the seconds; what no wait covers is said."""
    first = lines(killed("main-1"))[0]
    assert first == (
        "main-1: down for 2.37 s after `dead`, caught up after 3.28 s: "
        "1.72 s heartbeat.interval × heartbeat.rpc-failure-threshold = 1 s × 2, 900 ms the backlog of the job, "
        "bounded by its spare capacity, 500 ms restart-strategy.fixed-delay.delay = 500 ms, "
        "100 ms execution.buffer-timeout.interval = 100 ms, 50.0 ms in 2 other waits, 10.0 ms unattributed"
    )


def test_the_line_tells_how_much_has_no_recorded_wait():
    """Seconds that only the events of the failover explain are attributed, and shown as a share of their own."""
    known = killed("main-1")
    found = replace(known, recoveries=(replace(known.recoveries[0], from_events_s=0.25),))
    assert lines(found)[0].endswith("10.0 ms unattributed, 250 ms of these inferred from events")
    many = [replace(found, trial=f"main-{n}") for n in range(4)]
    assert "250 ms of these inferred from events" in lines(*many)[0]


def test_a_wait_longer_than_its_guaranteed_limit_has_no_negative_margin():
    """A partition request expires after one to two timeouts from Flink 1.19 on: the limit is the least."""
    margin = Margin(option=BACKOFF, value="10 s", kind="partition", budget_s=20.0, waited_s=25.0)
    assert margin.left_s == 0.0
    text = "waited 25.0 s, 5.00 s longer than the 20.0 s that are guaranteed: such a wait may also expire"
    assert margin_words(margin) == f"{BACKOFF} = 10 s: {text}"


def test_a_wait_that_ended_just_before_its_limit_does_not_read_as_the_limit():
    """The digits tell the two apart."""
    margin = Margin(option=BACKOFF, value="10 s", kind="partition", budget_s=22.7, waited_s=22.694)
    assert margin_words(margin) == f"{BACKOFF} = 10 s: waited 22.69 s of 22.70 s, 6.00 ms left"


def test_a_wait_that_came_close_to_its_limit_gets_a_line():
    """22.0 s of 22.7 s is close, 200 ms of 10 s is not."""
    assert lines(killed("main-1"))[1:] == [
        f"main-1: close to its limit: {BACKOFF} = 10 s: waited 22.0 s of 22.7 s, 700 ms left"
    ]


def test_repeated_rounds_are_counted():
    """Three deployments spent the same budget."""
    first = lines(late_producer("main-1"))[0]
    assert (
        "4 rounds: 68.1 s taskmanager.network.request-backoff.max = 10 s (3 times), 10.0 s replaceLost"
        in first
    )


def test_a_recovery_that_did_not_end_says_so():
    """The seconds are those until the end of the record."""
    assert "not recovered after 3.28 s" in lines(unfinished(killed("main-1")))[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "down for 2.37 s again after `dead`, caught up after 3.28 s"),
        ({"reason": "JobFailed", "recovered": False}, "the job failed again 3.28 s after `dead`"),
        ({"reason": "JobFailed", "recovered": False, "end_ns": 0}, "the job failed again after `dead`"),
    ],
)
def test_a_fault_that_lasts_may_cost_several_outages(changes: dict[str, object], text: str):
    """The job had recovered from it before, so it did not fail at once."""
    (known,) = killed("main-1").recoveries
    end_ns = known.effect_ns if "end_ns" in changes else known.end_ns
    rounds = tuple(replace(r, failure="") for r in known.rounds)
    assert headline(replace(known, **{**changes, "end_ns": end_ns}, rounds=rounds, again=True)) == text


@pytest.mark.parametrize(
    ("again", "text"), [((False, True), " after `dead`"), ((True, True), " again after `dead`")]
)
def test_a_mean_over_outages_that_came_again_says_so(again: tuple[bool, bool], text: str):
    """Each of them: the mean of the first outage and a later one is also that of the first."""
    (known,) = killed("main-1").recoveries
    trials = (TrialRecovery(trial="t", recoveries=(replace(known, again=a),)) for a in again)
    assert VariantAnswer("main", tuple(trials), "dead").after == text


@pytest.mark.parametrize(
    ("fault", "total_s", "text"),
    [
        ("dead", 0.0, "the job failed after `dead`"),
        ("dead", 4.0, "the job failed 4.00 s after `dead`, 2 rounds"),
        ("", 0.0, "the job failed"),
        ("", 4.0, "the job failed 4.00 s after its first failure, 2 rounds"),
    ],
)
def test_a_job_that_failed_for_good_is_no_outage_that_goes_on(fault: str, total_s: float, text: str):
    """It is said how soon it failed, not for how long nothing more was seen."""
    (known,) = late_producer("main-1").recoveries
    end_ns = known.effect_ns + round(total_s * 1e9)
    failed = replace(
        known, fault=fault, recovered=False, reason="JobFailed", ended="FAILED", downtime_s=None,
        end_ns=end_ns, rounds=tuple(replace(r, failure="") for r in known.rounds[:2]),
    )  # fmt: skip
    assert headline(failed) == text
    start = replace(failed, fault="")
    (line, *_) = lines(TrialRecovery(trial="main-1", start=start, recoveries=()))
    since = "4.00 s after its submission, 2 rounds" if total_s else "at once after its submission"
    assert line.startswith(f"main-1: the job failed {since}: ")


def test_recoveries_from_one_fault_that_are_too_short_to_be_mentioned_are_one_line():
    """A job that fails again and again may run again after 350 µs each time."""
    (known,) = killed("main-1").recoveries
    short = [
        replace(
            known,
            end_ns=known.effect_ns + us * 1000,
            downtime_s=us / 1e6,
            prices=(),
            margins=(),
            rounds=(),
            unattributed_s=0.0,
        )
        for us in (350, 420, 380)
    ]
    other = replace(short[0], fault="other")
    found = lines(TrialRecovery(trial="main-1", recoveries=(short[0], known, *short[1:], other)))
    assert [line.partition(":")[2] for line in found if "caught up after" in line and " µs" in line] == [
        " down for 420 µs after `dead`, caught up after 420 µs, the longest of 3 recoveries that took less than 1.00 ms",
        " down for 350 µs after `other`, caught up after 350 µs",
    ]
    assert any(headline(known) in line for line in found)


def test_an_outage_without_a_fault_names_its_failure():
    """A function that raises restarts the job, and no fault is behind it."""
    (known,) = killed("main-1").recoveries
    first = replace(known.rounds[0], cause_class="ValueError")
    own = replace(known, fault="", rounds=(first, *known.rounds[1:]))
    assert headline(own) == headline(known).replace("after `dead`,", "after ValueError,", 1)
    assert " after ValueError, caught up after " in headline(own)


def test_a_job_that_failed_at_once_says_why():
    """No wait explains it. One sentence of Flink's text is enough on this line."""
    (known,) = late_producer("main-1").recoveries
    text = "Insufficient number of network buffers: required 2, but only 0 available. The total number is 92."
    failed = replace(
        known, fault="", recovered=False, reason="JobFailed", ended="FAILED", downtime_s=None,
        end_ns=known.effect_ns, rounds=(replace(known.rounds[0], failure=text),),
    )  # fmt: skip
    assert headline(failed) == (
        "the job failed: Insufficient number of network buffers: required 2, but only 0 available"
    )
    later = replace(failed, end_ns=known.effect_ns + 4_000_000_000)
    assert headline(later) == "the job failed 4.00 s after its first failure"


def test_an_outage_that_the_end_of_the_job_cut_off_says_how_it_ended():
    """A job that was canceled has not failed."""
    (known,) = unfinished(killed("main-1")).recoveries
    assert headline(replace(known, ended="CANCELED")).endswith(
        "not recovered after 3.28 s, when the job was canceled"
    )


def test_many_trials_become_one_line_of_their_variant():
    """The median with its range; the prices are means, so they add up to the mean of the totals."""
    trials = [killed(f"main-{n}", slower=1 + n / 9) for n in range(1, 6)]
    (first, *_) = lines(*trials)
    assert first.startswith(
        "main: 5 trials: down for 3.16 s (median; 2.63 s to 3.69 s); on average: 2.29 s heartbeat"
    )
    recoveries = [t.recoveries[0] for t in trials]
    total = sum(p.seconds for p in typical_prices(recoveries)) + sum(r.unattributed_s for r in recoveries) / 5
    assert abs(total - sum(r.total_s for r in recoveries) / 5) < 1e-6


def test_many_trials_with_several_faults_have_one_line_for_each_fault():
    """The mean over recoveries from different faults is the price of neither. A trial that did not fail does not count."""

    def both(name: str, *, second: bool) -> TrialRecovery:
        (first,) = killed(name).recoveries
        (other,) = killed(name, slower=3).recoveries
        return TrialRecovery(trial=name, recoveries=(first, replace(other, fault="cut"))[: 1 + second])

    found = lines(*(both(f"main-{n}", second=n != 4) for n in range(1, 5)))
    assert [line.partition(" heartbeat")[0] for line in found if " trials " in line] == [
        "main: 4 trials after `dead`: down for 2.37 s (median; 2.37 s to 2.37 s); on average: 1.72 s",
        "main: 3 of 4 trials after `cut`: down for 7.11 s (median; 7.11 s to 7.11 s); on average: 5.16 s",
    ]
    assert not any("without a fault" in line for line in found)


def test_many_trials_without_a_downtime_had_an_outage():
    """A latency moves no task. Without the word, the line said only in how many trials something happened."""
    trials = [killed(f"main-{n}") for n in range(1, 6)]
    quiet = [replace(t, recoveries=(replace(t.recoveries[0], downtime_s=None),)) for t in trials]
    assert lines(*quiet)[0].startswith("main: 5 trials: outage; on average: ")


def test_an_option_whose_seconds_cannot_all_be_saved_says_what_follows():
    """A restart delay of 500 ms twice, of which 200 ms and all of it can be saved."""
    key = "restart-strategy.fixed-delay.delay"
    known = killed("main-1")
    (recovery,) = known.recoveries
    (round_,) = recovery.rounds
    changed = [
        replace(s, slack_ns=200_000_000, next="a TaskManager to register") if s.option == key else s
        for s in round_.segments
    ]
    again = replace(round_, segments=tuple(s for s in round_.segments if s.option == key))
    found = replace(recovery, rounds=(replace(round_, segments=tuple(changed)), again))
    line = f"{key} = 500 ms: a lower value saves at most 700 ms, then the job waits for a TaskManager to register"
    assert list(savings(found)) == [line]
    assert f"main-1: {line}" in lines(replace(known, recoveries=(found,)))
    assert list(savings(recovery)) == []
    nearly = [replace(s, slack_ns=460_000_000, next="x") if s.option == key else s for s in round_.segments]
    assert list(savings(replace(recovery, rounds=(replace(round_, segments=tuple(nearly)),)))) == []


def test_the_means_of_many_trials_have_intervals():
    """Eight waits of 1.72 s × (1 + n/8) have the mean 2.69 s and the standard deviation 0.53 s; Student's t gives ± 2.36 × 0.53 / √8."""
    trials = [killed(f"main-{n}", slower=1 + n / 8) for n in range(1, 9)]
    assert "on average: 2.69 [2.25, 3.13] s heartbeat" in lines(*trials)[0]
    found = VariantAnswer("main", tuple(trials))
    total = found.recoveries[0].total_s / (1 + 1 / 8)
    ends = [float(text) for text in found.total_interval.partition("[")[2].removesuffix("] s").split(", ")]
    assert ends == pytest.approx([total * 2.25 / 1.72, total * 3.128 / 1.72], rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda trials: trials[:5],
        lambda trials: [killed(t.trial) for t in trials],
        lambda trials: [unfinished(trials[0]), *trials[1:]],
        lambda trials: [replace(trials[0], recoveries=trials[0].recoveries * 2), *trials[1:]],
    ],
    ids=["too few trials", "they agree", "one did not recover", "one has two recoveries"],
)
def test_a_mean_without_a_valid_interval_has_none(change):
    """The seconds of an outage that did not end are a lower bound, and a mean over recoveries is not one over trials if their numbers differ."""
    trials = change([killed(f"main-{n}", slower=1 + n / 8) for n in range(8)])
    found = VariantAnswer("main", tuple(trials))
    assert (found.intervals, found.total_interval) == ({}, "")
    assert "[" not in lines(*trials)[0]


def test_backlogs_of_many_trials_are_one_owner():
    """Each trial has a backlog of its own length, but the seconds belong to the same spare capacity: (0.1 + 0.3) / 2 = 0.2 s."""
    spare = [
        Price(text="spare capacity of the job", detail=f"backlog of {n} s", seconds=n / 10, kind="catch-up")
        for n in (1, 3)
    ]
    bare = Recovery(fault="dead", effect_ns=0, end_ns=1, rounds=(), prices=())
    (price,) = typical_prices([replace(bare, prices=(p,)) for p in spare])
    assert (price.text, price.seconds) == ("spare capacity of the job", pytest.approx(0.2))


def test_a_delay_that_grows_is_one_owner_over_all_recoveries():
    """The share of its option is that of all restarts, not that of those with the same delay."""
    key = "restart-strategy.exponential-delay.initial-backoff"

    def delayed(value: str, seconds: float) -> Recovery:
        return recovery(segments(0, ("restart-delay", seconds, f"{key} = {value}", "fired")))

    grown = [delayed("1 s", 1), delayed("1 s, now 2 s", 2), delayed("1 s, now 9 s", 9)]
    (mean,) = typical_prices(grown)
    assert (mean.text, mean.seconds) == (f"{key} = 1 s, now up to 9 s", 4.0)
    assert mean.count == 1, "no number of waits is that of all recoveries"
    assert [p.text for p in typical_prices(grown[1:2])] == [f"{key} = 1 s, now 2 s"]


def test_control_and_void_trials_have_no_answer():
    """Their seconds belong to no fault."""
    assert lines(killed("main-1"), role="control") == []
    assert lines(killed("main-1"), voided=True) == []


def test_a_slow_first_start_is_an_answer_if_there_was_no_failover():
    """The producer was late before any failure."""
    waiting = segments(0.0, ("partition", 22.0, "", "completed"))
    start = Recovery(fault="", effect_ns=0, end_ns=22_000_000_000, rounds=(), prices=())
    assert waiting[0].seconds == 22.0
    assert lines(TrialRecovery(trial="main-1", start=start)) == ["main-1: started after 22.0 s"]


def test_a_start_within_a_recovery_is_not_listed_twice():
    """A fault from before the submission: its recovery contains the first start."""
    known = late_producer("main-1", at_s=0.0)
    (found,) = known.recoveries
    start = Recovery(fault="", effect_ns=0, end_ns=found.end_ns - 1, rounds=found.rounds)
    both = TrialRecovery(trial="main-1", start=start, recoveries=known.recoveries)
    assert lines(both) == lines(known)


@pytest.mark.parametrize(("waited_s", "exceeded"), [(22.7, False), (22.7000001, False), (22.702, True)])
def test_a_wait_that_spent_its_budget_did_not_exceed_it(waited_s: float, exceeded: bool):
    """Nanoseconds beyond 22.7 s are rounding: up to 1.18 the budget is exact."""
    margin = Margin(option=BACKOFF, value="10 s", kind="partition", budget_s=22.7, waited_s=waited_s)
    assert margin.exceeded is exceeded


def test_a_fault_that_held_nothing_up_is_no_outage_and_halves_no_mean():
    """Its recovery has no length: the line says so, and the seconds of the others are not shared with it."""
    found = killed("main-1")
    nothing = Recovery(fault="late", effect_ns=5, end_ns=5)
    both = replace(found, recoveries=(nothing, *found.recoveries))
    assert lines(both)[0] == "main-1: no outage after `late`"
    assert lines(both)[1] == lines(found)[0]
    many = [replace(both, trial=f"main-{n}") for n in range(4)]
    assert lines(*many) == lines(*(replace(found, trial=t.trial) for t in many))
    assert lines(*(replace(t, recoveries=(nothing,)) for t in many)) == ["main: 4 trials: no outage"]
