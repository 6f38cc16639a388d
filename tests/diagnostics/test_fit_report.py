"""Every model's report has a page and a card, with what its kind of fit has to tell."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import distrff as drf
from distrff.diagnostics.report import FitReport

FOURIER = drf.FourierFeatures(drf.Gaussian(1.0), 32)
BINNING = drf.RandomBinningFeatures(drf.Laplacian(2.0), 8)
ITERATIVE = {
    "cg": (drf.KernelRidge(FOURIER, alpha=0.1, solver="cg", random_state=0), "relative residual"),
    "cg, no Gram": (drf.KernelRidge(BINNING, alpha="cv", cv=2, random_state=0), "relative residual"),
    "ridge by sgd": (
        drf.KernelRidge(FOURIER, alpha=1.0, solver="sgd", tol=0.1, random_state=0),
        "duality gap",
    ),
    "hinge": (drf.KernelSVC(FOURIER, C=1.0, random_state=0), "duality gap"),
    "hard margin": (drf.KernelSVC(FOURIER, C=np.inf, random_state=0), "duality gap"),
    "C by folds": (
        drf.KernelSVC(FOURIER, C="cv", cv=2, Cs=[0.1, 1.0], loss="squared_hinge", random_state=0),
        "duality gap",
    ),
    "three classes": (drf.KernelLikelihoodClassifier(FOURIER, random_state=0), "duality gap"),
    "softmax": (
        drf.KernelLikelihoodClassifier(FOURIER, multi_class="softmax", random_state=0),
        "relative gradient",
    ),
}


def rows(name):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 2))
    signal = np.sin(2 * X[:, 0]) + X[:, 1]
    if name in ("three classes", "softmax"):
        return X, np.digitize(signal, [-0.5, 0.5])
    if name == "hard margin":  # apart
        X = X[np.abs(signal) > 0.4]
        signal = np.sin(2 * X[:, 0]) + X[:, 1]
    is_ridge = isinstance(ITERATIVE[name][0], drf.KernelRidge)
    return X, signal if is_ridge else signal > 0


def documented():
    """The keys that the docstring of a report explains."""
    lines = re.findall(r"^ {4}(\w[\w, ]*) : ", FitReport.__doc__, re.MULTILINE)
    return {key for line in lines for key in line.split(", ")}


def words(html):
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    return " ".join(" ".join(root.itertext()).split())


@pytest.mark.parametrize("name", ITERATIVE)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_error_is_recorded_after_each_sweep(name):
    machine, measure = ITERATIVE[name]
    report = machine.fit(*rows(name)).report_
    assert set(report) <= documented()
    history = report["history"]
    assert history["measure"] == measure
    assert len({len(values) for key, values in history.items() if key != "measure"}) == 1
    assert all(before < after for before, after in pairwise(history["sweep"]))
    assert history["sweep"][-1] <= report["n_sweeps"]
    assert history["error"][-1] == report[measure.replace(" ", "_")]
    if measure == "duality gap":
        assert history["primal"][-1] == report["primal"] if "primal" in report else True
        known = [value for value in history["dual"] if value is not None]
        assert known == sorted(known), "the best lower bound never falls"
        assert history["primal"] == sorted(history["primal"], key=lambda v: -np.inf if v is None else -v)
    page = report.to_html()
    assert f"How the {measure} closed" in words(page)
    assert sum(seconds for _, seconds in report["phases"]) == pytest.approx(report["seconds"], abs=1e-2)
    if name == "C by folds":
        assert "Error against C" in words(page)
        assert "choice of C" in words(page)


def test_principal_components_have_a_page(rng):
    machine = drf.KernelPCA(FOURIER, 3).fit(rng.standard_normal((100, 2)))
    assert set(machine.report_) <= documented()
    shown = words(machine.report_.to_html())
    assert "Variance along the components" in shown
    assert f"{machine.explained_variance_ratio_[0]:.1%}" in shown
    assert "closed" not in shown


def test_the_page_takes_what_the_report_cannot_know(rng):
    X = rng.standard_normal((100, 2))
    report = drf.KernelRidge(FOURIER, alpha="cv").fit(X, X[:, 0]).report_
    page = report.to_html(
        title="A title", facts=[("asked by", "me")], scores={"columns": ["", "R²"], "rows": [["this", 0.5]]}
    )
    shown = words(page)
    assert all(text in shown for text in ("A title", "asked by me", "Score on held-out rows", "this 0.500"))
    assert "Fit of KernelRidge" in words(report.to_html())
    read_back = FitReport(json.loads(json.dumps(report.to_dict())))
    assert read_back.to_html() == report.to_html()


def test_columns_are_called_by_their_names(rng):
    frame = pd.DataFrame(rng.standard_normal((200, 2)), columns=["<b>height</b>", "width"])
    machine = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian("ard"), 32), random_state=0)
    page = machine.fit(frame, np.sin(frame["width"])).report_.to_html()
    assert "<b>" not in page
    assert re.search(r"width.*<b>height</b>", words(page))


def test_a_card_is_the_page_without_its_frame_and_its_curves(rng):
    X = rng.standard_normal((100, 2))
    report = drf.KernelRidge(FOURIER, alpha="cv").fit(X, X[:, 0]).report_
    card, page = report._repr_html_(), report.to_html()
    assert card.startswith('<div class="distrff distrff-card">')
    assert not re.search("<html|<body|<h1|<script|<svg|https?:", card)
    of_page = re.search(r"</h1>\n(.*)</main>", page, re.DOTALL)
    assert of_page is not None
    curve = re.compile(r"<section>\n<h2>[^<]*</h2>\n<svg.*?</section>\n", re.DOTALL)
    assert len(curve.findall(of_page[1])) == 2
    assert curve.sub("", of_page[1]) in card


def test_a_long_history_is_thinned():
    from distrff.solvers.status import History

    history = History()
    for sweep in range(1, 1001):
        history.record(sweep, 1.0)
        history.record(sweep, 1 / sweep)
    values = history.values("relative residual")
    assert len(values["sweep"]) == 200
    assert (values["sweep"][0], values["sweep"][-1]) == (1, 1000)
    assert values["error"] == [1 / sweep for sweep in values["sweep"]]
    assert "primal" not in values
    assert History().values("gap") == {"measure": "gap"}
