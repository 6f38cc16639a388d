"""The report page is well-formed, whole in itself, and shows what it is given and nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from distrff.diagnostics.report import report_page

REPORT = {
    "title": "Ridge on rows.zarr",
    "facts": [["Rows", "1,000,000"], ["Kernel", "Gaussian(length_scale=0.5)"]],
    "notes": ["Column 3 is constant."],
    "scores": {"columns": ["", "RMSE"], "rows": [["this machine", 0.1043], ["linear ridge", 0.73]]},
    "relevance": {"bars": [["column 3", 1.5, "0.667"], ["column 0", 0.002, "500"]], "n_columns": 4},
    "penalty_path": {
        "parameter": "alpha",
        "values": [1e-3, 1e-2, 1e-1, 1.0],
        "mean": [0.3, 0.2, 0.25, None],
        "folds": [[0.28, 0.18, 0.22, None], [0.32, 0.22, 0.28, 0.5]],
        "chosen": 1e-2,
        "noise_floor": 2e-4,
        "criterion": "held-out mean squared error",
    },
    "learning_curve": {"n_components": [128, 256, 512], "score": [0.4, 0.3, 0.2], "criterion": "error"},
    "certificate": {
        "measure": "duality gap",
        "sweep": [1, 2, 3, 5],
        "error": [None, 0.4, 0.02, 0.0008],
        "primal": [9.0, 5.0, 4.1, 4.002],
        "dual": [None, 3.0, 4.0, 3.999],
        "tol": 1e-3,
    },
    "components": {"share": [0.5, 0.25, None]},
    "plan": {"rows": [["peak memory of a worker", "bytes", 4.12e8, 3.89e8], ["time", "s", 41.0, None]]},
    "time": {
        "phases": [["column means", 1.75], ["Gram", 39.0], ["light sweeps", 0.75]],
        "sweeps": [["column means", 1.5], ["gradient", 0.25], ["Gram", 38.25], ["gradient", 0.25]],
    },
}
HEADINGS = {
    "scores": "Score on held-out rows",
    "penalty_path": "Error against alpha",
    "learning_curve": "Error against the number of features",
    "certificate": "How the duality gap closed",
    "relevance": "Learned widths",
    "components": "Variance along the components",
    "plan": "Plan against measured",
    "time": "Time",
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


def headings(root):
    """Those of the sections, of which the certificate has two."""
    return [h.text for h in root.iter("h2") if h.text != "The optimum"]


def words(root):
    return " ".join(" ".join(root.find("body").itertext()).split())


def test_the_whole_report():
    json.dumps(REPORT, allow_nan=False)
    root = parse(report_page(REPORT))
    assert headings(root) == list(HEADINGS.values())
    assert "The optimum" in [h.text for h in root.iter("h2")]
    assert len(list(root.iter("svg"))) == 9
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
        "4 passes over the rows, together 40.2 s",
        "light sweeps 750 ms",
        "tol: 0.00100",
        "The optimum lies between 3.999 and the objective of this machine, 4.002",
        "best lower bound",
        "component 1 25.0%",
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
    assert headings(root) == [h for k, h in HEADINGS.items() if k != key]


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
    themes = re.findall(r"\.distrff\s*\{ (--.*?) \}", page, re.DOTALL)[:2]
    light, dark = (set(re.findall(r"(--[\w-]+):", theme)) for theme in themes)
    used = {name for name in re.findall(r"var\((--[\w-]+)", page) if not name.startswith("--jp-")}
    assert used <= light
    assert light == dark


def test_texts_are_escaped():
    hostile = "</style><script>alert('x')</script>&\x00\ud83d"
    report = {
        "title": hostile,
        "facts": [[hostile, hostile]],
        "notes": [hostile],
        "scores": {"columns": [hostile], "rows": [[hostile]]},
        "penalty_path": {"parameter": hostile, "values": [1], "mean": [1], "criterion": hostile},
        "learning_curve": {"n_components": [2], "score": [1], "criterion": hostile},
        "certificate": {"measure": hostile, "sweep": [1], "error": [1], "tol": 1},
        "relevance": {"bars": [[hostile, 1, hostile]], "n_columns": 1},
        "plan": {"rows": [[hostile, hostile, 1, 2]]},
        "time": {"phases": [[hostile, 1.0]], "sweeps": [[hostile, 1.0]]},
    }
    page = report_page(report)
    assert "<script" not in page
    assert "alert('x')" in words(parse(page))


@pytest.mark.parametrize("chosen", [None, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("folds", [None, [], REPORT["penalty_path"]["folds"]])
def test_parts_of_a_penalty_path(chosen, folds):
    path = {**REPORT["penalty_path"], "chosen": chosen, "folds": folds, "noise_floor": None}
    shown = words(parse(report_page({"title": "T", "penalty_path": path})))
    assert ("chosen" in shown) == (chosen is not None)
    assert ("folds" in shown) == bool(folds)


@pytest.mark.parametrize("scores", [[1e-300, 1e300, None, 5], [None] * 4, [0, 0, 0, 0], [-1, 0, 1, 2]])
def test_nasty_scores(scores):
    path = {
        "parameter": "C",
        "values": [1e-300, 1e-9, 1, 1e300],
        "mean": scores,
        "folds": [scores, scores[::-1]],
        "chosen": 1,
    }
    curve = {"n_components": [1, 2, 3, 10**9], "score": scores}
    plan = {"rows": [["a", "bytes", scores[0], scores[1]], ["b", "s", scores[2], scores[3]]]}
    time = {"sweeps": [["a", scores[0]], ["b", scores[3]]]}
    known = {"measure": "gap", "sweep": [1, 2, 3, 4], "error": scores, "primal": scores, "dual": scores}
    page = {"penalty_path": path, "learning_curve": curve, "plan": plan, "certificate": known, "time": time}
    parse(report_page({"title": "T", **page}))
