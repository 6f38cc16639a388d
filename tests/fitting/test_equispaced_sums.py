"""Sums of equispaced features over runs, tiles and folds, against sums over all rows at once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.features.equispaced import Lattice
from distrff.fitting.equispaced import (
    FoldCuts,
    FoldRows,
    ToeplitzReduction,
)
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets, NumericTargets
from distrff.preprocessing.folds import NO_FOLDS, HashFolds, Keys, OneHeldOut, folds_by
from distrff.solvers.toeplitz import half_of
from tests.support.draws import of_rows, seed_of

EPS = 1e-10
N = 203
LATTICES = {
    1: Lattice(1, (0,), (6,), (0.4,), (0.5,), ((0.0, 1.0),)),
    2: Lattice(3, (0, 2), (4, 3), (0.4, 0.2), (0.5, 0.0), ((0.0, 1.0), (0.0, 1.0), None)),
    3: Lattice(3, (0, 1, 2), (2, 1, 3), (0.4, 0.3, 0.5), (0.5, 0.5, 0.5), ((0.0, 1.0),) * 3),
}
NUMBERS = NumericTargets(np.array([0.5, -3.0]), np.array([1.0, 64.0]))
ONE_NUMBER = NumericTargets(np.array([0.5]), np.array([2.0]))
CLASSES = ClassTargets(np.array([0, 10, 20]), np.array([0.5, 1.0, 4.0]))


def some_rows(rng, targets, d, n=N, weighted=True):
    X = rng.uniform(size=(n, LATTICES[d].n_columns))
    if isinstance(targets, ClassTargets):
        y = rng.choice(targets.classes, n)
    else:
        y = 3 * rng.standard_normal((n, targets.n_outputs))
    return X, y, rng.uniform(0.5, 2.0, n) if weighted else None


def waves(lattice, X, modes):
    """exp(−i⟨j, x̃⟩), (2·m_1 + 1, …, n)."""
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in modes), indexing="ij")
    return np.exp(-1j * sum(j[..., None] * x for j, x in zip(J, lattice.phases(X), strict=True)))


def toeplitz(d, targets, folds=NO_FOLDS, *, tile_rows=16, call_rows=10**6):
    return ToeplitzReduction(
        lattice=LATTICES[d], targets=targets, folds=folds, eps=EPS, tile_rows=tile_rows, call_rows=call_rows
    )


def summed(reduction, rows, tasks):
    """The merged results of tasks: start, stop and folds of each."""
    dataset, total = as_dataset(*rows), None
    for start, stop, members in tasks:
        found = reduction.update(reduction.zero(), FoldRows(dataset.rows(start, stop), members), {})
        assert sorted(found) == sorted(members)
        total = reduction.merge(total, reduction.finish(found))
    return total


def bits(sums):
    return {fold: (p.v.tobytes(), p.b.tobytes(), p.squares.tobytes(), p.n_rows) for fold, p in sums.items()}


def assert_direct(found, rows, d, targets, fold_of=None):
    X, y, s = rows
    weights = targets.row_weights(y, s)
    weights, Y = np.ones(len(X)) if weights is None else weights, targets.encode(y)
    lattice, fold_of = LATTICES[d], np.zeros(len(X), int) if fold_of is None else fold_of
    assert sum(part.n_rows for part in found.values()) == len(X)
    for fold, part in found.items():
        mine = fold_of == fold
        assert part.n_rows == mine.sum()
        E, of_v = (waves(lattice, X[mine], [c * m for m in lattice.modes]) for c in (1, 2))
        sY = weights[mine, None] * Y[mine]
        # Each wave is off by about eps, and has the strengths s and s·y.
        size = 10 * EPS * (weights[mine].sum() + np.abs(sY).sum())
        np.testing.assert_allclose(part.v, half_of(of_v @ weights[mine]), rtol=0, atol=size)
        np.testing.assert_allclose(part.b, [half_of(E @ c) for c in sY.T], rtol=0, atol=size)
        np.testing.assert_allclose(part.squares, (sY * Y[mine]).sum(axis=0), rtol=1e-12)


# Where rows and folds are cut.

CUTS = {
    "n_rows": st.integers(1, 3000) | st.integers(1, 10**9),
    "n_folds": st.integers(1, 10),
    "call_rows": st.integers(1, 3000) | st.integers(1, 10**9),
}


@given(**CUTS)
def test_tasks_have_each_row_and_fold_once(n_rows, n_folds, call_rows):
    cuts = FoldCuts.of(n_rows, n_folds, max(call_rows, n_rows // 5000))
    tasks = cuts.tasks()
    runs = {fold: [(a, b) for a, b, members in tasks if fold in members] for fold in range(n_folds)}
    assert sum(len(members) for _, _, members in tasks) == sum(map(len, runs.values()))
    for of_fold in runs.values():
        # One after another, none of them empty.
        assert of_fold[0][0] == 0 and of_fold[-1][1] == n_rows
        assert all(first[1] == second[0] for first, second in pairwise(of_fold))
        assert all(a < b for a, b in of_fold)


# The sums of ridge.


@pytest.mark.parametrize("tile_rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("call_rows", [1, 50, 10**6])
@pytest.mark.parametrize("by", [None, "hash", "contiguous", "one held out"])
def test_sums_of_folds_over_tiles_and_calls_of_any_size(rng, tile_rows, call_rows, by):
    seed = seed_of(rng)
    folds = OneHeldOut(1, seed) if by == "one held out" else of_rows(folds_by(by, 3 if by else 1, seed), N)
    rows = some_rows(rng, NUMBERS, 1)
    reduction = toeplitz(1, NUMBERS, folds, tile_rows=tile_rows, call_rows=call_rows)
    cuts = sorted(rng.choice(np.arange(1, N), 2, replace=False).tolist())
    tasks = [(a, b, tuple(range(folds.n_sums))) for a, b in pairwise([0, *cuts, N])]
    entered = folds.sums(Keys(np.arange(N))).numbers
    assert_direct(summed(reduction, rows, tasks), rows, 1, NUMBERS, entered)


def test_a_task_of_one_fold_has_the_bits_of_a_task_of_all(rng):
    folds = HashFolds(4, seed_of(rng))
    rows, reduction = some_rows(rng, ONE_NUMBER, 2), toeplitz(2, ONE_NUMBER, folds)
    together = summed(reduction, rows, [(0, 100, (0, 1, 2, 3)), (100, N, (0, 1, 2, 3))])
    apart = summed(reduction, rows, [(a, b, (f,)) for f in range(4) for a, b in ((0, 100), (100, N))])
    assert bits(together) == bits(apart)


def test_neither_partial_is_changed_by_a_merge(rng):
    rows, reduction = some_rows(rng, NUMBERS, 1), toeplitz(1, NUMBERS)
    first, second = (summed(reduction, rows, [part]) for part in ((0, 90, (0,)), (90, N, (0,))))
    before = bits(first), bits(second)
    both = reduction.merge(first, second)
    assert (bits(first), bits(second)) == before
    assert both[0].n_rows == N
    assert bits(reduction.merge(None, first)) == bits(reduction.merge(first, None)) == before[0]
