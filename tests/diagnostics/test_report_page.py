"""The report page is well-formed, whole in itself, and shows what it is given and nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from distrff.diagnostics.report_page import quantity_text, report_page

REPORT = {
    "title": "Ridge on rows.zarr",
    "facts": [["Rows", "1,000,000"], ["Kernel", "Gaussian(length_scale=0.5)"]],
    "notes": ["Column 3 is constant."],
    "scores": {"columns": ["", "RMSE"], "rows": [["this machine", 0.1043], ["linear ridge", 0.73]]},
    "relevance": {"bars": [["column 3", 1.5, "0.667"], ["column 0", 0.002, "500"]], "n_columns": 4},
    "alpha_path": {
        "alphas": [1e-3, 1e-2, 1e-1, 1.0],
        "mean": [0.3, 0.2, 0.25, None],
        "folds": [[0.28, 0.18, 0.22, None], [0.32, 0.22, 0.28, 0.5]],
        "chosen": 1e-2,
        "noise_floor": 2e-4,
        "criterion": "held-out mean squared error",
    },
    "learning_curve": {"n_components": [128, 256, 512], "score": [0.4, 0.3, 0.2], "criterion": "error"},
    "plan": {"rows": [["peak memory of a worker", "bytes", 4.12e8, 3.89e8], ["time", "s", 41.0, None]]},
    "sweeps": [["column means", 1.5], ["Gram", 38.25], ["gradient", 0.25], ["gradient", 0.25]],
}
HEADINGS = {
    "scores": "Score on held-out rows",
    "relevance": "Learned widths",
    "alpha_path": "Error against alpha",
    "learning_curve": "Error against the number of features",
    "plan": "Plan against measured",
    "sweeps": "Time in sweeps over the rows",
}


class Balance(HTMLParser):
    """Checks that HTML tags are closed in order."""

    def __init__(self):
        super().__init__()
        self.stack = []

    def handle_starttag(self, tag, attrs):
        self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def parse(page):
    assert page.startswith("<!DOCTYPE html>\n")
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert not balance.stack
    page.encode()
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    for svg in root.iter("svg"):
        assert svg.find("title").text and svg.find("desc").text
        assert not re.search("nan|inf", " ".join(e.get("d", "") for e in svg.iter()))
    return root


def words(root):
    return " ".join(" ".join(root.find("body").itertext()).split())


def test_the_whole_report():
    json.dumps(REPORT, allow_nan=False)
    root = parse(report_page(REPORT))
    assert [h.text for h in root.iter("h2")] == list(HEADINGS.values())
    assert len(list(root.iter("svg"))) == 5
    shown = words(root)
    for text in (
        "Gaussian(length_scale=0.5)",
        "Column 3 is constant.",
        "this machine 0.104",
        "column 3 0.667",
        "2 columns of longer widths are not drawn.",
        "lowest to highest of 2 folds",
        "chosen: 0.0100",
        "noise floor: 0.000200",
        "held-out mean squared error",
        "peak memory of a worker 412 MB 389 MB",
        "time 41.0 s –",
        "0.944 ×",
        "gradient (2 times)",
        "Together 40.2 s.",
    ):
        assert text in shown, text


@pytest.mark.parametrize("key", HEADINGS)
@pytest.mark.parametrize("absent", ["missing", "null", "empty", "empty lists"])
def test_absent_sections_are_left_out(key, absent):
    report = dict(REPORT)
    value = report.pop(key)
    if absent == "null":
        report[key] = None
    elif absent == "empty":
        report[key] = type(value)()
    elif absent == "empty lists" and isinstance(value, dict):
        report[key] = {name: [] if isinstance(part, list) else part for name, part in value.items()}
    root = parse(report_page(report))
    assert [h.text for h in root.iter("h2")] == [h for k, h in HEADINGS.items() if k != key]


def test_title_alone():
    root = parse(report_page({"title": "T"}))
    assert words(root) == "T" and root.find("head/title").text == "T"
    assert not list(root.iter("dl")) and not list(root.iter("aside"))


def test_nothing_is_loaded_from_elsewhere():
    page = report_page(REPORT)
    assert not re.search(r"https?://|//[a-z]|url\(|@import|<script|src=", page)
    assert re.findall('href="([^"]*)"', page) == ["data:,"]


def test_both_themes_and_telephones_are_served():
    page = report_page(REPORT)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    light, dark = (set(re.findall(r"(--[\w-]+):", part)) for part in page.split("prefers-color-scheme")[:2])
    used = set(re.findall(r"var\((--[\w-]+)", page))
    assert used <= light
    assert light - dark in (set(), light)


def test_texts_are_escaped():
    hostile = "</style><script>alert('x')</script>&\x00\ud83d"
    report = {
        "title": hostile,
        "facts": [[hostile, hostile]],
        "notes": [hostile],
        "scores": {"columns": [hostile], "rows": [[hostile]]},
        "alpha_path": {"alphas": [1], "mean": [1], "criterion": hostile},
        "plan": {"rows": [[hostile, hostile, 1, 2]]},
        "sweeps": [[hostile, 1.0]],
    }
    page = report_page(report)
    assert "<script" not in page
    assert "alert('x')" in words(parse(page))


@pytest.mark.parametrize("chosen", [None, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("folds", [None, [], REPORT["alpha_path"]["folds"]])
def test_parts_of_an_alpha_path(chosen, folds):
    path = {**REPORT["alpha_path"], "chosen": chosen, "folds": folds, "noise_floor": None}
    shown = words(parse(report_page({"title": "T", "alpha_path": path})))
    assert ("chosen" in shown) == (chosen is not None)
    assert ("folds" in shown) == bool(folds)


@pytest.mark.parametrize("scores", [[1e-300, 1e300, None, 5], [None] * 4, [0, 0, 0, 0], [-1, 0, 1, 2]])
def test_nasty_scores(scores):
    path = {"alphas": [1e-300, 1e-9, 1, 1e300], "mean": scores, "folds": [scores, scores[::-1]], "chosen": 1}
    curve = {"n_components": [1, 2, 3, 10**9], "score": scores}
    plan = {"rows": [["a", "bytes", scores[0], scores[1]], ["b", "s", scores[2], scores[3]]]}
    sweeps = [["a", scores[0]], ["b", scores[3]]]
    page = {"title": "T", "alpha_path": path, "learning_curve": curve, "plan": plan, "sweeps": sweeps}
    parse(report_page(page))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "bytes", "–"),
        (4.12e8, "bytes", "412 MB"),
        (2.4e9, "bytes", "2.4 GB"),
        (0, "s", "0 s"),
        (4.2e-7, "s", "0.420 µs"),
        (0.25, "s", "250 ms"),
        (41, "s", "41.0 s"),
        (119.4, "s", "119 s"),
        (119.9, "s", "2 min 0 s"),
        (7261, "s", "2 h 1 min"),
        (3, "", "3"),
        (2.3e12, "flop", "2.30×10¹² flop"),
    ],
)
def test_quantity_text(value, unit, text):
    assert quantity_text(value, unit) == text
