"""Rows drawn by number, values from donors, and sums of losses: against NumPy, for any cuts."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.stats import sem

import distrff as drf
from distrff.diagnostics.replacement import (
    ColumnGroup,
    DonorReduction,
    ImportanceReduction,
    RowDraw,
    WeightedMoments,
    column_groups,
    donor_places,
    sent_donors,
    with_columns,
)
from distrff.engine.reduction import joined
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from tests.support.models import frozen_model
from tests.support.sweeps import merged_as_they_arrive, partials, swept

FEATURES = drf.FourierFeatures(drf.Gaussian(2.0), 8, random_state=3)


@pytest.mark.parametrize(("n", "max_rows"), [(1, 2), (100, 100), (101, 100), (1000, 7), (5000, 300)])
def test_rows_are_drawn_by_number(rng, n, max_rows):
    draw = RowDraw.of(n, max_rows, int(rng.integers(2**40)), "judged rows")
    drawn = draw.rows(0, n)
    assert n // draw.stride <= len(drawn) <= max_rows
    assert (np.diff(drawn) > 0).all()
    if n <= max_rows:
        np.testing.assert_array_equal(drawn, np.arange(n))
    runs = drawn // draw.stride
    assert len(np.unique(runs)) == len(runs)  # one of each
    cuts = np.unique([0, n, *rng.integers(0, n + 1, 5)])
    parts = [draw.rows(a, b) for a, b in pairwise(cuts.tolist())]
    np.testing.assert_array_equal(np.concatenate(parts), drawn)


def test_each_row_of_a_run_has_the_same_chance():
    places = RowDraw(5, 11).rows(0, 50_000) % 5
    counts = np.bincount(places, minlength=5)
    # A seed that is fixed: 2000 ± 40 each.
    assert np.abs(counts - 2000).max() < 250


def test_donors_are_taken_by_their_weight():
    numbers, weights = np.arange(60_000), np.array([1.0, 0.0, 3.0, 2.0])
    alike = np.bincount(donor_places(numbers, 7, 4, None), minlength=4)
    assert np.abs(alike - 15_000).max() < 600
    counts = np.bincount(donor_places(numbers, 7, 4, np.cumsum(weights)), minlength=4)
    assert counts[1] == 0
    assert np.abs(counts - 10_000 * weights).max() < 600
    np.testing.assert_array_equal(
        donor_places(numbers, 7, 4, None), donor_places(numbers, 7, 4, np.cumsum(np.ones(4)))
    )


@pytest.mark.parametrize("positions", [(1,), (0, 3), (4, 2, 1)])
@pytest.mark.parametrize("same_for_all", [False, True])
def test_replaced_columns_of_dense_and_sparse_rows(rng, positions, same_for_all):
    X = rng.standard_normal((30, 5)) * (rng.random((30, 5)) < 0.4)
    values = rng.standard_normal((1 if same_for_all else 30, len(positions)))
    values *= rng.random(values.shape) < 0.6
    expected = X.copy()
    expected[:, list(positions)] = values
    before = X.copy()
    sparse = csr_matrix(X)
    np.testing.assert_array_equal(with_columns(X, positions, values), expected)
    replaced = with_columns(sparse, positions, values)
    np.testing.assert_array_equal(replaced.toarray(), expected)
    assert (replaced.nnz, replaced.dtype) == (np.count_nonzero(expected), X.dtype)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(sparse.toarray(), before)
    assert with_columns(X.astype("f4"), positions, values).dtype == np.float32


def test_standard_errors(rng):
    values, kept = rng.standard_normal((50, 3)) + 9, np.ones(50, bool)
    alike = WeightedMoments.of(values, np.ones(50), kept)
    np.testing.assert_allclose(alike.standard_error(), sem(values), rtol=1e-12)
    np.testing.assert_allclose(
        WeightedMoments.of(values, np.full(50, 2.5), kept).standard_error(), sem(values)
    )
    s = rng.exponential(size=50)
    n = s.sum() ** 2 / np.sum(s**2)
    variance = np.average((values - np.average(values, axis=0, weights=s)) ** 2, axis=0, weights=s)
    found = WeightedMoments.of(values[:20], s[:20], kept[:20]).merge(
        WeightedMoments.of(values[20:], s[20:], kept[20:])
    )
    np.testing.assert_allclose(found.standard_error(), np.sqrt(variance / (n - 1)), rtol=1e-10)
    some = rng.random(50) < 0.5
    some[0] = False
    part = WeightedMoments.of(values, s, some)
    np.testing.assert_allclose(part.mean(), np.average(values[some], axis=0, weights=s[some]), rtol=1e-12)
    assert part.n_left_out == np.count_nonzero(~some)
    one = WeightedMoments.of(values[:1], s[:1], kept[:1])
    assert np.isnan(one.standard_error()).all()
    assert np.isnan(WeightedMoments.empty(2).mean()).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [None, 2, 3])
def test_sums_are_those_of_numpy_for_any_cuts(rng, sparse, weighted, classes):
    n, k = 300, 2 if classes is None else 1
    X = rng.standard_normal((n, 4)) * (rng.random((n, 4)) < 0.7)
    labels = None if classes is None else np.arange(classes)
    n_outputs = {None: 2, 2: 1, 3: 3}[classes]
    features = drf.FourierFeatures(drf.Gaussian(2.0), 16, sampling="countsketch", random_state=3)
    model = frozen_model(features, rng, n_columns=4, n_outputs=n_outputs, classes=labels)
    y = rng.standard_normal((n, k)) if classes is None else rng.integers(0, classes, n)
    s = rng.exponential(size=n) * (rng.random(n) < 0.8) if weighted else None
    rows = as_dataset(csr_matrix(X) if sparse else X, y, s)
    groups = (ColumnGroup("a", (0,)), ColumnGroup("b", (1, 3)))
    kind = "numeric" if classes is None else "classes"
    donors = swept(DonorReduction(RowDraw(3, 5), kind, k, 32, 16), rows, cuts=(50, 170)).usable(model)
    given, variance = RowDraw(3, 5).rows(0, n), np.array([2.0, 5.0])[:k]
    if weighted:
        given = given[s[given] > 0]
    np.testing.assert_array_equal(donors.X.toarray() if sparse else donors.X, X[given])
    if classes is None:
        np.testing.assert_allclose(donors.targets.mean, np.average(y, axis=0, weights=s), rtol=1e-9)
    arrays = joined([donors.arrays()])
    back, cumulated = sent_donors(arrays)
    np.testing.assert_array_equal(back.toarray() if sparse else back, X[given])
    judged = RowDraw(2, 8)
    reduction = ImportanceReduction(model, groups, (21, 22), judged, variance, 16, 40)
    found = swept(reduction, rows, arrays, cuts=(37, 100, 256))

    def losses(X):
        if classes is not None:
            return (model.predict(X) != y[at]).astype(float)[:, None]
        squares = (model.predict(X) - y[at]) ** 2
        return np.column_stack([squares, (squares / variance).mean(axis=1)])

    at = judged.rows(0, n)
    w = np.ones(len(at)) if s is None else s[at]
    before = losses(X[at])
    assert found.n_judged == len(at)
    np.testing.assert_allclose(found.losses.mean(), np.average(before, axis=0, weights=w), rtol=1e-10)
    for group, seed, rise in zip(groups, (21, 22), found.rises, strict=True):
        changed, columns = X[at].copy(), list(group.positions)
        changed[:, columns] = X[given][donor_places(at, seed, len(given), cumulated)][:, columns]
        expected = losses(changed) - before
        mean = np.average(expected, axis=0, weights=w)
        scale = np.abs(expected).max() + np.abs(before).max()
        np.testing.assert_allclose(rise.mean(), mean, atol=1e-12 * scale)
        n_effective = w.sum() ** 2 / np.sum(w**2)
        error = np.sqrt(np.average((expected - mean) ** 2, axis=0, weights=w) / (n_effective - 1))
        np.testing.assert_allclose(rise.standard_error(), error, rtol=1e-7, atol=1e-12 * scale)

    # The tree of the engine has the same bits in whatever order the segments arrive.
    results = partials(reduction, rows, arrays, (37, 100, 256))
    first, other = (
        merged_as_they_arrive(reduction, results, order) for order in ([0, 1, 2, 3], rng.permutation(4))
    )
    for a, b in zip(first.rises, other.rises, strict=True):
        assert a.mean().tobytes() == b.mean().tobytes()


def test_no_usable_donor(rng):
    model, X = frozen_model(FEATURES, rng), rng.standard_normal((9, 2))
    rows = as_dataset(X, np.ones(9), np.zeros(9))
    donors = swept(DonorReduction(RowDraw(1, 5), "numeric", 1, 16, 16), rows)
    with pytest.raises(InputError, match="none of 9 sampled rows has a positive weight"):
        donors.usable(model)


def test_groups_of_a_model_without_steps(rng):
    model = frozen_model(FEATURES, rng)
    assert [(g.name, g.positions) for g in column_groups(model, None)] == [("0", (0,)), ("1", (1,))]
    assert [g.name for g in column_groups(model, ("u", "v"))] == ["u", "v"]
    named = frozen_model(FEATURES, rng, column_names=("a", "b"))
    assert [g.name for g in column_groups(named, ("u", "v"))] == ["a", "b"]
