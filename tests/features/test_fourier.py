"""Fourier features: the variance of their kernel in every form, their values, and their parameters."""

import pickle

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

from distrff.errors import DataWarning
from distrff.features.fourier import FORMS, FourierFeatures
from distrff.kernels.stationary import Gaussian, Matern
from tests.support.draws import seed_of
from tests.support.fits import never

UNIT = {np.dtype(np.float64): 2.0**-53, np.dtype(np.float32): 2.0**-24}
# Of the cosines, before scaling; see distrff.features.trigonometry.
COSINE_ERROR = {np.dtype(np.float64): 1.5e-16, np.dtype(np.float32): 9e-8}

# The variance of the kernel; the mean is tested for every sampling. With ρ(δ) = k(δ)/k(0) and frequencies
# of the measure, E cos ωδ = ρ(δ) and cos² = (1 + cos 2ωδ)/2, so that of one frequency:
#
# * cos_sin: cos ωx cos ωx' + sin ωx sin ωx' = cos ωδ has the variance v = (1 + ρ(2δ))/2 − ρ(δ)²;
# * phase: 2 cos(ωx + b) cos(ωx' + b) = cos ωδ + cos(ω(x + x') + 2b), where the second term has mean 0
#   for every ω, so that it is not correlated with the first, and mean square ½: v + ½;
# * complex: e^{iωδ} has the real part of cos_sin, and the imaginary part sin ωδ of mean 0 and variance
#   (1 − ρ(2δ))/2.
#
# Independent frequencies average to k(0)²/m of it.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_components", [30, 1300])  # one strip of frequencies, and several
def test_values_are_the_formula_in_the_dtype_of_the_rows(rng, n_components, form, dtype):
    X = rng.standard_normal((300, 5)).astype(dtype)
    map_ = FourierFeatures(2.0 * Gaussian(0.5), n_components, form=form, random_state=seed_of(rng)).fit(X)
    theta = X.astype(np.float64) @ map_.frequencies_
    m = n_components // 2 if form == "cos_sin" else n_components
    if form == "cos_sin":
        expected = np.stack([np.cos(theta), np.sin(theta)], axis=2).reshape(300, -1) * np.sqrt(2.0 / m)
    elif form == "complex":
        expected = np.exp(1j * theta) * np.sqrt(2.0 / m)
    else:
        phases = map_.specification_.derive()["phases"]
        assert np.all((phases >= 0) & (phases <= 2 * np.pi))
        assert FourierFeatures(None, 200, form="phase").fit(X).specification_.derive()["phases"].max() > 5
        expected = np.cos(theta + phases) * np.sqrt(4.0 / m)
    Z = map_.transform(X)
    assert Z.dtype == np.result_type(dtype, np.complex64 if form == "complex" else dtype)
    assert Z.shape == (300, n_components)
    # W, X and shifts are cast once (a unit each), d products are summed (d units), the phase is added and is
    # at most 2π; the factor √(2k(0)/m) is rounded and multiplied (two units of 1). √2 where both parts are
    # off; the reference in float64 is off as much as a float64 result.
    phase = (np.abs(X) @ np.abs(map_.frequencies_)).max() + 7
    units = (X.shape[1] + 3) * phase + 2
    error = sum(UNIT[t] * units + COSINE_ERROR[t] for t in (np.dtype(dtype), np.dtype(np.float64)))
    factor = np.sqrt((4.0 if form == "phase" else 2.0) / m)
    assert np.abs(Z - expected).max() <= np.sqrt(2) * factor * error


def test_a_graph_carries_the_seed_and_not_the_frequencies():
    """And building it computes nothing."""
    map_ = FourierFeatures(Gaussian(), 4096).fit(np.zeros((1, 100)))
    X = da.zeros((1000, 100), chunks=10).map_blocks(never, dtype=float, meta=np.empty((0, 0)))
    Z = map_.transform(X)
    assert len(pickle.dumps(Z.dask)) < 100_000  # the frequencies are 1.6 MB
    with pytest.raises(AssertionError, match="a task ran"):
        Z.compute(scheduler="sync")


@pytest.mark.parametrize(("given", "even"), [(1, 2), (2, 2), (3, 2), (7, 6), (np.int64(1025), 1024)])
def test_an_odd_number_of_pairs_is_the_nearest_even_one_below(given, even):
    map_ = FourierFeatures(Gaussian(), given, random_state=0)
    assert map_.outline(2, 9).n_features == even
    if given == even:
        map_.fit(np.zeros((1, 2)))
    else:
        with pytest.warns(DataWarning, match=f"n_components={given} is odd, .* has {even} features"):
            map_.fit(np.zeros((1, 2)))
    assert map_.n_components == given
    sizes = {2: (2,), 6: (6,), 1024: (16, 32, 64, 128, 256, 512, 1024)}[even]  # even halves, down to 16
    assert map_.specification_.nested_sizes() == sizes
    for form in ("phase", "complex"):  # which need no pairs
        other = FourierFeatures(Gaussian(), given, form=form)
        assert other.fit_transform(np.zeros((2, 2))).shape == (2, given)
    of_even = FourierFeatures(Gaussian(), even, random_state=0).fit(np.zeros((1, 2)))
    assert map_.specification_ == of_even.specification_


def test_parameters_are_those_of_scikit_learn_and_kept_as_they_are(rng):
    map_ = FourierFeatures(Gaussian(2.0) + Matern(3.0), 64, sampling="orthogonal", random_state=5)
    names = {"kernel", "n_components", "form", "sampling", "random_state"}
    assert map_.get_params(deep=False).keys() == names and map_.get_params()["kernel__k2__nu"] == 1.5
    copy = clone(map_).set_params(kernel__k1__length_scale=7.0, n_components=32)
    assert copy.kernel == Gaussian(7.0) + Matern(3.0) != map_.kernel == Gaussian(2.0) + Matern(3.0)
    assert copy.set_params(kernel=Matern(), kernel__nu=2.5).kernel == Matern(nu=2.5)
    for one, name, message in (
        (FourierFeatures(), "kernel__length_scale", "explicit kernel"),
        (copy, "kernel__gamma", "no parameter 'gamma'"),
        (copy, "degree", "Invalid parameter 'degree'"),
    ):
        with pytest.raises(ValueError, match=message):
            one.set_params(**{name: 2.0})
    found = FourierFeatures(Gaussian("auto"), 16).fit(rng.standard_normal((40, 2)))
    assert found.kernel == Gaussian("auto") and found.random_state is None and found.n_features_in_ == 2
    assert found.kernel_ == Gaussian(found.length_scale_search_["length_scale"])
    assert FourierFeatures(Gaussian(1.0)).fit(np.zeros((1, 2))).length_scale_search_ is None


def test_the_seed_is_kept_and_repeats_the_map(rng):
    X, lazy = rng.standard_normal((10, 2)), da.ones((6, 2), chunks=3)
    state = np.random.get_state()[1].copy()
    one, other = FourierFeatures(Gaussian(), 8).fit(X), FourierFeatures(Gaussian(), 8).fit(X)
    again = FourierFeatures(Gaussian(), 8, random_state=one.seed_).fit(X)
    np.testing.assert_array_equal(again.transform(X), one.transform(X))
    assert not np.array_equal(other.transform(X), one.transform(X))
    assert again.specification_ == one.specification_
    # The same map of the same array is the same task.
    assert again.transform(lazy).name == one.transform(lazy).name != other.transform(lazy).name
    np.testing.assert_array_equal(np.random.get_state()[1], state)
