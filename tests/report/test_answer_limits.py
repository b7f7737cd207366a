"""The answer of a run: how much is worth a word, and what is left out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.core.judgement.recovery import Margin, Price, Recovery, Segment, TrialRecovery
from testbed_runtime.report.answer import (
    VariantAnswer,
    answer_lines,
    close_margins,
    cost_words,
    costly,
    headline,
    savings,
)
from tests.manifests import trial_entry
from tests.report.recoveries import BACKOFF, killed, late_producer, segments, unfinished
from tests.report.test_answer import lines


def price(seconds: float, text: str = "a", **more: object) -> Price:
    return Price(text=text, seconds=seconds, kind="heartbeat", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "shown"), [(0.001, True), (0.00099, False), (0.0, False)])
def test_less_than_a_millisecond_costs_no_word(seconds: float, shown: bool):
    """Seconds of an owner, of the others together, without a wait, and from events."""
    four = [price(0.1, owner) for owner in "abcd"]
    for prices, unattributed, events in (
        ([price(seconds)], 0.0, 0.0),
        ([*four, price(seconds, "e")], 0.0, 0.0),
        ([], seconds, 0.0),
        ([], 0.0, seconds),
    ):
        words = list(cost_words(prices, unattributed, events))
        assert len(words) - (4 if len(prices) > 1 else 0) == shown
    assert list(cost_words([price(seconds)], 0.0)) == (["1.00 ms a"] if shown else [])


@pytest.mark.parametrize(("seconds", "shown"), [(0.0049, False), (0.0051, True)])
def test_a_small_share_of_a_long_recovery_costs_no_word(seconds: float, *, shown: bool):
    """Two processes notice the same loss 1 ms apart: of 10 s, that is less than the last digit."""
    for prices, unattributed, events in (
        ([price(10 - seconds), price(seconds, "b")], 0.0, 0.0),
        ([price(10 - seconds)], seconds, 0.0),
        ([price(10.0)], 0.0, seconds),
    ):
        assert (len(list(cost_words(prices, unattributed, events))) == 2) is shown


def test_seconds_without_a_wait_are_part_of_the_recovery_of_which_a_share_counts():
    """With 1 s that has owners and 9 s without, 4 ms are less than the last digit of 10.0 s."""
    assert list(cost_words([price(0.996), price(0.004, "b")], 9.0)) == ["996 ms a", "9.00 s unattributed"]


@pytest.mark.parametrize("total_s", [0.001, 0.5, 1.0])
def test_a_short_outage_counts_for_means(total_s: float):
    """Only a recovery without any length is left out."""
    short, idle = (
        Recovery(fault="a", effect_ns=0, end_ns=round(total_s * 1e9)),
        Recovery(fault="b", effect_ns=5, end_ns=5),
    )
    assert costly([short, idle]) == (short,)
    assert costly([idle]) == (idle,)
    open_end = replace(idle, recovered=False)
    assert costly([idle, open_end]) == (open_end,)


def test_four_owners_are_named_and_the_others_are_summed_up():
    """The fifth and the sixth together."""
    six = [price(7.0 - n, f"owner {n}") for n in range(1, 7)]
    assert list(cost_words(six, 0.0)) == [
        "6.00 s owner 1", "5.00 s owner 2", "4.00 s owner 3", "3.00 s owner 4", "3.00 s in 2 other waits",
    ]  # fmt: skip


def test_owners_with_less_than_three_hundredths_are_summed_up_unless_there_is_only_one():
    """Several waits of some milliseconds each would make the line twice as long."""
    large = [price(1.0, "a"), price(0.97, "b")]
    assert list(cost_words([*large, price(0.0199, "c"), price(0.0101, "d")], 0.0)) == [
        "1.00 s a", "970 ms b", "30.0 ms in 2 other waits",
    ]  # fmt: skip
    assert list(cost_words([*large, price(0.03, "c")], 0.0))[2:] == ["30.0 ms c"]
    three_hundredths = [price(0.97), price(0.03, "b"), price(0.0, "c")]
    assert list(cost_words(three_hundredths, 0.0)) == ["970 ms a", "30.0 ms b"]


@pytest.mark.parametrize(("count", "words"), [(1, "1.00 s a"), (2, "1.00 s a (2 times)")])
def test_waits_are_counted_from_the_second_one_on(count: int, words: str):
    """One wait needs no number."""
    assert list(cost_words([price(1.0, count=count)], 0.0)) == [words]


def test_the_waits_for_a_busy_component_are_not_counted():
    """Five waits for messages of 40 ms each can last 1.8 s: "40 ms (5 times)" would not add up."""
    busy = "headgate.jobmanager.service-time = 40 ms"
    assert list(cost_words([price(1.8, busy, count=5)], 0.0)) == [f"1.80 s {busy}"]
    assert price(1.8, busy, count=5).waits is None, "nor in the table of the page"


def margin(waited_s: float, budget_s: float = 10.0, option: str = "o") -> Margin:
    return Margin(option=option, value="v", kind="partition", budget_s=budget_s, waited_s=waited_s)


def with_margins(*margins: Margin, cost: str = "") -> Recovery:
    """A recovery with these margins, of which this option cost a second."""
    prices = (price(1.0, option=cost),)
    return Recovery(fault="f", effect_ns=0, end_ns=10**9, prices=prices, margins=margins)


def test_a_margin_is_close_when_more_than_half_of_the_budget_is_used():
    """The two closest are named. A wait without a budget cannot be close."""
    assert close_margins(with_margins(margin(5.0), margin(1.0, 0.0, "n"), margin(4.0, 10.0, "p"))) == ()
    assert close_margins(with_margins(margin(5.001), cost="p")) == (margin(5.001),)
    many = margin(6.0), margin(9.0, 10.0, "p"), margin(8.0, 10.0, "q"), margin(18.0, 20.0, "r")
    assert close_margins(with_margins(*many)) == (margin(9.0, 10.0, "p"), margin(18.0, 20.0, "r"))


def test_an_option_that_expired_did_not_come_close_to_its_limit():
    """One of many asks expired after 10 s, and another one completed just before. In another trial, all completed."""
    expired = with_margins(margin(9.9), margin(8.0, 10.0, "p"), cost="o")
    assert close_margins(expired) == (margin(8.0, 10.0, "p"),)
    completed = with_margins(margin(7.0))
    trials = [TrialRecovery(trial=f"main-{n}", recoveries=(r,)) for n, r in enumerate((expired, completed))]
    both = VariantAnswer("main", tuple(trials))
    assert close_margins(both) == (margin(8.0, 10.0, "p"), margin(7.0))
    assert both.margins == (margin(9.9), margin(8.0, 10.0, "p"))


@pytest.mark.parametrize(("trials", "separate"), [(1, True), (3, True), (4, False)])
def test_up_to_three_trials_of_a_variant_are_listed_one_by_one(trials: int, separate: bool):
    """With more, one line has the means."""
    found = lines(*(killed(f"main-{n}") for n in range(trials)))
    assert [line.partition(":")[0] for line in found if "close" not in line] == (
        [f"main-{n}" for n in range(trials)] if separate else ["main"]
    )


def started(total_s: float, rounds: int = 1, *, recovered: bool = True) -> Recovery:
    (known,) = late_producer("main-1").recoveries
    return replace(
        known, fault="", recovered=recovered, reason="", ended="",
        end_ns=known.effect_ns + round(total_s * 1e9), rounds=known.rounds[:rounds],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "begin"),
    [
        (started(0.999), None),
        (started(1.0), "main-1: started after 1.00 s: "),
        (started(0.5, 2), "main-1: started after 500 ms in 2 rounds: "),
        (started(0.5, recovered=False), "main-1: not started after 500 ms: "),
        (started(0.5, 2, recovered=False), "main-1: not started after 500 ms in 2 rounds: "),
    ],
)
def test_a_first_start_is_worth_a_line_if_it_took_a_second_or_failed(start: Recovery, begin: str | None):
    """A second round means a failure."""
    found = lines(TrialRecovery(trial="main-1", start=start, recoveries=()))
    assert [line.startswith(begin or "-") for line in found[:1]] == ([] if begin is None else [True])


def test_a_slow_start_is_no_line_of_its_own_if_a_failover_followed():
    """Only a start that failed first is one."""
    known = killed("main-1")
    early = replace(started(5.0), effect_ns=0, end_ns=5 * 10**9)
    assert len(lines(replace(known, start=early))) == len(lines(known))
    failed = replace(started(5.0, 2), effect_ns=0, end_ns=5 * 10**9)
    assert len(lines(replace(known, start=failed))) > len(lines(known))


@pytest.mark.parametrize(("end_ns", "covered"), [(-1, False), (0, True), (10, True), (11, False)])
def test_a_start_that_ends_within_a_recovery_belongs_to_it(end_ns: int, covered: bool):
    """The moment of the effect and the end of the recovery are part of it."""
    (known,) = killed("main-1").recoveries
    start = replace(started(1.0), effect_ns=-5, end_ns=end_ns)
    trial = TrialRecovery(trial="main-1", start=start, recoveries=(replace(known, effect_ns=0, end_ns=10),))
    assert (trial.own_start is None) is covered


@pytest.mark.parametrize(
    ("total_s", "text"),
    [(0.001, "the job failed 1.00 ms after `dead`"), (0.0009, "the job failed after `dead`")],
)
def test_a_job_that_failed_within_a_millisecond_failed_after_its_fault(total_s: float, text: str):
    """Longer is said. The fault may have lasted for some time before its first effect, so it is not said that the job failed at once."""
    failed = replace(started(total_s), recovered=False, reason="JobFailed", fault="dead", rounds=())
    assert headline(failed) == text


@pytest.mark.parametrize(
    ("slack_s", "saved"),
    [(0.0, " nothing: the job then"), (0.95, " at most 950 ms, then the job"), (0.96, ""), (1.0, "")],
)
def test_a_saving_has_a_line_if_fifty_milliseconds_must_remain(slack_s: float, saved: str):
    """An option has one second, of which a lower value saves at most the slack."""
    (known,) = killed("main-1").recoveries
    (part,) = segments(0.0, ("restart-delay", 1.0, "restart-strategy.fixed-delay.delay = 1 s", "fired"))
    part = replace(part, slack_ns=round(slack_s * 1e9), next="the slots")
    found = list(savings(replace(known, rounds=(replace(known.rounds[0], segments=(part,)),))))
    assert len(found) == bool(saved)
    if found:
        assert found[0].endswith(f"a lower value saves{saved} waits for the slots")


def test_a_lower_value_may_save_more_than_the_waits_of_its_option():
    """Other waits are saved too. Two parts of 1 s each."""
    (known,) = killed("main-1").recoveries
    own = ("restart-delay", 1.0, "restart-strategy.fixed-delay.delay = 1 s", "fired")
    first, second = segments(0.0, own, own)
    second = replace(second, slack_ns=3_200_000_000, more="restarts fewer times")
    found = list(savings(replace(known, rounds=(replace(known.rounds[0], segments=(first, second)),))))
    text = "a lower value saves at most 4.20 s, more than these 2.00 s: the job then restarts fewer times"
    assert [line.partition(": ")[2] for line in found] == [text]


@pytest.mark.parametrize(("total_s", "lines"), [(33, 1), (34, 0)])
def test_an_option_with_a_small_share_of_the_recovery_has_no_line(total_s: float, lines: int):
    """Its second cannot be saved, and three percent of the recovery are named."""
    (known,) = killed("main-1").recoveries
    (part,) = segments(0.0, ("restart-delay", 1.0, "restart-strategy.fixed-delay.delay = 1 s", "fired"))
    part = replace(part, slack_ns=0, next="the slots")
    known = replace(known, end_ns=known.effect_ns + round(total_s * 1e9))
    found = savings(replace(known, rounds=(replace(known.rounds[0], segments=(part,)),)))
    assert len(list(found)) == lines


def expired(kind: str, seconds: float, enough_s: float, slack_s: float = -1e-9) -> Segment:
    """A wait with a budget of 5.15 s that expired, and how long it would have had to last."""
    (part,) = segments(0.0, (kind, seconds, f"{BACKOFF} = 2 s", "expired"))
    enough, budget = (round(enough_s * 1e9), 5_150_000_000) if enough_s > 0 else (-1, -1)
    return replace(part, enough_ns=enough, budget_ns=budget, slack_ns=round(slack_s * 1e9), next="the slots")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            [expired("partition", 5.15, 15.0)],
            "15 s, instead of 5.15 s, would have avoided this failover, but would notice a real loss 9.85 s later",
        ),
        (
            [expired("partition", 5.15, 15.01)],
            "15.1 s, instead of 5.15 s, would have avoided this failover, but would notice a real loss 9.95 s later",
        ),
        (
            [expired("partition", 5.15, 648.0)],
            "648 s, instead of 5.15 s, would have avoided this failover, but would notice a real loss 643 s later",
        ),
        (
            [
                expired("partition", 5.15, 7.25),
                expired("partition", 5.15, 9.0),
                expired("partition", 5.15, 0),
            ],
            "9 s, instead of 5.15 s, would have avoided these 2 failovers, but would notice a real loss 3.85 s later",
        ),
        ([expired("partition", 5.15, 0)], ""),
    ],
)
def test_a_wait_that_expired_too_early_says_what_would_have_been_enough(parts: list[Segment], said: str):
    """Rounded up, so that it is enough. Without an end in the history nothing is said."""
    (known,) = killed("main-1").recoveries
    found = list(savings(replace(known, rounds=(replace(known.rounds[0], segments=tuple(parts)),))))
    assert found == ([f"{BACKOFF} = 2 s: a limit above {said}"] if said else [])


def test_a_limit_that_is_not_the_value_of_its_option_names_a_value():
    """The requests with a maximum backoff of 2 s last 5.15 s."""
    (known,) = killed("main-1").recoveries
    part = replace(expired("partition", 5.15, 8.2), enough_value="4100 ms")
    (found,) = savings(replace(known, rounds=(replace(known.rounds[0], segments=(part,)),)))
    assert found.endswith(
        "a limit above 8.2 s, instead of 5.15 s, would have avoided this failover (set it to 4100 ms or more), "
        "but would notice a real loss 3.05 s later"
    )


def test_a_pause_says_which_limit_expired_in_it():
    """The seconds belong to the pause, which no option limits; the failover belongs to the heartbeats that were missing."""
    (known,) = killed("main-1").recoveries
    pause = replace(expired("jobmanager", 8, 8.5), option="", value="", expired="heartbeat.timeout = 5 s")
    found = list(savings(replace(known, rounds=(replace(known.rounds[0], segments=(pause,)),))))
    assert found == ["heartbeat.timeout = 5 s: a limit above 8.5 s, instead of 5.15 s, would have avoided this failover, but would notice a real loss 3.35 s later"]  # fmt: skip


@pytest.mark.parametrize(("kind", "lines_of"), [("partition", 0), ("heartbeat", 1), ("cancellation", 1)])
def test_a_lower_value_of_what_expired_too_early_is_not_said_to_save_anything(kind: str, lines_of: int):
    """A lost TaskManager is noticed sooner with a lower timeout; what a partition request waited for came no sooner."""
    (known,) = killed("main-1").recoveries
    part = expired(kind, 5.15, 0, slack_s=1.0)
    assert part.gave_up is (lines_of == 0)
    found = list(savings(replace(known, rounds=(replace(known.rounds[0], segments=(part,)),))))
    assert len(found) == lines_of
    assert not replace(part, outcome="fired").gave_up
    failed = replace(known, recovered=False, rounds=(replace(known.rounds[0], segments=(part,)),))
    assert len(list(savings(failed))) == lines_of, "the job runs, and has not caught up yet"
    assert list(savings(replace(failed, downtime_s=None))) == [], (
        "it would only have failed earlier, or more often"
    )


def test_recoveries_that_did_not_end_are_counted_in_the_line_of_a_variant():
    """One of four did not; without any, nothing is said."""
    known = [killed(f"main-{n}") for n in range(4)]
    assert "did not end" not in lines(*known)[0]
    assert ", 1 of 4 recoveries did not end; on average" in lines(*known[:3], unfinished(known[3]))[0]


@pytest.mark.parametrize(
    ("total_s", "recovered", "had"), [(3.0, True, True), (0.0, True, False), (0.0, False, True)]
)
def test_a_variant_had_an_outage_if_one_of_its_recoveries_lasted_or_did_not_end(
    total_s: float, recovered: bool, had: bool
):
    """Otherwise the page says that no recovery was needed."""
    trial = TrialRecovery(trial="main-1", recoveries=(started(total_s, recovered=recovered),))
    assert VariantAnswer("main", (trial,)).had_outage is had


def test_a_variant_without_a_recovery_has_no_line():
    """Nothing was disturbed in any of its trials."""
    quiet = [TrialRecovery(trial=f"main-{n}", start=None, recoveries=()) for n in range(4)]
    entries = [trial_entry(trial=t.trial) for t in quiet]
    assert answer_lines(entries, {t.trial: t for t in quiet}) == []


@pytest.mark.parametrize(("seconds", "owners"), [(0.001, {"large", "small"}), (0.0009, {"large"})])
def test_only_owners_that_are_named_get_an_interval(seconds: float, owners: set[str]):
    """A mean below a millisecond has no line."""
    trials = []
    for number, factor in enumerate((0.5, 1.5) * 4):
        (known,) = killed(f"main-{number}").recoveries
        both = (price(factor, "large"), price(seconds * factor, "small"))
        trials.append(TrialRecovery(trial=f"main-{number}", recoveries=(replace(known, prices=both),)))
    assert set(VariantAnswer("main", tuple(trials)).intervals) == owners


def test_two_components_that_give_up_the_same_taskmanager_are_one_failover():
    """The ResourceManager and a millisecond later the JobMaster: one failover, which the longer limit would have avoided."""
    (known,) = killed("main-1").recoveries
    first = replace(expired("heartbeat", 5.15, 9.0), who="ResourceManager", what="tm-0-1")
    second = replace(first, who="JobMaster", start_ns=first.end_ns, end_ns=first.end_ns + 1_000_000)
    (said,) = savings(replace(known, rounds=(replace(known.rounds[0], segments=(first, second)),)))
    assert "would have avoided this failover" in said


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("tm-0-1", "ResourceManager"), ("tm-0-1", "JobMaster"), "this failover"),
        (("JobMaster", "tm-0-1"), ("tm-0-1", "ResourceManager"), "this failover"),
        (("tm-0-1", "ResourceManager"), ("JobMaster", "tm-1-1"), "these 2 failovers"),
        (("JobMaster", "tm-0-1"), ("JobMaster", "tm-1-1"), "these 2 failovers"),
        (("tm-0-1", "JobMaster"), ("tm-0-1", "JobMaster"), "these 2 failovers"),
    ],
)
def test_the_loss_of_a_taskmanager_is_one_failover_for_both_sides(
    first: tuple[str, str], second: tuple[str, str], said: str
):
    """It misses the ResourceManager's heartbeats, and a millisecond later the JobMaster's. Another TaskManager, or a second loss, is
    another failover."""
    (known,) = killed("main-1").recoveries
    before = replace(expired("heartbeat", 5.15, 9.0), who=first[0], what=first[1])
    start, end = before.end_ns, before.end_ns + 1_000_000
    after = replace(before, who=second[0], what=second[1], start_ns=start, end_ns=end)
    (line,) = savings(replace(known, rounds=(replace(known.rounds[0], segments=(before, after)),)))
    assert f"would have avoided {said}, " in line


def test_a_saving_names_what_keeps_most_of_the_seconds():
    """If an option has several waits, the limit of the first one may matter least."""
    (known,) = killed("main-1").recoveries
    delays = [("restart-delay", seconds, "restart-strategy.fixed-delay.delay = 1 s", "fired") for seconds in (0.5, 4.0)]  # fmt: skip
    short, long = segments(0.0, *delays)
    parts = replace(short, slack_ns=0, next="a slow store"), replace(long, slack_ns=10**9, next="a cut")
    (line,) = savings(replace(known, rounds=(replace(known.rounds[0], segments=parts),)))
    assert line.endswith("saves at most 1.00 s, then the job waits for a cut")
