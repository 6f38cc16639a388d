"""The hinge's dual on the Gram of the rows: its points, its bounds, and what few rows may be."""

import numpy as np
import pytest

from distrff.solvers.dual import DualRows, ascend_pairs


def rows_of(rng, n=60, D=5, k=1):
    Z = rng.standard_normal((n, D))
    Y = np.where(Z[:, :k] + 0.5 * rng.standard_normal((n, k)) > 0.3, 1.0, -1.0)
    Y[:2] = [[1.0], [-1.0]]
    return DualRows(Z, Z @ Z.T, Y, rng.uniform(0, 2, n))


def solved(rows, C, *, held_out=None, fit_intercept=True, tol=1e-8, n_rounds=300):
    alphas = np.zeros((rows.Y.shape[1], len(rows.Z)))
    masks = None if held_out is None else (~held_out, held_out)
    for _ in range(n_rounds):
        outputs = list(range(rows.Y.shape[1]))
        found = ascend_pairs(
            rows, outputs, [C] * len(outputs), masks, alphas, fit_intercept=fit_intercept, tol=tol
        )
        alphas = np.stack([at.alpha for at in found])
        if all(at.primal - at.dual <= 2 * tol * at.primal for at in found):
            break
    return found


def objective(rows, x, C, *, fit_intercept, fitted):
    w, b = (x[:-1], x[-1]) if fit_intercept else (x, 0.0)
    return 0.5 * w @ w + C * (rows.s * fitted) @ np.maximum(0, 1 - rows.Y[:, 0] * (rows.Z @ w + b))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1e-2, 1.0, 30.0])
def test_it_is_the_optimum(rng, C, fit_intercept):
    """Multipliers within their bounds and balanced bound every objective, so a closed gap is the optimum.

    Where many multipliers are between their bounds, there are more features than rows: with fewer the dual is
    flat along some of its directions, and for one draw in 200 thousands of rounds do not close the gap.
    """
    rows = rows_of(rng, D=5 if C <= 1 else 80)
    found = solved(rows, C, fit_intercept=fit_intercept, tol=1e-5, n_rounds=3000)[0]
    alpha, y = found.alpha, rows.Y[:, 0]
    assert (alpha >= 0).all() and (alpha <= C * rows.s).all()
    if fit_intercept:
        assert abs(alpha @ y) <= 1e-13 * C * rows.s.sum()
    w = (alpha * y) @ rows.Z
    assert found.dual == pytest.approx(alpha.sum() - 0.5 * w @ w, rel=1e-9)
    ours = objective(rows, found.x, C, fit_intercept=fit_intercept, fitted=np.ones(len(y)))
    assert found.primal == pytest.approx(ours, rel=1e-9)
    assert found.primal - found.dual <= 1e-4 * found.primal


def test_held_out_rows_are_judged_and_not_fitted(rng):
    rows, held_out = rows_of(rng), np.arange(60) % 3 == 0
    found = solved(rows, 2.0, held_out=held_out)[0]
    some = np.flatnonzero(~held_out)
    rest = DualRows(rows.Z[some], rows.K[np.ix_(some, some)], rows.Y[some], rows.s[some])
    assert found.primal == pytest.approx(solved(rest, 2.0)[0].primal, rel=1e-6)
    F = rows.Z @ found.x[:-1] + found.x[-1]
    losses = np.maximum(0, 1 - rows.Y[:, 0] * F)
    weights = rows.s * held_out
    np.testing.assert_allclose(found.held_out, [weights.sum(), weights @ losses], rtol=1e-12)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_rows_of_one_label_or_without_features_are_no_error(rng, label, fit_intercept):
    rows = rows_of(rng)
    alike = DualRows(rows.Z, rows.K, np.full((60, 1), label), rows.s)
    found = solved(alike, 1.0, fit_intercept=fit_intercept)[0]
    if fit_intercept:
        assert found.primal == 0
    empty = DualRows(np.zeros((60, 5)), np.zeros((60, 60)), rows.Y, rows.s)
    found = solved(empty, 1.0, fit_intercept=fit_intercept)[0]
    y = rows.Y[:, 0]
    sides = [rows.s[y > 0].sum(), rows.s[y < 0].sum()]
    best = 2 * min(sides) if fit_intercept else sum(sides)
    assert found.primal == pytest.approx(best)
    assert found.dual == pytest.approx(best)
