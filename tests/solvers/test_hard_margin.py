"""The working set of the hard-margin model, with sweeps over rows in memory in place of a cluster's."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.solvers.hard_margin import CriticalRows, HardMargin, WorkingRows, nearest_points
from distrff.solvers.status import in_lockstep

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


def solve(Z, y, *, fit_intercept=True, tol=1e-3, n_kept=50, most=100, start=None, dtype=np.float64):
    """Return the model and the number of sweeps."""
    start = np.zeros(Z.shape[1] + fit_intercept) if start is None else start
    machine, n_sweeps = HardMargin(start, fit_intercept=fit_intercept, tol=tol), 0
    bounds = [np.inf]

    def answer(points):
        nonlocal n_sweeps
        n_sweeps += 1
        assert n_sweeps <= most
        assert machine.bound <= bounds[-1]
        bounds.append(machine.bound)
        return {0: swept(Z, y, points[0], n_kept, dtype)}

    in_lockstep({0: machine.steps()}, answer)
    return machine, n_sweeps


def linear(rng, n, D, *, share=0.3, least=2e-3):
    """Gaussian rows moved towards a plane through 0, as near as `least`."""
    Z, normal = rng.standard_normal((n, D)), rng.standard_normal(D)
    normal /= np.linalg.norm(normal)
    f = Z @ normal
    y = np.where(f > 0, 1.0, -1.0)
    return Z + np.outer(y * np.maximum(least, share * abs(f)) - f, normal), y


def curved(rng, n, D):
    """Random features of two classes with a curved strip between them."""
    X = rng.uniform(-1, 1, (2 * n, 2))
    f = np.sin(3 * X[:, 0]) + X[:, 1]
    X, f = X[abs(f) > 0.1][:n], f[abs(f) > 0.1][:n]
    P = X @ (6 * rng.standard_normal((2, D // 2)))
    return np.column_stack([np.cos(P), np.sin(P)]) / np.sqrt(D // 2), np.where(f > 0, 1.0, -1.0)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("make", [linear, curved])
def test_many_rows_to_a_gap_of_a_millionth(make, fit_intercept):
    Z, y = make(np.random.default_rng(0), 20_000, 200)
    machine, _ = solve(Z, y, fit_intercept=fit_intercept, tol=1e-6, n_kept=200, most=15)
    assert machine.converged
    assert not machine.inseparable
    assert machine.certificate.gap <= 1e-6
    D = Z.shape[1]
    margins = y * (Z @ machine.x[:D] + machine.x[D:].sum())
    # A margin is a sum of D products, of sizes that add to at most ‖z‖·‖w‖.
    rounding = (D + 2) * UNIT * np.linalg.norm(Z, axis=1).max() * np.linalg.norm(machine.x)
    assert abs(margins.min() - 1) <= rounding
    assert abs(machine.checked_margin - 1) <= rounding
    assert machine.margin == pytest.approx(1 / np.linalg.norm(machine.x[:D]), rel=1e-12)
    assert machine.margin <= machine.bound * (1 + 1e-12)
    assert len(machine.working.number) < len(y) / 4


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_kept", [1, 5, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_however_few_rows_a_sweep_collects(seed, n_kept, fit_intercept):
    Z, y = linear(np.random.default_rng(seed), 400, 6)
    machine, n_sweeps = solve(Z, y, fit_intercept=fit_intercept, n_kept=n_kept, tol=1e-8)
    whole = nearest_points(Z, y, fit_intercept=fit_intercept, tol=1e-9)
    assert machine.converged
    assert machine.margin == pytest.approx(whole.bound, rel=1e-8)
    assert machine.bound == pytest.approx(whole.bound, rel=1e-8)
    if n_kept == 1000:
        assert n_sweeps == 3  # where to begin, all rows solved, the check


def test_more_features_than_rows(rng):
    Z, y = rng.standard_normal((30, 100)), np.resize([1.0, -1.0], 30)
    machine, _ = solve(Z, y, tol=1e-9, n_kept=5)
    assert machine.converged
    assert machine.margin == pytest.approx(nearest_points(Z, y, fit_intercept=True, tol=1e-9).bound, rel=1e-8)


def test_a_start_that_is_the_answer_costs_three_sweeps():
    """One finds its rows, one that they are all that matter, one checks."""
    Z, y = linear(np.random.default_rng(1), 3000, 10)
    machine, _ = solve(Z, y, tol=1e-8)
    _, n_sweeps = solve(Z, y, tol=1e-6, start=3 * machine.x)
    assert n_sweeps == 3


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("tol", [1e-3, 1e-12])
def test_not_separable_without_twins(fit_intercept, tol):
    Z, y = linear(np.random.default_rng(2), 2000, 5)
    wrong = np.random.default_rng(3).choice(2000, 40, replace=False)
    y[wrong] *= -1
    machine, _ = solve(Z, y, fit_intercept=fit_intercept, tol=tol, most=40)
    assert machine.inseparable
    assert not machine.converged
    assert machine.margin == 0
    evidence = machine.inseparability
    assert evidence.bound <= 1e-6 * evidence.largest_norm
    assert evidence.least_margin < 1
    assert evidence.n_violating >= 1
    assert evidence.n_weighted >= 2
    # The evidence holds without trusting the solver: a mean of rows of both labels that is nearly 0.
    working = machine.working
    assert (working.a >= 0).all()
    np.testing.assert_array_equal(Z[working.number], working.Z)
    mean = working.Z.T @ (working.a * working.label)
    assert np.linalg.norm(mean) <= evidence.bound * (1 + 1e-6) + 1e-12
    if fit_intercept:
        assert abs(working.a @ working.label) <= 1e-12


def test_not_separable_with_twins():
    Z, y = curved(np.random.default_rng(4), 5000, 60)
    Z[17], y[17] = Z[4000], -y[4000]
    machine, _ = solve(Z, y, most=30)
    assert machine.inseparable
    assert {17, 4000} <= set(machine.working.number.tolist())


def test_rounding_of_the_sweep_is_not_a_loop_without_end():
    """Features in float32 know margins to 1e-7 of ‖z‖·‖w‖; asked for more, the conversation ends."""
    Z, y = linear(np.random.default_rng(5), 300, 8)
    machine, _ = solve(Z, y, tol=1e-14, n_kept=10, dtype=np.float32)
    assert machine.margin > 0
    assert machine.certificate.gap <= 1e-3


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_rows_of_one_class(fit_intercept):
    Z = np.abs(np.random.default_rng(6).standard_normal((50, 3))) + 1
    if fit_intercept:
        with pytest.raises(InputError, match="only one class"):
            solve(Z, np.ones(50))
    else:
        machine, _ = solve(Z, np.ones(50), fit_intercept=False)
        assert machine.converged


def test_interrupted_before_anything_is_known():
    machine = HardMargin(np.zeros(4), fit_intercept=True, tol=1e-3)
    talk = machine.steps()
    next(talk)
    talk.close()
    assert not machine.converged
    assert not machine.inseparable
    assert machine.margin == 0
    np.testing.assert_array_equal(machine.x, np.zeros(4))


def test_the_best_machine_so_far_is_kept():
    Z, y = linear(np.random.default_rng(7), 1000, 5)
    machine = HardMargin(np.zeros(6), fit_intercept=True, tol=1e-9)
    talk = machine.steps()
    x, margins = next(talk), []
    for _ in range(12):
        try:
            x = talk.send(swept(Z, y, x, 2))
        except StopIteration:
            break
        margins.append(machine.margin)
        if machine.margin:
            assert (y * (Z @ machine.x[:-1] + machine.x[-1])).min() == pytest.approx(1, rel=1e-9)
    assert margins == sorted(margins)


def test_rows_without_weight_make_room():
    rng = np.random.default_rng(8)
    rows = WorkingRows(np.arange(6), rng.standard_normal((6, 1)), np.ones(6), np.array([0, 1.0, 0, 0, 2, 0]))
    x = np.array([2.0, 0.5])
    kept = rows.without_idle(x, 4)
    idle = np.flatnonzero(rows.a == 0)
    smallest = idle[rows.Z[idle, 0].argsort()[:2]]
    assert kept.number.tolist() == sorted([1, 4, *smallest])
    assert rows.without_idle(x, 1).number.tolist() == [1, 4]
    assert rows.without_idle(x, 6) is rows
