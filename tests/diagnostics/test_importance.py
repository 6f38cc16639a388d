"""Permutation importance and partial dependence of every model, against NumPy and scikit-learn."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence as sklearn_partial_dependence
from sklearn.model_selection import PredefinedSplit, ShuffleSplit

import distrff as drf
from distrff.diagnostics import dependence
from distrff.diagnostics.dependence import what_matters
from distrff.diagnostics.importance import DrawnRows, RowDraw, drawn_rows
from distrff.diagnostics.report import judge_fit
from distrff.engine.run import begin_run
from distrff.errors import DataWarning, InputError
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import Moments
from distrff.preprocessing.folds import Memberships
from distrff.utils.random import child_seed, row_hash
from tests.support.models import frozen_model
from tests.support.pages import words

UNIT = 2.0**-53
SMALL = drf.FourierFeatures(drf.Gaussian(2.0), 32, random_state=0)
MODELS = {
    "ridge": drf.KernelRidge(SMALL, alpha=1e-2),
    "binning": drf.KernelRidge(drf.RandomBinningFeatures(drf.Laplacian(3.0), 16, random_state=0), alpha=1e-2),
    "equispaced": drf.KernelRidge(drf.EquispacedFourierFeatures(drf.Gaussian(2.0), 400), alpha=1e-2),
    "ridge-classifier": drf.KernelRidgeClassifier(SMALL, alpha=1e-2),
    "svc": drf.KernelSVC(SMALL, tol=0.1),
    "logistic": drf.KernelLikelihoodClassifier(SMALL, 1.0, tol=0.1),
    "softmax": drf.KernelLikelihoodClassifier(SMALL, 1.0, multi_class="softmax", tol=0.1),
}


def fitted(name, X, y):
    labels = np.digitize(y, np.quantile(y, [0.5] if name == "logistic" else [0.4, 0.7]))
    y = y if MODELS[name].__class__ is drf.KernelRidge else np.array(["low", "mid", "top"])[labels]
    return clone(MODELS[name]).fit(X, y), y


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((300, 2)) * [2.0, 3.0] + 1
    return X, X[:, 0] + np.sin(X[:, 1]) + 0.1 * rng.standard_normal(300)


def replaced(X, place, seed=0, s=None):
    """The rows whose values replace those of all rows in a column."""
    s = np.ones(len(X)) if s is None else s
    places, rows = np.flatnonzero(s > 0), X.copy()
    rows[places] = X[places][
        drawn(X[places], places, s[places]).replacements(child_seed(seed, "donors", place))
    ]
    return rows


def drawn(X, numbers, s):
    none = np.empty((len(X), 0))
    return DrawnRows(numbers, X, none, s, np.zeros(len(X), int), none, Moments.empty(0), 0, len(X))


# Rows that are drawn by their numbers, and columns that are replaced.


def test_rows_lend_their_values_by_their_weight():
    """Each of 60,000 rows takes a value of one of its own kind, whose weight is 1, 3 or 2."""
    kinds = np.arange(60_000) % 3
    weight = np.array([1.0, 3.0, 2.0])[kinds]
    places = drawn(kinds[:, None], np.arange(60_000), weight).replacements(7)
    assert np.abs(np.bincount(kinds[places]) - 10_000 * np.array([1, 3, 2])).max() < 600


# What columns of arrays matter.


@pytest.mark.parametrize("name", MODELS)
def test_importance_is_that_of_numpy(rows, name):
    X, y = rows
    model, y = fitted(name, X, y)
    found = drf.permutation_importance(model, X, y, random_state=3)
    assert (found.n_samples, found.n_judged, found.n_outside) == (300, 300, 0)
    assert {column.column for column in found.columns} == {"0", "1"}
    assert found.columns[0].importance >= found.columns[1].importance
    is_number = y.dtype.kind == "f"
    unit = y.var() if is_number else 1.0

    def losses(X):
        return (model.predict(X) - y) ** 2 if is_number else (model.predict(X) != y).astype(float)

    assert found.score == pytest.approx(model.score(X, y), abs=1e-9)
    for column in found.columns:
        changed, j = X.copy(), int(column.column)
        changed[:, j] = replaced(X, j, 3)[:, j]
        rise = losses(changed) - losses(X)
        near = {"rel": 1e-5, "abs": 1e-6} if name == "equispaced" else {"rel": 1e-9, "abs": 1e-11}
        assert column.importance == pytest.approx(rise.mean() / unit, **near)
        assert column.std_error == pytest.approx(rise.std(ddof=1) / np.sqrt(300) / unit, **near)
        if is_number:
            assert column.mse_rise == (pytest.approx(rise.mean(), **near),)
            assert column.mse_rise_error == (pytest.approx(rise.std(ddof=1) / np.sqrt(300), **near),)
        else:
            assert column.mse_rise is None
    strict_json(found)


def strict_json(found):
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
    assert "<" in repr(found)
    assert found._repr_html_().count("<table") + found._repr_html_().count("bar") > 0


@pytest.mark.parametrize("name", MODELS)
def test_partial_dependence_is_that_of_scikit_learn(rows, name):
    """All rows are judged, and few values are their own grid in both."""
    X, y = rows
    X = np.column_stack([X[:, 0], np.round(X[:, 1] / 3)])
    model, y = fitted(name, X, y)
    found = drf.partial_dependence(model, X, [1, 0], grid_size=15, max_rows=300)
    assert [curve.column for curve in found.curves] == ["1", "0"]
    has_probabilities = name in ("logistic", "softmax")
    results = {"ridge-classifier": "decision", "svc": "decision"}
    assert found.result == ("probability" if has_probabilities else results.get(name, "prediction"))
    curve = found["1"]
    assert curve.values == tuple(np.unique(X[:, 1]))
    outputs = found.outputs
    assert outputs == (("y",) if y.dtype.kind == "f" else tuple(np.unique(y)))
    expected = sklearn_partial_dependence(model, X, [1], grid_resolution=50, method="brute")
    means = expected["average"].T
    if name == "logistic":  # of the second class alone
        means = np.column_stack([1 - means, means])
    near = 1e-5 if name == "equispaced" else 1e-10
    np.testing.assert_allclose(curve.mean, means, rtol=near, atol=near)
    by_numbers = found["0"]
    assert 2 <= len(by_numbers.values) <= 15
    assert set(by_numbers.values) <= set(X[:, 0])
    for i, value in enumerate(by_numbers.values):
        changed = np.column_stack([np.full(300, value), X[:, 1]])
        F = model.model_.predict_proba(changed) if has_probabilities else model.model_.decision(changed)
        np.testing.assert_allclose(by_numbers.mean[i], F.mean(axis=0), rtol=near, atol=near)
        np.testing.assert_allclose(by_numbers.std[i], F.std(axis=0), rtol=1e-3, atol=1e-4)
        error = F.std(axis=0, ddof=1) / np.sqrt(300)
        np.testing.assert_allclose(by_numbers.std_error[i], error, rtol=1e-3, atol=1e-4)
    strict_json(found)


def test_several_targets_count_in_units_of_their_variance(rows):
    X, y = rows
    Y = np.column_stack([y, 100 * X[:, 1], np.full(300, 7.0)])
    with pytest.warns(DataWarning, match="constant"):
        model = drf.KernelRidge(SMALL, alpha=1e-2).fit(X, Y)
    found = drf.permutation_importance(model, X, Y)
    varying = [0, 1]  # a constant has no R²
    for column in found.columns:
        changed, j = X.copy(), int(column.column)
        changed[:, j] = replaced(X, j)[:, j]
        rise = ((model.predict(changed) - Y) ** 2 - (model.predict(X) - Y) ** 2).mean(axis=0)
        np.testing.assert_allclose(column.mse_rise, rise, rtol=1e-8, atol=1e-8)
        expected = np.mean(rise[varying] / Y[:, varying].var(axis=0))
        assert column.importance == pytest.approx(expected, rel=1e-8)
    squares = ((model.predict(X) - Y) ** 2).mean(axis=0)
    assert found.score == pytest.approx(1 - np.mean(squares[varying] / Y[:, varying].var(axis=0)), rel=1e-9)


# Rows of the fit, each judged by a model that did not see it.


FOLDS = {
    "rows at random": (drf.HashFolds(4), set(), {1}),
    "groups": (drf.GroupFolds(), set(), {1}),
    "cells of the columns that are replaced": (drf.BlockFolds([0, 1], size=3.0, n_folds=3), set(), {1}),
    "the past": (drf.ForwardFolds(n_folds=4, gap=5), set(range(60)), {0, 1}),
    "several sets or none": (ShuffleSplit(4, test_size=0.3, random_state=0), None, {0, 1, 2, 3}),
}


@pytest.mark.parametrize("kind", [drf.KernelRidge, drf.KernelRidgeClassifier])
@pytest.mark.parametrize("name", FOLDS)
def test_rows_of_the_fit_are_judged_by_models_that_did_not_see_them(rows, name, kind):
    (X, y), (cv, never, n_judges) = rows, FOLDS[name]
    y = y if kind is drf.KernelRidge else np.digitize(y, [0.5, 1.5])
    groups = {"groups": np.arange(300) // 7} if name == "groups" else {}
    model = kind(SMALL, alpha="cv", cv=cv, scale="none", random_state=0).fit(X, y, **groups)
    folds = model._out_of_fold_models()
    judge = replace(model.model_, fold_models=folds)
    drawn = drawn_rows(begin_run(), judge, model._fit_rows, 300, 3, with_target=True)
    keys = next(model._fit_rows.rows(0, 300).tiles(300)).keys
    _, held_out = folds.folds.masks(keys, range(folds.folds.n_folds))
    if never is None:
        np.testing.assert_array_equal(held_out.T, [np.isin(range(300), test) for _, test in cv.split(X)])
    assert set(held_out.sum(axis=1)) >= n_judges
    judged = np.flatnonzero(held_out.any(axis=1))
    assert never is None or set(range(300)) - set(judged) == never
    assert held_out[judged, drawn.judge[judged]].all() and (np.delete(drawn.judge, judged) == -1).all()

    def losses(X):
        rows = np.arange(300)
        F = np.stack([model.features_.transform(X) @ W for W in folds.coef]) + folds.intercept[:, None]
        F = F[drawn.judge, rows]
        if kind is drf.KernelRidge:
            return np.square(F[:, 0] - y)
        return (model.classes_[F.argmax(axis=1)] != y).astype(float)

    found = drf.permutation_importance(model, random_state=3)
    counts = found.n_samples, found.n_judged, found.n_never_held_out, found.n_outside
    assert counts == (300, len(judged), 300 - len(judged), 0)
    unit, before = 1.0 if found.measure == "accuracy" else y.var(), losses(X)
    assert found.score == pytest.approx(1 - before[judged].mean() / unit, rel=1e-9)
    if n_judges == {1}:
        assert found.score == pytest.approx(
            drf.evaluate(model)["accuracy" if unit == 1.0 else "r2"], rel=1e-9
        )
    is_judged = held_out.any(axis=1).astype(float)
    for column in found.columns:
        changed, j = X.copy(), int(column.column)
        changed[:, j] = replaced(X, j, 3, is_judged)[:, j]
        rise = (losses(changed) - before)[judged]
        assert column.importance == pytest.approx(rise.mean() / unit, rel=1e-9, abs=1e-12)
    assert found.rows == "out of fold" and "judged on: rows that were left out" in repr(found)
    assert ("held out by no fold" in repr(found)) == (len(judged) < 300)
    strict_json(found)
    # The same rows once more, others, and those of a model that knows no fit.
    given = drf.permutation_importance(model, X.copy(), y, random_state=3)
    assert given == found
    other, frozen = (drf.permutation_importance(m, X[:200], y[:200]) for m in (model, model.model_))
    assert (other.rows, frozen.rows) == ("other rows", "the rows given")
    assert (other.columns, other.score) == (frozen.columns, frozen.score)


def test_judges_of_a_row_are_chosen_alike():
    """Of rows with up to four judges each has an equal share, whatever the row's number."""
    counts = np.arange(60_000) % 5
    rows = np.repeat(np.arange(60_000), counts)
    numbers = 10 * counts[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    chosen = Memberships(60_000, numbers, rows).one_each(row_hash(np.arange(60_000, dtype=np.uint64), 7))
    assert (chosen[counts == 0] == -1).all() and (chosen[counts > 0] // 10 == counts[counts > 0]).all()
    for count in range(1, 5):
        shares = np.bincount(chosen[counts == count] % 10)
        assert np.abs(shares - 12_000 / count).max() < 600


def test_the_report_of_a_fit_judges_columns_out_of_fold(rows):
    X, y = rows
    model = drf.KernelRidge(SMALL, cv=drf.ForwardFolds(n_folds=4), random_state=0).fit(X, y)
    judge_fit(model)
    importance = model.report_["importance"]
    expected = drf.permutation_importance(model, random_state=model.seed_, max_rows=500)
    assert importance == expected.to_dict()
    assert model.report_["dependence"]["n_judged"] == 300, "curves are of the final model"
    assert "240 rows of the fit, each by a model that did not see it" in words(model.report_.to_html())


def test_none_of_the_drawn_rows_may_be_held_out(rows, monkeypatch):
    X, y = rows
    held_out = np.full(300, -1)
    held_out[-1] = 0  # the last row is in a run of two, of which one is drawn
    model = drf.KernelRidge(SMALL, cv=PredefinedSplit(held_out), random_state=0).fit(X, y)
    seeds = [seed for seed in range(40) if 299 not in RowDraw.of(300, 150, seed).rows(0, 300)]
    with pytest.raises(InputError, match="no fold holds out any of 150 sampled rows"):
        drf.permutation_importance(model, max_rows=150, random_state=seeds[0])
    monkeypatch.setattr(dependence, "MAX_ROWS", 150)
    model.seed_ = seeds[0]
    with pytest.warns(DataWarning, match="no importance of columns: no fold holds out any"):
        judge_fit(model)
    assert "evaluation" in model.report_ and "importance" not in model.report_


def linear(rng, coef, **fields):
    """The model f(x) = ⟨coef, x⟩."""
    known = {"coef": np.reshape(coef, (-1, 1)), "intercept": np.zeros(1)} | fields
    return frozen_model(drf.LinearFeatures(), rng, n_columns=len(coef), **known)


def test_importance_that_is_known(rng):
    """Of y = 3x₀ and independent normal rows, E(3x₀ − 3x₀')² = 18 with a deviation of 18√2 over rows."""
    X = rng.standard_normal((6000, 2))
    found = drf.permutation_importance(linear(rng, [3.0, 0.0]), X, 3 * X[:, 0])
    matters, other = found.columns
    assert (matters.column, other.column, found.score) == ("0", "1", 1.0)
    # Each row and each donor deviate by less than 18√2/√6000 = 0.33 together with 0.23 of the donors.
    assert abs(matters.mse_rise[0] - 18) < 8 * np.hypot(0.33, 0.23)
    assert 0.7 < matters.mse_rise_error[0] / (18 * np.sqrt(2) / np.sqrt(6000)) < 1.4
    assert abs(matters.importance - 2) < 8 * 0.05
    assert (other.importance, other.std_error) == (0.0, 0.0)


def test_sorted_rows_are_judged_as_shuffled_ones(rng):
    X = rng.standard_normal((5000, 2))
    y = X[:, 0] + 0.5 * X[:, 1]
    model, order = linear(rng, [1.0, 0.5]), np.argsort(X[:, 0])
    found = [
        {c.column: c for c in drf.permutation_importance(model, X[rows], y[rows], max_rows=2500).columns}
        for rows in (np.arange(5000), order)
    ]
    for name in "01":
        shuffled, in_order = (f[name] for f in found)
        error = np.hypot(shuffled.std_error, in_order.std_error)
        assert abs(shuffled.importance - in_order.importance) < 10 * error
    curves = [drf.partial_dependence(model, X[rows], [0], max_rows=500)["0"] for rows in (range(5000), order)]
    assert np.abs(np.subtract(*(c.values for c in curves))).max() < 0.5


def test_a_column_is_judged_alone_as_among_others(rng):
    X = pd.DataFrame(rng.standard_normal((200, 3)), columns=["a", "b", "c"])
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(X, X.a * X.b)
    every = {c.column: c for c in drf.permutation_importance(model, X, X.a).columns}
    for columns in ("b", ["b"], 1, ("b", 1), np.array(["b"])):
        assert drf.permutation_importance(model, X, X.a, columns=columns).columns == (every["b"],)
    two = drf.permutation_importance(model, X.to_numpy(), X.a, columns=["c", 0], random_state=0)
    assert {c.column: c for c in two.columns} == {name: every[name] for name in "ac"}
    other = drf.permutation_importance(model, X, X.a, random_state=1).columns
    assert {c.column: c for c in other} != every


def test_weights_are_multiplicities(rng):
    """Rows of no weight do not count, nor do others take their values."""
    X = rng.standard_normal((400, 2))
    y, s = X[:, 0] + X[:, 1] ** 2, rng.integers(0, 4, 400).astype(float)
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(X, y)
    found = drf.permutation_importance(model, X, y, s)
    variance = np.average((y - np.average(y, weights=s)) ** 2, weights=s)
    n = s.sum() ** 2 / np.sum(s**2)
    for column in found.columns:
        changed, j = X.copy(), int(column.column)
        changed[:, j] = replaced(X, j, s=s)[:, j]
        rise = (model.predict(changed) - y) ** 2 - (model.predict(X) - y) ** 2
        mean = np.average(rise, weights=s)
        assert column.mse_rise[0] == pytest.approx(mean, rel=1e-9)
        assert column.importance == pytest.approx(mean / variance, rel=1e-9)
        error = np.sqrt(np.average((rise - mean) ** 2, weights=s) / (n - 1))
        assert column.mse_rise_error[0] == pytest.approx(error, rel=1e-9)
    X[s == 0], y[s == 0] = 5.0, 1e6
    spoilt = drf.permutation_importance(model, X, y, s)
    for a, b in zip(found.columns, spoilt.columns, strict=True):
        assert a.importance == pytest.approx(b.importance, rel=1e-9)
    curve = drf.partial_dependence(model, X, 0, sample_weight=s)["0"]
    assert 5.0 not in curve.values
    for value, mean in zip(curve.values, curve.mean, strict=True):
        changed = X.copy()
        changed[:, 0] = value
        assert mean[0] == pytest.approx(np.average(model.predict(changed), weights=s), rel=1e-9)
    # Quantiles of the weight: repeated rows have the same.
    repeated = drf.partial_dependence(model, np.repeat(X, s.astype(int), axis=0), 0)["0"]
    assert repeated.values == curve.values


def test_rows_outside_of_the_bounds_are_counted_and_left_out(rng):
    X = rng.uniform(-1, 1, (300, 2))
    y = X[:, 0] + np.sin(3 * X[:, 1])
    features = drf.EquispacedFourierFeatures(drf.Gaussian(1.0), 200, bounds=[(-1, 1), (-1, 1)])
    model = drf.KernelRidge(features, alpha=1e-2, scale="none").fit(X, y)
    inside = drf.permutation_importance(model, X, y)
    far = np.vstack([X, [[3.0, 0.0], [0.0, -7.0]]])
    found = drf.permutation_importance(model, far, np.append(y, [9.0, 9.0]))
    assert (found.n_outside, found.n_judged, found.n_samples) == (2, 300, 302)
    assert [c.n_left_out for c in found.columns] == [0, 0]
    assert np.isfinite([c.importance for c in found.columns]).all()
    assert found.mse == pytest.approx(inside.mse, rel=1e-6)
    assert "outside the bounds" in repr(found)
    curves = drf.partial_dependence(model, far, [0, 1], max_rows=302)
    assert (curves.n_outside, curves.n_judged) == (2, 300)
    for curve in curves.curves:
        assert min(curve.values) >= -1
        assert max(curve.values) <= 1
        assert np.isfinite(curve.mean).all()
    with pytest.raises(InputError, match="within the bounds of the model"):
        drf.permutation_importance(model, X + 9, y)


@pytest.mark.parametrize("sampling", ["iid", "countsketch"])
def test_sparse_rows_are_judged_as_dense_ones(rng, sampling):
    X = rng.standard_normal((300, 6)) * (rng.random((300, 6)) < 0.4)
    y = X[:, 0] - X[:, 3] + 0.1 * rng.standard_normal(300)
    features = drf.FourierFeatures(drf.Gaussian(2.0), 64, sampling=sampling, random_state=0)
    model = drf.KernelRidge(features, alpha=1e-2, scale="none").fit(csr_matrix(X), y)
    dense, sparse = (drf.permutation_importance(model, A, y).columns for A in (X, csr_matrix(X)))
    for a, b in zip(dense, sparse, strict=True):
        assert (a.column, a.importance) == (b.column, pytest.approx(b.importance, rel=1e-9, abs=1e-12))
    dense, sparse = (drf.partial_dependence(model, A, [0, 5]).curves for A in (X, csr_matrix(X)))
    for a, b in zip(dense, sparse, strict=True):
        assert a.values == b.values
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-12)


# Raw columns of tables.


@pytest.fixture
def table(rng):
    n = 400
    table = pd.DataFrame(
        {
            "a": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "c": rng.choice(["u", "v", "w"], n, p=[0.2, 0.5, 0.3]),
            "t": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s"),
        }
    )
    hour = table.t.dt.hour
    table["y"] = table.a.fillna(3.0) + 2 * (table.c == "u") + np.cos(2 * np.pi * hour / 24)
    return table


def test_columns_of_one_raw_column_are_replaced_together(table):
    options = {"target": "y", "one_hot": True, "datetime": "parts", "missing": "indicator"}
    data = drf.open_dataset(table, **options)
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(data)
    found = drf.permutation_importance(model, data)
    assert {c.column: c.n_columns for c in found.columns} == {"a": 2, "c": 3, "t": 6}
    X, names, predict = data.X.compute(), list(data.column_names), model.model_.predict
    for column in found.columns:
        at = [i for i, name in enumerate(names) if name.startswith(column.column)]
        assert len(at) == column.n_columns
        changed = X.copy()
        changed[:, at] = replaced(X, at[0])[:, at]
        rise = (predict(changed) - table.y) ** 2 - (predict(X) - table.y) ** 2
        assert column.mse_rise[0] == pytest.approx(rise.mean(), rel=1e-8)
    for raw in (table, table.drop(columns="y")):
        y = None if "y" in raw else table.y
        assert drf.permutation_importance(model, raw, y).columns == found.columns
    with pytest.raises(InputError, match="has no column 'c=u'; it has: a, c, t"):
        drf.permutation_importance(model, table, columns=["c=u"])


def test_columns_that_x_does_not_have(table):
    """Some of the columns made may be left out of X, or be there in another order."""
    data = drf.open_dataset(table, target="y", one_hot=True, datetime="parts", missing="indicator")
    steps = data.steps.of_columns([8, 2, 1, 4])
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(drf.open_dataset(table, steps=steps))
    found = drf.permutation_importance(model, table)
    assert {c.column: c.n_columns for c in found.columns} == {"t": 1, "c": 2, "a": 1}
    curves = drf.partial_dependence(model, table, ["c"])
    names = {name.partition("=")[2] for name in steps.names_out if "=" in name}
    assert set(curves["c"].values) == names
    with pytest.raises(InputError, match="'a' the model knows only where it is missing"):
        drf.partial_dependence(model, table, ["a"])
    with pytest.raises(InputError, match="'t' the model has no whole circle of a time"):
        drf.partial_dependence(model, table, ["t"])


def test_lists_of_numbers(rng, table, tmp_path):
    L = rng.normal(size=(400, 2))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(L.ravel()), 2)
    columns = {"l": lists, "c": pa.array(table.c), "y": pa.array(L[:, 0] + (table.c == "u"))}
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    data = drf.open_dataset(str(tmp_path / "rows.parquet"), target="y", one_hot=True)
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(data)
    found = drf.permutation_importance(model, data)
    assert {c.column: c.n_columns for c in found.columns} == {"l": 2, "c": 3}
    curve = drf.partial_dependence(model, data, "l_1")["l_1"]
    assert (curve.kind, set(curve.values) <= set(L[:, 1])) == ("number", True)
    with pytest.raises(InputError, match="'l' became 2 columns, which have no one scale; name one of them"):
        drf.partial_dependence(model, data, "l")
    importance, dependence = what_matters(model, data)
    assert "l" in [c.column for c in importance.columns]
    assert [c.column for c in dependence.curves] == ["c"]
    for index in range(4):  # of the columns of X, or of the raw ones?
        with pytest.raises(InputError, match=f"has no column {index}; it has: l, c"):
            drf.partial_dependence(model, data, index)


def test_curves_of_raw_columns(table):
    data = drf.open_dataset(table, target="y", one_hot=True, datetime="both", missing="indicator")
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(data)
    X, names, predict = data.X.compute(), list(data.column_names), model.model_.predict
    found = drf.partial_dependence(model, table.drop(columns="y"), ["a", "c", "t"], max_rows=400)
    assert [(c.column, c.kind) for c in found.curves] == [
        *[("a", "number"), ("c", "category")],
        *[("t_year", "time"), ("t_weekday", "time"), ("t_hour", "time"), ("t", "number")],
    ]
    assert found["c"].values == tuple(table.c.value_counts().index)
    np.testing.assert_allclose(found["c"].shares, table.c.value_counts() / 400)
    assert set(found["a"].values) <= set(table.a.dropna())
    for column, settings in {
        "c": lambda word: {f"c={other}": other == word for other in "uvw"},
        "a": lambda value: {"a": value, "a is missing": 0},
        "t": lambda value: {"t": value},
        "t_hour": lambda hour: {
            f"t_hour_{name}": getattr(np, name)(2 * np.pi * int(hour) / 24) for name in ("sin", "cos")
        },
    }.items():
        for value, mean in zip(found[column].values, found[column].mean[:, 0], strict=True):
            changed = X.copy()
            for name, setting in settings(value).items():
                changed[:, names.index(name)] = setting
            assert mean == pytest.approx(predict(changed).mean(), rel=1e-9)
    assert len(found["t_year"].values) == 12
    assert found["t_weekday"].values[0] == "Mon"
    few = drf.partial_dependence(model, table, "c", grid_size=2)["c"]
    assert few.values == found["c"].values[:2]


def test_what_matters_has_curves_of_the_few_most_important_columns(rng, table):
    data = drf.open_dataset(table, target="y", one_hot=True, datetime="parts", missing="indicator")
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(data)
    importance, dependence = what_matters(model, table, n_columns=2)
    assert importance == drf.permutation_importance(model, table)
    names = [column.column for column in importance.columns[:2]]
    expected = drf.partial_dependence(model, table, names)
    assert dependence.to_dict() == expected.to_dict()
    X = table[["a"]].fillna(0.0).to_numpy()
    importance, dependence = what_matters(linear(rng, [0.0]), as_dataset(X, X[:, 0]))
    assert (dependence, importance.columns[0].importance) == (None, 0.0)


def test_seconds_and_hashed_words(table):
    words = {"one_hot": True, "max_categories": 2, "hash_columns": True}
    data = drf.open_dataset(table[["c", "t", "y"]], target="y", datetime="seconds", **words)
    model = drf.KernelRidge(SMALL, alpha=1e-2).fit(data)
    found = drf.partial_dependence(model, data, ["t", "c"])
    assert found["t"].unit == f"seconds since {np.datetime64(table.t.min(), 's')}"
    assert all(value.startswith("#") for value in found["c"].values)
    assert sum(found["c"].shares) == pytest.approx(1.0)


# What is refused.


IMPORTANCE = {
    "requires y to be passed": lambda X, y: ((X,), {}),
    "X has 3 features, but KernelRidge is expecting 2": lambda X, y: ((np.ones((9, 3)), y[:9]), {}),
    r"y has 2 column\(s\), but the model predicts 1": lambda X, y: ((X, np.column_stack([y, y])), {}),
    "does not vary": lambda X, y: ((X, np.ones(300)), {}),
    "has no column 2; it has: 0, 1": lambda X, y: ((X, y), {"columns": [2]}),
    "max_rows": lambda X, y: ((X, y), {"max_rows": 1}),
    "random_state": lambda X, y: ((X, y), {"random_state": -1}),
    "X contains NaN in row 7, column 1": lambda X, y: (
        (np.where(np.arange(600).reshape(300, 2) == 15, np.nan, X), y), {}
    ),
    "positive weight": lambda X, y: ((X, y, np.zeros(300)), {}),
    "y must hold numbers": lambda X, y: ((X, np.array(["a", "b"], object)[(y > 0).astype(int)]), {}),
}  # fmt: skip


def test_wrong_input(rows):
    X, y = rows
    model, _ = fitted("ridge", X, y)
    importance, dependence = drf.permutation_importance, drf.partial_dependence
    for message, given in IMPORTANCE.items():
        args, options = given(X, y)
        with pytest.raises(InputError, match=message):
            importance(model, *args, **options)
    for wrong in (-1, 0.5, None, True, np.nan, np.inf, {"0"}, b"0"):
        with pytest.raises(InputError, match="has no column"):
            dependence(model, X, [wrong])
    with pytest.raises(InputError, match="at least one column, got none"):
        dependence(model, X, [])
    with pytest.raises(InputError, match="grid_size"):
        dependence(model, X, 0, grid_size=1)
    named = drf.KernelRidge(SMALL, alpha=1e-2).fit(pd.DataFrame(X, columns=["a", "b"]), y)
    for message, other, rows_of in (
        ("sparse", fitted("binning", X, y)[0], csr_matrix(X)),
        ("principal components have no predictions", drf.KernelPCA(SMALL).fit(X), X),
        ("expected a fitted estimator", "model.zarr", X),
        ("got the columns b, a, expected a, b", named, pd.DataFrame(X, columns=["b", "a"])),
    ):
        with pytest.raises(InputError, match=message):
            importance(other, rows_of, y)
    with pytest.raises(NotFittedError):
        importance(drf.KernelRidge(SMALL), X, y)


def test_labels_never_seen_are_wrong_before_and_after(rows):
    X, y = rows
    model, labels = fitted("svc", X, y)
    labels = np.where(np.arange(300) < 50, "never", labels)
    found = drf.permutation_importance(model, X, labels)
    assert found.score == pytest.approx(np.mean(model.predict(X) == labels))
    assert found.n_unseen == 50
    assert "labels never seen, always wrong: 50" in repr(found)
    with pytest.raises(InputError, match=r"the label of none of 300 judged rows.*classes are low, mid, top"):
        drf.permutation_importance(model, X, np.arange(300) % 2)
