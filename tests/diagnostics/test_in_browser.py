"""Pages and cards in a real browser: nothing overflows on a telephone, all is readable in light and dark."""

from __future__ import annotations

import dataclasses
import re
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

import distrff as drf
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
    dataset = dataclasses.replace(as_dataset(X, y), source=f"/a/{LONG}.zarr", skipped_columns=(LONG,))
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


def in_notebook(shown: list[Any], template: str, theme: str) -> str:
    """Return the page on which a notebook shows things, without the scripts that it would fetch."""
    outputs = [new_output("execute_result", {"text/html": thing._repr_html_()}) for thing in shown]
    notebook = new_notebook(cells=[new_code_cell("shown", outputs=[output]) for output in outputs])
    page, _ = HTMLExporter(template_name=template, theme=theme).from_notebook_node(notebook)
    return re.sub("<script.*?</script>", "", page, flags=re.DOTALL)


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


def test_what_overflows_or_is_faint_is_found(tmp_path):
    """The measure itself can fail."""
    wide = '<div style="width: 500px; color: #ccc">too wide</div>'
    boxed = f'<div style="overflow-x: auto">{wide}</div>'
    close = '<div style="float: left; width: 5px">one</div><div>two</div>'
    cut = '<div style="overflow: hidden; height: 5px">three</div>'
    bodies = [f'<body><div class="distrff">{body}</div></body>' for body in (wide, boxed, close, cut)]
    cases = [Frame("", f"<!DOCTYPE html><html>{body}</html>", 360, "light") for body in bodies]
    bare, scrolling, near, short = measured(BROWSER, cases, tmp_path)
    assert bare["scrollWidth"] > 360
    assert bare["beyond"] == ["DIV: too wide"]
    assert scrolling["scrollWidth"] == 360
    assert not scrolling["beyond"]
    assert bare["faint"] and scrolling["faint"]
    assert near["overlaps"] == ["DIV: one on DIV: two"]
    assert short["cutOff"] == ["DIV: three"]
    assert not bare["overlaps"] and not scrolling["cutOff"]
