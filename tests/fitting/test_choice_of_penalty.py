"""How penalties are chosen, by folds or by generalised cross-validation, and where float32 or a grid ends."""

import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge

import distrff as drf
from distrff import solvers
from distrff.errors import DataWarning, InputError, PenaltyTooSmall, PrecisionWarning
from distrff.fitting.problem import Penalty
from distrff.preprocessing.folds import Keys, OneHeldOut, folds_by
from distrff.utils.random import child_seed
from tests.support.draws import of_rows
from tests.support.fits import fourier, ridge

# At κ ≤ 1e6 the weights are known to about 1e-9 (see test_ridge), and held-out errors likewise.
AGREEMENT = 1e-8
CONDITION = np.logspace(6, 1, 4)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    ("alpha", "n_folds", "rule"), [("cv", 4, "hash"), ("cv", 4, "contiguous"), ("gcv", 2, "one held out")]
)
def test_scores_are_those_of_explicit_held_out_rows(problem, alpha, n_folds, rule, fit_intercept):
    """Where "gcv" cannot be believed it judges one row in five, by its hash."""
    X, Y, s = problem.X, problem.Y[:, :2], problem.s
    options = {"cv": n_folds, "fold_by": rule} if alpha == "cv" else {}
    options |= {"alphas": s.sum() / CONDITION, "fit_intercept": fit_intercept, "random_state": 3}
    ours = ridge(alpha, **options).fit(X, Y, s)
    folds = folds_by(rule, n_folds, 3) if alpha == "cv" else OneHeldOut(1, child_seed(3, "folds"))
    fold = of_rows(folds, len(X)).sums(Keys(np.arange(len(X)))).numbers
    Z, weights = ours.features_.transform(X), np.bincount(fold, s)
    errors = np.empty((len(CONDITION), n_folds))  # held-out weighted sums of squares, averaged over targets
    for (i, a), k in product(enumerate(options["alphas"]), range(n_folds)):
        train, test = fold != k, fold == k
        model = Ridge(alpha=a, fit_intercept=fit_intercept, solver="svd")
        model.fit(Z[train], Y[train], s[train])
        errors[i, k] = (s[test] @ (model.predict(Z[test]) - Y[test]) ** 2).mean()
    results = ours.cv_results_
    np.testing.assert_array_equal(results["alphas"], options["alphas"])
    if alpha == "cv":
        np.testing.assert_allclose(results["fold_scores"], errors / weights, rtol=AGREEMENT)
        expected = errors.sum(1) / s.sum()
    else:
        assert set(results) == {"alphas", "mean_score"}
        expected = errors[:, 0] / weights[0]
    np.testing.assert_allclose(results["mean_score"], expected, rtol=AGREEMENT)
    best = results["mean_score"].argmin()
    assert ours.alpha_ == options["alphas"][best]
    assert ours.cv_score_ == results["mean_score"][best] == ours.report_["cv_score"]


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_the_model_is_the_one_at_the_alpha_chosen_of_the_default_grid(problem, alpha):
    weight = problem.s.sum()
    chosen = ridge(alpha, random_state=0).fit(problem.X, problem.y, problem.s)
    grid, default = chosen.cv_results_["alphas"], weight * np.geomspace(1e-9, 1, 25)
    np.testing.assert_allclose(grid[grid > 0.9 * default[0]], default)  # some draws go on below it
    given = ridge(chosen.alpha_, random_state=0).fit(problem.X, problem.y, problem.s)
    # The Gram is summed by folds or not: rounding apart, at κ = Σs/alpha.
    tolerance = 10 * np.finfo(float).eps * weight / chosen.alpha_ * np.linalg.norm(given.coef_)
    np.testing.assert_allclose(chosen.coef_, given.coef_, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("alpha", "sampling"), [("cv", "iid"), ("gcv", "orthogonal"), ("cv", "qmc"), ("gcv", "fastfood")]
)
def test_learning_curve_is_that_of_smaller_models(problem, alpha, sampling):
    # 128 features are less than a twentieth of the rows, so that alpha="gcv" has one criterion for all.
    X, y = np.tile(problem.X, (3, 1)), np.tile(problem.y, 3)
    alphas = len(X) / CONDITION

    def fit(n_components):
        features = fourier(n_components, sampling=sampling)
        return drf.KernelRidge(features, alpha, alphas=alphas, random_state=1, scale="none").fit(X, y)

    curve = fit(128).report_["learning_curve"]
    assert [size for size, _, _ in curve] == [16, 32, 64, 128]
    for size, score, chosen in curve:
        model = fit(size)
        assert score == pytest.approx(model.cv_score_, rel=AGREEMENT)
        assert chosen == model.alpha_


# float32 ------------------------------------------------------------------------------------


def test_grid_is_cut_at_the_noise_floor(problem):
    X = problem.X.astype(np.float32)
    model = ridge("cv", random_state=0).fit(X, problem.y)
    report, alphas = model.report_, model.cv_results_["alphas"]
    assert report["dtype"] == "float32"
    assert alphas.min() >= report["noise_floor"] > alphas.min() / 10
    left_out = 25 - len(alphas)
    assert f"alphas below the rounding noise of float32 products were left out: {left_out}" in report["notes"]
    # So are nested sizes from the curve.
    just_above = ridge("cv", alphas=[1.01 * report["noise_floor"]], random_state=0).fit(X, problem.y)
    assert just_above.report_["dtype"] == "float32"
    assert [size for size, *_ in just_above.report_["learning_curve"]] == [report["n_components"]]
    below = ridge("cv", alphas=[1e-7, 1e-6], random_state=0).fit(X, problem.y)
    assert below.report_["dtype"] == "float64"
    assert list(below.cv_results_["alphas"]) == [1e-7, 1e-6]


def test_an_alpha_in_the_noise_is_solved_in_float64(problem):
    X = problem.X.astype(np.float32)
    small = ridge(alpha=1e-5).fit(X, problem.y)
    assert small.report_["dtype"] == "float64"
    assert any("float64 was used" in note for note in small.report_["notes"])
    asked = ridge(alpha=1e-5, dtype="float64").fit(X, problem.y)
    np.testing.assert_array_equal(small.coef_, asked.coef_)
    large = ridge(alpha=1.0).fit(X, problem.y)
    assert large.report_["dtype"] == "float32" and not large.report_["notes"]
    with pytest.warns(PrecisionWarning, match="float64 was used") as caught:
        ridge(alpha=1e-5, dtype="float32").fit(X, problem.y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("dtype", ["f4", "i1", "i2", "?", "i4", "f8"])
def test_automatic_dtype(problem, dtype):
    model = ridge().fit((problem.X * 10).astype(dtype), problem.y)
    assert model.report_["dtype"] == ("float64" if dtype in ("i4", "f8") else "float32")


def test_a_large_offset_of_the_target_costs_nothing_in_float32(problem):
    """y + 1e6 gives the weights of y, in float32.

    The shifted targets agree to 1e6·u64, so at worst they round to neighbouring float32 numbers: the vector
    ZᵀY moves by a few u32·√(n·ΣY²·k(0)) at most, and the weights by that over alpha. Without the shift the
    targets themselves would be off by 1e6·u32 = 0.06.
    """
    X, y = problem.X.astype(np.float32), problem.y
    alpha = 1e-2 * len(y)
    plain, lifted = (ridge(alpha=alpha).fit(X, y + c) for c in (0.0, 1e6))
    assert plain.report_["dtype"] == lifted.report_["dtype"] == "float32"
    u32 = np.finfo(np.float32).eps / 2
    bound = 8 * u32 * np.sqrt(len(y) * np.sum((y - y.mean()) ** 2)) / alpha
    assert np.linalg.norm(lifted.coef_ - plain.coef_) < bound < 1e-4
    # Predictions add a product of 64 features in float32, of size ‖w‖.
    distance = lifted.predict(X) - 1e6 - plain.predict(X)
    assert np.abs(distance).max() < bound + 64 * u32 * np.linalg.norm(plain.coef_) + 1e6 * np.finfo(float).eps


# Generalised cross-validation where it may be believed, and one held-out fold where it may not


def uneven_rows(rng, n):
    """A quarter of the rows are far from all others: each is fitted by itself, whatever its value."""
    far = rng.random(n) < 0.25
    X = rng.standard_normal((n, 2))
    X[far] *= 100
    y = np.where(far, 2 * np.sin(3 * X[:, 0]), np.sin(2 * X[:, 0]) * np.cos(X[:, 1]))
    return X, y + 0.05 * rng.standard_normal(n)


def rmse(model, X, y):
    return np.sqrt(np.mean((model.predict(X) - y) ** 2))


def held_out(seed, n_rows):
    return folds_by("hash", 5, seed).sums(Keys(np.arange(n_rows))).numbers == 0


def notes_of(model, *words):
    return [note for note in model.report_["notes"] if all(word in note for word in words)]


def test_rows_of_uneven_leverage_do_not_lead_it_astray(rng):
    """Generalised cross-validation takes an alpha that fits the far rows, and the others' noise with them."""
    (X, y), (X_test, y_test) = uneven_rows(rng, 900), uneven_rows(rng, 2000)
    features = fourier(300, 0.7)
    by_folds, asked = (
        drf.KernelRidge(features, a, random_state=1, scale="none").fit(X, y) for a in ("cv", "gcv")
    )
    statistics = drf.gram(X, asked.features_, y, scale="none")
    with pytest.warns(DataWarning, match="may overfit by far"):
        blind = drf.KernelRidge(alpha="gcv", scale="none").fit_gram(statistics)
    assert rmse(blind, X_test, y_test) > 1.5 * rmse(by_folds, X_test, y_test)
    assert rmse(asked, X_test, y_test) < 1.2 * rmse(by_folds, X_test, y_test)
    looked_at = drf.KernelRidge(alpha="gcv", scale="none").fit_gram(
        drf.gram(X, asked.features_, y, cv=5, scale="none")
    )
    assert rmse(looked_at, X_test, y_test) < 1.2 * rmse(by_folds, X_test, y_test)


def test_the_report_says_which_criterion_chose(problem):
    X, y = problem.X, problem.y
    model = ridge("gcv", random_state=0).fit(X, y)
    assert model.report_["criterion"] == "mean squared error over one held-out fold of 5"
    (note,) = notes_of(model, "one held-out fold")
    assert "the 64 features are more than a twentieth of the 900 rows" in note
    for shown in (repr(model.report_), model.report_._repr_html_()):
        assert note in shown and model.report_["criterion"] in shown
    assert note in model.report_.to_dict()["notes"]
    few = drf.KernelRidge(fourier(44), "gcv", random_state=0, scale="none").fit(X, y)
    assert few.report_["criterion"] == "generalised cross-validation"
    assert not notes_of(few, "overfit")


# Folds that do not stand for the rows


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("seed", range(4))
def test_few_rows_are_fitted_whatever_their_hashes(rng, n, seed):
    X = rng.standard_normal((n, 2))
    model = drf.KernelRidge(fourier(16), "gcv", random_state=seed, scale="none").fit(X, X[:, 0])
    n_held_out = held_out(seed, n).sum()
    stands = n / 2 < 5 * n_held_out < 2 * n
    assert ("held-out" in model.report_["criterion"]) == stands
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("inside", [False, True])
def test_weights_that_leave_nothing_on_one_side(problem, inside):
    n = len(problem.X)
    s = (held_out(0, n) == inside).astype(float)
    model = ridge("gcv", random_state=0).fit(problem.X, problem.y, s)
    assert model.report_["criterion"] == "generalised cross-validation"


# Grams


def test_a_gram_with_folds_holds_the_first_one_out(problem):
    """The first of five folds of the same seed has the same rows."""
    model = ridge("gcv", random_state=4).fit(problem.X, problem.y)
    statistics = drf.gram(problem.X, model.features_, problem.y, cv=5, random_state=4, scale="none")
    late = drf.KernelRidge(alpha="gcv", scale="none").fit_gram(statistics)
    assert late.report_["criterion"] == model.report_["criterion"]
    assert late.alpha_ == model.alpha_
    assert late.cv_score_ == pytest.approx(model.cv_score_, rel=1e-6)
    ten = drf.gram(problem.X, model.features_, problem.y, cv=10, random_state=4, scale="none")
    assert (
        drf.KernelRidge(alpha="gcv", scale="none").fit_gram(ten).report_["criterion"].endswith("fold of 10")
    )


def test_a_gram_without_folds_is_warned_of_only_where_it_matters(problem):
    features = fourier().fit(problem.X)
    whole = drf.gram(problem.X, features, problem.y, cv=5, scale="none")
    half = drf.gram(problem.X[:450], y=problem.y[:450], like=whole)
    for statistics in (drf.gram(problem.X, features, problem.y, scale="none"), whole - half):
        small = drf.KernelRidge(alpha="gcv", alphas=[1e-3, 1e-2], scale="none")
        with pytest.warns(DataWarning, match=r"\(cv=5\).*alpha='cv'") as caught:
            small.fit_gram(statistics)
        assert caught[0].filename == __file__
        assert small.report_["criterion"] == "generalised cross-validation"
        assert notes_of(small, str(caught[0].message))
        # Of a large alpha the effective dimension is small, whatever the number of features.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            drf.KernelRidge(alpha="gcv", alphas=[1e3], scale="none").fit_gram(statistics)


# A penalty at the end of its grid is said, with what to do about it


def end_notes(model):
    """The note on the end of a grid, which every form of the report shows."""
    notes = [note for note in model.report_["notes"] if "may be better" in note]
    for note in notes:
        assert note in repr(model.report_) and note in model.report_.to_dict()["notes"]
        assert note.replace("'", "&#39;") in model.report_._repr_html_()  # the page but for its curves
    return notes


BINS = drf.RandomBinningFeatures(drf.Laplacian(2.0), 16, random_state=0)


@pytest.mark.parametrize(
    ("features", "alpha", "is_noise"),
    [
        *product([fourier(32), fourier(64)], ["cv", "gcv"], [False]),  # "gcv" holds a fold out for 64
        *product([fourier(32)], ["cv", "gcv"], [True]),
        *product([BINS], ["cv"], [False, True]),
    ],
    ids=repr,
)
def test_alpha_at_either_end(problem, rng, features, alpha, is_noise):
    """Of targets that are noise alone the largest alpha is the best; others want none far too large."""
    y, grid = (rng.standard_normal(900), [1e-2, 1e-1, 1e1]) if is_noise else (problem.y, [9e4, 9e5])
    model = drf.KernelRidge(
        features, alpha, alphas=grid, cv=2 if features is BINS else 5, random_state=0, scale="none"
    )
    (note,) = end_notes(model.fit(problem.X, y))
    said = "alpha=10 is the largest" if is_noise else "alpha=90000 is the smallest"
    assert note.startswith(f"{said} of its grid") and "(--alphas)" in note
    assert ("end higher (--alphas)" in note) == is_noise
    if features is not BINS:
        statistics = drf.gram(problem.X, features, y, cv=5, random_state=0, scale="none")
        of_gram = drf.KernelRidge(alpha=alpha, alphas=grid, scale="none").fit_gram(statistics)
        assert end_notes(of_gram) == [note]


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_an_alpha_at_the_noise_floor(rng, alpha):
    """A function of the features' own space wants no penalty; float32 products leave the smallest one."""
    X = rng.standard_normal((900, 4)).astype(np.float32)
    features = fourier(64).fit(X)  # of which "gcv" holds a fold out
    y = features.transform(X).astype(float) @ rng.standard_normal(64)
    model = drf.KernelRidge(features, alpha, random_state=0, scale="none").fit(X, y)
    (note,) = end_notes(model)
    assert "is the smallest above the rounding noise of float32 products" in note
    assert note.endswith("dtype='float64' (--dtype float64)")
    (left_out,) = (note for note in model.report_["notes"] if "left out" in note)
    assert left_out.startswith("alphas below the rounding noise of float32 products were left out: ")
    in_float64 = drf.KernelRidge(features, alpha, dtype="float64", random_state=0, scale="none").fit(X, y)
    # There the default grid goes on, to the noise floor of float64 if need be.
    assert in_float64.alpha_ < 1e-9 * len(X)
    assert in_float64.cv_results_["alphas"][0] < 1e-9 * len(X) < model.cv_results_["alphas"][0]
    in_decades = drf.KernelRidge(
        features, alpha, alphas=1e-9 * len(X) * np.geomspace(1, 1e9, 10), dtype="float64", scale="none"
    )
    (note,) = end_notes(in_decades.set_params(random_state=0).fit(X, y))
    assert "is the smallest of its grid" in note
    below = drf.KernelRidge(
        features, alpha, alphas=[1e-30, 1e-9, 1.0], dtype="float64", random_state=0, scale="none"
    )
    (note,) = end_notes(below.fit(X, y))
    assert "above the rounding noise of float64 products" in note and "dtype=" not in note


@pytest.mark.parametrize(("Cs", "which"), [([1e-4, 1.0], "largest"), ([1e3, 1e5], "smallest")])
def test_a_C_at_either_end(rng, Cs, which):
    X = rng.standard_normal((300, 3))
    y = X[:, 0] > 0 if which == "largest" else rng.random(300) > 0.5
    model = drf.KernelSVC(
        fourier(32), "cv", Cs=Cs, loss="squared_hinge", cv=2, random_state=0, scale="none"
    ).fit(X, y)
    (note,) = end_notes(model)
    assert note.startswith(f"C={model.C_:g} is the {which} of its grid") and "(--Cs)" in note


# Default grids go on beyond an end that is the best


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_noise_is_shrunk_beyond_the_grid(rng, alpha):
    """Of pure noise the mean is the best model, unless a draw has a pattern by chance.

    Folds differ in how far they go on; what is shown has errors of all of them.
    """
    X, y = rng.standard_normal((400, 2)), rng.standard_normal(400)
    fitted = drf.KernelRidge(fourier(16), alpha, scale="none", random_state=0).fit(X, y)
    grid, scores = fitted.cv_results_["alphas"], fitted.cv_results_["mean_score"]
    assert len(grid) == len(scores) and np.isfinite(scores).all()
    assert np.isfinite(fitted.cv_results_.get("fold_scores", 0.0)).all()
    assert fitted.alpha_ == grid[np.argmin(scores)]
    if fitted.alpha_ > 401:
        assert grid[-1] > 401
    elif fitted.alpha_ < 399:
        assert grid[-1] == pytest.approx(400)


def test_C_goes_on_beyond_either_end_and_half_a_decade_beside_the_best(rng):
    """A margin that no row violates wants a large C; rows that have both labels want a small one."""
    X = rng.standard_normal((300, 2))
    clear = np.abs(X[:, 0]) > 0.3
    separable = drf.KernelLikelihoodClassifier(drf.LinearFeatures(), "cv", cv=3, scale="none", random_state=0)
    fitted = separable.fit(X[clear], X[clear, 0] > 0)
    grid = fitted.cv_results_["C"]
    assert (np.diff(grid) > 0).all() and len(grid) == fitted.cv_results_["fold_scores"].shape[0]
    assert grid[-1] > 5e5 * grid[0]
    assert fitted.C_ / grid[0] > 3e4
    assert grid[np.argmin(fitted.cv_results_["mean_score"])] == fitted.C_
    both = clone(separable).fit(np.tile(X, (2, 1)), np.arange(600) < 300)
    below = both.cv_results_["C"]
    assert below[-1] > 5e5 * below[0]
    assert both.C_ / below[-1] < 3e-5
    for tried in (grid, below):
        steps = np.diff(np.log10(tried))
        np.testing.assert_allclose(steps[steps < 0.9], [0.5, 0.5])  # one value between two decades
        np.testing.assert_allclose(steps[steps > 0.9], 1.0)
    given = drf.KernelLikelihoodClassifier(
        drf.LinearFeatures(), "cv", Cs=grid[:3], cv=3, scale="none", random_state=0
    ).fit(X[clear], X[clear, 0] > 0)
    np.testing.assert_array_equal(given.cv_results_["C"], grid[:3])


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
@pytest.mark.parametrize("n", [60, 400])
def test_an_alpha_that_rounding_leaves_no_solution_at_gives_way_to_a_larger_one(alpha, n, rng, monkeypatch):
    """The matrix of all rows may be indefinite where those of the folds were not."""
    X = rng.standard_normal((n, 3))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(n)
    model = ridge(alpha, alphas=np.logspace(-6, 3, 10), random_state=0)
    chosen = model.fit(X, y).alpha_
    grid, scores = model.cv_results_["alphas"], model.cv_results_["mean_score"]
    factor = solvers.ridge.cholesky_factor

    def of_noise(G, at):
        if at <= chosen:
            raise PenaltyTooSmall("no")
        return factor(G, at)

    monkeypatch.setattr(solvers.ridge, "cholesky_factor", of_noise)
    model.fit(X, y)
    above = grid > chosen
    assert model.alpha_ == grid[above][np.argmin(scores[above])]
    assert model.cv_score_ == pytest.approx(scores[above].min())
    assert any("below the rounding noise of the Gram: alpha=" in note for note in model.report_["notes"])
    assert not any(f"alpha={chosen:g} is the" in note for note in model.report_["notes"])
    monkeypatch.setattr(solvers.ridge, "cholesky_factor", lambda G, at: of_noise(G, -1.0))
    with pytest.raises(PenaltyTooSmall):
        model.fit(X, y)


# The choice itself

PENALTY = Penalty(None, search="cv")


def test_choice_pools_folds_by_weight_and_averages_targets():
    errors = np.array([[[3.0, 1.0], [2.0, 2.0]], [[10.0, 10.0], [0.0, 4.0]]])
    choice = PENALTY.choose(np.array([0.1, 1.0]), errors, np.array([1.0, 3.0]))
    np.testing.assert_allclose(choice.scores, [24 / 2 / 4, 8 / 2 / 4])
    assert (choice.index, choice.penalty, choice.score) == (1, 1.0, 1.0)
    # Equal scores go to the largest alpha; NaN in one fold excludes one.
    for alphas in ([0.1, 1.0, 10.0, 5.0], [10.0, 5.0, 1.0, 0.1]):
        errors = np.where(np.array(alphas) > 8, 2.0, 1.0)[None, :, None]
        assert PENALTY.choose(np.array(alphas), errors, np.ones(1)).penalty == 5.0
    errors = np.array([[[np.nan], [2.0], [3.0]], [[0.0], [2.0], [3.0]]])
    choice = PENALTY.choose(np.array([0.1, 1.0, 10.0]), errors, np.ones(2))
    assert choice.penalty == 1.0
    assert np.isnan(choice.scores[0])
    with pytest.raises(InputError, match="larger alphas"):
        PENALTY.choose(np.array([0.1]), errors[:, :1], np.ones(2))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_choice_depends_on_the_grid_not_on_its_order(seed):
    rng = np.random.default_rng(seed)
    alphas, errors = np.geomspace(1e-3, 1, 6), rng.integers(0, 3, (2, 6, 2)).astype(float)
    order = rng.permutation(6)
    first = PENALTY.choose(alphas, errors, np.ones(2))
    assert PENALTY.choose(alphas[order], errors[:, order], np.ones(2)).penalty == first.penalty
