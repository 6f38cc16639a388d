"""What the report page gets from the report of a fit."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from distrff.diagnostics.report import fit_page, report_page
from distrff.estimators.pca import KernelPCA
from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
from distrff.estimators.svm import KernelSVC
from distrff.features.compose import LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian


def fitted(features, *, n_targets=1, **parameters):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    Y = np.sin(X @ rng.standard_normal((2, n_targets))) + 0.1 * rng.standard_normal((300, n_targets))
    return KernelRidge(features, random_state=0, **parameters).fit(X, Y[:, 0] if n_targets == 1 else Y)


@pytest.fixture(scope="module")
def machine():
    return fitted(FourierFeatures(Gaussian("auto"), 64), alpha="cv", cv=4)


def test_the_whole_page(machine):
    report = machine.report_
    page = fit_page(
        report,
        title="A fit",
        facts=[["data", "made up"]],
        scores={"columns": ["", "RMSE"], "rows": [["this machine", "0.1"]]},
    )
    json.dumps(page, allow_nan=False)
    path = page["penalty_path"]
    assert len(path["folds"]) == 4
    assert {len(values) for values in [path["values"], path["mean"], *path["folds"]]} == {len(path["values"])}
    # A weighted mean lies between the lowest and the highest fold.
    assert (np.min(path["folds"], axis=0) <= path["mean"]).all()
    assert (np.max(path["folds"], axis=0) >= path["mean"]).all()
    assert path["chosen"] == machine.alpha_
    assert page["learning_curve"]["n_components"][-1] == 64
    assert page["learning_curve"]["score"][-1] == pytest.approx(machine.cv_score_)
    planned = {name: (planned, measured) for name, _, planned, measured in page["plan"]["rows"]}
    assert planned["passes over the rows"] == (2, 2)
    assert [label for label, _ in page["time"]["sweeps"]] == ["column statistics", "Gram"]
    phases = dict(page["time"]["phases"])
    assert list(phases) == ["plan", "column statistics", "map", "Gram", "alpha and learning curve", "machine"]
    assert sum(phases.values()) == pytest.approx(report["seconds"], rel=1e-3, abs=1e-3)
    assert page["facts"][0] == ["data", "made up"]
    text = report_page(page)
    for word in ("A fit", "made up", "chosen:", "this machine", "column statistics", "Plan against measured"):
        assert word in text


def test_a_report_read_back_gives_the_same_page(machine):
    read_back = json.loads(json.dumps(machine.report_.to_dict()))
    assert fit_page(read_back, title="t") == fit_page(machine.report_, title="t")


def test_numbers_of_the_kernel_are_short(machine):
    facts = dict(fit_page(machine.report_, title="t")["facts"])
    width = machine.features_.kernel_.length_scale
    assert facts["kernel"].replace("\u200b", "") == f"Gaussian(length_scale={width:.4g})"


def test_learned_widths_are_shown_by_column(rng):
    X = rng.standard_normal((200, 30))
    machine = KernelRidge(FourierFeatures(Gaussian("ard"), 32), random_state=0).fit(X, np.sin(X[:, 7]))
    page = fit_page(machine.report_, title="t")
    assert len(page["relevance"]["bars"]) == 20
    assert page["relevance"]["bars"][0][0] == "column 7"
    text = report_page(page)
    assert "column 7" in text
    assert "10 columns of longer widths are not drawn" in text
    assert "30 widths" in dict(page["facts"])["kernel"]
    assert "marginal likelihood of 200 rows" in text


def times(machine):
    """Return the planned and the measured time that the page shows."""
    rows = fit_page(machine.report_, title="t")["plan"]["rows"]
    return [row[2:] for row in rows if row[0] == "time of the fit"]


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
    assert times(machine.fit(X, y)) == [[predicted, machine.report_["seconds"]]]
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
    report = fitted(features, **parameters).report_
    page = fit_page(report, title="t")
    json.dumps(page, allow_nan=False)
    assert "<h1>t</h1>" in report_page(page)


def test_a_noise_floor_far_below_the_grid_is_not_drawn():
    report = fitted(
        FourierFeatures(Gaussian(1.0), 32), alpha="cv", alphas=[0.1, 1.0], dtype="float64"
    ).report_
    assert report["noise_floor"] < 0.01
    assert fit_page(report, title="t")["penalty_path"]["noise_floor"] is None


def test_a_fit_to_a_gram_has_a_page():
    from distrff.estimators.gram import gram

    X = np.random.default_rng(0).standard_normal((200, 2))
    statistics = gram(X, FourierFeatures(Gaussian(1.0), 32), np.sin(X[:, 0]), random_state=0, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = fit_page(KernelRidge(alpha="cv").fit_gram(statistics).report_, title="t")
    assert page["plan"] is None
    assert page["time"]["sweeps"] == []
    report_page(page)
