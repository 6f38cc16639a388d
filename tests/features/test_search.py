"""The parts of every search: the sample, a line, halving, small ridges, and the rule of choice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distrff.features.base import RowsInMemory, Sample, Split
from distrff.features.search.candidates import (
    BY_COLUMN,
    EQUISPACED,
    IN_OWN_UNITS,
    METRIC,
    ONE_WIDTH,
    Candidate,
    Scope,
    Search,
    Stage,
    choose,
    judge_candidate,
    left_with,
    size_that_pays,
)
from distrff.features.search.ridge import (
    GRIDS,
    LEAST_GAIN,
    BinnedRidge,
    DenseRidge,
    FourierRidge,
    NystroemRidge,
    best_width,
)
from distrff.features.search.sample import HeldOutError, SearchSample, descend, halving
from distrff.features.search.widths import single_column_r2
from distrff.kernels.stationary import Gaussian, Laplacian, Matern
from tests.support.draws import seed_of


def sample_of(rng, X, Y, s=None, **changes) -> SearchSample:
    found = SearchSample.of(Sample(X, Y, s, seed_of(rng), RowsInMemory(X, s)))
    return replace(found, **changes)


# A line and halving.


@pytest.mark.parametrize("best", [-19, -3, 0, 4, 26])
def test_a_walk_ends_at_the_bottom_of_a_bowl(best):
    asked = []

    def error(place):
        asked.append(place)
        return (place - best - 0.25) ** 2

    line = descend(error, range(-8, 5, 4), (2, -2, 1, -1))
    assert (line.best, line.error) == (best, 0.0625)
    assert line.minimum == pytest.approx(best + 0.25)
    assert len(asked) == len(set(asked))


def test_a_walk_ends_where_little_is_gained_at_its_limit_and_beside_no_model():
    assert descend(lambda place: 1.0 - 1e-4 * place, (0,), (1, -1), least_gain=1e-3).best == 0
    assert descend(lambda place: float(-place), (0,), (1, -1), farthest=5).best == 5
    line = descend(lambda place: math.inf if place < 0 else float(place), (0, 3), (1, -1))
    assert (line.best, line.minimum) == (0, 0.0)


def test_halving_keeps_the_best_and_those_that_are_named():
    stages = []

    def judge(field, stage):
        stages.append(sorted(field))
        return [math.inf if one == 7 else one for one in field]

    assert halving(range(24), judge, 3, lambda ranked: [23, ranked[0]]) == [0, 23]
    # Half of 23, of which two are named; then an eighth.
    assert stages == [list(range(24)), [*range(7), *range(8, 12), 23], [0, 23]]
    assert halving([7], judge, 3) == []


# The sample.


def test_a_sample_goes_to_tasks_and_back_and_is_thinned_to_the_same_rows_held_out(rng):
    X, y, s = rng.standard_normal((403, 2)), rng.standard_normal(403), rng.exponential(size=403)
    s[::3] = 0.0
    Y = np.column_stack([y, np.full(403, 0.1)])  # its mean is off by rounding, which is no deviation
    found = sample_of(rng, X, Y, s, penalty=0.5)
    assert len(found.Y) == np.count_nonzero(s)
    assert found.Y[:, 0].std() > 0.5 and abs(found.Y[:, 1]).max() < 1e-13
    again = SearchSample.from_arrays(found.arrays())
    for name in SearchSample.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    few = found.thinned()
    assert (few.n_held_out, few.n_training) == (found.n_held_out, found.n_training // 4)
    np.testing.assert_array_equal(few.X, found.X[: len(few.X)])


@pytest.mark.parametrize("max_rows", [200, 60])
def test_rows_are_split_as_folds_say_and_groups_come_before_rows(rng, max_rows):
    """Rows that are neither judged nor fitted are left out; few rows are of as many groups as there are."""
    X, y, groups = rng.standard_normal((200, 2)), rng.standard_normal(200), np.repeat(np.arange(20), 10)
    held_out, fitted = groups < 6, (groups >= 8) & (X[:, 0] < 1)
    sample = Sample(X, y, None, seed_of(rng), RowsInMemory(X, None))
    sample = replace(sample, split=Split(held_out, fitted, groups * 1000))
    found = SearchSample.of(sample, max_rows)
    coded = found.Y[:, 0] * found.deviation[0] + found.mean[0]
    origin = np.abs(y - coded[:, None]).argmin(axis=1)  # rows are told by their targets
    assert len(set(origin)) == len(origin) == min(max_rows, np.count_nonzero(held_out | fitted))
    assert held_out[origin[: found.n_held_out]].all() and fitted[origin[found.n_held_out :]].all()
    assert len(set(groups[origin])) == 18
    own = groups[origin[: found.n_held_out]]
    np.testing.assert_array_equal(np.unique(own, return_inverse=True)[1], found.units)
    assert np.ptp(np.bincount(own)) <= 1


def test_the_rows_of_a_group_are_one_term_of_an_error(rng):
    """Standard errors are those of means over 50 groups, whose rows fail together."""
    units, losses = np.repeat(np.arange(50), 10), np.repeat(rng.uniform(size=50), 10)
    one, other = (replace(error_of(loss), units=units) for loss in (losses, losses + 0.01))
    assert one.spread == pytest.approx(losses[::10].std(ddof=1) / np.sqrt(50))
    assert other.spread_from(one) == pytest.approx(0.0, abs=1e-12)
    assert one.spread > 2 * error_of(losses).spread


def test_errors_are_compared_row_by_row(rng):
    losses = rng.uniform(size=500)
    one, other = error_of(losses), error_of(losses + 0.01)
    assert other.spread_from(one) == pytest.approx(0.0, abs=1e-12)
    assert one.spread == pytest.approx(losses.std() / np.sqrt(500))


# Small ridges.


@pytest.mark.parametrize("model", [FourierRidge, NystroemRidge])
@pytest.mark.parametrize("n_features", [16, 128])  # fewer and more than the 40 training rows
def test_small_models_are_ridge_on_their_features(rng, model, n_features):
    X, Y, penalty = rng.standard_normal((60, 3)), rng.standard_normal((60, 2)), 1e-3
    rows = sample_of(rng, X, Y, rng.uniform(0.5, 1.5, 60), penalty=penalty)
    small: DenseRidge = model(rows, Gaussian("auto"), n_features)
    found, Z = small.fitted(Gaussian()), small.features(Gaussian()).astype(np.float64)
    fitted, s = slice(rows.n_held_out, None), rows.s[rows.n_held_out :]
    weight = s.sum()
    z_mean, y_mean = s @ Z[fitted] / weight, s @ rows.Y[fitted] / weight
    C, R = Z[fitted] - z_mean, rows.Y[fitted] - y_mean
    G = C.T @ (s[:, None] * C) + penalty * weight * np.eye(Z.shape[1])
    coef = np.linalg.solve(G, C.T @ (s[:, None] * R))
    # The products are float32: off by about n·u of ‖z‖² ≤ 1 for each unit of weight, 1/penalty times over.
    tolerance = 60 * 2.0**-24 / penalty
    assert np.linalg.norm(found.coef - coef) <= tolerance * np.linalg.norm(coef)
    F = y_mean + (Z[: rows.n_held_out] - z_mean) @ coef
    assert_allclose(found.values, F, atol=tolerance * np.abs(rows.Y).max())
    assert_allclose(found.A, Z[fitted].T @ (s[:, None] * Z[fitted]), atol=60 * 2.0**-24 * weight)
    assert small.error(1.0) == pytest.approx(rows.judge(F).squared_error, rel=10 * tolerance)
    assert small.flops > 0


@pytest.mark.parametrize("start", [4.0, 8.0, 16.0, 32.0, 64.0])
def test_widths_of_bins_are_looked_for_beyond_a_ridge_of_the_error(rng, start):
    """Cells that match the jumps of a function make several valleys, and a walk ends in the first."""
    X = rng.uniform(-1.7, 1.7, (600, 3))
    rows = sample_of(rng, X, (X[:, 0] > 0.3) + 1.0 * (X[:, 1] > -0.4) + 0.1 * rng.standard_normal(600))
    candidate, stage = Candidate("binning", Laplacian("auto"), ONE_WIDTH), Stage(2, 64, 16, 64)
    found = judge_candidate(rows.arrays(), candidate, stage, start, 28).error.squared_error
    bins = BinnedRidge(rows.thinned(2), Laplacian("auto"), 16)
    assert found <= min(bins.error(start), bins.error(start / 4))


def test_a_free_penalty_is_a_valley_of_given_ones(rng):
    X = rng.standard_normal((300, 2))
    rows = sample_of(rng, X, np.sin(X[:, 0]) + 0.3 * rng.standard_normal(300))
    best = FourierRidge(rows, Gaussian("auto"), 64).error(1.0)
    # A free penalty is in units of Σs‖z‖², which is the weight for these features.
    penalties = 1e-4 * 10.0 ** (np.arange(-6, 11) / 2)
    given = [replace(rows, penalty=penalty) for penalty in penalties]
    errors = np.array([FourierRidge(one, Gaussian("auto"), 64).error(1.0) for one in given])
    tolerances = 300 * 2.0**-24 / penalties
    at = int(np.argmin(np.abs(errors - best)))
    assert best == pytest.approx(errors[at], rel=tolerances[at])
    for beside in (at - 1, at + 1):
        assert best <= errors[beside] * (1 + tolerances[at] + tolerances[beside])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", [Laplacian(0.5), Laplacian((2.0, 8.0))], ids=repr)
def test_the_error_of_bins_is_that_of_dense_solves(rng, kernel, weighted):
    """16 products reach the solution to rounding: the rows have nine different places."""
    X = rng.integers(0, 3, (53, 2)).astype(float)
    Y = np.stack([X[:, 0] - 1, X[:, 0] * X[:, 1]], axis=1) + 0.1 * rng.standard_normal((53, 2))
    rows = sample_of(rng, X, Y, rng.uniform(0.2, 3, 53) if weighted else None)
    small = BinnedRidge(rows, kernel, 30)  # its widths are numbers, so 1.0 below is ignored
    tile = small._bins(kernel)
    Z = np.zeros(tile.shape)
    np.put_along_axis(Z, tile.columns.T.astype(np.int64), tile.value, axis=1)
    K, v, t = Z @ Z.T, slice(rows.n_held_out), slice(rows.n_held_out, None)
    S, errors = np.diag(rows.s[t]), []
    for alpha in rows.s[t].sum() * np.logspace(-7, 0, 15):
        F = K[v, t] @ np.linalg.solve(S @ K[t, t] + alpha * np.eye(len(S)), S @ rows.Y[t])
        errors.append((rows.s[v] @ np.square(rows.Y[v] - F)).mean() / rows.s[v].sum())
    assert small.error(1.0) == pytest.approx(min(errors), rel=1e-6)


def test_bins_of_a_constant_have_no_error(rng):
    rows = sample_of(rng, rng.standard_normal((53, 2)), np.full(53, 3.0))
    constant = BinnedRidge(rows, Laplacian("auto"), 500)
    assert constant.error(1.0) == 0
    assert constant.description == f"a ridge on the bins of {GRIDS} grids"


def test_the_width_of_a_wave_is_found_from_far(rng):
    X = rng.uniform(size=(400, 1))
    rows = sample_of(rng, X, np.sin(40 * X[:, 0]))
    width, error = best_width(FourierRidge(rows, Gaussian("auto"), 64), 1.0, range(-10, 5, 2))
    assert error.squared_error < 0.05
    assert 0.01 < width < 0.25  # a wave has 2π/40 = .16


# The rule of choice.


def error_of(losses):
    return HeldOutError(float(losses.mean()), None, np.full(len(losses), 1 / len(losses)), losses)


def candidate(rule, kind="nystroem"):
    return Candidate(kind, Gaussian("auto"), rule)


@pytest.mark.parametrize(("excess", "noise", "simple_wins"), [(0.05, 1.0, True), (0.05, 0.3, False)])
@pytest.mark.parametrize("simple", [IN_OWN_UNITS, ONE_WIDTH, BY_COLUMN])
def test_less_fitted_is_taken_within_two_standard_errors(rng, simple, excess, noise, simple_wins):
    """Of the difference on the same 1000 rows, here noise/√1000."""
    losses = 1 + rng.uniform(size=1000)
    difference = noise * rng.standard_normal(1000)
    difference *= noise / difference.std()
    errors = {candidate(METRIC): error_of(losses)}
    errors[candidate(simple)] = error_of(losses + difference - difference.mean() + excess)
    assert choose(errors, lambda one: 0) == candidate(simple if simple_wins else METRIC)


def test_the_cheaper_of_equally_simple_ones_is_taken_and_equispaced_features_before_all(rng):
    losses, noise = rng.uniform(size=1000), rng.standard_normal(1000)
    noise -= noise.mean()
    errors = {
        candidate(ONE_WIDTH): error_of(losses),
        candidate(ONE_WIDTH, "fourier"): error_of(losses + 0.01 + noise),
    }
    kinds = ("fourier", "nystroem")
    assert choose(errors, lambda one: kinds.index(one.kind)).kind == "fourier"
    errors[candidate(METRIC)] = error_of(losses - 1e-3 + noise)
    errors[candidate(BY_COLUMN, EQUISPACED)] = error_of(losses + 0.01 - noise)
    assert choose(errors, lambda one: 0).kind == EQUISPACED


# What columns explain alone: nothing by noise, the right share of a function, whatever values they take.


def shares(X, y, s=None):
    Y = y.reshape(len(y), -1)
    s = np.ones(len(y)) if s is None else s
    return single_column_r2(X, Y - np.average(Y, axis=0, weights=s), s)


@pytest.mark.parametrize("effect", [np.sign, np.abs, lambda x: np.cos(2 * np.pi * x), lambda x: x > 0.8])
def test_a_function_explains_its_share_and_noise_next_to_nothing(rng, effect):
    """The rest is noise of the same variance, and the margin for 64 bins 3·√126/5000 = .007."""
    X = rng.uniform(-1, 1, (5000, 3))
    f = effect(X[:, 1]).astype(float)
    y = (f - f.mean()) / f.std() + rng.standard_normal(5000)
    found = shares(X, y)
    # The correlation of 5000 rows deviates by about (1 − .5)/√5000 = .007, its square by .01.
    assert found[1] == pytest.approx(0.5, abs=0.06)
    assert found[[0, 2]].max() < 0.02
    # Only the order of values counts. Edges lie between two rows, at other places after the transformation.
    assert_allclose(shares(np.exp(5 * X), 1e9 * y), found, rtol=0, atol=1e-9)
    s = np.repeat([1.0, 1e-9], 2500)
    y[2500:] += 9 * np.sin(X[2500:, 2])
    assert shares(X, y, s)[2] < 0.05
    assert not shares(X[:15], X[:15, 0]).any()  # few rows say nothing


def test_two_values_are_two_bins(rng):
    x = (rng.random(400) < 0.1).astype(float)
    y = x + 0.1 * rng.standard_normal(400)
    r2 = np.corrcoef(x, y)[0, 1] ** 2
    expected = 1 - (1 - r2) * 399 / 398 - 3 * np.sqrt(2) / 400
    assert shares(np.column_stack([x, np.ones(400)]), y) == pytest.approx([expected, 0.0])


# Values out of fold, and the sizes that follow from errors.


@pytest.mark.parametrize("n_features", [20, 60])
def test_values_out_of_fold_are_those_of_models_without_the_fold(n_features, rng):
    """Against ridges of NumPy in float64, each fitted anew without its fold."""
    n, k = 150, 2
    X, s = rng.standard_normal((n, 3)), rng.uniform(0.5, 2.0, n)
    Y = np.c_[np.sin(X[:, 0]), X[:, 1] * X[:, 2]] + 0.2 * rng.standard_normal((n, k))
    sample = sample_of(rng, X, Y, s)
    kernel, alpha = Matern(1.5, nu=1.5), 1e-3
    ridge = NystroemRidge(replace(sample, n_held_out=0, penalty=alpha), kernel, n_features)
    F = ridge.out_of_fold(kernel, 5)
    Z = ridge.features(kernel).astype(np.float64)
    for fold in sample.folds(5):
        kept = np.ones(n, bool)
        kept[fold] = False
        w = sample.s[kept] / sample.s[kept].sum()
        z_mean, y_mean = w @ Z[kept], w @ sample.Y[kept]
        A, B = Z[kept] - z_mean, sample.Y[kept] - y_mean
        # A penalty is for each unit of weight, of four fifths of all rows.
        G = A.T @ (sample.s[kept][:, None] * A) + alpha * 0.8 * sample.s.sum() * np.eye(n_features)
        coef = np.linalg.solve(G, A.T @ (sample.s[kept][:, None] * B))
        # Sums of products in float32 are off by 1e-7 of them, which the penalty of 1e-3 keeps from growing
        # by more than a thousand.
        np.testing.assert_allclose(F[fold], (Z[fold] - z_mean) @ coef + y_mean, atol=1e-3)


def test_a_size_grows_while_it_pays():
    dearness = {1024: 0.2, 2048: 1.0, 4096: 4.0, 8192: 20.0}.__getitem__
    # Each doubling halves the error: far more than the dearest one asks for.
    assert size_that_pays([0.4, 0.2, 0.1], 512, 4096, dearness, 0.01)[0] == 4096
    # By a twentieth: 3.6 % more are expected, then 2.7, and 2 where 8 times 1 % are asked for.
    size, fall = size_that_pays([1 / 0.95**2, 1 / 0.95, 1.0], 512, 8192, dearness, 0.01)
    assert size == 2048 and fall == pytest.approx(0.05 * 0.75**3)
    # Flat, and rising: noise promises nothing.
    assert size_that_pays([1.0, 1.0, 1.0], 512, 8192, dearness, 0.01) == (512, 0.0)
    assert size_that_pays([0.9, 1.0, 1.1], 512, 8192, dearness, 0.01) == (512, 0.0)
    assert size_that_pays([0.0, 0.0, 0.0], 512, 8192, dearness, 0.01) == (512, 0.0)
    # The last doubling brought 1.1 %, of which less than 2 % more can come, however much the first one did.
    assert size_that_pays([0.0189, 0.0090, 0.0089], 512, 8192, dearness, 0.02)[0] == 512
    # A larger share must be gained where less is worth it.
    assert size_that_pays([1 / 0.95**2, 1 / 0.95, 1.0], 512, 8192, dearness, 0.05)[0] == 512


def test_the_error_that_is_left_falls_with_the_size():
    errors = [0.4, 0.2, 0.1]
    shares = [left_with(errors, 512, size) for size in (256, 512, 1024, 2048)]
    assert shares[:2] == [1.0, 1.0]
    assert shares[2] == pytest.approx(1 - 0.375) and shares[3] == pytest.approx(0.625 * (1 - 0.375 * 0.75))


def test_of_few_rows_all_out_of_fold_judge_the_width(rng):
    """No half octave beside the width of the best is better; Fourier features are not among the choices."""
    X = rng.uniform(size=(600, 3))
    y = np.sin(12 * X[:, 0]) * X[:, 1] + abs(X[:, 2] - 0.5) + 0.05 * rng.standard_normal(600)
    sample = Sample(X, y, None, seed_of(rng), RowsInMemory(X, None))
    scope = Scope(("fourier", "nystroem"), 1024, 600, 3, is_free=True)
    rows = SearchSample.of(sample, scope.search_rows)
    search = Search(scope, rows, SearchSample.of(sample), sample.row_source, None, [])
    search.run()
    assert {one.kind for one in search.finals} == {"nystroem"}
    best = min((one for one in search.finals if not one.parts), key=search._place)
    width = search.refined[best]
    beside = [width * math.sqrt(0.5), width * math.sqrt(2.0)]
    found = search._out_of_fold([best, best], scope.max_features, beside)
    least = (1 - LEAST_GAIN) * search.finals[best].error.squared_error
    assert min(final.error.squared_error for _, final in found) >= least
    Z = replace(rows, X=X).in_coordinates(search.coordinates.get(best.rule)).X
    own = best.kernel.with_widths(width)
    assert_allclose(search.kernel(best)(X[:5], X[5:9]), own(Z[:5], Z[5:9]), rtol=1e-2)
