"""Equispaced features as users meet them: kernel, bounds and periods, lattices, refusals."""

import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from distrff import Cauchy, Exponential, Gaussian, KernelRidge, Laplacian, Matern, Polynomial
from distrff.errors import DataWarning, InputError, ModelFileError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.equispaced import EquispacedFourierFeatures, Lattice, coef_of, lattice_of
from distrff.features.fitted import map_from_dict
from tests.support.draws import seed_of

# Kernels, columns and a tolerance that some thousands of modes reach in a box of width 1.
KERNELS = [
    (Gaussian(0.2), 1, 1e-9),
    (Gaussian(0.3), 2, 1e-6),
    (Gaussian((0.3, 2.0, 0.6)), 3, 1e-4),
    (Laplacian(0.5), 1, 1e-3),
    (Laplacian((0.5, 2.0)), 2, 3e-2),
    (Laplacian(1.0), 3, 0.2),
    (Cauchy(0.3), 1, 1e-3),
    (Cauchy((0.3, 0.6)), 2, 2e-2),
    (Exponential(0.5), 1, 1e-3),
    (Exponential((1.0, 2.0)), 2, 3e-2),
    (Matern(0.3, nu=0.8), 1, 1e-4),
    (Matern(0.4, nu=1.5), 1, 1e-6),
    (Matern((0.4, 0.8), nu=1.5), 2, 1e-3),
    (Matern(0.7, nu=2.5), 3, 1e-3),
    (Matern(0.3, nu=40.0), 2, 1e-5),
    (Gaussian(0.3) + 2.0 * Matern(0.5, nu=2.5), 1, 1e-5),
    (Gaussian((0.3, 0.5)) + 2.0 * Matern(0.5, nu=2.5), 2, 1e-3),
    (3.0 * Gaussian((0.4, 0.2)), 2, 1e-5),
    (1e-3 * Matern(0.5, nu=2.5), 2, 1e-3),
    (Gaussian(0.5) * Matern(1.0, nu=1.5), 1, 1e-4),
    (Gaussian((0.5, 0.8)) * (2.0 * Matern(1.0, nu=2.5)), 2, 1e-3),
    ((Gaussian() + 3.0 * Matern(0.5, nu=2.5)) * Gaussian(0.4), 2, 1e-3),
]
SMOOTH = Matern(0.5, nu=2.5)


def box_rows(rng, n, d):
    """Rows of a box of width 1 away from 0, with its corners."""
    X = rng.uniform(size=(n, d))
    X[0], X[1] = 0.0, 1.0
    return X + np.array([50.0, -3.0, 0.0])[:d]


def fitted(rng, kernel=SMOOTH, d=2, **options):
    X = box_rows(rng, 30, d)
    return EquispacedFourierFeatures(kernel, **options).fit(X), X


# The kernel.


@pytest.mark.parametrize(("kernel", "d", "tol"), KERNELS, ids=[f"{k!r}-{d}" for k, d, _ in KERNELS])
def test_inner_products_are_the_kernel_within_the_bound(rng, kernel, d, tol):
    map_, X = fitted(rng, kernel, d, tol=tol)
    assert map_.kernel_error_ <= tol
    assert map_.kernel_ == kernel
    Z = map_.transform(X)
    assert Z.shape == (30, map_.lattice_.n_modes) and Z.dtype == np.float64
    # N products whose sizes add up to k(0) are off by √N units or so, and phases of up to πm by πm units.
    rounding = 2.0**-50 * (Z.shape[1] ** 0.5 + math.pi * max(map_.lattice_.modes) + 100)
    assert np.abs(Z @ Z.T - kernel(X)).max() <= (map_.kernel_error_ + rounding) * kernel.at_zero


@pytest.mark.parametrize("kernel", [Laplacian(0.3), Matern(0.3, nu=1.5), Exponential(0.5)], ids=repr)
def test_the_error_is_not_far_below_its_bound(rng, kernel):
    """Modes that nobody needs would be paid with time."""
    map_, X = fitted(rng, kernel, 1, tol=1e-3)
    Z = map_.transform(X)
    # All weights that are left out add up at equal rows, and are most of the bound.
    assert kernel.at_zero - (Z[0] @ Z[0]) > 0.2e-3
    assert 0.2e-3 < map_.kernel_error_ <= 1e-3


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("n_components", [1, 2, 3, 10, 343, 1000])
def test_there_are_no_more_features_than_asked(rng, n_components, d):
    map_, X = fitted(rng, Matern(0.05, nu=0.5), d, n_components=n_components)
    assert map_.transform(X).shape[1] == map_.specification_.n_features <= n_components
    assert map_.kernel_error_ > map_.tol
    # As many as there can be: with two more in each column they are too many.
    assert math.prod(2 * m + 3 for m in map_.lattice_.modes) > n_components


def test_more_components_than_the_tolerance_asks_for_are_not_taken(rng):
    few, X = fitted(rng, Gaussian(0.5), tol=1e-2)
    many = clone(few).set_params(n_components=10**6).fit(X)
    assert many.specification_ == few.specification_
    tighter = clone(few).set_params(tol=1e-6).fit(X)
    assert tighter.specification_.n_features > few.specification_.n_features


@pytest.mark.parametrize("d", [1, 2, 3])
def test_single_precision_rows_have_single_precision_features(rng, d):
    map_, X = fitted(rng, d=d, tol=1e-2, bounds=[(-100.0, 100.0)] * d, n_components=500)
    rows = X.astype(np.float32)
    Z = map_.transform(rows)
    assert Z.dtype == np.float32
    # Of the same numbers in double precision, rounded once.
    np.testing.assert_allclose(Z, map_.transform(rows.astype(np.float64)), rtol=2.0**-24, atol=1e-30)


def test_columns_of_one_value_take_no_frequencies(rng):
    X = box_rows(rng, 30, 3)
    X[:, 1] = 7.0
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2).fit(X)
    assert map_.lattice_.columns == (0, 2)
    Z = map_.transform(X)
    assert np.abs(Z @ Z.T - SMOOTH(X)).max() <= map_.kernel_error_ + 1e-12
    X[3, 1] = 7.1
    assert np.isnan(map_.transform(X)).any(axis=1).tolist() == [i == 3 for i in range(30)]


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equal_rows_have_a_map(d):
    map_ = EquispacedFourierFeatures().fit(np.full((3, d), 4.0))
    Z = map_.transform(np.full((2, d), 4.0))
    assert pytest.approx(np.ones((2, 2)), abs=map_.tol) == Z @ Z.T


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (1, 3), (3, 1, 5)], ids=str)
def test_real_coefficients_come_back_from_the_lattice(rng, shape):
    coef = rng.standard_normal(math.prod(shape))
    C = lattice_of(coef, shape)
    assert C.shape == shape
    np.testing.assert_array_equal(C, np.flip(C).conj())
    np.testing.assert_allclose(coef_of(C), coef, rtol=2.0**-50)
    # Real and complex coefficients have the same norm.
    assert np.linalg.norm(C) == pytest.approx(np.linalg.norm(coef), rel=2.0**-50 * len(coef))


@pytest.mark.parametrize("n_rows", [5, 33])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_values_are_those_of_the_features(rng, d, k, n_rows):
    """Of few rows and of more; the last of an odd number of outputs has no other beside it."""
    map_, _ = fitted(rng, d=d, tol=1e-2)
    X = box_rows(rng, n_rows, d)
    block, W = map_.specification_.build(), rng.standard_normal((map_.specification_.n_features, k))
    F = block.values(X, block.values_coef(W, np.dtype(np.float64)), k)
    Z = map_.transform(X)
    # The transform's relative error is 1e-10, of sums of up to |z|ᵀ|w|.
    np.testing.assert_allclose(F, Z @ W, rtol=0, atol=1e-9 * (np.abs(Z) @ np.abs(W)).max())


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_values_on_a_grid_are_those_of_the_features(rng, d, k):
    """Also at the bounds. They are NaN outside, and for another value of a column that has one."""
    X = box_rows(rng, 30, d)
    X[:, 2:] = 7.0
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds=[(50.0, 51.0), (-3.0, -2.0)][:d]).fit(X)
    axes = [np.array([49.9, 50.0, 50.3, 51.0, 51.1]), np.array([-3.0, -2.2, -2.0, 0.0]), np.array([7.0, 7.1])]
    W = rng.standard_normal((map_.specification_.n_features, k))
    F = map_.specification_.build().values_on_grid(axes[:d], W)
    grid = np.stack([x.ravel() for x in np.meshgrid(*axes[:d], indexing="ij")], axis=1)
    Z = map_.transform(grid)
    assert F.shape == (*map(len, axes[:d]), k)
    assert np.isnan(F).reshape(-1, k)[:, 0].tolist() == np.isnan(Z[:, 0]).tolist()
    # Both are N products with phases of up to πm.
    np.testing.assert_allclose(F.reshape(-1, k), Z @ W, rtol=0, atol=1e-11 * np.abs(W).sum())


@pytest.mark.parametrize("d", [1, 2, 3])
def test_mean_squares_on_a_grid_are_those_of_its_cells(rng, d):
    X = box_rows(rng, 30, d)
    X[:, 2:] = 7.0
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds=[(50.0, 51.0), (-3.0, -2.0)][:d]).fit(X)
    axes = [np.array([49.9, 50.0, 50.3, 51.0, 51.1]), np.array([-3.0, -2.2, -2.0, 0.0]), np.array([7.0, 7.1])]
    block = map_.specification_.build()
    shape = (3, *map_.specification_.build().prepared.shape)
    # Six real functions, in the precision of stored samples.
    C = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    grid = np.stack([x.ravel() for x in np.meshgrid(*axes[:d], indexing="ij")], axis=1)
    found = block.mean_square_on_grid(axes[:d], C)
    assert found.shape == tuple(map(len, axes[:d]))
    # Transforms of samples are to 1e-5 of the norm, which may be all of a place's value.
    atol = 3e-4 * np.square(np.abs(C)).sum(axis=tuple(range(1, C.ndim))).mean()
    np.testing.assert_allclose(found.ravel(), block.mean_square(grid, C), rtol=1e-3, atol=atol)


# Bounds and periods.


def test_default_bounds_are_the_range_and_a_hundredth(rng):
    map_, _ = fitted(rng)
    expected = [(49.99, 51.01), (-3.01, -1.99)]
    for found, pair in zip(map_.lattice_.bounds, expected, strict=True):
        assert found == pytest.approx(pair, rel=1e-14)


def globe(rng, low, high, latitude, names=("lon", "lat")):
    X = np.column_stack([rng.uniform(low, high, 60), rng.uniform(latitude - 5, latitude + 5, 60)])
    X[:2] = [low, latitude - 5], [high, latitude + 5]
    return pd.DataFrame(X, columns=list(names))


@pytest.mark.parametrize("low", [-180.0, 0.0])
def test_a_longitude_around_the_earth_without_a_period_is_said(rng, low):
    frame = globe(rng, low, low + 359, 0.0)
    kernel = Gaussian((40.0, 10.0))
    with pytest.warns(DataWarning, match=r"'lon' goes around the earth.* give the column a period of 360"):
        EquispacedFourierFeatures(kernel, tol=0.1).fit(frame)
    # With a period or bounds of its own, half around, or called otherwise: none, which would be an error.
    EquispacedFourierFeatures(kernel, tol=0.1, period={"lon": 360}).fit(frame)
    EquispacedFourierFeatures(kernel, tol=0.1, bounds={"lon": (low, low + 360)}).fit(frame)
    EquispacedFourierFeatures(kernel, tol=0.1).fit(globe(rng, low, low + 180, 0.0))
    EquispacedFourierFeatures(kernel, tol=0.1).fit(globe(rng, low, low + 359, 0.0, ("angle", "lat")))


def test_longitudes_on_both_sides_of_the_date_line_are_one_place(rng):
    lon, lat = rng.uniform(170, 190, 200), rng.uniform(-5, 5, 200)
    y, cells = np.sin(lon / 3) + lat / 5, np.array([[179.0, 1.0], [181.0, 1.0], [-179.0, 1.0]])
    found = []
    for longitude in (lon, np.where(lon > 180, lon - 360, lon)):
        features = EquispacedFourierFeatures(Matern((8.0, 8.0), nu=1.5), tol=0.1, period={"lon": 360})
        frame = pd.DataFrame({"lon": longitude, "lat": lat})
        model = KernelRidge(features, alpha=1e-2).fit(frame, y)
        found.append(model.predict(pd.DataFrame(cells, columns=["lon", "lat"])))
        np.testing.assert_allclose(found[-1][1], found[-1][2], rtol=1e-8)
    # Conjugate gradients of one system in two spellings, to the tolerance of the fit.
    np.testing.assert_allclose(*found, atol=0.02)
    np.testing.assert_allclose(found[0], np.sin(cells[:, 0] % 360 / 3) + cells[:, 1] / 5, atol=0.15)


def test_one_width_for_degrees_of_two_lengths_is_said(rng):
    frame, y = globe(rng, 5.0, 15.0, 60.0), rng.standard_normal(60)
    for kernel in (Gaussian(3.0), 0.5 * Gaussian((3.0, 2.0)) + 0.5 * Gaussian(4.0), Gaussian("auto")):
        with pytest.warns(DataWarning, match=r"at latitude 60 a degree .* only 0\.5 of one"):
            EquispacedFourierFeatures(kernel, tol=0.1).fit(frame, y)
    # A width each, the default, near the equator, or no degrees.
    EquispacedFourierFeatures(Gaussian((6.0, 3.0)), tol=0.1).fit(frame)
    EquispacedFourierFeatures(n_components=500).fit(frame, y)
    EquispacedFourierFeatures(Gaussian(3.0), tol=0.1).fit(globe(rng, 5.0, 15.0, 10.0))
    EquispacedFourierFeatures(Gaussian(3.0), tol=0.1).fit(globe(rng, 5.0, 15.0, 60.0, ("x", "y")))


@pytest.mark.parametrize(
    "bounds",
    [
        {"x": (0, 2), "y": (-1, 1)},
        {0: (0, 2), 1: (-1, 1)},
        {"0": [0, 2], "y": np.array([-1, 1])},
        {np.int64(0): (0.0, 2.0), 1.0: (-1, 1)},
        [(0, 2), (-1, 1)],
        np.array([[0, 2], [-1, 1]]),
    ],
    ids=str,
)
def test_bounds_are_given_by_name_by_number_and_in_order(rng, bounds):
    frame = pd.DataFrame(rng.uniform(size=(20, 2)), columns=["x", "y"])
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds=bounds).fit(frame)
    assert map_.lattice_.bounds == ((0.0, 2.0), (-1.0, 1.0))
    Z = map_.transform(pd.DataFrame([[2.0, -1.0], [0.0, 1.0]], columns=["x", "y"]))
    K = SMOOTH([[2.0, -1.0], [0.0, 1.0]])
    assert np.abs(Z @ Z.T - K).max() <= map_.kernel_error_ + 1e-12


@pytest.mark.parametrize("bounds", [{"y": (-1, 1)}, {1: (-1, 1)}, [None, (-1, 1)]], ids=str)
def test_columns_that_are_left_out_have_the_bounds_of_the_rows(rng, bounds):
    frame = pd.DataFrame(rng.uniform(size=(20, 2)), columns=["x", "y"])
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds=bounds).fit(frame)
    default = EquispacedFourierFeatures(SMOOTH, tol=1e-2).fit(frame)
    assert map_.lattice_.bounds == (default.lattice_.bounds[0], (-1.0, 1.0))


def test_a_name_of_digits_is_that_of_a_column_before_it_is_a_number(rng):
    frame = pd.DataFrame(rng.uniform(size=(20, 2)), columns=["1", "0"])
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds={"1": (-3, 3)}).fit(frame)
    assert map_.lattice_.bounds[0] == (-3.0, 3.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_outside_of_the_bounds_are_nan_and_those_at_them_are_not(rng, dtype):
    X = rng.uniform(size=(20, 2))
    map_ = EquispacedFourierFeatures(SMOOTH, tol=1e-2, bounds=[(0.0, 1.0), (-1.0, 2.0)]).fit(X)
    rows = np.array([[0, -1], [1, 2], [0.5, 2 + 1e-6], [-1e-6, 0], [0.5, 0.5], [1e9, 0]], dtype)
    Z = map_.transform(rows)
    outside = [False, False, True, True, False, True]
    assert np.isnan(Z).all(axis=1).tolist() == np.isnan(Z).any(axis=1).tolist() == outside
    assert map_.specification_.outside(rows).tolist() == outside


def test_single_precision_rows_may_lie_at_the_bounds(rng):
    X = np.array([[0.0], [0.1], [0.05]], dtype=np.float32)
    map_ = EquispacedFourierFeatures(Gaussian(0.3), bounds=[(0.0, 0.1)]).fit(X)
    assert np.isfinite(map_.transform(X)).all()


@pytest.mark.parametrize("period", [{"hour": 24}, {1: 24.0}, {"1": np.float64(24)}], ids=str)
def test_the_kernel_is_periodic_in_a_column_with_a_period(rng, period):
    frame = pd.DataFrame({"x": rng.uniform(size=20), "hour": rng.uniform(0, 24, 20)})
    kernel = Gaussian((0.5, 3.0))
    map_ = EquispacedFourierFeatures(kernel, tol=1e-4, period=period).fit(frame)
    assert map_.lattice_.bounds[1] is None
    X = frame.to_numpy()
    turned = X + np.array([0.0, 24.0]) * rng.integers(-40, 40, (20, 1))
    Z = map_.transform(pd.DataFrame(turned, columns=["x", "hour"]))
    # The sum over periods; that of farther ones is below e^−100.
    images = sum(kernel(X, X + np.array([0.0, 24.0 * n])) for n in range(-4, 5))
    # Hours of up to 1,000 are rounded to 1e-13; a wave turns by up to 2πm/24 an hour.
    assert np.abs(Z @ Z.T - images).max() <= map_.kernel_error_ + 1e-10


def test_a_period_needs_no_wider_range_than_its_own(rng):
    """Rows of many periods have the lattice of one."""
    X = rng.uniform(0, 24, (30, 1))
    one, other = (
        EquispacedFourierFeatures(Gaussian(3.0), period={0: 24}).fit(rows).lattice_ for rows in (X, 1000 * X)
    )
    assert one == other
    assert one.spacing == (1 / 24,)


WIDE = {"bounds": [(-9, 9), (-9, 9)]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": "x"}, "bounds must map columns to values, got 'x'"),
        ({"bounds": [3, 4]}, "pair of numbers, least and largest, got 3"),
        ({"bounds": ["ab", None]}, "pair of numbers, least and largest, got 'ab'"),
        ({"bounds": [(0, 1, 2)]}, r"pair of numbers, least and largest, got \(0, 1, 2\)"),
        ({"bounds": {0: (0, math.nan)}}, "pair of numbers"),
        ({"bounds": {0: (-math.inf, 0)}}, "pair of numbers"),
        ({"bounds": {0: (False, True)}}, "pair of numbers"),
        ({"bounds": {0: (1, 0)}}, r"its least and its largest value, got \(1, 0\)"),
        ({"bounds": {"z": (0, 1)}}, "bounds names column 'z'; the columns are x, y"),
        ({"bounds": {-1: (0, 1)}}, "name columns or number them from 0, got -1"),
        ({"bounds": {True: (0, 1)}}, "name columns or number them from 0, got True"),
        ({"bounds": {0: (0, 1), "x": (0, 1)}}, "bounds has two values for column x"),
        ({"bounds": [(0, 1)] * 3}, "name column 2, but there are 2 columns"),
        ({"bounds": {"y": (0, 0.5)}}, r"'y' has values from .* to .*, outside of its bounds 0 to 0.5; widen"),
        ({"period": 24}, "period must map columns to periods"),
        ({"period": {"z": 24}}, "period names column 'z'"),
        ({"period": {7: 24}}, "name column 7, but there are 2 columns"),
        *(
            ({"period": {"x": p}}, "the period of column .* must be")
            for p in (0, -1, math.nan, math.inf, "24", None, True)
        ),
        ({"period": {"x": 24}, "bounds": {"x": (0, 1)}}, "'x' has both bounds and a period"),
        *(({"tol": t}, "tol must be") for t in (0, -1e-3, 1, 2.0, math.nan, "small", None)),
        *(({"n_components": n}, "n_components must be") for n in (0, -5, 2.5, "many", True)),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_in_one_line(rng, options, message):
    frame = pd.DataFrame(rng.uniform(size=(20, 2)), columns=["x", "y"])
    frame.iloc[0] = 0.9
    map_ = EquispacedFourierFeatures(SMOOTH, **options)
    with pytest.raises(InputError, match=message) as refusal:
        map_.fit(frame)
    assert "\n" not in str(refusal.value)
    assert not hasattr(map_, "specification_")


def test_names_are_refused_where_columns_have_none(rng):
    with pytest.raises(InputError, match="bounds names column 'x'; columns have no names here; number them"):
        fitted(rng, bounds={"x": (0, 100)})


@pytest.mark.parametrize(
    ("kernel", "d", "message"),
    [
        (Polynomial(2), 2, "need a shift-invariant kernel, got Polynomial.*use NystroemFeatures"),
        (Gaussian() + Polynomial(2), 2, "need a shift-invariant kernel"),
        (Laplacian(metric=np.eye(2)), 2, "a metric of Gaussian and Matern kernels alone"),
        (Matern(metric="learned"), 2, "need a metric in numbers.*use FourierFeatures"),
        (Gaussian((1.0, 2.0, 3.0)), 2, "3 widths, the data 2 columns"),
        (SMOOTH + Gaussian((1.0,)), 2, "1 widths, the data 2 columns"),
        ("gaussian", 2, "kernel must be a distrff kernel or None"),
        (SMOOTH, 4, "for 1 to 3 columns, got 4; choose columns, .*or use FourierFeatures"),
        (None, 7, "for 1 to 3 columns, got 7"),
    ],
    ids=str,
)
def test_kernels_and_columns_that_it_is_not_for_are_refused(rng, kernel, d, message):
    map_ = EquispacedFourierFeatures(kernel)
    with pytest.raises(InputError, match=message):
        map_.fit(rng.uniform(size=(20, d)))
    assert not hasattr(map_, "specification_")


# The map as a value.


def test_what_is_decided_depends_on_the_seed_alone(rng):
    X = box_rows(rng, 60, 2)
    y, seed = np.sin(5 * X[:, 0]), seed_of(rng)
    sample = Sample(X, y, None, seed, RowsInMemory(X, None))
    one, other = (EquispacedFourierFeatures(Matern("auto"), 500).fit_sample(sample) for _ in range(2))
    assert one.specification_ == other.specification_


@pytest.mark.parametrize("kernel", [SMOOTH, Gaussian(0.5) + 2.0 * SMOOTH, Gaussian(0.5) * SMOOTH], ids=repr)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_map_comes_back_from_json_and_pickle_with_the_same_bits(rng, kernel, d):
    map_, X = fitted(rng, kernel, d, tol=1e-2, period={0: 3.0})
    spec, Z = map_.specification_, map_.transform(X)
    stored = map_from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert type(stored) is type(spec) and stored == spec and hash(stored) == hash(spec)
    assert stored.lattice == map_.lattice_ and stored.kernel == kernel
    assert stored.build().apply(X).tobytes() == Z.tobytes()
    arrays = {name: A.copy() for name, A in spec.checked_arrays().items()}
    assert replace(stored, digest="").build(arrays).apply(X).tobytes() == Z.tobytes()
    again = pickle.loads(pickle.dumps(map_))
    assert again.transform(X).tobytes() == Z.tobytes()
    assert len(pickle.dumps(map_)) < 4000


def test_an_example_is_a_row_that_it_is_for(rng):
    map_, _ = fitted(rng, d=3, tol=0.1, period={2: 5.0})
    assert map_.specification_.example.shape == (1, 3)
    assert np.isfinite(map_.transform(map_.specification_.example)).all()


# The lattice.


def lattice(**changed):
    values = {
        "n_columns": 3,
        "columns": [0, 2],
        "modes": [20, 15],
        "spacing": [0.4, 0.5],
        "centre": [0.5, 0.0],
        "bounds": [[0.0, 1.0], [7.0, 7.0], None],
    }
    return Lattice.from_dict(values | changed)


def test_phases_are_those_of_the_centre_and_the_period(rng):
    X = rng.uniform(size=(50, 3))
    X[:, 2] *= 100
    first, second = lattice().phases(X)
    np.testing.assert_allclose(first, 2 * np.pi * 0.4 * (X[:, 0] - 0.5), rtol=1e-14, atol=1e-15)
    assert np.abs(second).max() <= np.pi
    np.testing.assert_allclose(np.exp(1j * second), np.exp(2j * np.pi * 0.5 * X[:, 2]), atol=1e-12)
    assert first.dtype == second.dtype == np.float64


@pytest.mark.parametrize("tol", [1e-2, 1e-4])
@pytest.mark.parametrize("kernel", [Gaussian(0.3), Matern(0.5, nu=2.5), Matern((0.3, 0.6))], ids=repr)
def test_the_resolving_part_is_the_smallest_within_the_tolerance(rng, kernel, tol):
    map_, _ = fitted(rng, kernel, tol=tol / 1000)
    found = map_.lattice_.resolving(kernel, tol)
    assert found.error(kernel) <= tol
    assert found.n_modes < map_.lattice_.n_modes
    assert found == replace(map_.lattice_, modes=found.modes)
    fewer = replace(found, modes=tuple(m - 1 for m in found.modes))
    assert fewer.error(kernel) > tol


def test_a_kernel_that_the_lattice_has_no_room_for_is_not_resolved(rng):
    map_, _ = fitted(rng, Gaussian(0.3), tol=1e-4)
    assert map_.lattice_.resolving(Gaussian(0.1), 1e-4) is None  # more modes
    assert map_.lattice_.resolving(Gaussian(0.6), 1e-4) is None  # a wider margin
    assert map_.lattice_.resolving(Gaussian(0.3), 1e-3) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"n_columns": 4},
        {"n_columns": "3"},
        {"columns": []},
        {"columns": [2, 0]},
        {"columns": [0, 3]},
        {"modes": [20]},
        {"modes": [20, -1]},
        {"modes": [20, 2**31]},
        {"modes": [20, 1.5]},
        {"spacing": [0.4]},
        {"spacing": [0.4, 0.0]},
        {"spacing": [0.4, math.inf]},
        {"centre": [math.nan, 0.0]},
        {"centre": [None, 0.0]},
        {"bounds": None},
        {"bounds": [None, None]},
        {"bounds": [None, None, [1.0, 0.0]]},
        {"bounds": [None, None, [0.0, "1"]]},
    ],
    ids=str,
)
def test_a_damaged_lattice_is_refused(changed):
    with pytest.raises(ModelFileError, match="lattice of frequencies is damaged"):
        lattice(**changed)


def test_a_lattice_of_other_columns_is_refused(rng):
    data = fitted(rng, d=2)[0].specification_.to_dict()
    with pytest.raises(ModelFileError, match="differ in columns"):
        map_from_dict(data | {"n_columns": 3})


def test_a_kernel_of_long_range_leaves_few_modes_to_short_waves(rng):
    """With periods as wide as its images ask for, 28 times the box, these were off by .09 to .4 of 1."""
    kernel, alpha = Matern(3.0, nu=0.5), 1e-4
    x = np.linspace(0, 1, 501)[:, None]
    is_seen = (abs(x[:, 0] - 0.5) > 0.1) & (np.arange(501) % 2 > 0)
    K = kernel(x)
    Y = (np.linalg.cholesky(K + alpha * np.eye(501)) @ rng.standard_normal((501, 8)))[is_seen]
    exact = Y.mean(axis=0) + K[:, is_seen] @ np.linalg.solve(
        K[is_seen][:, is_seen] + alpha * np.eye(len(Y)), Y - Y.mean(axis=0)
    )
    model = KernelRidge(EquispacedFourierFeatures(kernel, 601), alpha=alpha).fit(x[is_seen], Y)
    assert np.sqrt(np.mean((model.predict(x) - exact) ** 2)) < 0.07


def test_images_of_a_periodic_column_count_for_the_errors_of_another(rng):
    """A width of several periods has a k(0) of several times that of the kernel."""
    X = rng.uniform([0, 0], [24, 1], (40, 2))
    kernel, tol = Matern((100.0, 0.3), nu=1.5), 1e-2
    map_ = EquispacedFourierFeatures(kernel, tol=tol, period={0: 24.0}).fit(X)
    Z = map_.transform(X)
    shifts = 24.0 * np.arange(-200, 201)
    exact = sum(kernel(X + np.array([shift, 0.0]), X) for shift in shifts)
    assert map_.kernel_error_ <= tol
    assert np.abs(Z @ Z.T - exact).max() <= map_.kernel_error_ + 1e-10
