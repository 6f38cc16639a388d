"""Intervals and prediction sets: exact ranks, coverage of new rows, and the same from everywhere."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.stats import betabinom

import distrff as drf
from distrff.diagnostics.evaluate import ErrorSum, GroupWeights
from distrff.errors import DataWarning, InputError
from distrff.model.intervals import Intervals, QuantileSketch, class_scores

BUCKET = 2.0**-10  # of a radius, relatively


def _features(n_components: int = 64) -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(1.5), n_components, random_state=1)


def _numbers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + rng.standard_t(3, size=n) * 0.2


def _classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = _numbers(rng, n)
    return X, np.array(["low", "middle", "high"])[np.digitize(y, [-0.7, 0.7])]


CLASSIFIERS = {
    "ridge classifier": lambda: drf.KernelRidgeClassifier(_features(), random_state=0),
    "svc": lambda: drf.KernelSVC(_features(), "cv", loss="squared_hinge", Cs=[1.0], random_state=0),
    "likelihood": lambda: drf.KernelLikelihoodClassifier(_features(), "cv", Cs=[1.0], random_state=0),
}


def _radius(scores: np.ndarray, coverage: float) -> float:
    """Return the ⌈(n+1)c⌉-th smallest score."""
    return float(np.sort(scores)[math.ceil(round((len(scores) + 1) * coverage, 9)) - 1])


def _is_likely(covered: int, n_new: int, n_old: int, coverage: float) -> bool:
    """Return whether so many new rows are covered with a probability of more than 1e-6 on either side.

    The share of covered rows is beta by the rank of the radius; the bucket's end adds its own weight.
    """
    rank = math.ceil((n_old + 1) * coverage)
    law = betabinom(n_new, rank, n_old + 1 - rank)
    return bool(law.cdf(covered) > 1e-6 and law.sf(covered - 1 - n_new // 100) > 1e-6)


def _relative_std(model: Any, X: np.ndarray) -> np.ndarray:
    """√(1 + std²/σ̂²), from what predictions tell."""
    std, of_observation = (model.predict(X, return_std=of)[1] for of in (True, "observation"))
    return of_observation / np.sqrt(of_observation**2 - std**2)


METHODS = ["deviation", "constant"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_split_conformal_covers_new_rows(rng: np.random.Generator, coverage: float, method: str) -> None:
    X, y = _numbers(rng, 6000)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:500], y[:500])
    assert model.calibrate(X[500:2500], y[500:2500]) is model
    lower, upper = model.predict_interval(X[2500:], coverage, method)
    assert lower.shape == upper.shape == (3500,)
    error = np.abs(model.predict(X[500:2500]) - y[500:2500])
    u = _relative_std(model, X[500:]) if method == "deviation" else np.ones(5500)
    half = (upper - lower) / 2 / u[2000:]
    exact = _radius(error / u[:2000], coverage)
    assert half == pytest.approx(exact, rel=BUCKET) and half.min() >= exact * (1 - 1e-9)
    covered = np.count_nonzero((lower <= y[2500:]) & (y[2500:] <= upper))
    assert _is_likely(covered, 3500, 2000, coverage)


def _draws_beside_a_gap(rng: np.random.Generator, features: Any, n: int, d: int, n_draws: int) -> Any:
    """Rows of which few are right of 0, and targets each drawn from the prior of a fitted map, noise .1²."""
    X = rng.uniform(-1, 1, size=(12 * n, d))
    X = X[(X[:, 0] < 0) | (rng.uniform(size=len(X)) < 0.05)][:n]
    new = rng.uniform(-1, 1, size=(1000, d))
    Z = features.fit(np.vstack([X, new])).transform(np.vstack([X, new])).astype(float)
    Y = Z @ rng.normal(size=(Z.shape[1], n_draws)) + 0.1 * rng.normal(size=(len(Z), n_draws))
    return X, Y[:n], new, Y[n:]


@pytest.mark.parametrize("how", ["rows", "groups", "calibrated", "calibrated groups", "equispaced"])
def test_coverage_is_right_where_rows_are_few(rng: np.random.Generator, how: str) -> None:
    """Scores in deviations of an exact posterior are |N(0, 1)| everywhere; one width is too narrow beyond."""
    features: Any = drf.FourierFeatures(drf.Gaussian(0.5), 128, random_state=int(rng.integers(2**31)))
    d, n_draws = 2, 150
    if how == "equispaced":  # conjugate gradients for each target
        features, d, n_draws = drf.EquispacedFourierFeatures(drf.Gaussian(0.1), bounds=[(-1, 1)]), 1, 30
    X, Y, new, Y_new = _draws_beside_a_gap(rng, features, 300 if "cal" in how else 200, d, n_draws)
    groups = np.arange(len(X)) % 20 if "groups" in how else None
    alpha: Any = {"alpha": "cv", "alphas": [0.01]}
    model = drf.KernelRidge(features, **alpha, cv=5 if d > 1 else 2, scale="none", random_state=0)
    if "cal" in how:
        model.fit(X[:200], Y[:200]).calibrate(
            X[200:], Y[200:], groups=None if groups is None else groups[200:]
        )
    else:
        model.fit(X, Y, groups=groups)
    shares = {}
    for method in METHODS:
        lower, upper = model.predict_interval(new, 0.8, method)
        within = (lower <= Y_new) & (Y_new <= upper)
        shares[method] = np.stack([within[new[:, 0] < 0].mean(axis=0), within[new[:, 0] > 0].mean(axis=0)])
    # Each target is a draw of its own. Where the floor that rows make likeliest is below 1, which it is by
    # chance for one target in ten, coverage away is up to 1. The rank of groups is above the coverage by
    # 1/(G + 1) at most.
    mean, error = (getattr(shares["deviation"], f)(axis=1) for f in ("mean", "std"))
    above = 0.8 / 20 if groups is not None and "cal" in how else 0.03
    assert (mean > 0.79 - 5 * error / np.sqrt(n_draws)).all(), mean
    assert (mean < 0.8 + above + 5 * error / np.sqrt(n_draws)).all(), mean
    beside, away = shares["constant"].mean(axis=1)
    assert away < 0.75 < beside, shares["constant"].mean(axis=1)
    np.testing.assert_array_equal(
        model.predict_interval(new, 0.8)[0], model.predict_interval(new, 0.8, "deviation")[0]
    )


def test_deviations_of_folds_take_weights(rng: np.random.Generator) -> None:
    """By formulas of dense matrices: the model without a fold tells error and deviation of its rows."""
    X, y = _numbers(rng, 90)
    y, s = np.column_stack([y, X[:, 0]]), rng.integers(0, 4, 90).astype(float)
    for intercept in (True, False):
        model = drf.KernelRidge(
            _features(24), alphas=[0.3], cv=drf.ContiguousFolds(3), fit_intercept=intercept, scale="none"
        ).fit(X, y, s)
        model.predict_interval(X)
        floors = np.array(model.model_.intervals.floors)
        Z, scores = model.features_.transform(X).astype(float), np.empty_like(y)
        for test in np.split(np.arange(90), 3):
            own = np.setdiff1d(np.arange(90), test)
            T, penalty = np.column_stack([Z, np.full(90, float(intercept))]), np.full(25, 0.3)
            penalty[-1] = 1e-300 if intercept else 1.0
            M = T[own].T @ (s[own, None] * T[own]) + np.diag(penalty)
            F = T[test] @ np.linalg.solve(M, T[own].T @ (s[own, None] * y[own]))
            variance = np.einsum("ij,ji->i", T[test], np.linalg.solve(M, T[test].T))
            scores[test] = np.abs(F - y[test]) / np.sqrt(floors + variance[:, None])
        for j, radius in enumerate(model.model_.intervals.radius(0.8, "deviation")):
            assert radius == pytest.approx(_radius(np.repeat(scores[:, j], s.astype(int)), 0.8), rel=BUCKET)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_sets_cover_new_rows(rng: np.random.Generator, name: str) -> None:
    X, y = _classes(rng, 5000)
    model = CLASSIFIERS[name]().fit(X[:800], y[:800]).calibrate(X[800:2300], y[800:2300])
    sets = model.predict_set(X[2300:], 0.9)
    assert sets.shape == (2700, 3) and sets.dtype == bool
    index = np.searchsorted(model.classes_, y[2300:])
    covered = np.count_nonzero(sets[np.arange(2700), index])
    assert _is_likely(covered, 2700, 1500, 0.9)
    F = model.model_.decision(X[800:2300])
    P = model.predict_proba(X[800:2300]) if name == "likelihood" else None
    scores = class_scores(F, P)[np.arange(1500), np.searchsorted(model.classes_, y[800:2300])]
    radius = model.model_.intervals.radius(0.9)[0]
    assert radius == pytest.approx(_radius(scores, 0.9), rel=BUCKET)


@pytest.mark.parametrize("kind", ["numbers", *CLASSIFIERS])
def test_out_of_fold_is_about_right_without_a_guarantee(rng: np.random.Generator, kind: str) -> None:
    n, n_new = 1500, 4000
    X, y = (_numbers if kind == "numbers" else _classes)(rng, n + n_new)
    if kind == "numbers":
        model: Any = drf.KernelRidge(_features(), random_state=0).fit(X[:n], y[:n])
        lower, upper = model.predict_interval(X[n:])
        covered = (lower <= y[n:]) & (y[n:] <= upper)
    else:
        model = CLASSIFIERS[kind]().fit(X[:n], y[:n])
        sets = model.predict_set(X[n:])
        covered = sets[np.arange(n_new), np.searchsorted(model.classes_, y[n:])]
    assert model.model_.intervals.source == "out of fold"
    # The spread of both samples, five of its standard deviations, and a hundredth for the smaller folds.
    assert abs(covered.mean() - 0.9) < 0.01 + 5 * np.sqrt(0.09 * (1 / n + 1 / n_new))


def test_weights_are_multiplicities(rng: np.random.Generator) -> None:
    X, y = _numbers(rng, 700)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300])
    model.predict(X, return_std=True)
    X, y, s = X[300:], y[300:], rng.integers(0, 4, 400)
    weighted = drf.calibrate(model.model_, X, y, s.astype(float))
    repeated = drf.calibrate(model.model_, np.repeat(X, s, axis=0), np.repeat(y, s))
    for coverage in (0.1, 0.5, 0.9, 0.99):
        for method in METHODS:
            np.testing.assert_allclose(
                weighted.intervals.radius(coverage, method),
                repeated.intervals.radius(coverage, method),
                rtol=0 if method == "constant" else BUCKET,  # a sum in another order, at the edge of a bucket
            )


def test_several_targets(rng: np.random.Generator) -> None:
    X = rng.uniform(-2, 2, size=(900, 2))
    Y = np.column_stack(
        [X[:, 0] + 0.1 * rng.normal(size=900)] + [X[:, 1] + j * rng.normal(size=900) for j in range(11)]
    )
    model = (
        drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:500], Y[:500]).calibrate(X[500:], Y[500:])
    )
    errors = np.abs(model.predict(X[500:]) - Y[500:])
    for method in METHODS:
        lower, upper = model.predict_interval(X, 0.8, method)
        assert lower.shape == (900, 12)
        U = _relative_std(model, X) if method == "deviation" else np.ones((900, 12))
        for j in range(12):
            radius = _radius(errors[:, j] / U[500:, j], 0.8)
            assert (upper - lower)[:, j] / 2 == pytest.approx(radius * U[:, j], rel=BUCKET)


def test_too_few_rows_for_the_coverage(rng: np.random.Generator) -> None:
    X, y = _numbers(rng, 312)
    model = (
        drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300]).calibrate(X[300:], y[300:])
    )
    with pytest.warns(DataWarning, match="needs 19 rows"):
        lower, upper = model.predict_interval(X, 0.95)
    assert np.isinf(lower).all() and np.isinf(upper).all() and (lower < upper).all()
    assert np.isfinite(model.predict_interval(X, 0.9)[0]).all()  # ⌈13·0.9⌉ = 12


def test_labels_never_seen_are_in_no_set(rng: np.random.Generator) -> None:
    X, y = _classes(rng, 1000)
    model = CLASSIFIERS["likelihood"]().fit(X[:500], y[:500])
    y[500:700] = "new"
    with pytest.warns(DataWarning, match="200 of 500 rows have labels that the model never saw"):
        model.calibrate(X[500:], y[500:])
    assert model.predict_set(X, 0.7).all(), "two of five rows have a class that no set can hold"


def test_lazy_results_of_an_estimator_and_its_model(rng: np.random.Generator) -> None:
    X, y = _numbers(rng, 800)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:400], y[:400])
    assert (
        repr(drf.calibrate(model.model_, X[400:], y[400:]).intervals) == "<Intervals calibrated on 400 rows>"
    )
    expected = model.calibrate(X[400:], y[400:]).predict_interval(X)
    frozen = drf.calibrate(model.model_, X[400:], y[400:])  # with the posterior that the calibration took
    assert repr(frozen.intervals) == "<Intervals calibrated on 400 rows, also in standard deviations>"
    lazy = model.predict_interval(da.from_array(X, chunks=(300, 2)))
    for end, of_frozen, found in zip(lazy, frozen.predict_interval(X), expected, strict=True):
        assert isinstance(end, da.Array) and end.chunks == ((300, 300, 200),) and end.dtype == float
        np.testing.assert_allclose(end.compute(), found, rtol=1e-9, atol=1e-12)  # products of other shapes
        np.testing.assert_array_equal(of_frozen, found)


@pytest.mark.parametrize("kind", ["numbers", "deviations", "likelihood"])
def test_they_are_stored_with_the_model(rng: np.random.Generator, kind: str, tmp_path: Any) -> None:
    is_sets, words = kind == "likelihood", "out of fold, of 900 rows, without a guarantee"
    X, y = (_classes if is_sets else _numbers)(rng, 900)
    model: Any = CLASSIFIERS[kind]() if is_sets else drf.KernelRidge(_features(), random_state=0)
    model.fit(X, y)
    method = "predict_set" if is_sets else "predict_interval"
    with pytest.raises(InputError, match="no intervals"):
        getattr(model.model_, method)(X)
    expected = getattr(model, method)(X)
    model.save(str(tmp_path / "m.zarr"), **({"include_std": True} if kind == "deviations" else {}))
    loaded = drf.load_model(str(tmp_path / "m.zarr"))
    if kind == "numbers":  # without standard deviations
        with pytest.raises(InputError, match="saved without its posterior"):
            loaded.predict_interval(X, method="deviation")
        np.testing.assert_array_equal(
            loaded.predict_interval(X, method="constant"), model.predict_interval(X, method="constant")
        )
        expected = model.predict_interval(X, method=loaded.interval_method())
    np.testing.assert_array_equal(getattr(loaded, method)(X), expected)
    words += ", also in standard deviations" if kind == "deviations" else ""
    assert str(loaded.intervals) == words + ("" if is_sets else ", also by the spread at x")
    assert "out of fold" in loaded._repr_html_()
    assert loaded.digest == model.model_.digest


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
@pytest.mark.parametrize("kind", ["numbers", "likelihood"])
def test_they_are_written_beside_predictions(
    rng: np.random.Generator, kind: str, suffix: str, tmp_path: Any
) -> None:
    X, y = (_numbers if kind == "numbers" else _classes)(rng, 700)
    model: Any = drf.KernelRidge(_features(), random_state=0) if kind == "numbers" else CLASSIFIERS[kind]()
    model.fit(X, y)
    out = str(tmp_path / f"p.{suffix}")
    drf.write_predictions(model, X, out, coverage=0.8)
    if kind == "numbers":
        expected = dict(zip(("lower", "upper"), model.predict_interval(X, 0.8), strict=True))
    elif suffix == "zarr":
        expected = {"set": model.predict_set(X, 0.8)}
    else:
        sets = model.predict_set(X, 0.8)
        expected = {f"set_{label}": sets[:, j] for j, label in enumerate(model.classes_)}
    found: Any = zarr.open_group(out, mode="r") if suffix == "zarr" else pd.read_parquet(out)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][:], values, rtol=1e-9, atol=1e-12)


def test_a_calibration_replaces_another_and_a_fit_forgets_it(rng: np.random.Generator) -> None:
    X, y = _numbers(rng, 900)
    model = drf.KernelRidge(_features(), random_state=0).fit(X[:400], y[:400])
    first = model.predict_interval(X)
    second = model.calibrate(X[400:], y[400:]).predict_interval(X)
    assert not np.array_equal(first[0], second[0])
    assert model.fit(X[:400], y[:400]).model_.intervals is None
    np.testing.assert_array_equal(model.predict_interval(X)[0], first[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, c, X, y: m.predict_interval(X, 1.0), "between 0 and 1"),
        (lambda m, c, X, y: drf.calibrate(m.model_, X, y).predict_set(X), "use predict_interval"),
        (lambda m, c, X, y: drf.calibrate(c.model_, X, y > 0).predict_interval(X), "use predict_set"),
        (lambda m, c, X, y: m.set_params(alpha=1.0).fit(X, y).predict_interval(X), "held no folds out"),
        (lambda m, c, X, y: m.calibrate(X, y), "rows of the fit"),
        (lambda m, c, X, y: m.calibrate(X[:, :1], y), "1 features"),
        (lambda m, c, X, y: m.calibrate(X), "y"),
        (lambda m, c, X, y: m.calibrate(X[:9], y[:9], np.zeros(9)), "weights are zero"),
        (lambda m, c, X, y: drf.calibrate(m.model_, X), "needs targets"),
        (
            lambda m, c, X, y: m.calibrate(X, y + 1, groups=[None, "a"] * 100),
            "100 rows or more have no group",
        ),
        (lambda m, c, X, y: m.calibrate(X, y + 1, groups=[1, 2]), "groups has 2 rows"),
        (lambda m, c, X, y: m.calibrate(X, y + 1, groups=X), "groups has 2 columns"),
        (lambda m, c, X, y: drf.calibrate(m, X, y), r"a fitted estimator .* estimator.calibrate\(X, y\)"),
        (lambda m, c, X, y: drf.calibrate(m.model_, X, np.array(["a"] * len(X))), "numbers"),
        (lambda m, c, X, y: drf.write_predictions(m, X, "p.zarr", coverage=2.0), "between 0 and 1"),
        (lambda m, c, X, y: m.predict_interval(X, method="std"), "method must be one of"),
        (
            lambda m, c, X, y: m.set_params(alpha=[0.1, 1]).fit(X, X).predict_interval(X, 0.5, "deviation"),
            "held no folds out",
        ),
    ],
)
def test_what_has_no_intervals(
    rng: np.random.Generator, call: Any, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = _numbers(rng, 200)
    model = drf.KernelRidge(_features(), random_state=0).fit(X, y)
    classifier = drf.KernelRidgeClassifier(_features(), random_state=0).fit(X, y > 0)
    with pytest.raises((InputError, TypeError), match=message):
        call(model, classifier, X, y)
    assert not list(tmp_path.iterdir())


def test_a_rank_is_that_of_the_written_coverage() -> None:
    """The double of 0.55 is larger than 55/100, and (n + 1)·0.55 a whole number for n = 99."""
    intervals = Intervals((QuantileSketch.of(np.arange(1.0, 100.0)),), "calibrated", 99)
    assert intervals.radius(0.55)[0] == pytest.approx(55.0, rel=BUCKET)
    assert intervals.radius(0.07)[0] == pytest.approx(7.0, rel=BUCKET)


def _grouped(rng: np.random.Generator, n: int, n_groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of groups of very different sizes, with an offset for each; the last ones have all groups."""
    X, y = _numbers(rng, n)
    groups = np.append(rng.integers(0, n_groups, n - n_groups) ** 2 // n_groups, np.arange(n_groups))
    return X, y + rng.normal(size=n_groups)[groups], groups


def _radius_of_groups(scores: np.ndarray, groups: np.ndarray, s: np.ndarray, coverage: str) -> float:
    """The smallest score up to which the weights s/((G + 1)·n_g) add up to the coverage, in fractions."""
    s_of = {g: int(s[groups == g].sum()) for g in set(groups[s > 0].tolist())}
    total = Fraction(0)
    for i in np.argsort(scores[s > 0]):
        group, multiple = groups[s > 0][i], int(s[s > 0][i])
        total += Fraction(multiple, (len(s_of) + 1) * s_of[group])
        if total >= Fraction(coverage):
            return float(scores[s > 0][i])
    return math.inf


def _is_up_to_a_bucket(found: float, exact: float) -> bool:
    return exact * (1 - 1e-12) <= found <= exact * (1 + 1.01 * BUCKET)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_group_counts_as_one(rng: np.random.Generator, weighted: bool) -> None:
    X, y, groups = _grouped(rng, 900, 60)
    Y = np.column_stack([y, X[:, 0] - y])
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], Y[:300])
    errors, X, Y, groups = np.abs(model.predict(X) - Y)[300:], X[300:], Y[300:], groups[300:]
    s = rng.integers(0, 4, 600) if weighted else np.ones(600, int)
    found = drf.calibrate(model.model_, X, Y, s if weighted else None, groups).intervals
    assert found.n_groups == len(set(groups[s > 0])) and f"{found.n_groups} groups" in str(found)
    for coverage in ("0.05", "0.5", "0.8", "0.9"):
        for j, radius in enumerate(found.radius(float(coverage))):
            exact = _radius_of_groups(errors[:, j], groups, s, coverage)
            assert _is_up_to_a_bucket(radius, exact), (coverage, j)


def test_a_large_group_counts_no_more_than_a_small_one(rng: np.random.Generator) -> None:
    """One person of 400 visits, whom the model does not suit, beside 99 of one visit each."""
    X, y = _numbers(rng, 799)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300])
    y[399:] += 50
    groups = np.minimum(np.arange(499), 99)
    by_rows, by_groups = (
        drf.calibrate(model.model_, X[300:], y[300:], groups=given).intervals.radius(0.9)[0]
        for given in (None, groups)
    )
    assert by_rows > 40 > by_groups  # of 101 weights of 1/101 the large group has one


def test_groups_of_one_row_are_rows(rng: np.random.Generator) -> None:
    X, y = _classes(rng, 800)
    model = CLASSIFIERS["likelihood"]().fit(X[:400], y[:400]).model_
    y[400:440] = "new"
    with pytest.warns(DataWarning, match="40 of 400 rows have labels"):
        by_rows = drf.calibrate(model, X[400:], y[400:]).intervals
        by_groups = drf.calibrate(model, X[400:], y[400:], groups=rng.permutation(400)).intervals
    for coverage in (0.07, 0.3, 0.55, 0.8, 0.95):
        assert by_rows.radius(coverage) == by_groups.radius(coverage)


def test_groups_in_any_type_and_chunks(rng: np.random.Generator) -> None:
    X, y, groups = _grouped(rng, 700, 40)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300])
    X, y, groups = X[300:], y[300:], groups[300:]
    intervals = model.calibrate(X, y, groups=groups).model_.intervals
    assert intervals.n_groups == len(set(groups))
    expected = intervals.radius(0.8)
    lazy = [da.from_array(A, chunks=n) for A, n in ((X, (170, 2)), (y, 90), (groups, 111))]
    texts = np.array([f"person {g}" for g in groups], dtype=object)
    days = np.datetime64("2026-01-01") + groups
    for rows in (
        (X, y, None, groups.astype(float)), (X, y, None, texts), (X, y, None, texts.astype(str)),
        (X, y, None, days), (X, y, np.full(400, 2.0), groups), (lazy[0], lazy[1], None, lazy[2]),
        (pd.DataFrame(X), y, None, pd.Series(texts).astype("category")),
    ):  # fmt: skip
        np.testing.assert_array_equal(drf.calibrate(model.model_, *rows).intervals.radius(0.8), expected)


def test_groups_of_a_raw_table_go_with_its_rows(rng: np.random.Generator, tmp_path: Any) -> None:
    """Rows that the steps of the model leave out are no part of their group, whatever holds them."""
    X, y, groups = _grouped(rng, 600, 30)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": rng.choice(["u", "v"], 600), "y": y})
    frame.loc[rng.choice(np.arange(200, 600), 150, replace=False), "b"] = np.nan
    steps = {"target": "y", "one_hot": True, "missing": "drop"}
    estimator = drf.KernelRidge(_features(), 1.0, random_state=0).fit(drf.open_dataset(frame[:300], **steps))
    model, rows, theirs = estimator.model_, frame[300:], groups[300:]
    kept = rows["b"].notna().to_numpy()
    expected = drf.calibrate(model, rows[kept], groups=theirs[kept]).intervals
    rows.assign(person=theirs).to_parquet(tmp_path / "rows.parquet")
    stored = drf.open_dataset(str(tmp_path / "rows.parquet"), steps=model.steps, groups="person")
    for found in (
        drf.calibrate(model, rows, groups=theirs),
        drf.calibrate(model, rows, rows["y"], groups=theirs),
        drf.calibrate(model, stored),
        estimator.calibrate(rows, groups=pd.Series(theirs)).model_,
    ):
        assert found.intervals.n_groups == len(set(theirs[kept])) and found.intervals.n_rows == kept.sum()
        np.testing.assert_array_equal(found.intervals.radius(0.8), expected.radius(0.8))


def test_rows_without_groups_after_a_fit_that_held_out_whole_groups(rng: np.random.Generator) -> None:
    X, y, groups = _grouped(rng, 400, 20)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y, person=groups)
    fitted = drf.KernelRidge(_features(), random_state=0).fit(
        drf.open_dataset(frame, target="y", groups="person")
    )
    with pytest.warns(DataWarning, match="held out whole groups, but these rows come without"):
        drf.calibrate(fitted.model_, frame[["a", "b"]], y + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drf.calibrate(fitted.model_, frame[["a", "b"]], y + 1, groups=groups)


def test_rows_outside_the_bounds_are_no_part_of_their_group(rng: np.random.Generator) -> None:
    X, y, groups = _grouped(rng, 600, 30)
    features = drf.EquispacedFourierFeatures(drf.Gaussian(1.0), bounds=[(-3, 3)] * 2)
    model = drf.KernelRidge(features, 1.0, random_state=0).fit(X[:200], y[:200]).model_
    X, y, groups = X[200:], y[200:], groups[200:]
    expected = drf.calibrate(model, X, y, groups=groups).intervals
    # Some are of groups that have other rows, some of one that has no others.
    far, theirs = rng.uniform(4, 5, size=(100, 2)), np.append(groups[:50], np.full(50, 99))
    with pytest.warns(DataWarning, match="100 rows are outside"):
        found = drf.calibrate(
            model, np.vstack([far, X]), np.append(np.zeros(100), y), groups=np.append(theirs, groups)
        ).intervals
    assert found.n_groups == expected.n_groups and found.n_rows - found.n_outside == 400
    np.testing.assert_array_equal(found.radius(0.8), expected.radius(0.8))


def test_too_few_groups_for_the_coverage(rng: np.random.Generator) -> None:
    X, y, groups = _grouped(rng, 600, 9)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300])
    model.calibrate(X[300:], y[300:], groups=groups[300:])
    with pytest.warns(DataWarning, match="0.95 needs 19 groups, got 9:"):
        assert np.isinf(model.predict_interval(X, 0.95)[0]).all()
    # All weights but that of infinity, 1/10, whatever thirds and sevenths add up to in floats.
    errors = np.abs(model.predict(X[300:]) - y[300:])
    assert _is_up_to_a_bucket(float(model.model_.intervals.radius(0.9)[0]), errors.max())


def test_groups_are_stored(rng: np.random.Generator, tmp_path: Any) -> None:
    X, y, groups = _grouped(rng, 600, 40)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X[:300], y[:300])
    model.calibrate(X[300:], y[300:], groups=groups[300:])
    model.save(str(tmp_path / "m.zarr"))
    loaded = drf.load_model(str(tmp_path / "m.zarr")).intervals
    assert str(loaded) == "calibrated on 300 rows of 40 groups, for rows of new groups"
    np.testing.assert_array_equal(loaded.radius(0.9), model.model_.intervals.radius(0.9))


def test_the_table_of_groups_is_planned() -> None:
    reduction = ErrorSum(drf.KernelRidge(_features()).fit(np.eye(9), np.arange(9)).model_, 100)
    with_groups = replace(reduction, group="g", n_groups=10**6)
    assert with_groups.size_bytes(500) - reduction.size_bytes(500) == 16 * 10**6
    assert GroupWeights("g", 500, 100, None).size_bytes(500) == 24 * 500
