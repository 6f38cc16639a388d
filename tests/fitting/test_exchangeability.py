"""The look at rows near each other: exact errors of left out rows, and what it finds in made tables."""

import dask.array as da
import numpy as np
import pytest

import distrff as drf
from distrff.fitting.result import _left_out_error, _regularised_inverse, exchangeability, parts_by_columns
from distrff.fitting.rows import rows_in_runs
from distrff.kernels.stationary import Matern

ALIKE = "Rows near each other are alike"


def groups(rng, n_groups=40, size=10, n_columns=3):
    """Rows of groups that resemble each other in their columns, with an offset a group."""
    group = np.repeat(np.arange(n_groups), size)
    X = rng.standard_normal((n_groups, n_columns))[group] + 0.1 * rng.standard_normal((len(group), n_columns))
    return X, rng.standard_normal(n_groups)[group] + 0.3 * rng.standard_normal(len(group))


def kernel_matrix(X, width=1.0):
    return Matern(width, nu=1.5)((X - X.mean(axis=0)) / np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1.0))


def look(X, y, s=None, seed=0, names=None):
    Y, s = (y[:, None] if y.ndim == 1 else y), np.ones(len(X)) if s is None else s
    return exchangeability(kernel_matrix(X), Y, s, seed, parts_by_columns(X, names))


@pytest.mark.parametrize("of_features", [False, True])
def test_errors_are_those_of_models_of_the_other_rows(rng, of_features):
    n, penalty, parts = 60, 0.3, rng.integers(0, 5, 60)
    X, Y = rng.standard_normal((n, 2)), rng.standard_normal((n, 2))
    F = np.cos(X @ rng.standard_normal((2, 7))) if of_features else kernel_matrix(X)
    K, expected = F @ F.T if of_features else F, 0.0
    for part in range(5):
        own, others = parts == part, parts != part
        dual = np.linalg.solve(K[np.ix_(others, others)] + penalty * np.eye(others.sum()), Y[others])
        expected += np.square(Y[own] - K[np.ix_(own, others)] @ dual).sum()
    inverse = _regularised_inverse(F, penalty)
    assert _left_out_error(inverse, inverse @ Y, parts) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["numbers", "classes", "weights"])
def test_groups_are_found_in_their_order_alone(rng, kind):
    X, y = groups(rng)
    s = rng.exponential(size=len(X)) if kind == "weights" else None
    if kind == "classes":
        y = 2.0 * np.eye(3)[np.digitize(y, [-0.5, 0.5])] - 1.0
    found, order = look(X, y, s), rng.permutation(len(X))
    shuffled = look(X[order], y[order], None if s is None else s[order])
    assert found["alarm"] and found["ratio"] > 1.1
    assert found["ratio"] == pytest.approx(found["error_held_out"] / found["error_random"])
    # Of 450 such tables the ratio was .9 to 1.1, and the other one .81 to 1.19.
    assert shuffled["ratio"] < 1.25
    assert shuffled["error_random"] == pytest.approx(found["error_random"], rel=0.4)


def test_rows_in_the_order_of_their_target_say_nothing(rng):
    X, y = groups(rng)
    order = np.argsort(y)
    assert look(X[order], y[order]) is look(X[order], -y[order]) is None
    labels = np.sort(rng.integers(0, 4, len(X)))[:, None]
    assert look(X, np.where(labels == [2, 0, 3, 1], 1.0, -1.0)) is None
    assert look(X, np.ones(len(X))) is None
    assert look(X, np.stack([y, -y], axis=1)) is not None


def test_columns_tell_who_is_alike_in_any_order(rng):
    """A number of a group, places, a time: rows are shuffled, so that stretches tell nothing."""
    X, y = groups(rng, 40, 15)
    order = rng.permutation(len(X))
    subject = rng.permutation(40)[order // 15]
    found = look(np.column_stack([X[order], subject]), y[order], names=["a", "b", "c", "subject"])
    assert found["ratio"] < 1.25
    assert [(one["rows"], one["alarm"]) for one in found["also"]] == [("values of column 'subject'", True)]
    places = rng.uniform(-1.0, 1.0, (600, 2))
    field = np.cos(places @ (8.0 * rng.standard_normal((2, 30)))).sum(axis=1)
    found = look(places, field, names=["Lon", "lat"])
    assert [one["rows"] for one in found["also"]] == ["blocks of column 'Lon', column 'lat'"]
    assert found["also"][0]["alarm"]
    time = rng.uniform(0.0, 600.0, 600)
    drift = np.cos(np.outer(time, rng.uniform(0.1, 0.3, 30))).sum(axis=1) + rng.standard_normal(600)
    found = look(np.column_stack([time / 4, rng.standard_normal(600)]), drift, names=["time", "b"])
    assert [one["rows"] for one in found["also"]] == ["spans of column 'time'"]


def test_parts_by_columns_keep_values_together(rng):
    ids = rng.integers(0, 50, 1000).astype(float)
    X = np.column_stack([ids, np.round(rng.uniform(0, 30, 1000)) / 2, ids % 5, rng.integers(0, 2**40, 1000)])
    ((words, parts),) = parts_by_columns(X, None)
    assert words == "values of column 0" and set(parts) == set(range(12))
    assert all(len(np.unique(parts[ids == one])) == 1 for one in np.unique(ids))
    assert np.bincount(parts).max() < 1000 / 6
    by_name = dict(parts_by_columns(X, ["x", "y", "day", "flight"]))
    assert set(by_name) == {"blocks of column 'x', column 'y'", "spans of column 'day'"}
    for parts in by_name.values():
        assert parts.min() == 0 and parts.max() < 12
    spans = by_name["spans of column 'day'"]
    assert np.all(np.diff(spans[np.argsort(X[:, 2], kind="stable")]) >= 0) and len(np.unique(spans)) == 5


def test_a_report_says_it_the_same_for_any_chunks(rng):
    X, y = groups(rng)
    model = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 64), random_state=0)
    found = model.fit(X, y).report_
    assert found["quality"]["exchangeability"]["alarm"]
    assert ALIKE in repr(found) and ALIKE in found.to_html() and "--groups" in repr(found)
    chunked = model.fit(da.from_array(X, chunks=(37, 3)), da.from_array(y, chunks=37)).report_
    assert chunked["quality"]["exchangeability"] == found["quality"]["exchangeability"]
    order = rng.permutation(len(X))
    assert model.fit(X[order], y[order]).report_["quality"]["exchangeability"]["ratio"] < 1.25


def test_whoever_chose_other_folds_is_not_told(rng):
    X, y = groups(rng)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 32)
    report = drf.KernelRidge(features, fold_by="contiguous", random_state=0).fit(X, y).report_
    assert report["quality"]["exchangeability"] is None and ALIKE not in repr(report)
    few = drf.KernelRidge(features, random_state=0).fit(X[:60], y[:60]).report_
    assert few["quality"]["exchangeability"] is None
    classes = drf.KernelSVC(features, random_state=0).fit(X, y > 0).report_
    assert classes["quality"]["exchangeability"]["alarm"]


def exchangeable_table(i):
    """Columns, coded targets and weights of independent rows, of many kinds."""
    rng = np.random.default_rng([7, i])
    n, d = [120, 200, 500, 1000, 1500][i % 5], [1, 3, 10, 40, 200][i // 5 % 5]
    X = [
        lambda: rng.standard_normal((n, d)),
        lambda: rng.standard_t(1.2, (n, d)),
        lambda: 1.0 * (rng.random((n, d)) < 0.2),
        lambda: np.eye(max(d, 2))[rng.integers(0, max(d, 2), n)],
        lambda: np.round(rng.exponential(2.0, (n, d))),
        lambda: rng.lognormal(0.0, 2.0, (n, d)),
    ][i // 25 % 6]()
    noise = [rng.standard_normal(n), rng.standard_t(1.5, n), rng.standard_cauchy(n), np.zeros(n)][i // 7 % 4]
    y = np.sin(X @ rng.standard_normal(X.shape[1]) / np.sqrt(X.shape[1])) + 0.5 * noise
    s = rng.lognormal(0.0, 1.5, n) if i % 7 == 1 else np.ones(n)
    if i % 7 == 2:
        y = np.sign(y - np.median(y) + 1e-9)
    if i % 7 == 3:
        y = np.zeros(n)
    if i % 7 == 4:
        return X, 2.0 * np.eye(5)[np.digitize(y, np.quantile(y, [0.5, 0.7, 0.9, 0.97]))] - 1.0, s
    return X, y[:, None] / (y.std() or 1.0), s


@pytest.mark.slow
def test_few_exchangeable_tables_are_taken_for_others():
    n_taken = 0
    for i in range(300):
        X, Y, s = exchangeable_table(i)
        found = exchangeability(kernel_matrix(X, 2.0), Y, s, i, parts_by_columns(X, None))
        n_taken += found is not None and any(one["alarm"] for one in [found, *found["also"]])
    assert n_taken <= 8


@pytest.mark.slow
@pytest.mark.parametrize("n_shared", [3, 6])
def test_groups_of_twenty_are_found_in_ten_million_rows(n_shared):
    """Of six columns some are those of the group."""
    n_found = 0
    for i in range(100):
        rng = np.random.default_rng([3, i])
        _, group = np.unique(rows_in_runs(10**7) // 20, return_inverse=True)
        X, offsets = rng.standard_normal((len(group), 6)), rng.standard_normal(len(group))
        X[:, :n_shared] = rng.standard_normal((len(group), n_shared))[group]
        y = np.sin(X @ rng.standard_normal(6) / 2) + 0.5 * (offsets[group] + rng.standard_normal(len(group)))
        n_found += look(X, y, seed=i)["alarm"]
    assert n_found >= 95
