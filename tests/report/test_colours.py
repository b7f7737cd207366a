"""Each kind of waits has a colour, which differs from others and on which text can be read."""

from __future__ import annotations

import re

import pytest

from testbed_runtime.core.judgement.recovery import UNATTRIBUTED
from testbed_runtime.core.waits import KINDS
from testbed_runtime.report import colours
from testbed_runtime.report.html import TEMPLATES

SHEET = (TEMPLATES / "style.css").read_text(encoding="utf-8")
SCHEMES = dict(zip(("light", "dark"), SHEET.split("@media (prefers-color-scheme: dark)", 1), strict=True))
LEAST_CONTRAST = 3.0
"""WCAG, for large or bold text."""


def declared(scheme: str) -> dict[str, str]:
    found: list[tuple[str, str]] = re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", SCHEMES[scheme])
    return dict(reversed(found))


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [*KINDS, UNATTRIBUTED])
def test_the_text_on_the_colour_of_each_kind_can_be_read(kind: str, scheme: str):
    """In the light and in the dark scheme. A kind without a colour would be black."""
    (text,) = re.findall(r"svg text\.on-p \{ fill: (#[0-9a-f]{6});", SHEET)
    assert f".k-{kind}" in re.findall(r"\.k-[a-z-]+", colours.style())
    lighter = luminance(declared(scheme)[colours.colour(kind)])
    assert (lighter + 0.05) / (luminance(text) + 0.05) >= LEAST_CONTRAST


def test_the_legend_has_each_colour_once_with_all_its_kinds():
    """Two entries of the same colour would not say which is which."""
    found = list(colours.legend(["slot", "fencing", "heartbeat", UNATTRIBUTED, "start"]))
    assert [(name, [kind for kind, _ in kinds]) for name, kinds in found] == [
        ("detect", ["heartbeat"]),
        ("slots", ["fencing", "slot"]),
        ("resource", ["start"]),
        (UNATTRIBUTED, [UNATTRIBUTED]),
    ]
    names = [name for name, _ in colours.legend(KINDS)]
    assert len(names) == len(set(names))
    assert dict(found)["slots"][0] == ("fencing", KINDS["fencing"].doc)
