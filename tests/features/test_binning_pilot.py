"""The pilot of random binning: its error is that of the ridge that it stands for, its width one of use."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.features.bandwidth import PILOT_GRIDS, BinningPilot, PilotRows
from distrff.features.binning import RandomBinningFeatures
from distrff.kernels.stationary import Laplacian
from tests.support.draws import seed_of


def by_dense_solves(pilot, rows, kernel, alphas):
    tile = pilot._bins(kernel)
    Z = np.zeros(tile.shape)
    np.put_along_axis(Z, tile.columns.T.astype(np.int64), tile.value, axis=1)
    v, t = slice(rows.n_held_out), slice(rows.n_held_out, None)
    K, S = Z @ Z[t].T, np.diag(rows.s[t])
    errors = []
    for alpha in alphas * rows.s[t].sum():
        F = K[v] @ np.linalg.solve(S @ K[t] + alpha * np.eye(len(S)), S @ rows.Y[t])
        errors.append((rows.s[v] @ np.square(rows.Y[v] - F)).mean() / rows.s[v].sum())
    return min(errors)


@pytest.mark.parametrize("classes", [False, True])
def test_the_error_is_that_of_dense_solves(rng, classes):
    """16 products reach the solution to rounding: the rows have nine different places."""
    X = rng.integers(0, 3, (53, 2)).astype(float)
    Y = np.stack([X[:, 0] - 1, X[:, 0] * X[:, 1]], axis=1) + 0.1 * rng.standard_normal((53, 2))
    rows = PilotRows.of(X, np.sign(Y) if classes else Y, np.ones(53), seed_of(rng))
    pilot = BinningPilot(rows, n_grids=30)
    for kernel in (Laplacian(0.5), Laplacian((2.0, 8.0))):
        expected = by_dense_solves(pilot, rows, kernel, np.logspace(-7, 0, 15))
        assert pilot.held_out_error(kernel) == pytest.approx(expected, rel=1e-6)


def test_weights_are_those_of_the_machine(rng):
    X = rng.integers(0, 3, (60, 2)).astype(float)
    s = rng.uniform(0.2, 3, 60)
    rows = PilotRows.of(X, X[:, :1] + 0.3 * rng.standard_normal((60, 1)), s, seed_of(rng))
    pilot = BinningPilot(rows, n_grids=20)
    expected = by_dense_solves(pilot, rows, Laplacian(2.0), np.logspace(-7, 0, 15))
    assert pilot.held_out_error(Laplacian(2.0)) == pytest.approx(expected, rel=1e-6)


def test_constant_targets_have_no_error(rng):
    rows = PilotRows.of(rng.standard_normal((20, 2)), np.full((20, 1), 3.0), np.ones(20), 0)
    assert BinningPilot(rows, n_grids=500).held_out_error(Laplacian()) == 0
    assert f"{PILOT_GRIDS} grids" in BinningPilot(rows, n_grids=500).description
    assert "a ridge on the bins of 3 grids" in BinningPilot(rows, n_grids=3).description


def test_the_width_leaves_rows_of_different_kinds_in_different_bins(rng):
    """Any wide kernel tells these rows apart exactly, but one bin for all of them tells nothing."""
    X = np.concatenate([rng.uniform(0, 0.2, (150, 2)), rng.uniform(0.8, 1, (150, 2))])
    y = np.repeat(["low", "high"], 150)
    map_ = RandomBinningFeatures(Laplacian("auto"), 64, random_state=seed_of(rng)).fit(X, y)
    assert "bins of 64 grids" in map_.length_scale_search_["rule"]
    Z = map_.transform(X)
    # Where the width was within a factor 3 of the distance between the two, all of .75^64 = 1e-8 of pairs
    # would share every bin.
    assert (Z[:150] @ Z[150:].T).max() < 1
