"""The likelihood of spectra by sums against that of a dense covariance of the rows."""

import numpy as np
import pytest

from distrff.solvers.toeplitz import SumsOfRows, climb, evidence, half_of, whole_of

MODES = (9, 8)
N_ROWS = 150


def waves(phases):
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in MODES), indexing="ij")
    return np.exp(-1j * sum(j.ravel()[:, None] * x for j, x in zip(J, phases, strict=True)))


def spectrum(width):
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in MODES), indexing="ij")
    return 20.0 * width**2 / (1.0 + width**2 * sum(np.square(j) for j in J)) ** 1.5


@pytest.fixture
def rows(rng, monkeypatch):
    # Few modes would all be coarse, and their determinant exact.
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PAIRS", 20)
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PROBES", 4)
    phases = [rng.uniform(-np.pi, np.pi / 2, N_ROWS) for _ in MODES]
    E, w = waves(phases), spectrum(0.4)
    f = (E.conj().T @ (np.sqrt(w.ravel()) * _real_field(rng, w.shape).ravel())).real
    Y = np.stack([f, f[::-1]], axis=1) + rng.standard_normal((N_ROWS, 2))
    return phases, Y, rng.uniform(0.5, 2.0, N_ROWS)


def _real_field(rng, shape):
    C = rng.standard_normal((*shape, 2)).view(np.complex128)[..., 0] / np.sqrt(2)
    return (C + np.flip(C).conj()) / np.sqrt(2)


def dense_value(rows, w, fit_intercept):
    """−2·log L with the noise's variance at its best; the constant is −n·log n."""
    phases, Y, s = rows
    E = waves(phases)
    centre = w.size // 2
    own = w.ravel().copy()
    own[centre] *= not fit_intercept
    K = ((E.conj().T * own) @ E).real * np.sqrt(np.outer(s, s)) + np.eye(len(s))
    solved = np.linalg.solve(K, np.column_stack([np.sqrt(s), np.sqrt(s)[:, None] * Y]))
    one = np.sqrt(s)
    value = Y.shape[1] * np.linalg.slogdet(K)[1]
    if fit_intercept:  # integrated over all intercepts
        value += Y.shape[1] * np.log(one @ solved[:, 0])
    for y, u in zip(np.sqrt(s) * Y.T, solved[:, 1:].T, strict=True):
        J = y @ u - (one @ u) ** 2 / (one @ solved[:, 0]) * fit_intercept
        value += len(s) * np.log(J)
    return value


def found_for(rows, w, fit_intercept, seed):
    phases, Y, s = rows
    sums = SumsOfRows(MODES, Y.shape[1], 1e-10).sums(phases, Y, s)
    return evidence(sums, half_of(w).copy(), fit_intercept, N_ROWS, seed)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_value_is_that_of_the_covariance_of_the_rows(rows, fit_intercept):
    # The spread is estimated, too: with eight seeds means are beyond six of them once in 2,000 times.
    n_seeds, differences = 24, []
    for width in (0.2, 0.5, 1.0):
        found = [found_for(rows, spectrum(width), fit_intercept, seed).value for seed in range(n_seeds)]
        spread = np.std(found) / np.sqrt(n_seeds)
        differences.append((np.mean(found) - dense_value(rows, spectrum(width), fit_intercept), spread))
    # Solutions end within 1e-4 of J, and the process within some of its tolerance.
    for mean, spread in differences:
        assert abs(mean) <= 6 * spread + 2e-3 * N_ROWS


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_slope_is_that_of_the_value(rows, fit_intercept, monkeypatch):
    # With four probes its mean is up to 7 % of its size too small, with 16 at most 1 %.
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PROBES", 16)
    n_seeds, step, w = 8, 1e-4, spectrum(0.4)
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in MODES), indexing="ij")
    found = [found_for(rows, w, fit_intercept, seed) for seed in range(n_seeds)]
    for direction in (np.ones_like(w), np.log1p(np.square(J[0])), 1.0 * (np.abs(J[1]) < 3)):
        up, down = (dense_value(rows, w * np.exp(sign * step * direction), fit_intercept) for sign in (1, -1))
        slopes = [float((one.slope * half_of(direction)).sum()) for one in found]
        spread = np.std(slopes) / np.sqrt(n_seeds)
        size = np.abs(found[0].slope * half_of(direction)).sum()
        assert abs(np.mean(slopes) - (up - down) / (2 * step)) <= 6 * spread + 5e-3 * size


def test_modes_that_no_row_decides_are_left_out(rows):
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in MODES), indexing="ij")
    smooth = 100.0 * np.exp(-sum(np.square(j) for j in J))
    found = found_for(rows, smooth, True, 0)
    assert found.slope.shape == half_of(smooth).shape
    assert not found.slope[0].any() and not found.slope[:, -1].any()
    values = [found_for(rows, smooth, True, seed).value for seed in range(8)]
    spread = np.std(values) / np.sqrt(len(values))
    assert abs(np.mean(values) - dense_value(rows, smooth, True)) <= 6 * spread + 0.1 + 2e-3 * N_ROWS


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_rows_that_are_explained_to_rounding_have_a_finite_likelihood(rows, fit_intercept):
    phases, _, s = rows
    Y = np.stack([np.cos(phases[0]), np.sin(phases[0] + 2 * phases[1])], axis=1)
    found = found_for((phases, Y, s), 1e16 * spectrum(0.4), fit_intercept, 0)
    assert np.isfinite(found.value) and np.isfinite(found.slope).all()
    assert np.abs(found.slope).max() <= 1e10 * N_ROWS


class OneWidth:
    """Spectra of a width, and of a level between bounds."""

    def log_weights(self, theta):
        return np.log(half_of(spectrum(np.exp(theta[0])))) + theta[1]

    def within(self, theta):
        return np.array([theta[0], min(theta[1], 3.0)])


@pytest.mark.parametrize("start", [(-2.5, -2.0), (1.0, 2.9), (0.0, 9.0)])
def test_a_climb_reaches_the_most_likely_width_from_anywhere(rows, start):
    phases, Y, s = rows
    sums = SumsOfRows(MODES, 2, 1e-10).sums(phases, Y, s)
    found = climb(OneWidth(), sums, np.array(start), N_ROWS, fit_intercept=True, seed=0)

    def value(theta):
        w = whole_of(np.exp(OneWidth().log_weights(theta)).astype(complex)).real
        return dense_value(rows, w, True)

    best = min(value(np.array([a, b])) for a in np.linspace(-2, 0.5, 11) for b in np.linspace(-2, 2, 9))
    # Random vectors know the determinant to some units, of which a climb takes the lucky ones.
    w = whole_of(np.exp(OneWidth().log_weights(found.theta)).astype(complex)).real
    spread = np.std([found_for(rows, w, True, seed).value for seed in range(6)])
    assert value(found.theta) <= best + 3.0 + 4.0 * spread
    assert found.n_evaluations < 40


def test_what_is_not_free_stays(rows):
    phases, Y, s = rows
    sums = SumsOfRows(MODES, 2, 1e-10).sums(phases, Y, s)
    free = np.array([False, True])
    found = climb(OneWidth(), sums, np.array([0.3, 0.0]), N_ROWS, fit_intercept=True, seed=0, free=free)
    assert found.theta[0] == 0.3 and found.theta[1] != 0.0
