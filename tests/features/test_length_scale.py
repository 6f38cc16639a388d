"""Automatic widths: near the best of an explicit search, and what counts on the way there."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from distrff import Cauchy, Exponential, FourierFeatures, Gaussian, Laplacian, Matern
from distrff.errors import InputError, NonFiniteError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.search.ridge import FourierRidge
from distrff.features.search.sample import coded_targets
from distrff.features.search.widths import automatic_length_scale, relevant_length_scales
from distrff.utils.process import libraries
from tests.support.draws import seed_of


@pytest.fixture(autouse=True)
def one_blas_thread():
    """Matrices of a hundred columns gain nothing by more, and lose much where the cores are busy."""
    with libraries().limit(limits=1, user_api="blas"):
        yield


def chosen(kernel, X, y, sample_weight=None, *, n_components=64, seed=0):
    sample = Sample(X, y, sample_weight, seed, RowsInMemory(X, sample_weight))
    if kernel.length_scale == "ard":
        return relevant_length_scales(kernel, sample)
    return automatic_length_scale(
        kernel, sample, lambda rows, kernel: FourierRidge(rows, kernel, n_components)
    )


# Against an explicit search


def smooth(X):
    return np.exp(-0.125 * np.square(X).sum(axis=1)) * np.sin(X[:, 0])


_FREQUENCIES = np.random.default_rng(7).standard_normal(200) / 0.015


def rough(X):
    """A sum of waves as in a draw of a Gaussian process of width 0.015, for rows in the unit interval."""
    return np.cos(X[:, :1] * _FREQUENCIES + np.arange(200.0)).sum(axis=1) / 10


def held_out_error(kernel, X, y, X_new, y_new, D, seed):
    """The least error of a ridge over alphas, against the function without noise, in float64."""
    map_ = FourierFeatures(kernel, D, random_state=seed).fit(X)
    Z, Z_new = map_.transform(X), map_.transform(X_new)
    mean = Z.mean(axis=0)
    eigenvalues, Q = eigh((Z - mean).T @ (Z - mean), driver="evd")
    rotated = Q.T @ ((Z - mean).T @ (y - y.mean()))
    alphas = np.logspace(-9, 0, 19) * len(X)
    W = Q @ (rotated[:, None] / (np.maximum(eigenvalues, 0)[:, None] + alphas))
    return np.square(y_new[:, None] - y.mean() - (Z_new - mean) @ W).mean(axis=0).min()


def octaves_from_the_best(rng, function, draw, D, n):
    """log2 of the width found over the best of a fine grid, and the median distance over it."""
    X, X_new = draw(n), draw(n)
    y, y_new = function(X) + 0.1 * rng.standard_normal(n), function(X_new)
    kernel, search = chosen(Gaussian("auto"), X, y, n_components=D, seed=seed_of(rng))
    width = kernel.length_scale
    grid, seed = width * 2.0 ** np.arange(-2, 2.01, 0.5), seed_of(rng)
    errors = [
        np.mean([held_out_error(Gaussian(w), X, y, X_new, y_new, D, seed + i) for i in range(4)])
        for w in grid
    ]
    return np.log2(width / grid[np.argmin(errors)]), search["median_distance"] / width


# The pilot's own frequencies decide between neighbours on its grid: in 120 draws of each case below the
# width was off by at most one octave, with a deviation of .43; taken as normal, .003 of all draws are off
# by one step of half an octave more. Of nine, five are with a probability of 126·.003⁵ = 3e-11.


@pytest.mark.parametrize("of_waves", [False, True])
def test_the_width_is_within_a_factor_two_of_the_best(rng, of_waves):
    found = [
        octaves_from_the_best(rng, rough, lambda n: rng.random((n, 1)), D=192, n=1200)
        if of_waves
        else octaves_from_the_best(rng, smooth, lambda n: rng.standard_normal((n, 3)), D=96, n=1000)
        for _ in range(9)
    ]
    octaves, ratios = np.transpose(found)
    assert np.median(np.abs(octaves)) <= 1
    # The waves want widths far below the median distance, as on terrain.
    assert np.median(ratios) > 15 if of_waves else 0.25 < np.median(ratios) < 4


def test_a_search_says_what_it_did(rng):
    X = rng.standard_normal((100, 2))
    kernel, search = chosen(Matern("auto", nu=2.5), X, X[:, 0] ** 2, seed=seed_of(rng))
    assert kernel == Matern(search["length_scale"], nu=2.5)
    assert search["rule"] == "held-out error of a ridge on 64 features and 100 rows"
    widths, errors = np.transpose(search["tried"])
    assert np.all(np.diff(widths) > 0)
    # The parabola at the end leads at most half a place away, a quarter of an octave.
    assert abs(np.log2(search["length_scale"] / widths[np.argmin(errors)])) <= 0.25 + 1e-9
    assert np.isclose(widths, search["median_distance"], rtol=1e-12).any()


@pytest.mark.parametrize(
    ("kernel", "metric"),
    [
        (Gaussian("auto"), "euclidean"),
        (Exponential("auto"), "euclidean"),
        (Laplacian("auto"), "cityblock"),
        (Cauchy("auto"), "cityblock"),
    ],
    ids=repr,
)
def test_without_targets_it_is_the_median_distance_and_says_so(rng, kernel, metric):
    X = rng.standard_normal((300, 3)) * [1.0, 5.0, 0.1]
    fitted, search = chosen(kernel, X, None, seed=seed_of(rng))
    assert fitted == kernel.with_widths(search["length_scale"])
    assert search["rule"] == "median distance (no targets)"
    assert search["median_distance"] == search["length_scale"]
    # Of at least 4000 random pairs, half lie below their median: a share of the population's that
    # deviates from one half by more than eight times ½/√4000 = .064 once in 1e15 runs.
    low, high = np.quantile(pdist(X, metric), [0.43, 0.57])
    assert low <= search["length_scale"] <= high


def test_targets_of_few_rows_and_equal_rows_do_not_count(rng):
    X = rng.standard_normal((7, 2))
    kernel, search = chosen(Gaussian("auto"), X, X[:, 0])
    assert search["rule"] == "median distance (fewer than 8 rows)"
    assert kernel.length_scale == search["median_distance"]
    assert "tried" in chosen(Gaussian("auto"), np.vstack([X, X + 1]), np.arange(14.0))[1]
    X = np.repeat([[3.0, 4.0], [0.0, 0.0]], [100, 300], axis=0)
    assert chosen(Gaussian("auto"), X, None)[0] == Gaussian(5.0)
    assert chosen(Laplacian("auto"), X, None)[0] == Laplacian(7.0)


@pytest.mark.parametrize("kernel", [Gaussian("auto"), Laplacian("auto"), Gaussian("ard")], ids=repr)
def test_widths_scale_with_the_rows(rng, kernel):
    """By powers of two: then every step is scaled without rounding; learned widths have four digits."""
    X, seed = rng.standard_normal((80, 2)), seed_of(rng)
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    learned = kernel.length_scale == "ard"
    factors = np.array([1024.0, 2.0**-8]) if learned else 1024.0
    small, large = (chosen(kernel, c * X, y, seed=seed)[0].length_scale for c in (1.0, factors))
    # Either is rounded by at most half a unit of its fourth digit, 5e-4.
    np.testing.assert_allclose(large, np.multiply(small, factors), rtol=1e-3 + 1e-9 if learned else 0)


@pytest.mark.parametrize("kernel", [Gaussian("auto"), Gaussian("ard")], ids=repr)
def test_weights_are_weights(rng, kernel):
    """Rows without one do not count; one of four everywhere is an alpha four times as large."""
    X, seed = rng.standard_normal((200, 2)), seed_of(rng)
    y = np.sin(2 * X[:, 0]) + np.square(X[:, 1]) + 0.1 * rng.standard_normal(200)
    s = np.where(rng.random(200) < 0.4, 0.0, rng.uniform(0.5, 2, 200))
    one, four = (chosen(kernel, X, y, w, seed=seed) for w in (None, np.full(200, 4.0)))
    # √4 is exact, so both are the same products times four.
    assert one[0] == four[0]
    y[s == 0] = 1e6
    X[s == 0] *= 10
    found, expected = (chosen(kernel, X[rows], y[rows], s[rows], seed=seed) for rows in (s >= 0, s > 0))
    if kernel.length_scale == "auto":
        assert one[1]["tried"] == four[1]["tried"]
        assert found == expected
    # The sums over columns of other lengths are rounded otherwise, which a search of some 30 steps
    # to a tolerance of 1e-5 may magnify; an outlier of 1e6 would change everything.
    np.testing.assert_allclose(found[0].length_scale, expected[0].length_scale, rtol=1e-2)


def test_classes_may_be_strings(rng):
    X, seed = rng.standard_normal((90, 2)), seed_of(rng)
    index = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    names = np.array(["ant", "bee", "caterpillar"])
    Y = 2.0 * np.eye(3)[index] - 1
    np.testing.assert_array_equal(coded_targets(names[index]), Y)
    np.testing.assert_array_equal(coded_targets(names.astype(object)[index].tolist()), Y)
    np.testing.assert_array_equal(coded_targets(index > 0), 2.0 * np.eye(2)[(index > 0).astype(int)] - 1)
    np.testing.assert_array_equal(coded_targets([3, 1, 2]), [[3.0], [1.0], [2.0]])
    np.testing.assert_array_equal(coded_targets(np.eye(2, dtype=np.float32)), np.eye(2))
    width = FourierFeatures(Gaussian("auto"), 32, random_state=seed).fit(X, names[index]).kernel_
    assert width == FourierFeatures(Gaussian("auto"), 32, random_state=seed).fit(X, Y).kernel_


@pytest.mark.parametrize("coded", [True, False])
def test_of_many_classes_the_most_frequent_stand_for_all(rng, coded):
    labels = rng.permutation(np.repeat(np.arange(100), np.arange(1, 101)))
    Y = coded_targets(2.0 * np.eye(100)[labels] - 1 if coded else labels.astype(str))
    assert Y.shape == (len(labels), 32)
    assert sorted((Y > 0).sum(axis=0)) == list(range(69, 101))


def test_rows_of_small_weight_hardly_count(rng):
    X = rng.standard_normal((400, 2))
    bad = rng.random(400) < 0.5
    y = np.where(bad, rng.choice([-10.0, 10.0], 400), X[:, 0])
    search = chosen(Gaussian("auto"), X, y, np.where(bad, 1e-6, 1.0), seed=seed_of(rng))[1]
    # In units of the targets' variance, about 50: the line is learnt; of the noise at least .3 would be
    # left even if half of it were.
    assert min(error for _, error in search["tried"]) < 0.05


ROWS, BAD = np.random.default_rng(0).standard_normal((20, 2)), (np.nan, np.inf)
ALIKE = r"no two different rows in its sample.*give a number"


@pytest.mark.parametrize(
    ("X", "y", "sample_weight", "error", "message"),
    [
        *((ROWS, np.zeros(n), None, InputError, "rows but y has") for n in (19, 21)),
        (ROWS, None, np.ones(19), InputError, "sample_weight must be one number per row"),
        (ROWS, None, -np.ones(20), InputError, "sample_weight must be finite and not negative"),
        (ROWS, None, np.full(20, np.nan), InputError, "sample_weight must be finite and not negative"),
        (ROWS, None, np.zeros(20), InputError, "not all zero"),
        *((np.full((n, 3), 7.0), None, None, InputError, ALIKE) for n in (1, 2, 100)),
        *((ROWS, np.r_[np.ones(19), bad], None, NonFiniteError, "y contains NaN or infinity") for bad in BAD),
    ],
)
def test_what_no_width_is_found_for(X, y, sample_weight, error, message):
    with pytest.raises(error, match=message):
        FourierFeatures(Gaussian("auto"), 8).fit(X, y, sample_weight)
