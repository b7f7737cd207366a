"""Draw each recovery as a stacked bar of its phases, labelled with what bounded each of them."""

from __future__ import annotations

from collections.abc import Sequence

from testbed_runtime.report import words
from testbed_runtime.report.model import Recovery
from testbed_runtime.report.svg import Scale, Svg, text_width
from testbed_runtime.report.timeline import Size

BAR = 38.0
ROW_GAP = 27.0
LABEL_PADDING = 10.0


def phases_svg(recoveries: Sequence[Recovery], size: Size, *, key: str) -> str:
    """Draw one stacked bar per recovery over a common time axis. Return an empty string without recoveries."""
    shown = [r for r in recoveries if r.total > 0]
    if not shown:
        return ""
    left, right = 10.0, size.width - size.right
    height = len(shown) * (BAR + ROW_GAP) + 42.0
    svg = Svg(size.width, height)
    longest = max(r.total for r in shown)
    x = Scale(0.0, longest * 1.02, left, right)
    svg.time_axis(x, size.time_ticks, height - 36.0, "seconds since the fault took effect")
    for row, recovery in enumerate(shown):
        top = row * (BAR + ROW_GAP) + ROW_GAP - 4
        svg.text(left, top - 6, f"{recovery.trial}: {words.seconds(recovery.total)}", css="panel-title")
        _bar(svg, recovery, x, top, size)
    return svg.render(key, "Phases of the recovery", describe(shown), css=size.name)


def _bar(svg: Svg, recovery: Recovery, x: Scale, top: float, size: Size) -> None:
    start = 0.0
    for cost in recovery.costs:
        if not cost.seconds:
            continue
        left, right = x(start), x(start + cost.seconds)
        duration = f"{cost.title}: {words.seconds(cost.seconds)}"
        bound = f", bounded by {cost.bounded_by}" if cost.bounded_by else ""
        svg.rect(left, top, max(right - left - 1, 1.0), BAR, css=f"p-{cost.phase}", title=duration + bound)
        room = right - left - LABEL_PADDING
        under = cost.bounded_by if text_width(cost.bounded_by, size.font - 1) < room else ""
        if under:
            svg.text(
                (left + right) / 2, top + BAR - 8, under, css=f"on-p small on-{cost.phase}", anchor="middle"
            )
        for label in (f"{cost.title} {words.seconds(cost.seconds)}", cost.title):
            if text_width(label, size.font) < room:
                level = top + (16 if under else BAR / 2 + 4)
                svg.text((left + right) / 2, level, label, css=f"on-p on-{cost.phase}", anchor="middle")
                break
        start += cost.seconds


def describe(recoveries: Sequence[Recovery]) -> str:
    """Describe the bars in words, for screen readers."""
    return ". ".join(
        f"{r.trial}: "
        + ", ".join(
            f"{c.title} {words.seconds(c.seconds)}"
            + (f" (bounded by {c.bounded_by})" if c.bounded_by else "")
            for c in r.costs
            if c.seconds
        )
        for r in recoveries
    )
