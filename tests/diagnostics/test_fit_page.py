"""What the report page shows of fits."""

from __future__ import annotations

import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.base import clone

from distrff.estimators.pca import KernelPCA
from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
from distrff.estimators.svm import KernelSVC
from distrff.features.compose import LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian
from distrff.utils.text import human_seconds, number_text


def fitted(features, *, n_targets=1, **parameters):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    Y = np.sin(X @ rng.standard_normal((2, n_targets))) + 0.1 * rng.standard_normal((300, n_targets))
    return KernelRidge(features, random_state=0, **parameters).fit(X, Y[:, 0] if n_targets == 1 else Y)


@pytest.fixture(scope="module")
def machine():
    return fitted(FourierFeatures(Gaussian("auto"), 64), alpha="cv", cv=4)


def page_of(report, **parameters):
    text = report.to_html(**parameters)
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def words(page):
    return " ".join(" ".join(page.find("body").itertext()).split())


def facts(report):
    """Return the names and values that the page lists."""
    return {fact.find("dt").text: fact.find("dd").text for fact in page_of(report).find(".//dl")}


def rows(page):
    return [[cell.text for cell in row] for row in page.iter("tr")]


def bars(page):
    return [[part.text for part in row.findall("span")] for row in page.findall(".//ul[@class='bars']/li")]


def test_the_whole_page(machine):
    report = machine.report_
    scores = {"columns": ["", "RMSE"], "rows": [["this model", "0.1"]]}
    page = page_of(report, title="A fit", facts=[["data", "made up"]], scores=scores)
    assert ["passes over the rows", "2", "2", "1.00 ×"] in rows(page)
    phases = ["plan", "column statistics", "map", "Gram", "alpha and learning curve", "model"]
    assert [label for label, _ in bars(page)] == [*phases, "column statistics", "Gram"]
    assert [label for label, _ in report["phases"]] == phases
    assert sum(dict(report["phases"]).values()) == pytest.approx(report["seconds"], rel=1e-3, abs=1e-3)
    assert page.find(".//dt").text == "data"
    for word in ("A fit", "made up", f"chosen: {number_text(machine.alpha_)}", "this model", "of 4 folds"):
        assert word in words(page)
    assert f"highest {number_text(max(report['mean_score']))} at" in words(page)


def test_numbers_of_the_kernel_are_short(machine):
    width = machine.features_.kernel_.length_scale
    assert facts(machine.report_)["kernel"].replace("\u200b", "") == f"Gaussian(length_scale={width:.4g})"


def test_learned_widths_are_shown_by_column(rng):
    X = rng.standard_normal((200, 30))
    machine = KernelRidge(FourierFeatures(Gaussian("ard"), 32), random_state=0).fit(X, np.sin(X[:, 7]))
    page = page_of(machine.report_)
    widths = [label for label, _ in bars(page) if re.fullmatch(r"column \d+", label)]
    assert len(widths) == 20
    assert widths[0] == "column 7"
    assert "10 columns of longer widths are not drawn" in words(page)
    assert "30 widths" in facts(machine.report_)["kernel"]
    assert "marginal likelihood of 200 rows" in words(page)


def times(machine):
    """Return the planned and the measured time that the page shows."""
    return [row[1:3] for row in rows(page_of(machine.report_)) if row[0] == "time of the fit"]


@pytest.mark.parametrize(
    "machine",
    [
        KernelRidge(alpha="cv", cv=2),
        KernelRidge(solver="cg"),
        KernelRidgeClassifier(),
        KernelSVC(loss="squared_hinge"),
        KernelPCA(),
    ],
    ids=lambda machine: type(machine).__name__,
)
def test_the_time_that_was_planned_for_this_fit_is_shown(rng, machine):
    X = rng.standard_normal((150, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])  # three classes, which a plan cannot know
    machine.set_params(features=FourierFeatures(Gaussian(1.0), 32), random_state=0)
    assert times(clone(machine).fit(X, y)) == [], "nothing was predicted"
    predicted = machine.plan(X, y).seconds
    measured = machine.fit(X, y).report_["seconds"]
    assert times(machine) == [[human_seconds(predicted), human_seconds(measured)]]
    assert machine.plan_.seconds == predicted
    assert times(machine.set_params(features__n_components=16).fit(X, y)) == [], "another fit was planned"


@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": 1.0},
        {"alpha": "gcv"},
        {"alpha": [0.5, 2.0], "n_targets": 2},
        {"alpha": "cv", "n_targets": 2},
        {"alpha": "cv", "alphas": [0.1, 1.0], "dtype": "float64"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "features", [FourierFeatures(Gaussian(1.0), 32), LinearFeatures()], ids=["rff", "id"]
)
def test_every_kind_of_ridge_has_a_page(features, parameters):
    page = page_of(fitted(features, **parameters).report_, title="t")
    assert page.find(".//h1").text == "t"


def test_a_noise_floor_far_below_the_grid_is_not_drawn():
    parameters = {"alpha": "cv", "alphas": [0.1, 1.0], "dtype": "float64"}
    report = fitted(FourierFeatures(Gaussian(1.0), 32), **parameters).report_
    assert report["noise_floor"] < 0.01
    assert "noise floor" not in words(page_of(report))


def test_a_fit_to_a_gram_has_a_page():
    from distrff.estimators.gram import gram

    X = np.random.default_rng(0).standard_normal((200, 2))
    statistics = gram(X, FourierFeatures(Gaussian(1.0), 32), np.sin(X[:, 0]), random_state=0, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = page_of(KernelRidge(alpha="cv").fit_gram(statistics).report_)
    assert "Plan against measured" not in words(page)
    assert "over the rows, together" not in words(page)
