"""Draw each recovery as its rounds: one bar per round on a common time axis, coloured by what was waited for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.recovery import UNATTRIBUTED, Price, Recovery, Round, Segment
from testbed_runtime.report import words
from testbed_runtime.report.answer import NOTABLE_S
from testbed_runtime.report.svg import Scale, Svg, bold_width
from testbed_runtime.report.timeline import Size

BAR = 32.0
CAPTION = 17.0
GAP = 9.0
LABEL_PADDING = 10.0
ROUNDS_MAX = 12
"""Maximum rounds of one recovery that are drawn. A restart loop can have hundreds."""


class Titled(Struct, frozen=True):
    """A recovery with its caption."""

    caption: str
    recovery: Recovery

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self.recovery.rounds[:ROUNDS_MAX]


def mean_of(caption: str, prices: Sequence[Price], unattributed_s: float) -> Titled:
    """Return the mean waits of many recoveries as one bar: the largest first, instead of in the order of time."""
    segments, now = [], 0
    for price in (*prices, Price(text=UNATTRIBUTED, seconds=unattributed_s, kind=UNATTRIBUTED)):
        end = now + round(price.seconds * 1e9)
        segments.append(
            Segment(
                kind=price.kind, phase="", start_ns=now, end_ns=end, option=price.option, value=price.value,
                text=price.text, detail=price.detail,
            )
        )  # fmt: skip
        now = end
    found = Round(number=1, start_ns=0, end_ns=now, segments=tuple(segments))
    return Titled(caption, Recovery(fault="", effect_ns=0, end_ns=now, rounds=(found,)))


def rounds_svg(
    found: Sequence[Titled], size: Size, *, key: str, axis: str = "seconds since the effect"
) -> str:
    """Draw the recoveries below each other, on one axis. Return an empty string without rounds, or if none took long enough to be drawn."""
    shown = [item for item in found if item.rounds and item.recovery.total_s >= NOTABLE_S]
    if not shown:
        return ""
    left, right = 10.0, size.width - size.right
    rows = sum(len(item.rounds) * (BAR + GAP) + CAPTION * (1 + _captioned(item)) for item in shown)
    height = rows + 46.0
    svg = Svg(size.width, height)
    longest = max((item.rounds[-1].end_ns - item.recovery.effect_ns) / 1e9 for item in shown)
    x = Scale(0.0, longest * 1.02, left, right)
    svg.time_axis(x, size.time_ticks, height - 36.0, axis)
    y = 2.0
    for item in shown:
        y = _recovery(svg, item, x, y, size)
    return svg.render(key, "Rounds of the recovery", describe(shown), css=size.name)


def _captioned(item: Titled) -> int:
    """Return the number of rounds with captions of their own: all of them, or none if there is only one."""
    return len(item.rounds) if len(item.rounds) > 1 else 0


def _recovery(svg: Svg, item: Titled, x: Scale, y: float, size: Size) -> float:
    """Draw a caption and the bars. Return the position below them."""
    svg.text(x.start, y + 12, fitting(item.caption, x.end - x.start, size.font), css="panel-title")
    y += CAPTION
    for number in item.rounds:
        if _captioned(item):
            text = fitting(round_title(number), x.end - x.start, size.font - 1)
            svg.text(x.start, y + 12, text, css="tick")
            y += CAPTION
        for segment in number.segments:
            _segment(svg, segment, item.recovery.effect_ns, x=x, y=y, size=size)
        y += BAR + GAP
    return y


def _segment(svg: Svg, segment: Segment, zero_ns: int, *, x: Scale, y: float, size: Size) -> None:
    left, right = (x((t - zero_ns) / 1e9) for t in (segment.start_ns, segment.end_ns))
    owner, took = segment.words or segment.kind, quantities.seconds(segment.seconds)
    svg.rect(left, y, max(right - left - 0.8, 0.8), BAR, css=f"k-{segment.kind}", title=f"{owner}: {took}")
    room, middle = right - left - LABEL_PADDING, (left + right) / 2
    short = f"{'.'.join(segment.option.split('.')[-2:])} = {segment.value}" if segment.option else ""
    small = size.font - 1
    first = next((t for t in (f"{took} {segment.kind}", took) if bold_width(t, size.font) < room), "")
    second = next((t for t in (segment.words, short) if t and bold_width(t, small) < room), "")
    if second and first:
        svg.text(middle, y + BAR - 6, second, css="on-p small", anchor="middle")
    if first:
        level = y + (13 if second else BAR / 2 + 4)
        svg.text(middle, level, first, css="on-p", anchor="middle")


def round_title(number: Round) -> str:
    """`round 2, 23.8 s, because of PartitionNotFoundException: …`."""
    cause = f", because of {number.cause_words}" if number.cause else ""
    end = {"open": ", not ended"}.get(number.ended_by, "")
    return f"round {number.number}, {quantities.seconds(number.seconds)}{end}{cause}"


def fitting(text: str, width: float, font: float) -> str:
    """Shorten a text to a width in pixels."""
    return words.shortened(text, max(int(width / (font * 0.56)), 8))


def describe(found: Sequence[Titled]) -> str:
    """Describe the bars in words, for screen readers."""

    def in_words(number: Round) -> str:
        waits = (f"{s.words or s.kind} {quantities.seconds(s.seconds)}" for s in number.segments)
        return f"round {number.number}: {', '.join(waits)}"

    return ". ".join(f"{item.caption}: {'; '.join(map(in_words, item.rounds))}" for item in found)
