"""Pages and cards in a real browser: nothing overflows on a telephone, all is readable in light and dark."""

import dataclasses
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

import distrff as drf
from distrff.diagnostics.report import FitReport
from distrff.io.arrays import as_dataset
from tests.support.browser import Frame, find_browser, measured

BROWSER = find_browser()
WIDTHS = (360, 1200)
LONG = "a_name_without_any_place_to_break_it_" * 6
HOSTS = {  # template of nbconvert, which has the style sheets of the host, and its own theme
    "JupyterLab, light": ("lab", "light"),
    "JupyterLab, dark": ("lab", "dark"),
    "classic notebook": ("classic", "light"),
}
THEMES = ("light", "dark")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")


def fits() -> tuple[drf.KernelRidge, drf.KernelSVC, list[Any]]:
    """Return two models of columns and labels with long names, and what notebooks show of them."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((400, 3)), columns=[LONG, "<b>b</b>", "c"])
    y = np.sin(X["c"]) + 0.1 * rng.standard_normal(400)
    ridge = drf.KernelRidge(
        drf.FourierFeatures(drf.Gaussian("ard"), 64), alpha="cv", random_state=0, scale="none"
    )
    svc = drf.KernelSVC(
        drf.FourierFeatures(drf.Gaussian(1.0), 64), C="cv", cv=3, random_state=0, scale="none"
    )
    plan = ridge.plan(X, y)
    ridge.fit(X, y)
    svc.fit(X, np.where(y > 0, LONG, "no"))
    components = drf.KernelPCA(drf.FourierFeatures(drf.Gaussian(1.0), 64), random_state=0, scale="none").fit(
        X
    )
    values = {"source": f"s3://bucket/{LONG}.zarr", "notes": [f"a note on {LONG}"]}
    ridge.report_ = type(ridge.report_)({**ridge.report_.to_dict(), **values})
    table = {"columns_dropped": {LONG: LONG}}
    dataset = dataclasses.replace(as_dataset(X, y), source=f"/a/{LONG}.zarr", table_report=table)
    kernels = [drf.Gaussian("auto") + 0.5 * drf.Laplacian(2.0), drf.Gaussian((0.5, 4.0)), drf.Polynomial(3)]
    reports = [ridge.report_, svc.report_, components.report_]
    return ridge, svc, [dataset, plan, *kernels, svc.model_, *reports]


def frames() -> list[Frame]:
    """Return each page and the cards together, on a telephone and a desk, in light and dark."""
    ridge, svc, shown = fits()
    scores = {"columns": ["", "RMSE", "R²", "RMSE above best"], "rows": [[LONG, 0.1, 0.99, "+1.2%"]]}
    cards = "\n".join(thing._repr_html_() for thing in shown)
    whole = {
        "ridge": ridge.report_.to_html(title=f"Fit of {LONG}", scores=scores),
        "svc": svc.report_.to_html(),
        "cards": f"<!DOCTYPE html><html><body>{cards}</body></html>",
    }
    of_browser = [Frame(name, *case) for name in whole for case in product([whole[name]], WIDTHS, THEMES)]
    # A host's theme need not be that of the browser. On a telephone the classic one leaves half the width.
    in_hosts = {host: in_notebook(shown, *HOSTS[host]) for host in HOSTS}
    return of_browser + [
        Frame(host, in_hosts[host], width, theme)
        for host, width, theme in product(HOSTS, WIDTHS, THEMES)
        if (host, width) != ("classic notebook", 360)
    ]


# Names that are long, wide, of scripts that matplotlib's font lacks, or that it would typeset as mathematics.
NAMES = (
    "W" * 40,
    "类别的名字很长" * 6,
    "اسم طويل جدا " * 6,
    "🙂" * 30,
    "m" * 60,
    "two\nlines",
    "$x^2$_{a}",
    "<b>",
)


def pages_with_charts() -> dict[str, Callable[[], str]]:
    """Return pages with every chart: of few and of many classes and categories, of huge and tiny numbers."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.standard_normal(400))
    X = pd.DataFrame({LONG: x, "$b$ " + NAMES[1]: rng.standard_normal(400)})
    map_ = drf.FourierFeatures(drf.Gaussian(1.0), 64, random_state=0)
    few, many = NAMES[:2], (*NAMES, *(f"the long name of class {i}" for i in range(22)))
    labels = {n: np.array(names, object)[np.arange(400) * n // 400] for n, names in ((2, few), (30, many))}
    labels[9] = np.array(many, object)[np.arange(400) * 9 // 400]
    kinds = pd.DataFrame({"kind": np.resize(np.array(many[:24], object), 400), "x": x, "y": np.sin(x)})
    likelihood = drf.KernelLikelihoodClassifier(map_, random_state=0, scale="none")
    classifier = drf.KernelRidgeClassifier(map_, alpha="cv", random_state=0, scale="none")
    ridge = drf.KernelRidge(map_, alpha="cv", random_state=0, scale="none")
    table = drf.open_dataset(kinds, target="y", one_hot=True)
    equispaced = drf.KernelRidge(drf.EquispacedFourierFeatures(), random_state=0)
    pages = {
        "two classes": lambda: with_charts(likelihood.fit(X, labels[2]), X, labels[2], list(X)[1:]),
        "nine classes": lambda: with_charts(classifier.fit(X, labels[9]), X, labels[9], [LONG]),
        "thirty classes": lambda: with_charts(classifier.fit(X, labels[30]), X, labels[30], [LONG]),
        "categories": lambda: with_charts(ridge.fit(table), kinds, kinds["y"], ["kind"]),
        "equispaced": lambda: with_charts(equispaced.fit(X, np.sin(x)), X, np.sin(x), [LONG]),
    }
    for scale, shift in ((1e12, 0.0), (1e-3, 1e6)):
        y = scale * (np.sin(x) + 0.1 * rng.standard_normal(400)) + shift
        pages[f"numbers of {scale}"] = lambda y=y: with_charts(ridge.fit(X, y), X, y, [LONG])
    return pages


def with_charts(model: Any, X: Any, y: Any, columns: list[str]) -> str:
    parts = {"evaluation": drf.evaluate(model, X, y), "dependence": drf.partial_dependence(model, X, columns)}
    report = {**model.report_.to_dict(), **{name: part.to_dict() for name, part in parts.items()}}
    if report.get("alphas"):
        report["noise_floor"] = report["alpha"]  # a fourth line of the legend
    return FitReport(report).to_html()


def in_notebook(shown: list[Any], template: str, theme: str) -> str:
    """Return the page on which a notebook shows things, without the scripts that it would fetch."""
    outputs = [new_output("execute_result", {"text/html": thing._repr_html_()}) for thing in shown]
    notebook = new_notebook(cells=[new_code_cell("shown", outputs=[output]) for output in outputs])
    page, _ = HTMLExporter(template_name=template, theme=theme).from_notebook_node(notebook)
    return re.sub("<script.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.slow
def test_nothing_overflows_and_all_can_be_read(tmp_path):
    cases = frames()
    found = measured(BROWSER, cases, tmp_path)
    for frame, page in zip(cases, found, strict=True):
        case = frame.name, frame.width, frame.theme
        assert page["innerWidth"] == frame.width, case
        assert page["scrollWidth"] <= page["innerWidth"], (case, page["beyond"])
        assert not page["beyond"], case
        assert not page["overlaps"], case
        assert not page["cutOff"], case
        assert page["nTexts"] > 20, case
        assert page["nFacts"] > 5, case
        assert not page["faint"], case
        assert page["smallestText"] >= 11, case
        assert page["smallestChartText"] >= 9, case
    for name in ("ridge", "svc"):
        colors = {f.theme: page["background"] for f, page in zip(cases, found, strict=True) if f.name == name}
        assert colors["light"] != colors["dark"], "the theme was not taken"


# The others are nine classes, whose charts are those of two, and numbers of other sizes.
@pytest.mark.parametrize(
    "names",
    [
        ("two classes", "thirty classes", "categories", "numbers of 0.001"),
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_the_texts_of_charts_are_whole_apart_and_stand_out(tmp_path, names):
    made = pages_with_charts()
    pages = {name: made[name]() for name in names or made}
    sizes = list(zip((390, 1200), THEMES, strict=True))  # places go by the width, and contrasts by the theme
    cases = [Frame(name, pages[name], *size) for name in pages for size in sizes]
    for frame, page in zip(cases, measured(BROWSER, cases, tmp_path), strict=True):
        found = {what: page[what] for what in ("beyond", "cutOff", "overlaps", "faint")}
        assert not any(found.values()), (frame.name, frame.width, frame.theme, found)
        assert page["nChartTexts"] > 20, frame.name
        assert page["smallestChartText"] >= 9, frame.name


def test_what_overflows_or_is_faint_is_found(tmp_path):
    """The measure itself can fail."""
    wide = '<div style="width: 500px; color: #ccc">too wide</div>'
    boxed = f'<div style="overflow-x: auto">{wide}</div>'
    close = '<div style="float: left; width: 5px">one</div><div>two</div>'
    cut = '<div style="overflow: hidden; height: 5px">three</div>'
    chart = (
        '<svg width="100" height="40"><path d="M0 0H50V40H0z" fill="#004" fill-opacity="0.9"/>'
        '<text x="10" y="20">dark</text><text x="60" y="20">too long</text></svg>'
    )
    contents = (wide, boxed, close, cut, chart)
    bodies = [f'<body><div class="distrff">{body}</div></body>' for body in contents]
    cases = [Frame("", f"<!DOCTYPE html><html>{body}</html>", 360, "light") for body in bodies]
    bare, scrolling, near, short, drawn = measured(BROWSER, cases, tmp_path)
    assert bare["scrollWidth"] > 360
    assert bare["beyond"] == ["DIV: too wide"]
    assert scrolling["scrollWidth"] == 360
    assert not scrolling["beyond"]
    assert bare["faint"] and scrolling["faint"]
    assert near["overlaps"] == ["DIV: one on DIV: two"]
    assert short["cutOff"] == ["DIV: three"]
    assert drawn["cutOff"] == ["text: too long"]
    assert [text.split()[1] for text in drawn["faint"]] == ["dark"]
    assert not bare["overlaps"] and not scrolling["cutOff"]
