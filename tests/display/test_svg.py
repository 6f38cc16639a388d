"""Every chart is well-formed, finite and inside its view box, whatever the numbers and texts."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from distrff.utils.svg import Band, Line, Mark, Reference, bar_chart, bar_pairs, escape, line_chart

NAN, INF = float("nan"), float("inf")
LABELS = {"title": "T", "x_label": "x", "y_label": "y"}


def parse(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg" and root.get("role") == "img"
    assert [child.tag for child in root][:2] == ["title", "desc"]
    check_numbers(root)
    return root


def check_numbers(root):
    """All coordinates are finite, and the shapes lie inside the view box."""
    _, _, width, height = map(float, root.get("viewBox").split())
    assert math.isfinite(height)
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not re.search("nan|inf|None", value.removeprefix("img")), (name, value)
            if name in ("x", "x1", "x2", "cx"):
                assert -1 <= float(value) <= width + 1
            if name in ("y1", "y2", "cy"):
                assert -10 <= float(value) <= height + 1
            if name in ("width", "height", "r"):
                assert 0 <= float(value) <= max(width, height)
            if name == "d":
                numbers = [float(number) for number in re.findall(r"-?[\d.]+", value)]
                assert all(0 <= x <= width for x in numbers[::2])
                assert all(0 <= y <= height for y in numbers[1::2])


def texts(root):
    return [element.text for element in root.iter("text")]


def paths(root):
    return [element.get("d") for element in root.iter("path")]


def test_curve_goes_up_where_the_values_do():
    root = parse(line_chart([Line("a", [0, 1, 2], [0, 5, 10])], **LABELS))
    numbers = [float(n) for n in re.findall(r"[\d.]+", paths(root)[0])]
    x, y = numbers[::2], numbers[1::2]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.11)  # places are rounded to tenths
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.11) and y[2] < y[0]


def test_logarithmic_axis_spaces_decades_evenly():
    root = parse(line_chart([Line("a", [1e-6, 1e-3, 1], [1, 2, 3])], x_log=True, **LABELS))
    x = [float(n) for n in re.findall(r"[\d.]+", paths(root)[0])][::2]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.11)


@pytest.mark.parametrize(
    ("y", "n_paths", "n_dots"),
    [
        ([1, 2, 3, 4], 1, 4),
        ([1, 2, None, 4], 1, 3),
        ([1, NAN, 3, INF], 0, 2),
        ([1, 2, None, 4, 5], 2, 4),
        ([None, None], 0, 0),
        ([5], 0, 1),
        ([], 0, 0),
    ],
)
def test_gaps(y, n_paths, n_dots):
    root = parse(line_chart([Line("a", list(range(len(y))), y)], **LABELS))
    assert len(paths(root)) == n_paths
    assert len(list(root.iter("circle"))) == n_dots


def test_what_is_not_positive_is_a_gap_on_a_logarithmic_axis():
    root = parse(line_chart([Line("a", [0, 1, 10, 100], [1, 2, -3, 4])], x_log=True, y_log=True, **LABELS))
    assert len(paths(root)) == 0 and len(list(root.iter("circle"))) == 2


NASTY = [
    [5, 5, 5],
    [0, 0, 0],
    [-1.7e308, 0, 1.7e308],
    [1e-320, 1e-310, 1e-300],
    [1e300, 1e-300, None],
    [1e9, 1e9 + 1e-6, 1e9],
    [NAN, NAN, NAN],
    [INF, 1, -INF],
    [-1, -2, -3],
]


@pytest.mark.parametrize("x", [[1, 2, 3], *NASTY])
@pytest.mark.parametrize("y", NASTY)
@pytest.mark.parametrize("logs", [(False, False), (10, 2), (2, True)])
def test_nasty_numbers(x, y, logs):
    svg = line_chart(
        [Line("a", x, y), Line("b", x, y[::-1])],
        x_log=logs[0],
        y_log=logs[1],
        bands=[Band("spread", x, y, y[::-1])],
        marks=[Mark("best", x[0], y[0])],
        reference_lines=[Reference("floor", "x", x[1]), Reference("best possible", "y", y[1])],
        **LABELS,
    )
    parse(svg)


def test_legend_names_everything_that_has_a_label():
    svg = line_chart(
        [Line("model", [1, 2], [1, 2]), Line("", [1, 2], [2, 3])],
        bands=[Band("spread", [1, 2], [1, 2], [3, 4])],
        marks=[Mark("chosen", 1, 1)],
        reference_lines=[Reference("floor", "x", 1.5)],
        **LABELS,
    )
    root = parse(svg)
    legend = [text for group in root.iter("g") for text in texts(group)]
    assert legend == ["model", "spread", "chosen", "floor"]
    for word in ("model: 2 points", "spread", "chosen", "floor"):
        assert word in root.find("desc").text


def test_lines_differ_without_colour():
    root = parse(line_chart([Line(str(i), [1, 2], [i, 2 * i]) for i in range(4)], **LABELS))
    dashes = {re.search("dasharray:([^;]+)", path.get("style"))[1] for path in root.iter("path")}
    assert len(dashes) == 4


def test_many_points_have_no_dots():
    root = parse(line_chart([Line("a", list(range(500)), list(range(500)))], **LABELS))
    assert not list(root.iter("circle"))


def test_texts_are_escaped_and_stay_inside():
    name = '<b>&"\x00\ud800' + "w" * 300
    svg = line_chart(
        [Line(name, [1, 2], [1, 2])],
        title=name,
        x_label=name,
        y_label=name,
        marks=[Mark(name, 1, 1)],
        reference_lines=[Reference(name, "y", 1)],
    )
    root = parse(svg)
    svg.encode()
    assert "<b>" not in svg
    assert all(len(text) <= 60 for text in texts(root))
    assert root.find("title").text.startswith('<b>&"\ufffd\ufffdwww')


def test_nothing_is_loaded_from_elsewhere():
    svg = line_chart([Line("a", [1, 2], [1, 2])], **LABELS) + bar_chart([("a", 1, "1")], title="t")
    assert not re.search("http|url\\(|href|src=|@import", svg)


def test_bar_chart_lengths_are_in_proportion():
    root = parse(bar_chart([("a", 1, "1 s"), ("b", 2, "2 s"), ("c", None, "–")], title="t"))
    one, two, none = (float(rect.get("width")) for rect in root.iter("rect"))
    assert two == pytest.approx(2 * one, abs=0.16) and none <= 1
    assert texts(root) == ["a", "1 s", "b", "2 s", "c", "–"]
    assert "b: 2 s" in root.find("desc").text


@pytest.mark.parametrize("values", [[], *NASTY])
def test_bar_charts_of_nasty_numbers(values):
    parse(bar_chart([("label", value, "text") for value in values], title="t"))
    for second in (1.0, None, *NASTY[2]):
        svg = bar_pairs([("label", value, second) for value in values], title="t")
        assert not svg or parse(svg)


def test_bar_pairs_are_relative_to_the_first():
    root = parse(bar_pairs([("memory", 4e8, 2e8), ("time", 10, 20), ("unknown", 3, None)], title="t"))
    bars = [float(rect.get("width")) for rect in root.iter("rect") if float(rect.get("height")) == 9]
    planned, half, also_planned, double = bars
    assert planned == also_planned
    assert half == pytest.approx(planned / 2, abs=0.11) and double == pytest.approx(2 * planned, abs=0.16)
    assert "unknown" not in texts(root) and {"planned", "measured", "0.500 ×", "2.00 ×"} <= set(texts(root))


def test_bar_pairs_without_a_ratio_are_empty():
    assert bar_pairs([("a", 0, 1), ("b", 1, None), ("c", None, 1)], title="t") == ""


def test_escape():
    assert escape("a<b>&\"'\x0b") == "a&lt;b&gt;&amp;&quot;&#x27;\ufffd"
    assert escape(3) == "3"
