"""The measured error of a kernel is that of the map, its intervals cover, and bounds lie above."""

from functools import partial

import dask.array as da
import numpy as np
import pytest

from distrff import (
    FourierFeatures,
    Gaussian,
    Laplacian,
    LinearFeatures,
    Matern,
    NystroemFeatures,
    Polynomial,
    RandomBinningFeatures,
    kernel_error,
)
from distrff.errors import InputError


def fitted(X, kernel=None, D=256, **options):
    seed = options.pop("seed", 0)
    return FourierFeatures(kernel or Gaussian(2.0), D, random_state=seed, **options).fit(X)


def all_errors(map_, X):
    Z = map_.transform(X)
    return Z @ Z.conj().T - map_.kernel_(X)


def test_a_single_block_of_all_rows_is_exact(rng):
    X = rng.standard_normal((80, 3))
    map_ = fitted(X, 3.0 * Gaussian(1.0))
    found = kernel_error(map_, X, n_blocks=5, block_rows=100, alpha=0.3, random_state=1)
    E, K = all_errors(map_, X), map_.kernel_(X)
    assert (found.n_blocks, found.block_rows, found.spectral_interval) == (1, 80, None)
    assert found.spectral_error == pytest.approx(np.linalg.norm(E, 2))
    assert found.kernel_norm == pytest.approx(np.linalg.norm(K, 2))
    assert found.effective_dimension == pytest.approx(np.trace(K @ np.linalg.inv(K + 0.3 * np.eye(80))))
    off = np.abs(E[~np.eye(80, dtype=bool)])
    assert found.max_error <= off.max() * (1 + 1e-9)
    # Of 6320 ordered pairs 4096 were drawn; more than 1 in 100 of them above all drawn is (0.99)^4096.
    assert found.max_error >= np.quantile(off, 0.99)


def test_the_interval_of_the_rms_covers_as_often_as_it_says(rng):
    """Of 200 samples at 80 %: five standard errors of a share are .14, the skewness of squares .02."""
    X = rng.standard_normal((300, 4))
    map_ = fitted(X)
    E = all_errors(map_, X)
    truth = np.sqrt(np.square(E[~np.eye(300, dtype=bool)]).mean())
    covered = 0
    for seed in range(200):
        low, high = kernel_error(
            map_, X, n_pairs=400, n_blocks=1, block_rows=2, confidence=0.8, random_state=seed
        ).rms_interval
        covered += low <= truth <= high
    assert abs(covered / 200 - 0.8) < 0.16


def of_maps(maps, X):
    """The errors of the maps, none of which is above its bound of confidence 1 − 1e-6."""
    words = {"n_pairs": 256, "n_blocks": 1, "confidence": 1 - 1e-6, "random_state": 3}
    found = [kernel_error(map_, X, **words) for map_ in maps]
    for one in found:
        assert one.max_error < one.max_bound
        assert one.spectral_error < one.spectral_bound
    return found


BINNING = partial(RandomBinningFeatures, 2.0 * Laplacian(2.0), 20)


@pytest.mark.parametrize(
    ("make", "bias", "dtype"),
    [
        *(
            (partial(FourierFeatures, kernel, 64, form=form), 0.0, float)
            for kernel, form in ((Gaussian(1.5), "cos_sin"), (2.0 * Laplacian(3.0), "phase"))
        ),
        *((BINNING, 0.0, dtype) for dtype in (np.float32, np.float64)),
        # Hashed to runs of 3 and 4 columns a grid, where collisions are most of the error, and of 50. Runs of
        # different widths lower the variance by that of their collisions, 1/500 at 3 and 4.
        *((partial(BINNING, n_bins=n_bins), 0.01, float) for n_bins in (70, 1000)),
    ],
)
def test_the_expected_rms_is_the_mean_over_maps(rng, make, bias, dtype):
    X = rng.standard_normal((60, 2)).astype(dtype)
    maps = [make(random_state=int(seed)).fit(X) for seed in rng.integers(0, 2**62, 60)]
    found = of_maps(maps, X)
    squares, expected = [one.rms_error**2 for one in found], found[0].rms_expected ** 2
    error = np.std(squares, ddof=1) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - expected) < 6 * error + bias * expected
    assert np.ptp([one.rms_expected for one in found]) < 1e-12
    Z = maps[-1].transform(X)
    E = (Z @ Z.T if isinstance(Z, np.ndarray) else (Z @ Z.T).toarray()) - maps[-1].kernel_(X)
    assert found[-1].spectral_error == pytest.approx(np.linalg.norm(E, 2), rel=1e-4)


@pytest.mark.parametrize("form", ["cos_sin", "phase"])
def test_bounds_lie_above_and_only_where_they_hold(rng, form):
    """At a confidence of 1 − 1e-6."""
    X = rng.standard_normal((600, 3))
    found = kernel_error(fitted(X, form=form), X, n_blocks=3, block_rows=150, confidence=1 - 1e-6)
    assert found.max_error < found.max_bound
    assert found.spectral_error < found.spectral_bound
    assert found.spectral_interval[0] <= found.spectral_error <= found.spectral_interval[1]
    if form == "cos_sin":
        other = kernel_error(fitted(X, form=form, sampling="orthogonal"), X)
        assert other.max_bound is other.spectral_bound is other.rms_expected is None
        complex_map = fitted(X[:50], form="complex")
        other = kernel_error(complex_map, X[:50], block_rows=50)
        assert other.spectral_error == pytest.approx(np.linalg.norm(all_errors(complex_map, X[:50]), 2))
        assert other.max_bound is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [3.0 * Gaussian(2.0), Laplacian(2.0), Polynomial(3)], ids=repr)
@pytest.mark.parametrize("n_components", [5, 40])
def test_no_error_of_landmarks_is_above_its_bound(rng, kernel, n_components, dtype):
    X = rng.standard_normal((200, 3)).astype(dtype)
    for landmarks in ("uniform", "leverage"):
        seed = int(rng.integers(2**62))
        map_ = NystroemFeatures(kernel, n_components, landmarks=landmarks, random_state=seed).fit(X)
        found = kernel_error(map_, X, n_pairs=500, n_blocks=2, block_rows=60, random_state=seed)
        assert found.max_error <= found.max_bound
        assert found.spectral_error <= found.spectral_bound
        assert found.rms_expected is None


@pytest.mark.parametrize("form", ["cos_sin", "phase"])
def test_a_sketch_has_bounds_of_its_own(rng, form):
    X = rng.standard_normal((60, 8))
    sketch = {"form": form, "sampling": "countsketch"}
    seeds = rng.integers(0, 2**62, 6)
    found = of_maps([fitted(X, 2.0 * Gaussian(2.0), 64, seed=int(seed), **sketch) for seed in seeds], X)
    # A bound of the mean over draws: that of six, over 256 pairs each, does not come to twice it.
    bound = found[-1].rms_bound
    assert found[-1].rms_expected is None
    assert np.mean([one.rms_error**2 for one in found]) < 2 * bound**2
    # k(0)²/D, and at most 16/B for the sketch, whatever the distances.
    assert bound < 2 * np.sqrt(1 / 64 + 16 / 2048)
    other = kernel_error(fitted(X, Matern(2.0), 64, sampling="countsketch"), X, n_pairs=2, n_blocks=1)
    assert other.max_bound is other.spectral_bound is other.rms_expected is None


def test_any_storage_gives_the_same_numbers(rng):
    X = rng.standard_normal((500, 3))
    map_ = fitted(X)
    one = kernel_error(map_, X, random_state=5)
    assert kernel_error(map_, da.from_array(X, chunks=(77, 2)), random_state=5) == one
    assert kernel_error(map_, X, random_state=6) != one
    assert one.to_dict()["n_components"] == 256
    assert kernel_error(map_, X).seed != kernel_error(map_, X).seed


def test_bad_requests(rng):
    X = rng.standard_normal((50, 3))
    map_ = fitted(X)
    for words, call in {
        "not fitted": lambda: kernel_error(FourierFeatures(), X),
        "approximates no kernel": lambda: kernel_error(LinearFeatures().fit(X), X),
        "must be a fitted distrff feature map": lambda: kernel_error("fourier", X),
        "X has 2 columns": lambda: kernel_error(map_, X[:, :2]),
        "on pairs of rows": lambda: kernel_error(map_, X[:1]),
        "n_pairs must be": lambda: kernel_error(map_, X, n_pairs=1),
        "block_rows must be": lambda: kernel_error(map_, X, block_rows=1.5),
        "alpha must be": lambda: kernel_error(map_, X, alpha=0),
        "confidence must be": lambda: kernel_error(map_, X, confidence=95),
        "NaN or infinity in row": lambda: kernel_error(map_, np.where(X > 0, X, np.nan)),
    }.items():
        with pytest.raises(InputError, match=words):
            call()
