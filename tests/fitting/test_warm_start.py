"""Fits that go on from the model of an earlier one: the same map, and a start at its coefficients."""

import pickle

import numpy as np
import pandas as pd
import pytest

import distrff as drf
from distrff.errors import DataWarning, InputError
from tests.support.fits import LOSSES, classes_of, fourier, margin_classifier, objective_of, refusal, ridge

NAMES = ("hinge", "squared_hinge", "logistic")


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_of_the_same_rows_takes_few_light_sweeps(problem, name, n_classes):
    X, y = problem.X, classes_of(problem.y, n_classes)
    model = margin_classifier(name, fourier(32), 10.0, tol=1e-4, warm_start=True).fit(X, y)
    n_anew, coef = model.n_iter_, model.coef_
    assert n_anew > 2 or model.report_["solver"] == "dual"  # which takes few rounds in any case
    model = pickle.loads(pickle.dumps(model)).fit(X, y)
    # One pass finds the gap closed; of the hinge another makes the dual point.
    assert model.report_["history"]["sweep"][-1] <= model.n_iter_ <= 2
    assert model.report_["status"] == "CONVERGED" and model.report_["duality_gap"] <= 1e-4
    # ½‖Δw‖² is at most the sum of both gaps, of an objective of at most C·Σs times the constant's loss.
    largest = 2e-4 * 10.0 * len(X) * float(LOSSES[name]().value(np.zeros(1), np.ones(1))[0])
    assert 0.5 * np.square(model.coef_ - coef).sum(axis=1).max() <= largest


def test_a_search_for_the_penalty_is_not_begun_from(problem):
    """Its fits begin anew each time, and need no stricter end than without `warm_start`."""
    X, y = problem.X, classes_of(problem.y)
    n_sweeps = [
        margin_classifier("squared_hinge", fourier(32), "cv", Cs=[0.1, 1.0, 10.0], tol=1e-4, warm_start=warm)
        .fit(X, y)
        .n_iter_
        for warm in (True, False)
    ]
    assert n_sweeps[0] == n_sweeps[1]


@pytest.mark.parametrize("name", NAMES)
def test_another_penalty_goes_on_from_there(problem, name):
    X, y = problem.X, classes_of(problem.y)
    model = margin_classifier(name, fourier(32), 1.0, tol=1e-4, warm_start=True).fit(X, y)
    model.set_params(C=3.0)
    model.C_ = 3.0
    s, Y = np.ones(len(X)), 2.0 * y - 1
    at_start = objective_of(model, name, X, Y, s)
    model.fit(X, y)
    assert model.report_["history"]["primal"][0] <= at_start * (1 + 1e-9)
    assert model.report_["duality_gap"] <= 1e-4
    assert objective_of(model, name, X, Y, s) < at_start


def test_softmax_is_measured_as_in_a_fit_anew(problem):
    X, y = problem.X, classes_of(problem.y, 3)
    options = {"multi_class": "softmax", "tol": 1e-4, "random_state": 0, "scale": "none"}
    model = drf.KernelLikelihoodClassifier(fourier(32), 1.0, warm_start=True, **options).fit(X, y)
    n_anew = model.n_iter_
    assert model.fit(X, y).n_iter_ == 2 < n_anew  # at zero, and at the start


@pytest.mark.parametrize("solver", ["cg", "sgd"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ridge_goes_on_in_the_units_of_its_targets(problem, solver, fit_intercept):
    X, y = problem.X, 100 * problem.y + 1000
    model = drf.KernelRidge(
        fourier(32), 1.0, solver=solver, tol=1e-6, scale="none", fit_intercept=fit_intercept, warm_start=True
    )
    first = model.fit(X, y).predict(X)
    again = model.fit(X, y)
    # A pass of SGD that no longer lowers the objective is one to judge by, after an epoch.
    assert again.n_iter_ <= (1 if solver == "cg" else 3)
    np.testing.assert_allclose(again.predict(X), first, rtol=0, atol=1e-2 * np.std(y))


def test_map_and_scaling_stay_for_other_rows(problem):
    X, y = problem.X, classes_of(problem.y)
    automatic = drf.KernelSVC(drf.FourierFeatures(n_components=32), warm_start=True, random_state=0)
    first = automatic.fit(X[:400], y[:400])
    kernel, scaling = first.features_.kernel_, first.model_.scaling
    second = first.fit(3 * X[400:] + 1, y[400:])
    assert second.features_.kernel_ == kernel and second.model_.scaling.equals(scaling)
    anew = second.set_params(warm_start=False).fit(3 * X[400:] + 1, y[400:])
    assert anew.features_.kernel_ != kernel and not anew.model_.scaling.equals(scaling)


def test_where_a_fit_cannot_go_on(problem, tmp_path):
    X, y = problem.X, classes_of(problem.y)
    model = margin_classifier("squared_hinge", fourier(32), warm_start=True)
    model.fit(pd.DataFrame(X, columns=list("abcd")), y)
    assert "3 features" in refusal(model.fit, X[:, :3], y)
    with pytest.raises(InputError, match="feature names"):
        model.fit(pd.DataFrame(X, columns=list("abdc")), y)
    assert "goes on with the classes [0, 1], but y has [0, 1, 2]" in refusal(
        model.fit, X, classes_of(problem.y, 3)
    )
    with pytest.raises(InputError, match="checkpoint"):
        model.fit(X, y, checkpoint=str(tmp_path / "checkpoint"))
    model.set_params(features=fourier(16), scale="standard")
    assert "but features.n_components, scale changed" in refusal(model.fit, X, y)
    assert model.set_params(warm_start=False).fit(X, y).coef_.shape == (1, 16)
    assert "must be True or False" in refusal(model.set_params(warm_start="yes").fit, X, y)


def test_numbers_of_iterations(problem):
    X, y = problem.X, problem.y
    assert ridge("cv").fit(X, y).n_iter_ == 1
    assert ridge(1.0).partial_fit(X, y).n_iter_ == 1
    by_cg = ridge(1.0, solver="cg", tol=1e-8).fit(X, y)
    assert by_cg.n_iter_ == by_cg.report_["history"]["sweep"][-1] >= 1
    assert drf.KernelPCA(fourier(), 2).fit(X).n_iter_ == 1
    searched = margin_classifier("squared_hinge", fourier(32), "cv", Cs=[1.0, 10.0], cv=2)
    assert 1 <= searched.fit(X, classes_of(y)).n_iter_ <= 200


def test_a_column_that_had_one_value_and_now_has_others_is_named(problem):
    X, y = np.column_stack([problem.X, np.ones(len(problem.X))]), classes_of(problem.y)
    model = margin_classifier("hinge", fourier(16), 1.0, scale="standard", warm_start=True).fit(X, y)
    X[::3, -1] = 2.0
    with pytest.warns(
        DataWarning, match="column 4 had one value .* differs in these rows; fit a clone to learn from it"
    ):
        model.fit(X, y)
