"""Each kind of waits has a colour, which differs from others and on which text can be read."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import pytest

from testbed_runtime.core.judgement.recovery import UNATTRIBUTED
from testbed_runtime.core.waits import KINDS
from testbed_runtime.report import colours
from testbed_runtime.report.html import TEMPLATES

SHEET = (TEMPLATES / "style.css").read_text(encoding="utf-8")
SCHEMES = dict(
    zip(("light", "dark"), SHEET.split("@media screen and (prefers-color-scheme: dark)", 1), strict=True)
)
LEAST_CONTRAST = 4.5
"""WCAG AA, for small text."""
LEAST_DIFFERENCE = 15.0
"""In CIELAB. Neighbours in a bar look different from about 10 on."""
VISIONS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}  # fmt: skip
"""Matrices of Machado, Oliveira and Fernandes (2009), on linear RGB."""
XYZ = ((0.4125, 0.3576, 0.1804), (0.2127, 0.7152, 0.0722), (0.0193, 0.1192, 0.9503))
WHITE = (0.9505, 1.0, 1.0888)


def declared(scheme: str) -> dict[str, str]:
    found: list[tuple[str, str]] = re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", SCHEMES[scheme])
    return dict(reversed(found))


def linear(colour: str) -> list[float]:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    seen = [min(1.0, max(0.0, part)) for part in times(VISIONS[vision], linear(colour))]
    ratios = (part / white for part, white in zip(times(XYZ, seen), WHITE, strict=True))
    x, y, z = (r ** (1 / 3) if r > 0.008856 else 7.787 * r + 16 / 116 for r in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_colour_blind_reader_can_tell_the_kinds_of_waits_apart(scheme: str, vision: str):
    """A narrow part of a bar has no room for its label, so only its colour says what it is."""
    palette = {name: declared(scheme)[name] for name, _ in colours.legend((*KINDS, UNATTRIBUTED))}
    for a, b in itertools.combinations(palette, 2):
        apart = math.dist(lab(palette[a], vision), lab(palette[b], vision))
        assert apart >= LEAST_DIFFERENCE, (a, b)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [*KINDS, UNATTRIBUTED])
def test_the_text_on_the_colour_of_each_kind_can_be_read(kind: str, scheme: str):
    """In the light and in the dark scheme. A kind without a colour would be black."""
    (text,) = re.findall(r"svg text\.on-p \{ fill: (#[0-9a-f]{6});", SHEET)
    assert f".k-{kind}" in re.findall(r"\.k-[a-z-]+", colours.style())
    lighter = luminance(declared(scheme)[colours.colour(kind)])
    assert (lighter + 0.05) / (luminance(text) + 0.05) >= LEAST_CONTRAST


def test_paper_gets_no_colour_of_the_dark_scheme():
    """A browser in dark mode prints black on white, where the verdict's light green could not be read."""
    schemes = [rule for rule in re.findall(r"@media ([^{]+) {", SHEET) if "dark" in rule]
    assert schemes == ["screen and (prefers-color-scheme: dark)"]


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
