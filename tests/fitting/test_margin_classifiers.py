"""Classifiers of margin losses against scikit-learn, the choice of C, hard margins, and likelihoods."""

import json
from functools import partial
from itertools import product

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, LinearSVC

import distrff as drf
from distrff.errors import InputError
from distrff.fitting import cost
from distrff.fitting import margins as penalty_search
from distrff.fitting.light import DualAscent, MarginOracle
from distrff.preprocessing.folds import Keys, folds_by
from distrff.solvers.losses import MARGINS, NOISES
from tests.support.fits import (
    LOSSES,
    classes_of,
    fourier,
    in_process,
    interrupt_after,
    margin_classifier,
    objective,
    objective_of,
    refusal,
    smallest_objective,
    stored,
)


def classifier(name, C=1.0, **options):
    return margin_classifier(name, fourier(32, random_state=None), C, **options)


REFERENCES = [
    *(("hinge", SVC(C=C, kernel="linear", tol=1e-6)) for C in (0.1, 10.0)),
    *(
        (loss, LinearSVC(C=C, loss=loss, fit_intercept=False, tol=1e-10, max_iter=10**6, random_state=0))
        for loss, C in product(MARGINS, (0.1, 10.0))
    ),
    *(
        ("logistic", LogisticRegression(C=C, fit_intercept=fit_intercept, tol=1e-10, max_iter=10_000))
        for C, fit_intercept in product((0.1, 10.0), (True, False))
    ),
]


@pytest.mark.parametrize(
    ("name", "solver", "reference"),
    [(name, "auto", one) for name, one in REFERENCES]
    + [(name, "smoothed", one) for name, one in REFERENCES if name == "hinge"],
    ids=str,
)
def test_equals_scikit_learn_on_its_features(problem, name, solver, reference):
    C, y, s = reference.C, classes_of(problem.y), problem.s
    options = {"fit_intercept": getattr(reference, "fit_intercept", True), "solver": solver}
    fitted = classifier(name, C, tol=1e-8 if name == "logistic" else 1e-6, **options).fit(problem.X, y, s)
    Z, signs = fitted.features_.transform(problem.X), 2.0 * y - 1
    reference = clone(reference).fit(Z, y, s)
    ours = objective_of(fitted, name, problem.X, signs, s)
    theirs = objective(LOSSES[name](), C, reference.coef_, reference.decision_function(Z), signs, s)
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-10)
    of_hinge = "dual" if solver == "auto" else solver
    assert fitted.report_["solver"] == (of_hinge if name == "hinge" else "lbfgs")
    if name == "logistic":
        assert ours <= theirs * (1 + 1e-6)
        np.testing.assert_allclose(fitted.predict_proba(problem.X), reference.predict_proba(Z), atol=1e-3)
    else:
        assert abs(ours - theirs) <= 1e-6 * theirs
    if isinstance(reference, SVC):
        F = reference.decision_function(Z)
        np.testing.assert_allclose(fitted.decision_function(problem.X), F, atol=0.02)


@pytest.mark.parametrize(
    ("name", "options"), [("squared_hinge", {}), ("probit", {"sigma": 0.7}), ("laplace", {"sigma": 0.7})]
)
def test_smooth_losses_equal_a_general_solver(problem, name, options):
    y, s = classes_of(problem.y), problem.s
    fitted = classifier(name, 3.0, tol=1e-8, **options).fit(problem.X, y, s)
    signs, loss = 2.0 * y - 1, LOSSES[name](*options.values())
    best = smallest_objective(loss, 3.0, fitted.features_.transform(problem.X), signs, s, gtol=1e-9).fun
    assert objective_of(fitted, name, problem.X, signs, s) == pytest.approx(best, rel=1e-6)
    assert fitted.report_["dual"] <= best * (1 + 1e-9)
    assert fitted.report_["solver"] == "lbfgs"


@pytest.mark.filterwarnings("ignore::distrff.errors.DataWarning")
@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "hinge"])
def test_the_gap_is_closed_in_few_sweeps(name, C):
    """In a badly scaled space far from the origin: a condition number of 10⁴ costs nothing."""
    rng = np.random.default_rng(2)
    Z = rng.standard_normal((4000, 12))
    y = Z @ rng.standard_normal(12) / 3 + 0.4 + 0.5 * rng.standard_normal(4000) > 0
    fitted = margin_classifier(name, drf.LinearFeatures(), C).fit(Z * np.logspace(0, -2, 12) + 0.3, y)
    assert fitted.report_["duality_gap"] <= 1e-3
    assert fitted.n_iter_ <= 25


def awkward(problem, case):
    """Rows, labels and weights that a solver may stumble over."""
    X, y, s = problem.X[:450].copy(), classes_of(problem.y, 4)[:450], problem.s[:450].copy()
    if case == "rare class":
        y = np.where(np.arange(len(y)) < 3, 9, y)
    if case == "constant column":
        X[:, 0] = 7.0
    if case == "repeated rows":
        X[100:], y[100:] = X[:1], y[:1]
    if case == "rows without weight":
        s[::3] = 0.0
    return X, y, s


@pytest.mark.parametrize("fit_intercept", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("C", [1.0, "cv"])
@pytest.mark.parametrize("case", ["rare class", "constant column", "repeated rows", "rows without weight"])
def test_few_rows_have_the_models_of_many(problem, case, C, fit_intercept):
    """The dual on the Gram of the rows, and passes over them, end within their tolerance of each other."""
    X, y, s = awkward(problem, case)
    options = {"tol": 1e-5, "fit_intercept": fit_intercept, "cv": 3}
    options["Cs"] = [0.1, 10.0, 1000.0] if C == "cv" else None
    few, many = (
        classifier("hinge", C, solver=solver, **options).fit(X, y, s) for solver in ("auto", "smoothed")
    )
    assert (few.report_["solver"], many.report_["solver"]) == ("dual", "smoothed")
    assert few.report_["status"] == many.report_["status"] == "CONVERGED"
    if C == "cv":
        assert few.report_["Cs"] == many.report_["Cs"]
        # Models of folds are solved to 1 %.
        np.testing.assert_allclose(few.report_["mean_score"], many.report_["mean_score"], rtol=0.1)
    if few.C_ != many.C_:  # models of folds are solved to 1 %, and two C may do as well
        many = classifier("hinge", few.C_, solver="smoothed", **options | {"Cs": None}).fit(X, y, s)
    for output in range(len(few.classes_)):
        signs = np.where(y == few.classes_[output], 1.0, -1.0)
        mine, its = (objective_of(one, "hinge", X, signs, s, output) for one in (few, many))
        assert mine == pytest.approx(its, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_many_classes_are_one_against_the_rest(problem, name):
    X, y, s = problem.X, classes_of(problem.y, 3), np.ones(900)
    tol, rel = (1e-5, 3e-5) if "hinge" in name else (1e-6, 1e-5)
    fitted = classifier(name, tol=tol).fit(X, np.array(["a", "b", "c"])[y])
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    assert fitted.coef_.shape == (3, 32)
    for output in range(3):
        alone = classifier(name, tol=tol).fit(X, y == output)
        signs = np.where(y == output, 1.0, -1.0)
        ours = objective_of(fitted, name, X, signs, s, output)
        assert ours == pytest.approx(objective_of(alone, name, X, signs, s), rel=rel)
    F = fitted.decision_function(X)
    if "hinge" not in name:
        F = fitted.predict_proba(X)
        np.testing.assert_allclose(F.sum(axis=1), 1, rtol=1e-12)
    assert (fitted.classes_[F.argmax(axis=1)] == fitted.predict(X)).all()


@pytest.mark.parametrize(("name", "tol"), [("hinge", 1e-3), ("logistic", 1e-6)])
def test_class_weights_are_row_weights(problem, name, tol):
    y = classes_of(problem.y, 3)
    by_class = np.array([0.5, 1.0, 3.0])
    weighted = classifier(name, class_weight=dict(enumerate(by_class)), tol=tol).fit(problem.X, y)
    rows = classifier(name, tol=tol).fit(problem.X, y, by_class[y])
    np.testing.assert_allclose(weighted.coef_, rows.coef_, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        # Two rounds of the dual close the gap to 1e-3 of some seeds.
        ("hinge", {"max_sweeps": 2, "tol": 1e-9}, "gap is .* after light sweep 2, above tol=1e-09; allow"),
        ("logistic", {"max_sweeps": 1, "tol": 1e-9}, "gap is .* after light sweep 1, above tol=1e-09; allow"),
    ],
)
def test_too_few_sweeps_are_a_warning(problem, name, options, message):
    with pytest.warns(ConvergenceWarning, match=message):
        fitted = classifier(name, 100.0, **options).fit(problem.X, classes_of(problem.y))
    assert fitted.report_["status"] == "NOT_CONVERGED"
    assert fitted.predict(problem.X).shape == (900,)


@pytest.mark.parametrize(
    ("name", "solver", "C", "n_calls"),
    [
        ("hinge", "smoothed", 100.0, 1),
        ("hinge", "auto", 100.0, 1),
        ("logistic", "auto", 100.0, 2),
        ("hinge", "smoothed", "cv", 8),
        ("hinge", "auto", "cv", 2),
    ],
)
def test_an_interrupted_fit_keeps_the_best_model(problem, monkeypatch, name, solver, C, n_calls):
    if name == "hinge" and solver == "auto":
        interrupt_after(monkeypatch, DualAscent, ("ascend",), n_calls)
    else:
        interrupt_after(monkeypatch, MarginOracle, ("evaluate", "nearest_rows"), n_calls)
    options = {"Cs": [0.1, 1.0, 10.0, 100.0]} if C == "cv" else {"tol": 1e-9}
    estimator = classifier(name, C, solver=solver, **options)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, classes_of(problem.y))
    assert estimator.report_["status"] == "INTERRUPTED"
    # A search ended where it was interrupted, not at the end of the grid.
    assert not any("of its grid" in note for note in estimator.report_["notes"])
    assert estimator.score(problem.X, classes_of(problem.y)) > 0.7


def test_models_without_probabilities(problem):
    assert not hasattr(classifier("hinge"), "predict_proba")
    for estimator, y in (
        (classifier("hinge"), problem.y > 0),
        (drf.KernelRidge(fourier(4), alpha=1.0, scale="none"), problem.y),
    ):
        model = estimator.fit(problem.X, y).model_
        with pytest.raises(InputError, match=f"a {type(estimator).__name__} has no probabilities"):
            model.predict_proba(problem.X)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in LOSSES),
        ("hinge", {"solver": "smoothed"}),
        ("logistic", {"multi_class": "softmax"}),
    ],
)
def test_a_fold_without_weight_is_refused(problem, name, options):
    """The models that leave the other fold out are fitted to no weight at all."""
    s = problem.s.copy()
    s[len(s) // 2 :] = 0.0
    searched = classifier(name, "cv", cv=2, fold_by="contiguous", Cs=[1.0], **options)
    message = refusal(searched.fit, problem.X, classes_of(problem.y), s)
    assert "in each of 2 folds, of a weight above 0, but fold 1 has none" in message


SMOOTH = (
    "solver='smoothed' needs a loss whose slope jumps, which loss='squared_hinge' is not; "
    "use solver='lbfgs' or 'auto'"
)
NOT_LOGISTIC = "multi_class='softmax' is for noise='logistic', got noise='probit'; use multi_class='ovr'"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("hinge", {"loss": "log"}, "loss must be one of 'hinge', 'squared_hinge', got 'log'"),
        ("squared_hinge", {"solver": "smoothed"}, SMOOTH),
        ("hinge", {"C": -1.0}, "C must be a positive number, got -1.0"),
        ("hinge", {"tol": "x"}, "tol must be a positive number, got 'x'"),
        ("hinge", {"max_sweeps": "a"}, "max_sweeps must be a positive integer or None, got 'a'"),
        ("logistic", {"C": 0}, "C must be a positive number, got 0"),
        ("logistic", {"C": "1"}, "C must be a positive number or 'cv', got '1'"),
        ("logistic", {"C": np.inf}, "C must be a positive number, got inf"),
        ("logistic", {"sigma": -1}, "sigma must be a positive number, got -1"),
        ("cauchy", {}, "noise must be one of 'logistic', 'probit', 'laplace', got 'cauchy'"),
        ("logistic", {"multi_class": "all"}, "multi_class must be one of 'ovr', 'softmax', got 'all'"),
        ("probit", {"multi_class": "softmax"}, NOT_LOGISTIC),
        ("logistic", {"Cs": [1.0, -1.0]}, "Cs must be positive and finite, got [1.0, -1.0]"),
        ("logistic", {"C": "cv", "cv": 1}, "cv must be an integer of at least 2, the number of folds, got 1"),
        ("logistic", {"tol": 0}, "tol must be a positive number, got 0"),
    ],
)
def test_parameters_that_cannot_be_used(problem, name, parameters, message):
    assert refusal(classifier(name, **parameters).fit, problem.X, classes_of(problem.y)) == message


def test_targets_that_cannot_be_used(problem):
    y = classes_of(problem.y, 3)
    for refused, message in (
        ((np.zeros(900),), "class"),
        ((y, np.zeros(900)), "all sample weights are zero"),
        ((np.where(problem.y > 0, np.nan, 1.0),), "NaN"),
    ):
        assert message in refusal(classifier("logistic").fit, problem.X, *refused)
    message = refusal(classifier("logistic", class_weight={1: 0.0}).fit, problem.X, y)
    assert "class_weight is 0 for the class 1; leave its rows out" in message


@pytest.mark.parametrize(
    ("parameters", "dtype"),
    [
        ({}, "float64"),  # the columns' own
        ({"scale": "standard"}, "float32"),
        ({"scale": "standard", "tol": 1e-5}, "float64"),
        ({"scale": "standard", "dtype": "float64"}, "float64"),
    ],
)
def test_standardised_columns_need_no_more_digits_than_the_gap(rng, parameters, dtype):
    X = 1e6 + rng.standard_normal((200, 2))  # whose digits the cast alone would lose
    y = X[:, 0] > 1e6
    fitted = drf.KernelSVC(
        drf.FourierFeatures(drf.Gaussian(), 32), random_state=0, **({"scale": "none"} | parameters)
    ).fit(X, y)
    assert fitted.report_["dtype"] == dtype
    if "scale" in parameters:
        assert fitted.score(X, y) > 0.9


# The choice of C


@pytest.mark.parametrize("loss", MARGINS)
def test_held_out_losses_are_those_of_models_that_did_not_see_the_rows(problem, loss, monkeypatch):
    build = partial(classifier, loss)
    monkeypatch.setattr(penalty_search, "_FOLDS_TOL", 1e-6)
    y, grid = classes_of(problem.y), [0.05, 0.5, 5.0]
    fitted = build("cv", Cs=grid, cv=3, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    scores, fold = np.empty((3, 3)), folds_by("hash", 3, 0).sums(Keys(np.arange(900))).numbers
    for i, C in enumerate(grid):
        for held_out in range(3):
            out = fold == held_out
            alone = build(C, tol=1e-6).fit(problem.X[~out], y[~out], problem.s[~out])
            f = Z[out] @ alone.coef_[0] + alone.intercept_[0]
            values = MARGINS[loss]().value(f, 2.0 * y[out] - 1)
            scores[i, held_out] = np.average(values, weights=problem.s[out])
    # A gap of 1e-6 leaves ‖w − w*‖² ≤ 2e-6·P, and the loss changes by at most ‖w − w*‖ (twice that, squared).
    np.testing.assert_allclose(fitted.cv_results_["fold_scores"], scores, atol=0.03)
    assert grid[int(np.argmin(fitted.cv_results_["mean_score"]))] == fitted.C_
    assert fitted.cv_score_ == fitted.cv_results_["mean_score"].min()
    alone = build(fitted.C_, tol=1e-6).fit(problem.X, y, problem.s)
    assert fitted.report_["primal"] == pytest.approx(alone.report_["primal"], rel=3e-6)
    assert fitted.report_["C"] == fitted.C_


# The Gram of a sample


def test_a_sample_preconditions_like_all_rows(rng, monkeypatch):
    X = rng.standard_normal((70_000, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] > 0.3 * rng.standard_normal(70_000)
    s = rng.uniform(0, 2, 70_000)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 64)
    sampled = in_process(drf.KernelSVC(features, 1.0, random_state=0, scale="none"), X, y, s)
    assert sampled.plan_.size.gram_stride == 4
    assert "one row in 4" in repr(sampled.report_)
    monkeypatch.setattr("distrff.fitting.margins.gram_stride", lambda n, D: 1)
    full = in_process(drf.KernelSVC(features, 1.0, random_state=0, scale="none"), X, y, s)
    assert full.plan_.size.gram_stride == 1
    assert sampled.report_["primal"] == pytest.approx(full.report_["primal"], rel=2e-3)
    assert sampled.report_["n_sweeps"] <= 1.5 * full.report_["n_sweeps"]


# The hard margin


def strip(rng, n, width):
    """Rows on both sides of a curved strip that has none."""
    X = rng.standard_normal((n, 2))
    f = X[:, 0] ** 2 + X[:, 1] - 0.5
    return X[np.abs(f) > width], f[np.abs(f) > width] > 0


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("features", [drf.LinearFeatures(), drf.FourierFeatures(drf.Gaussian(1.5), 64)])
def test_the_hard_margin_is_the_largest(rng, features, fit_intercept):
    X, y = strip(rng, 400, 0.2)
    if isinstance(features, drf.LinearFeatures):
        y = X @ [1.0, -2.0] > 0
        X[y] += [0.05, -0.1]
    fitted = drf.KernelSVC(
        features, np.inf, fit_intercept=fit_intercept, tol=1e-6, random_state=0, scale="none"
    ).fit(X, y)
    Z, signs = fitted.features_.transform(X), np.where(y, 1.0, -1.0)
    w, b = fitted.coef_[0], fitted.intercept_[0]
    assert (signs * (Z @ w + b)).min() >= 1 - 1e-9
    assert fitted.report_["smallest_margin"] >= 1 - 1e-9
    assert fitted.report_["C"] == "inf"
    assert fitted.margin_ == pytest.approx(1 / np.linalg.norm(w))
    if fit_intercept:
        reference = SVC(C=1e10, kernel="linear", tol=1e-8).fit(Z, y)
        # libsvm keeps its kernel in float32, and may stop a little outside the constraints.
        assert fitted.margin_ == pytest.approx(1 / np.linalg.norm(reference.coef_), rel=1e-4)
    else:
        assert b == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_margins_of_many_classes(rng, dtype):
    X = rng.uniform(-3, 3, (600, 2))
    X = X[np.abs(X[:, 0] % 1 - 0.5) < 0.4]
    y = np.floor(X[:, 0] / 2)
    features = drf.FourierFeatures(drf.Gaussian(0.7), 256)
    fitted = drf.KernelSVC(features, np.inf, dtype=dtype, random_state=0, scale="none").fit(X, y)
    assert fitted.score(X, y) == 1
    assert fitted.margin_.shape == (len(np.unique(y)),)
    # A margin is a sum of 256 products and the intercept, in the features' dtype.
    size = np.linalg.norm(fitted.coef_, axis=1).max() + np.abs(fitted.intercept_).max()
    assert fitted.report_["smallest_margin"] >= 1 - 260 * np.finfo(dtype).eps * size


def test_rows_that_are_not_separable(rng):
    X, y = strip(rng, 500, 0.1)
    wrong = y.copy()
    wrong[::50] = ~wrong[::50]
    message = refusal(classifier("hinge", np.inf).fit, X, wrong)
    assert message.startswith("the classes are not separable with these features")
    assert "rows violate y·f ≥ 1" in message
    assert "use a finite C" in message
    doubled, opposite = np.vstack([X, X[3:4]]), np.append(y, ~y[3])
    # Of two equal rows with opposite labels one violates in any case.
    with pytest.raises(InputError, match="the worst with y·f = "):
        classifier("hinge", np.inf).fit(doubled, opposite)
    names = np.where(wrong, "in", np.where(X[:, 0] > 0, "right", "left"))
    with pytest.raises(InputError, match=r"the class '\w+' and the rest are not separable"):
        classifier("hinge", np.inf).fit(X, names)
    X, y = strip(rng, 500, 0.2)
    has_weight = np.arange(len(X)) >= 20  # others need no margin
    fitted = classifier("hinge", np.inf).fit(X, y == has_weight, has_weight.astype(float))
    expected = classifier("hinge", np.inf).fit(X[has_weight], y[has_weight])
    assert fitted.margin_ == pytest.approx(expected.margin_, rel=1e-3)


def test_a_hard_margin_that_is_not_decided_in_time():
    X, y = strip(np.random.default_rng(0), 500, 0.1)  # the start, a ridge model, does not separate them
    with pytest.warns(ConvergenceWarning, match="after light sweep 1 the rows are neither separated"):
        fitted = classifier("hinge", np.inf, max_sweeps=1).fit(X, y)
    assert fitted.report_["status"] == "NOT_DECIDED"
    json.dumps(fitted.report_.to_dict(), allow_nan=False)


# Likelihood models


def likelihood(C=1.0, **options):
    features = fourier(32, random_state=None)
    return drf.KernelLikelihoodClassifier(features, C, **({"random_state": 0, "scale": "none"} | options))


def test_the_certificate_is_in_the_report_and_plans_presume_light_sweeps(problem):
    y = classes_of(problem.y)
    r = likelihood().fit(problem.X, y).report_
    assert r["status"] == "CONVERGED"
    assert 0 <= r["duality_gap"] <= r["tol"] == 1e-3
    assert r["duality_gap"] == pytest.approx((r["primal"] - r["dual"]) / r["primal"])
    assert r["sweep_labels"][:2] == ["column statistics", "Gram"]
    assert set(r["sweep_labels"][2:]) == {"margins"}
    assert "duality gap" in repr(r)
    plan = likelihood(keep_features=False).plan(problem.X, y)
    assert plan.n_sweeps == 2 + cost.PRESUMED_SWEEPS
    assert plan.seconds > 0
    assert plan.cosines > 10 * 900 * 32
    kept = likelihood().plan(problem.X, y)
    assert kept.cosines == plan.cosines - (cost.PRESUMED_SWEEPS - 1) * 900 * 32


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 100.0])
def test_sigma_and_C_are_redundant(problem, noise, sigma):
    y = problem.X[:, 0] > 0
    scaled = likelihood(10 * sigma**2, noise=noise, sigma=sigma, tol=1e-5).fit(problem.X, y)
    unit = likelihood(10.0, noise=noise, tol=1e-5).fit(problem.X, y)
    assert scaled.report_["primal"] == pytest.approx(sigma**2 * unit.report_["primal"], rel=1e-4)
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=0.02)


# Softmax


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_softmax_equals_multinomial_regression(problem, C, fit_intercept):
    y, options = classes_of(problem.y, 4), {"fit_intercept": fit_intercept}
    model = likelihood(C, multi_class="softmax", tol=1e-6, dtype="float64", **options)
    fitted = model.fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = LogisticRegression(C=C, tol=1e-10, max_iter=10_000, **options).fit(Z, y, problem.s)

    def value(P, W):
        return -C * (problem.s * np.log(P[np.arange(900), y])).sum() + 0.5 * np.vdot(W, W)

    theirs = value(reference.predict_proba(Z), reference.coef_)
    ours = value(fitted.predict_proba(problem.X), fitted.coef_)
    assert abs(ours - theirs) <= 1e-6 * theirs
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-9)
    assert fitted.report_["duality_gap"] is None
    assert fitted.report_["relative_gradient"] <= 1e-6
    assert "relative gradient" in repr(fitted.report_)
    np.testing.assert_allclose(fitted.predict_proba(problem.X), reference.predict_proba(Z), atol=1e-4)


def test_softmax_with_sigma_folds_and_files(problem, tmp_path):
    y = classes_of(problem.y, 3)
    unit = likelihood(10.0, multi_class="softmax", tol=1e-6).fit(problem.X, y)
    scaled = likelihood(10.0 * 0.1**2, multi_class="softmax", sigma=0.1, tol=1e-6).fit(problem.X, y)
    assert unit.report_["loss"] == "softmax"
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=1e-3)
    P = unit.predict_proba(problem.X)
    np.testing.assert_array_equal(stored(unit, tmp_path).predict_proba(problem.X), P)
    searched = likelihood("cv", multi_class="softmax", Cs=[0.01, 1.0], cv=3).fit(problem.X, y)
    assert searched.cv_results_["fold_scores"].shape == (2, 3)
    assert searched.C_ == 1.0
    # Two classes have a dual bound, more have none.
    for labels, measure in ((y, "relative gradient"), (y > 0, "duality gap")):
        with pytest.warns(ConvergenceWarning, match=f"the {measure} is .* after light sweep 1"):
            likelihood(1e4, multi_class="softmax", max_sweeps=1).fit(problem.X, labels)
    kinds = ("softmax", "ovr")
    of_two, logistic = (likelihood(2.0, multi_class=kind).fit(problem.X, y > 0) for kind in kinds)
    np.testing.assert_array_equal(of_two.coef_, logistic.coef_)


@pytest.mark.parametrize("noise", list(NOISES))
def test_many_digits_may_take_the_hessian(problem, noise):
    y = classes_of(problem.y)
    fitted = likelihood(1e4, noise=noise, tol=1e-9).fit(problem.X, y, problem.s)
    assert fitted.report_["status"] == "CONVERGED"
    labels = fitted.report_["sweep_labels"]
    assert "Hessian" not in labels or labels.index("Hessian") >= 12  # after ten light sweeps
