"""The picture of a study: where its points, its axes and its labels are."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from testbed_runtime.api.kinds import TuningStudySpec
from testbed_runtime.core.judgement.verdict import Verdict
from testbed_runtime.tuning import grid, score
from testbed_runtime.tuning.picture import CHARACTER, COLOURS, HEIGHT, LINE_HEIGHT, MARGIN, WIDTH, picture

STUDY = TuningStudySpec.model_validate(
    {
        "scenarios": [{"name": "killed"}],
        "options": [{"key": "heartbeat.interval", "values": ["1 s", "5 s"]}],
        "objectives": [{"metric": "recovery.total"}, {"metric": "failovers.count"}],
    }
)
RIGHT, BOTTOM, TOP = WIDTH - MARGIN, HEIGHT - MARGIN, MARGIN


def line(number: int, x: float | None, y: float | None, **fields: Any) -> score.Line:
    """A row whose two objectives have these values."""
    reference = fields.pop("reference", "")
    options = fields.pop("options", {"key": str(number)})
    texts = fields.pop("texts", (f"x{x:g}" if x is not None else "", f"y{y:g}" if y is not None else ""))
    row = grid.Row(number, {} if reference else options, reference)
    values = tuple(score.Value(v, text) for v, text in zip((x, y), texts, strict=True))
    return score.Line(row, Verdict.PASS, values, (), whole=True, **fields)


def drawn(*lines: score.Line) -> ElementTree.Element:
    return ElementTree.fromstring(picture(STUDY, lines))


def points(svg: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(p.attrib["cx"]), float(p.attrib["cy"])) for p in svg.findall("{*}circle")]


def texts(svg: ElementTree.Element) -> dict[str, tuple[float, float, str]]:
    """Place and anchor of each text."""
    found = svg.findall("{*}text")
    found = [t for t in found if t.text]
    return {str(t.text): (float(t.attrib["x"]), float(t.attrib["y"]), t.attrib["text-anchor"]) for t in found}


def test_points_are_between_the_smallest_and_the_largest_value():
    """The smallest values are at the left and at the bottom."""
    svg = drawn(line(0, 10, 1), line(1, 20, 3), line(2, 30, 2))
    middle = (MARGIN + RIGHT) / 2, (BOTTOM + TOP) / 2
    assert points(svg) == [(MARGIN, BOTTOM), (middle[0], TOP), (RIGHT, middle[1])]


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ((1, 10, 100), 0.5),
        ((5, 10, 100), math.log(2) / math.log(20)),
        ((5.1, 10, 100), 4.9 / 94.9),
        ((0, 10, 100), 0.1),
    ],
    ids=["logarithmic", "from 20 times on", "below it", "zero"],
)
def test_an_axis_over_a_wide_range_is_logarithmic(values: tuple[float, float, float], share: float):
    """Otherwise all small values would be in one place. 0 has no logarithm."""
    svg = drawn(*(line(n, v, v) for n, v in enumerate(values)))
    x, y = points(svg)[1]
    assert x == pytest.approx(MARGIN + share * (RIGHT - MARGIN), abs=0.06)
    assert y == pytest.approx(BOTTOM + share * (TOP - BOTTOM), abs=0.06)


def test_rows_with_one_value_are_in_the_middle():
    """An axis without a length has no ends."""
    assert points(drawn(line(0, 4, 7), line(1, 4, 7))) == [((MARGIN + RIGHT) / 2, (BOTTOM + TOP) / 2)] * 2


def test_the_ends_of_the_axes_are_labelled_and_their_texts_have_room():
    """With the texts of the table, below the horizontal and beside the vertical one."""
    svg = drawn(line(0, 10, 1), line(1, 20, 3))
    found = texts(svg)
    assert found["x10"] == (MARGIN, BOTTOM + 24, "middle")
    assert found["x20"] == (RIGHT, BOTTOM + 24, "middle")
    assert found["y1"] == (MARGIN - 12, BOTTOM, "end")
    assert found["y3"] == (MARGIN - 12, TOP, "end")
    long = "12 failovers each day"
    svg = drawn(line(0, 10, 1, texts=("a", long)), line(1, 20, 3, texts=("b", "c")))
    left = 36 + 6.6 * len(long)
    assert points(svg)[0] == (pytest.approx(left, abs=0.06), BOTTOM)
    assert texts(svg)[long] == (pytest.approx(left - 12, abs=0.06), BOTTOM, "end")


def test_the_titles_of_the_objectives_are_at_the_axes():
    """The vertical one is turned."""
    svg = drawn(line(0, 10, 1), line(1, 20, 3))
    found = texts(svg)
    assert found["recovery.total (lower is better)"] == (WIDTH / 2, HEIGHT - 12, "middle")
    assert found["failovers.count (lower is better)"] == (16, HEIGHT / 2, "middle")
    assert svg.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
    turned = [t.attrib["transform"] for t in svg.findall("{*}text") if "transform" in t.attrib]
    assert turned == [f"rotate(-90 16 {HEIGHT / 2})"]
    title = svg.find("{*}title")
    assert title is not None, "a screen reader reads it"
    assert title.text == "failovers.count (lower is better) over recovery.total (lower is better)"


def test_the_front_is_a_line_through_its_rows_from_left_to_right():
    """Whatever their order in the table; rows behind the front are not on it."""
    svg = drawn(
        line(0, 30, 1, front=True), line(1, 20, 2, front=True), line(2, 30, 3), line(3, 10, 3, front=True)
    )
    (path,) = svg.findall("{*}polyline")
    middle = (MARGIN + RIGHT) / 2, (BOTTOM + TOP) / 2
    assert path.attrib["points"] == (
        f"{MARGIN:.1f},{TOP:.1f} {middle[0]:.1f},{middle[1]:.1f} {RIGHT:.1f},{BOTTOM:.1f}"
    )


def test_rows_that_are_on_the_front_for_another_objective_are_not_on_the_line():
    """A third objective put (20, 3) there: (10, 2) is better in both that are drawn. Of equal values, one is enough."""
    rows = [(10, 2), (20, 3), (20, 1.5), (30, 1), (40, 1)]
    svg = drawn(*(line(n, x, y, front=True) for n, (x, y) in enumerate(rows)))
    at = points(svg)
    (path,) = svg.findall("{*}polyline")
    assert path.attrib["points"] == " ".join(f"{x:.1f},{y:.1f}" for x, y in (at[0], at[2], at[3]))


def test_more_is_better_where_an_objective_says_so():
    """The line then goes through the rows with the largest values."""
    most = {"metric": "throughput.goodput", "direction": "max"}
    study = STUDY.model_copy(
        update={
            "objectives": TuningStudySpec.model_validate(
                {**STUDY.model_dump(by_alias=True), "objectives": [most, {"metric": "failovers.count"}]}
            ).objectives
        }
    )
    rows = [(10, 1), (20, 1), (30, 2), (20, 2)]
    svg = ElementTree.fromstring(picture(study, [line(n, x, y, front=True) for n, (x, y) in enumerate(rows)]))
    at = points(svg)
    (path,) = svg.findall("{*}polyline")
    assert path.attrib["points"] == " ".join(f"{x:.1f},{y:.1f}" for x, y in (at[1], at[2]))


def test_a_label_covers_no_point():
    """It is below its point if another point is above it."""
    rows = [line(0, 0, 0), line(1, 100, 100), line(2, 50, 50, best=True)]
    (_, y) = points(drawn(*rows))[2]
    assert texts(drawn(*rows))["key=2"][1] == y - 9
    moved = drawn(*rows, line(3, 55, 54))
    assert texts(moved)["key=2"][1] == y + 18


def test_a_row_has_the_colour_of_its_kind_and_a_title_with_its_values():
    """A reference that is the best is the best."""
    svg = drawn(
        line(0, 1, 4, best=True, front=True), line(1, 2, 3, front=True), line(2, 3, 2),
        line(3, 4, 1, reference="Default", front=True), line(4, 4, 1, reference="Current", best=True),
    )  # fmt: skip
    colours = {v: k for k, v in COLOURS.items()}
    found = [(str(c[0].text), colours[c.attrib["fill"]]) for c in svg.findall("{*}circle")]
    assert found == [
        ("key=2: x3, y2", ""),
        ("key=1: x2, y3", "front"),
        ("Flink's defaults: x4, y1", "reference"),
        ("key=0: x1, y4", "best"),
        ("the scenarios as they are: x4, y1", "best"),
    ]


def test_the_best_row_is_painted_over_the_rows_at_its_place():
    """Rows with the same values are common: a larger budget that is not used costs the same."""
    svg = drawn(line(0, 10, 1, best=True), line(1, 10, 1, front=True), line(2, 20, 3))
    assert svg.findall("{*}circle")[-1].attrib["fill"] == COLOURS["best"]


def test_a_legend_names_the_colours_that_occur_and_an_axis_says_that_it_is_logarithmic():
    """The best first; the names do not touch."""
    svg = drawn(line(0, 1, 1, best=True), line(1, 10, 3, front=True), line(2, 100, 2))
    legend = [t for t in svg.findall("{*}text") if t.findall("{*}tspan")]
    assert [str(t[0].tail).strip() for t in legend] == ["best row", "on the Pareto front", "other rows"]
    assert [t[0].attrib["fill"] for t in legend] == [COLOURS[kind] for kind in ("best", "front", "")]
    starts = [float(t.attrib["x"]) for t in legend]
    assert all(
        b - a > CHARACTER * len("".join(t.itertext()))
        for t, a, b in zip(legend, starts, starts[1:], strict=False)
    )
    assert {"recovery.total (lower is better), log scale", "failovers.count (lower is better)"} <= set(
        texts(svg)
    )


def test_rows_without_both_values_are_not_drawn():
    """Nor a picture of a single point."""
    svg = drawn(line(0, 10, 1), line(1, None, 2), line(2, 20, None), line(3, 20, 3))
    assert points(svg) == [(MARGIN, BOTTOM), (RIGHT, TOP)]
    assert picture(STUDY, [line(0, 10, 1), line(1, None, 2)]) == ""
    zero = drawn(line(0, 0, 0), line(1, 20, 3))
    assert points(zero) == [(MARGIN, BOTTOM), (RIGHT, TOP)], "0 is a value"


def test_a_label_is_beside_its_point_on_the_side_with_more_room():
    """Only of the best row and of references."""
    svg = drawn(line(0, 10, 1, best=True), line(1, 20, 2), line(2, 30, 3, reference="Default"))
    found = texts(svg)
    assert found["key=0"] == (MARGIN + 9, BOTTOM - 9, "start")
    assert found["Flink's defaults"] == (RIGHT - 9, TOP - 9, "end")
    assert "key=1" not in found
    middle = drawn(line(0, 10, 1), line(1, 20, 2, best=True), line(2, 30, 3))
    assert texts(middle)["key=1"][::2] == ((MARGIN + RIGHT) / 2 + 9, "start")


def test_labels_at_one_place_are_above_and_below_each_other():
    """The first is above its point, the next one below it, and so on outwards."""
    references = [line(n, 4, 7, reference=name) for n, name in ((1, "Default"), (2, "Current"))]
    svg = drawn(line(0, 4, 7, best=True), *references)
    found, (_, y) = texts(svg), points(svg)[0]
    places = [found[name][1] - y for name in ("key=0", "Flink's defaults", "the scenarios as they are")]
    assert places == [-9, 18, -9 - LINE_HEIGHT]


@pytest.mark.parametrize(
    ("apart", "moved"), [(6.6 * 5 - 1, True), (6.6 * 5 + 1, False)], ids=["overlap", "beside"]
)
def test_a_label_moves_only_if_another_one_is_in_its_place(apart: float, moved: bool):
    """Labels beside each other do not touch."""
    width = RIGHT - MARGIN
    rows = [
        line(0, 0, 1, best=True),
        line(1, apart, 1, reference="Default"),
        line(2, width, 2),
        line(3, 0, 0),
    ]
    svg = drawn(*rows)
    found = texts(svg)
    assert (found["Flink's defaults"][1] != found["key=0"][1]) is moved


@pytest.mark.parametrize(("length", "whole"), [(48, True), (49, False)])
def test_the_label_of_a_long_row_has_its_values_only(length: int, whole: bool):
    """Its keys are in its title."""
    key = "k" * (length - 2)
    svg = drawn(line(0, 10, 1, best=True, options={key: "1"}), line(1, 20, 3))
    assert (f"{key}=1" in texts(svg), "best: 1" in texts(svg)) == (whole, not whole)


@pytest.mark.parametrize("options", [1, 2], ids=["one-option", "two-options"])
def test_every_row_of_a_study_with_one_option_is_labelled_with_its_value(options: int):
    """Without them, a reader cannot tell which point is which value. The labels of several options would not fit."""
    more = {"other": "x"} if options == 2 else {}
    front = [line(n, 10 * n, 4 - n, front=True, options={"key": f"{n} s", **more}) for n in (1, 2, 3)]
    svg = drawn(*front, line(4, 40, 5, options={"key": "4 s", **more}))
    values = {f"{n} s" for n in range(1, 5)}
    assert values & set(texts(svg)) == (values if options == 1 else set())


def test_rows_at_one_point_share_a_label_above_the_ends_of_the_axis():
    """The best row of many studies is at the lower left end, and other values are as good."""
    best, equal, worse = (
        line(n, x, y, front=True, best=n == 1, options={"key": f"{n} s"})
        for n, x, y in ((1, 10, 1), (2, 10, 1), (3, 20, 3))
    )
    found = texts(drawn(best, equal, worse))
    assert "2 s" not in found
    assert found[f"{best.row.text}, 2 s"][1] < found["x10"][1] - LINE_HEIGHT


def test_a_long_value_on_the_front_is_written_in_full():
    """It has no key or name that could be left out."""
    svg = drawn(line(0, 10, 3, front=True, options={"key": "x" * 61}), line(1, 20, 1, best=True))
    assert "x" * 61 in texts(svg)


def test_only_the_best_row_is_labelled_as_the_best():
    """A row of the grid that has Flink's defaults is named by them if its text is too long."""
    default = line(1, 20, 3, options={"k" * 60: "10000"})
    default = replace(default, row=replace(default.row, reference="Default"))
    svg = drawn(line(0, 10, 1, best=True), default)
    assert "Flink's defaults: 10000" in texts(svg)
    assert "best: 10000" not in texts(svg)


def test_texts_are_escaped():
    """An option's value may contain anything."""
    svg = drawn(line(0, 10, 1, best=True, options={"a": "<b & c>"}), line(1, 20, 3))
    assert "a=<b & c>" in texts(svg)
