"""Every fit's report has a page and a card, with what its kind of fit has to tell."""

import json
import re
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.diagnostics.report import FitReport
from distrff.solvers.objective import History, Status
from distrff.utils.text import human_seconds, number_text
from tests.support.pages import parse, words

FOURIER = drf.FourierFeatures(drf.Gaussian(1.0), 32)
BINNING = drf.RandomBinningFeatures(drf.Laplacian(2.0), 8)
ITERATIVE = {
    "cg": (drf.KernelRidge(FOURIER, alpha=0.1, solver="cg", scale="none"), "relative residual"),
    "cg, no Gram": (drf.KernelRidge(BINNING, alpha="cv", cv=2, scale="none"), "relative residual"),
    "ridge by sgd": (drf.KernelRidge(FOURIER, alpha=1.0, solver="sgd", tol=0.1, scale="none"), "duality gap"),
    "hinge": (drf.KernelSVC(FOURIER, C=1.0, scale="none"), "duality gap"),
    "hard margin": (drf.KernelSVC(FOURIER, C=np.inf, scale="none"), "duality gap"),
    "C by folds": (
        drf.KernelSVC(FOURIER, "cv", cv=2, Cs=[0.1, 1.0], loss="squared_hinge", scale="none"),
        "duality gap",
    ),
    "three classes": (drf.KernelLikelihoodClassifier(FOURIER, scale="none"), "duality gap"),
    "softmax": (
        drf.KernelLikelihoodClassifier(FOURIER, multi_class="softmax", scale="none"),
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


def ridge(features, *, n_targets=1, **parameters):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    Y = np.sin(X @ rng.standard_normal((2, n_targets))) + 0.1 * rng.standard_normal((300, n_targets))
    parameters = {"alpha": 1.0, "scale": "none", "random_state": 0} | parameters
    return drf.KernelRidge(features, **parameters).fit(X, Y[:, 0] if n_targets == 1 else Y)


@pytest.fixture(scope="module")
def searched():
    return ridge(drf.FourierFeatures(drf.Gaussian("auto"), 64), alpha="cv", cv=4)


def documented():
    """The keys that the docstring of a report explains."""
    lines = re.findall(r"^ {4}(\w[\w, ]*) : ", FitReport.__doc__, re.MULTILINE)
    return {key for line in lines for key in line.split(", ")}


def facts(page):
    """Return the names and values that the page lists."""
    return {fact.findtext("dt"): fact.findtext("dd") for part in parse(page).iter("dl") for fact in part}


def table_rows(page):
    return [[cell.text for cell in row] for row in parse(page).iter("tr")]


def bars(page):
    """Return the labels of the page's bars."""
    return [row.find("span").text for row in parse(page).findall(".//ul[@class='bars']/li")]


@pytest.mark.parametrize("name", ITERATIVE)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_error_is_recorded_after_each_sweep(name):
    model, measure = ITERATIVE[name]
    report = model.set_params(random_state=0).fit(*rows(name)).report_
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
    shown = words(report.to_html())
    assert f"How the {measure} closed" in shown
    assert sum(seconds for _, seconds in report["phases"]) == pytest.approx(report["seconds"], abs=1e-2)
    if name == "C by folds":
        assert "Error against C" in shown
        assert "choice of C" in shown


def test_principal_components_have_a_page(rng):
    model = drf.KernelPCA(FOURIER, 3, scale="none").fit(rng.standard_normal((100, 2)))
    assert set(model.report_) <= documented()
    shown = words(model.report_.to_html())
    assert "Variance along the components" in shown
    assert f"{model.explained_variance_ratio_[0]:.1%}" in shown
    assert "closed" not in shown


def test_the_whole_page(searched):
    report = searched.report_
    scores = {"columns": ["", "RMSE"], "rows": [["this model", 0.5]]}
    page = report.to_html(title="A fit", facts=[["data", "made up"]], scores=scores)
    assert ["passes over the rows", "2", "2", "1.00 ×"] in table_rows(page)
    phases = ["plan", "column statistics", "map", "Gram", "alpha and learning curve", "model"]
    assert bars(page) == [*phases, "column statistics", "Gram"]
    assert [label for label, _ in report["phases"]] == phases
    assert sum(dict(report["phases"]).values()) == pytest.approx(report["seconds"], rel=1e-3, abs=1e-3)
    assert list(facts(page)).index("data") < list(facts(page)).index("model")
    for text in (
        *("A fit", "data made up", "Score on held-out rows", "this model 0.500", "of 4 folds"),
        f"chosen: {number_text(searched.alpha_)}",
        f"highest {number_text(max(report['mean_score']))} at",
    ):
        assert text in words(page)
    assert "Fit of KernelRidge" in words(report.to_html())
    # The kernel's numbers are short.
    length_scale = searched.features_.kernel_.length_scale
    assert facts(page)["kernel"].replace("\u200b", "") == f"Gaussian(length_scale={length_scale:.4g})"
    read_back = FitReport(json.loads(json.dumps(report.to_dict())))
    assert read_back.to_html() == report.to_html()


def test_learned_length_scales_are_shown_by_column(rng):
    X = pd.DataFrame(rng.standard_normal((200, 30))).add_prefix("<b>")
    ard = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian("ard"), 32), 1.0, random_state=0)
    page = ard.fit(X, np.sin(X["<b>7"])).report_.to_html()
    columns = [label for label in bars(page) if label.startswith("<b>")]
    assert (len(columns), columns[0]) == (20, "<b>7")
    assert "10 columns of longer widths are not drawn" in words(page)
    assert "30 widths" in facts(page)["kernel"]
    assert "marginal likelihood of 200 rows" in words(page)
    assert "<b>" not in page


def test_a_map_that_chose_itself_tells_how(rng):
    """In a line of text, in data, and on the page, with the columns that matter."""
    X = rng.standard_normal((200, 4))
    y = np.sin(2 * X[:, 2]) + 0.01 * rng.standard_normal(200)
    model = drf.KernelRidge(drf.AutoFeatures(32, maps=("fourier",)), random_state=0).fit(X, y)
    report = model.report_
    assert set(report) <= documented()
    (chosen,) = [one for one in report["candidates"] if one["chosen"]]
    assert {"candidate", "criterion", "error", "spread", "expected", "flops", "seconds"} <= set(chosen)
    assert f"map {chosen['candidate']}; chosen of {len(report['candidates'])} candidates" in repr(report)
    page = report.to_html()
    assert f"{chosen['candidate']} (chosen)" in words(page)
    assert facts(page)["width found by"] == "small models on a sample"
    # One width for all columns, of which one matters, loses by far.
    assert "one width" not in chosen["candidate"]
    columns = [label for label in bars(page) if re.fullmatch(r"column \d+", label)]
    assert columns[0] == "column 2"


@pytest.mark.parametrize(
    "model",
    [drf.KernelRidge(alpha="cv", cv=2), drf.KernelSVC(loss="squared_hinge"), drf.KernelPCA()],
    ids=str,
)
def test_the_time_that_was_planned_for_this_fit_is_shown(rng, model):
    def times():
        page = model.report_.to_html()
        return [row[1:3] for row in table_rows(page) if row[0] == "time of the fit"]

    X = rng.standard_normal((150, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])  # three classes, which a plan cannot know
    model = clone(model).set_params(features=FOURIER, random_state=0).fit(X, y)
    assert times() == [], "nothing was predicted"
    predicted = model.plan(X, y).seconds
    measured = model.fit(X, y).report_["seconds"]
    assert times() == [[human_seconds(predicted), human_seconds(measured)]]
    assert model.plan_.seconds == predicted
    model.set_params(features=drf.FourierFeatures(drf.Gaussian(1.0), 16)).fit(X, y)
    assert times() == [], "another fit was planned"


@pytest.mark.parametrize("is_noise", [True, False])
def test_a_model_no_better_than_the_mean_is_said(rng, is_noise):
    X = rng.standard_normal((120, 2))
    y = rng.standard_normal(120) if is_noise else X[:, 0]
    # Noise that is followed closely: held-out errors are those of two such models, and above the mean's.
    model = drf.KernelRidge(FOURIER, "cv", alphas=[1e-6], scale="none", random_state=0).fit(X, y)
    assert ("whoever always says the mean" in model.report_.to_html()) == is_noise


def test_a_fit_to_a_gram_has_a_page():
    X = np.random.default_rng(0).standard_normal((200, 2))
    statistics = drf.gram(X, FOURIER, np.sin(X[:, 0]), random_state=0, cv=3, scale="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = words(drf.KernelRidge(alpha="cv", scale="none").fit_gram(statistics).report_.to_html())
    assert "Plan against measured" not in shown
    assert "over the rows, together" not in shown


def test_a_card_is_the_page_without_its_frame_and_its_curves(searched):
    card, page = searched.report_._repr_html_(), searched.report_.to_html()
    assert card.startswith('<div class="distrff distrff-card">')
    assert not re.search("<html|<body|<h1|<script|<svg|https?:", card)
    of_page = re.search(r"</h1>\n(.*)</main>", page, re.DOTALL)
    assert of_page is not None
    curve = re.compile(r"<section>\n<h2>[^<]*</h2>\n<svg.*?</section>\n", re.DOTALL)
    assert len(curve.findall(of_page[1])) == 2
    assert curve.sub("", of_page[1]) in card


def test_a_long_history_is_thinned():
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


def test_status_values_are_sentences_with_a_remedy():
    assert all(len(status.value.split()) > 4 for status in Status)
