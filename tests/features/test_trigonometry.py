import warnings

import numpy as np
import pytest

from distrff.errors import InputError, InputTypeError
from distrff.features.trigonometry import cosine, paired_cos_sin

# Sums of the roundings named in the module: of r, of r², of the Horner steps, of the result.
NEAR_ERROR = {np.float32: 9e-8, np.float64: 1.5e-16}
# One unit in the last place of 1 for this C library and as much for the one NumPy uses; in float32 the
# float64 value is rounded, by at most half a spacing below 1.
FAR_ERROR = {np.float32: 2.0**-25 + 1e-15, np.float64: 2 * 2.0**-52}
FORMATS = [np.float32, np.float64]

extended = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2.0**-60, reason="no floating format wider than float64 to compare with"
)


def cos_sin(x, scale=1.0):
    """Cosines and sines of a vector by the paired function, in one row."""
    out = np.empty((1, 2 * x.size), x.dtype)
    paired_cos_sin(x.reshape(1, -1), out, scale)
    return out[0, 0::2], out[0, 1::2]


def cosines(x):
    out = np.empty((1, x.size), x.dtype)
    cosine(x.reshape(1, -1), out, 1.0)
    return out[0]


def angles_on_all_scales(rng, dtype, n=200_000):
    magnitude = np.exp2(np.concatenate([rng.uniform(-40, 20, n), rng.uniform(15, 20, n)]))
    return np.concatenate([[0.0, -0.0], rng.choice([-1, 1], 2 * n) * magnitude]).astype(dtype)


def angles_at_turning_points(rng, dtype, step):
    """Multiples of π/4 up to 2**20 with their neighbours: zeros, extrema, quadrant borders; the limit.

    Every one for a step of 1, and else one at random of as many as the step, which is odd.
    """
    quarter = np.arctan(np.longdouble(1))
    x = (np.arange(rng.integers(1, step + 1), int(2**20 / quarter) + 1, step) * quarter).astype(dtype)
    x = np.concatenate([x, np.nextafter(x, dtype(0)), np.nextafter(x, dtype(np.inf))])
    limit = dtype(2**20)
    x = np.concatenate([x, [limit, np.nextafter(limit, dtype(0))]])
    return x[x <= limit]


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=extended)])
def test_errors_up_to_the_limit(dtype, step):
    wider, rng = np.longdouble if dtype == np.float64 else np.float64, np.random.default_rng()
    angles = angles_on_all_scales(rng, dtype, 200_000 // step), angles_at_turning_points(rng, dtype, step)
    for x in angles:
        cos, sin = cos_sin(x)
        assert np.abs(cos - np.cos(x.astype(wider))).max() <= NEAR_ERROR[dtype]
        assert np.abs(sin - np.sin(x.astype(wider))).max() <= NEAR_ERROR[dtype]


@pytest.mark.parametrize("dtype", FORMATS)
def test_angles_beyond_the_limit(dtype):
    rng = np.random.default_rng()
    largest = np.finfo(dtype).maxexp - 1
    x = np.exp2(rng.uniform(20, largest, 5000)) * rng.choice([-1, 1], 5000)
    named = [np.nextafter(dtype(2**20), dtype(np.inf)), 1e7, -1e15, 1e30]
    x = np.concatenate([x, named, [1e300] if dtype is np.float64 else []]).astype(dtype)
    cos, sin = cos_sin(x)
    exact = x.astype(np.float64)
    assert np.abs(cos - np.cos(exact)).max() <= FAR_ERROR[dtype]
    assert np.abs(sin - np.sin(exact)).max() <= FAR_ERROR[dtype]
    near = angles_on_all_scales(np.random.default_rng(), dtype, n=1500)
    mixed, scale = near.copy(), 0.04419417382415922
    mixed[::7] = 3e7  # which do not change the others
    others = np.arange(near.size) % 7 != 0
    for plain, beside in zip((*cos_sin(near), cosines(near)), (*cos_sin(mixed), cosines(mixed)), strict=True):
        assert np.array_equal(plain[others], beside[others])
    for plain, scaled in zip(cos_sin(near), cos_sin(near, scale), strict=True):  # one rounded product
        assert np.array_equal(scaled, dtype(scale) * plain)
    small = np.array([0.0, -0.0, 1e-40, -1e-40, 1e-9, -1e-9], dtype)  # subnormal numbers included
    cos, sin = cos_sin(small)
    assert np.array_equal(cos, np.ones_like(small)) and np.array_equal(sin, small)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_angles_give_nan_without_a_warning(dtype, value):
    x = np.linspace(0, 3, 100, dtype=dtype)
    x[[0, 41, 99]] = value
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        results = (*cos_sin(x), cosines(x))
    for result in results:
        assert np.array_equal(np.flatnonzero(np.isnan(result)), [0, 41, 99])


@pytest.mark.parametrize("dtype", FORMATS)
def test_bits_do_not_depend_on_position_or_rows(dtype):
    rng = np.random.default_rng()
    theta = (rng.standard_normal((40, 601)) * np.exp2(rng.uniform(-5, 17, (40, 601)))).astype(dtype)
    whole = np.empty((40, 1202), dtype)
    paired_cos_sin(theta, whole, 0.3)
    for cut in (1, 7, 39):
        parts = np.empty_like(whole)
        paired_cos_sin(theta[:cut], parts[:cut], 0.3)
        paired_cos_sin(theta[cut:], parts[cut:], 0.3)
        assert np.array_equal(whole, parts)
    # vector bodies and scalar remainders of every length, from every alignment
    for m in range(1, 41):
        for first in (0, 1, 3, 601 - m):
            pairs, cos = np.empty((40, 2 * m), dtype), np.empty((40, m), dtype)
            angles = np.ascontiguousarray(theta[:, first : first + m])
            paired_cos_sin(angles, pairs, 0.3)
            cosine(angles, cos, 0.3)
            assert np.array_equal(pairs, whole[:, 2 * first : 2 * (first + m)])
            assert np.array_equal(cos, pairs[:, 0::2])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("m", [1, 5, 64, 1100])
@pytest.mark.parametrize("n_rows", [1, 9])
def test_views_of_a_wider_tile_and_cosines_in_place(dtype, m, n_rows):
    theta = np.random.default_rng().uniform(-50, 50, (n_rows, m)).astype(dtype)
    theta[-1, m // 2] = 1e8
    dense, tile = np.empty((n_rows, 2 * m), dtype), np.full((n_rows, 2 * m + 3), 7, dtype)
    paired_cos_sin(theta, dense, 0.5)
    paired_cos_sin(theta, tile[:, 1:], 0.5)
    assert np.array_equal(tile[:, 1:-2], dense)
    assert np.all(tile[:, [0, -2, -1]] == 7)

    tile[:] = 7
    tile[:, :m] = theta
    cosine(tile[:, :m], tile, 0.5)  # in place, where the product with the frequencies left the angles
    cosine(theta, theta, 0.5)
    assert np.array_equal(tile[:, :m], dense[:, 0::2])
    assert np.array_equal(theta, dense[:, 0::2])
    assert np.all(tile[:, m:] == 7)


@pytest.mark.parametrize("function", [paired_cos_sin, cosine])
@pytest.mark.parametrize(
    ("theta", "out", "error", "words"),
    [
        (np.ones((3, 2)), np.ones((3, 4), np.float32), InputTypeError, "float64 and float32"),
        (np.ones((3, 2), int), np.ones((3, 4), int), InputTypeError, "both be float32 or both float64"),
        (np.ones((3, 2), ">f4"), np.ones((3, 4), ">f4"), InputTypeError, "both be float32 or both float64"),
        (np.ones(2), np.ones(4), InputError, "theta must be a matrix"),
        (np.ones((3, 4))[:, ::2], np.ones((3, 4)), InputError, "theta must be a matrix"),
        (np.broadcast_to(1.0, (3, 2)), np.ones((3, 4)), InputError, "theta must be a matrix"),
        (np.ones((3, 2)), np.ones((4, 3)).T, InputError, "out must be a matrix"),
        (np.ones((3, 2)), np.ones((3, 4))[::-1], InputError, "out must be a matrix"),
        (np.ones((3, 2)), np.ones((2, 4)), InputError, "3 rows"),
        (np.ones((3, 2)), np.ones((3, 1)), InputError, "columns, got shape"),
    ],
)
def test_arrays_that_do_not_fit(function, theta, out, error, words):
    with pytest.raises(error, match=words):
        function(theta, out, 1.0)
    for shape in ((0, 5), (5, 0), (0, 0)):  # nothing to do
        sevens = np.full((shape[0], 2 * shape[1] + 1), 7.0)
        function(np.empty(shape), sevens, 1.0)
        assert np.all(sevens == 7)
    tile = np.ones((4, 10))
    with pytest.raises(InputError, match=r"share memory|overlap"):
        function(tile[:, :4], tile[:, 1:], 1.0)
    tile.flags.writeable = False
    with pytest.raises(InputError, match="writeable: False"):
        function(np.ones((4, 5)), tile, 1.0)
