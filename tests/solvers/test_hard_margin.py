"""The hard-margin model by a working set, and the nearest points of hulls that it takes."""

from functools import partial

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.solvers.hard_margin import CriticalRows, HardMargin, nearest_points
from distrff.solvers.objective import in_lockstep

UNIT = 2.0**-53


def swept(Z, y, x, n_kept, dtype=np.float64):
    """What a sweep at x finds, with features in some dtype."""
    D = Z.shape[1]
    margin = y * (Z.astype(dtype) @ x[:D].astype(dtype) + x[D:].sum()).astype(np.float64)
    rows = np.concatenate(
        [np.flatnonzero(y == label)[margin[y == label].argsort(kind="stable")[:n_kept]] for label in (1, -1)]
    )
    norm = np.linalg.norm(Z, axis=1).max()
    return CriticalRows(rows, Z[rows], y[rows], margin[rows], np.count_nonzero(margin < 1), norm)


def solve(Z, y, *, fit_intercept=True, tol=1e-3, n_kept=50, max_sweeps=100, start=None, dtype=np.float64):
    """Return the model and the number of sweeps."""
    start = np.zeros(Z.shape[1] + fit_intercept) if start is None else start
    model, n_sweeps = HardMargin(start, fit_intercept=fit_intercept, tol=tol), 0
    bounds = [np.inf]

    def respond(points):
        nonlocal n_sweeps
        n_sweeps += 1
        assert n_sweeps <= max_sweeps
        assert model.bound <= bounds[-1]
        bounds.append(model.bound)
        return {0: swept(Z, y, points[0], n_kept, dtype)}

    in_lockstep({0: model.steps()}, respond)
    return model, n_sweeps


def linear(rng, n, D, *, share=0.3, min_margin=2e-3, offset=0.0):
    """Gaussian rows moved towards a plane at `offset` from 0, as near as `min_margin`, of both labels."""
    Z, normal = rng.standard_normal((n, D)), rng.standard_normal(D)
    normal /= np.linalg.norm(normal)
    f = Z @ normal - offset
    y = np.where(f > 0, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return Z + np.outer(y * np.maximum(min_margin, share * y * f) - f, normal), y


separable = partial(linear, share=1.0, min_margin=0.1, offset=0.3)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("n", "D", "n_kept"), [(400, 6, 1), (400, 6, 5), (400, 6, 1000), (30, 100, 5)])
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_however_few_rows_a_sweep_collects(seed, n, D, n_kept, fit_intercept):
    Z, y = linear(np.random.default_rng(seed), n, D)
    model, n_sweeps = solve(Z, y, fit_intercept=fit_intercept, n_kept=n_kept, tol=1e-8)
    whole = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-9)
    assert model.converged
    assert model.margin == pytest.approx(whole.bound, rel=1e-8)
    assert model.bound == pytest.approx(whole.bound, rel=1e-8)
    if n_kept == 1000:
        assert n_sweeps == 3  # the start, the solution of all rows, the check


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("tol", [1e-3, 1e-12])
def test_not_separable(fit_intercept, tol):
    Z, y = linear(np.random.default_rng(2), 2000, 5)
    wrong = np.random.default_rng(3).choice(2000, 40, replace=False)
    y[wrong] *= -1
    model, _ = solve(Z, y, fit_intercept=fit_intercept, tol=tol, max_sweeps=40)
    assert model.inseparable
    assert not model.converged
    assert model.margin == 0
    assert model.bound <= 1e-6 * model.last.largest_norm
    assert model.last.margin.min() < 1
    assert model.last.n_violating >= 1
    # The evidence holds without trusting the solver: a mean of rows of both labels that is nearly 0.
    working = model.working
    assert (working.a >= 0).all()
    np.testing.assert_array_equal(Z[working.number], working.Z)
    mean = working.Z.T @ (working.a * working.label)
    assert np.linalg.norm(mean) <= model.bound * (1 + 1e-6) + 1e-12
    if fit_intercept:
        assert abs(working.a @ working.label) <= 1e-12


def test_rounding_of_the_sweep_is_not_a_loop_without_end():
    """Features in float32 know margins to 1e-7 of ‖z‖·‖w‖; a smaller tol ends all the same."""
    Z, y = linear(np.random.default_rng(5), 300, 8)
    model, _ = solve(Z, y, tol=1e-14, n_kept=10, dtype=np.float32)
    assert model.margin > 0
    assert model.certificate.gap <= 1e-3


def test_rows_of_one_class():
    Z = np.abs(np.random.default_rng(6).standard_normal((50, 3))) + 1
    with pytest.raises(InputError, match="only one class"):
        solve(Z, np.ones(50))
    assert solve(Z, np.ones(50), fit_intercept=False)[0].converged


# Nearest points: certificates, other solvers, and rows that are hardly separable, or not


def with_constant(Z, fit_intercept):
    """Rows whose plane goes through 0 if there is no intercept."""
    return Z if fit_intercept else np.column_stack([Z, np.full(len(Z), -0.3)])


def assert_proves_itself(found, Z, y, fit_intercept, gap):
    """Feasible weights bound every margin, and the plane has a margin that is as large, but for the gap."""
    r, largest = len(y), np.linalg.norm(Z, axis=1).max()
    assert (found.a >= 0).all()
    assert abs(found.a.sum() - 1) <= r * UNIT
    if fit_intercept:
        assert abs(found.a @ y) <= r * UNIT
    else:
        assert found.b == 0
    # Both ways to add up r weighted rows are off by at most r units of the largest.
    np.testing.assert_allclose(found.w, Z.T @ (found.a * y), rtol=0, atol=2 * r * UNIT * largest)
    margins = y * (Z @ found.w + found.b)
    rounding = 4 * (Z.shape[1] + 2) * UNIT * largest * (found.bound + abs(found.b) / largest)
    assert abs(margins.min() - found.min_margin) <= rounding
    assert found.min_margin >= (1 - gap) * found.bound**2 - rounding


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("r", "D"), [(5, 2), (40, 3), (100, 10), (30, 100), (300, 60), (100, 100)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_solution_proves_itself(seed, r, D, fit_intercept):
    Z, y = separable(np.random.default_rng([seed, r, D]), r, D)
    Z = with_constant(Z, fit_intercept)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-9)
    assert_proves_itself(found, Z, y, fit_intercept, 1e-9)
    scaled = nearest_points(2.0**40 * Z, y, fit_intercept=fit_intercept, tol=1e-9)
    np.testing.assert_array_equal(scaled.a, found.a)
    assert scaled.b == 4.0**40 * found.b


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("h", [1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize(("r", "D"), [(40, 3), (300, 20), (200, 50)])
def test_separable_by_a_hair(r, D, h, fit_intercept):
    """Rows on two parallel planes at a distance of 2h; all of them, or nearly, have positive weight."""
    rng = np.random.default_rng(r)
    Z, normal = rng.standard_normal((r, D)), rng.standard_normal(D)
    normal /= np.linalg.norm(normal)
    y = np.resize([1.0, -1.0], r)
    Z += np.outer(h * y - Z @ normal, normal)
    found = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-10)
    assert found.bound >= h * (1 - 1e-9)
    # w is a sum of rows of norm about √D that cancel down to h, and w·w is what the gap is relative to.
    assert found.gap <= 1e-10 + 64 * UNIT * D / h**2
    if r > 10 * D and fit_intercept:
        assert found.bound == pytest.approx(h, rel=1e-6)


def test_a_common_offset_costs_no_digits(rng):
    """Entries near 1024 are rounded by 2⁻⁴³, which moves each margin by at most √D times that."""
    Z, y = separable(rng, 200, 10)
    near, far = (nearest_points(rows, y, fit_intercept=True, tol=1e-10) for rows in (Z, Z + 1024))
    assert far.gap <= 1e-10
    assert far.bound == pytest.approx(near.bound, rel=1e-10, abs=np.sqrt(10) * 2.0**-42)
