"""The sampling choices of Fourier features: their laws, errors, arrays, and what each refuses."""

import re
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import hadamard
from scipy.special import hyp1f1

from distrff import Cauchy, Exponential, FourierFeatures, Gaussian, Laplacian, Matern
from distrff.errors import InputError
from distrff.features.fourier import (
    FORMS,
    MIN_STRUCTURED_COLUMNS,
    SAMPLING_CHOICES,
    SAMPLINGS,
    STRUCTURED_SAMPLINGS,
    component_order,
    draw_frequencies,
    resolved_sampling,
)
from distrff.features.structured import SKETCH_COLUMNS, gaussian_sketch_error, padded_size, signed_transform
from tests.support.draws import pairs, seed_of

D_COLUMNS = 20
NARROW = Gaussian(4.0)
SUM = 2.0 * NARROW + Matern((3.0,) * D_COLUMNS, nu=2.5)
PRODUCT = Gaussian((4.0,) * D_COLUMNS) * Matern((8.0,) * D_COLUMNS, nu=2.5)
CHOICES = [choice for choice in SAMPLING_CHOICES if choice != "auto"]
NEW = ("qmc", *STRUCTURED_SAMPLINGS)


def fitted(sampling, *, kernel=NARROW, n_components=128, n_columns=D_COLUMNS, form="cos_sin", seed=0):
    map_ = FourierFeatures(kernel, n_components, form=form, sampling=sampling, random_state=seed)
    return map_.fit(np.zeros((1, n_columns)))


def mean_and_error(products):
    return np.mean(products, axis=0), np.std(products, axis=0, ddof=1) / np.sqrt(len(products))


# Unbiased: every single frequency has the measure's own distribution, so that E cos ωδ = k(δ)/k(0).


@pytest.mark.parametrize(
    ("sampling", "form", "kernel"),
    [
        ("iid", "cos_sin", Gaussian((0.5, 1.0, 2.0, 2.0, 3.0))),
        ("iid", "phase", Laplacian(3.0)),
        ("iid", "complex", 3.0 * Matern(1.5) + 3.0 * Cauchy(2.0)),
        ("iid", "cos_sin", Exponential(2.0) * Gaussian(1.0)),
        ("orthogonal", "phase", Gaussian(2.0)),
        ("orthogonal", "complex", Matern(2.0) + Gaussian(1.0)),
        ("orthogonal", "cos_sin", 2.0 * Matern(3.0) * Gaussian(4.0)),
        ("qmc", "phase", Gaussian(2.0)),
        ("qmc", "complex", Laplacian(4.0)),
        ("qmc", "cos_sin", 2.0 * Matern(3.0) + Cauchy(2.0)),
        ("qmc", "phase", Exponential(2.0) * Gaussian(4.0)),
        ("fastfood", "complex", Gaussian(2.0)),
        ("fastfood", "cos_sin", 2.0 * Matern(3.0) + Gaussian(2.0)),
        (
            "fastfood",
            "phase",
            Gaussian((2.0, 1.0, 3.0, 2.0, 5.0)) * Matern((4.0, 2.0, 6.0, 4.0, 10.0), nu=2.5),
        ),
    ],
    ids=repr,
)
def test_the_mean_product_is_the_kernel(rng, sampling, kernel, form):
    # No two rows are so close that their products are all but constant. Of a sum, half of the 24 or 48
    # frequencies each: exactly its shares.
    X, seed = 2.0 * np.tri(6, 5, -1), seed_of(rng)
    options = dict(kernel=kernel, n_columns=5, n_components=48, form=form)
    products = [pairs(fitted(sampling, seed=seed + i, **options).transform(X)) for i in range(150)]
    expected = kernel(X)[np.triu_indices(6, 1)]
    # Eight standard errors over independent seeds: Student's t of 149 degrees, whose tails of 3e-13 grow
    # a hundredfold by a skewness of the products below .5. The floor is a pair whose products hardly vary.
    for part, k in ((np.real, expected), (np.imag, 0.0)):
        mean, error = mean_and_error([part(p) for p in products])
        assert np.all(np.abs(mean - k) <= 8 * error + 1e-12)


def independent_variance(z, m):
    """Of the mean of m cosines at independent normal frequencies: (1 − κ²)²/2m, κ = exp(−z²/2)."""
    return np.square(1 - np.exp(-np.square(z))) / (2 * m)


def orthogonal_variance(z, m, d):
    """Frequencies of a block have the covariance E cos cos − κ² besides.

    ω_i ± ω_j has a uniform direction and a length of the square χ²_2d, so that with the mean of cosines at
    such a direction, ₀F₁(d/2; −t²/4), E cos cos = Σ_k (−z²/2)^k (d)_k/(k! (d/2)_k) = ₁F₁(d; d/2; −z²/2).
    """
    covariance = hyp1f1(d, d / 2, -np.square(z) / 2) - np.exp(-np.square(z))
    return independent_variance(z, m) + (d - 1) / m * covariance


def fastfood_variance_bound(z, m):
    """Le, Sarlós and Smola 2013: 2(1 − exp(−z²))²/m + C(z)/m, C(z) = 6z⁴(exp(−z²) + z²/3)."""
    C = 6 * z**4 * (np.exp(-np.square(z)) + np.square(z) / 3)
    return 4 * independent_variance(z, m) + C / m


@pytest.mark.parametrize("sampling", ["iid", "orthogonal", "qmc", "fastfood"])
def test_the_variance_is_that_of_the_theory(rng, sampling):
    """Of the kernel at four distances along a column and along all, two blocks of 16 frequencies."""
    d, m, n_seeds, z = 16, 32, 400, np.tile([0.5, 1.0, 2.0, 3.0], 2)
    directions = np.repeat([np.eye(d)[3], np.full(d, d**-0.5)], 4, axis=0)
    deltas, seed = z[:, None] * directions, seed_of(rng)
    options = dict(kernel=Gaussian(), n_columns=d, n_components=2 * m)
    drawn = (fitted(sampling, seed=seed + i, **options).frequencies_ for i in range(n_seeds))
    products = [np.cos(deltas @ W).mean(axis=1) for W in drawn]
    mean, error = mean_and_error(products)
    assert np.all(np.abs(mean - np.exp(-np.square(z) / 2)) <= 8 * error)
    variance, error = mean_and_error(np.square(products - mean))
    if sampling in ("iid", "orthogonal"):
        theory = independent_variance(z, m) if sampling == "iid" else orthogonal_variance(z, m, d)
        assert np.all(np.abs(variance - theory) <= 8 * error)
    else:
        bound = independent_variance(z, m) if sampling == "qmc" else fastfood_variance_bound(z, m)
        assert np.all(variance - 8 * error <= bound)


def mean_squares(rng, samplings, n_seeds=120, n_columns=16):
    """Of the kernel error over the pairs of 60 rows N(0, I), ℓ = √d, cos_sin, 256 columns, a row a seed."""
    squares, first, kernel = {s: [] for s in samplings}, seed_of(rng), Gaussian(np.sqrt(n_columns))
    for seed in range(first, first + n_seeds):
        X = rng.standard_normal((60, n_columns))
        expected = kernel(X)[np.triu_indices(60, 1)]
        for s in samplings:
            map_ = fitted(s, kernel=kernel, n_components=256, n_columns=n_columns, seed=seed)
            squares[s].append(np.mean((pairs(map_.transform(X)) - expected) ** 2))
    return {s: np.array(values) for s, values in squares.items()}


def ratio_of_roots(first, second):
    """√(mean of first/mean of second), and its standard error by the delta method over paired seeds."""
    ratio = first.mean() / second.mean()
    error = np.std(first - ratio * second, ddof=1) / (second.mean() * np.sqrt(len(first)))
    return np.sqrt(ratio), error / (2 * np.sqrt(ratio))


def test_errors_against_independent_and_orthogonal_frequencies(rng):
    squares = mean_squares(rng, ("iid", "orthogonal", "qmc", "sorf", "fastfood"))
    # The limits of many seeds are .65, 1.00 and 1.27; six standard errors stay clear of the bounds.
    for sampling, reference, most in (
        ("qmc", "iid", 0.8),
        ("sorf", "orthogonal", 1.1),
        ("fastfood", "iid", 1.4),
    ):
        ratio, error = ratio_of_roots(squares[sampling], squares[reference])
        assert ratio - 6 * error <= most
        assert ratio <= most + 0.05
    # The limit is .563. A mean square varies by 0.14 (iid) and 0.3 (orthogonal) of itself from seed to seed,
    # and the ratio of the roots of two means of 120 by .0066: .6 is more than five deviations away.
    assert ratio_of_roots(squares["orthogonal"], squares["iid"])[0] <= 0.6


def test_the_bias_of_sorf_is_small_and_falls_with_the_columns(rng):
    """Differences of 3ℓ in one, two and four columns alike; .02 at 16 columns, where they are two or four."""
    for n_columns, n_seeds in ((16, 600), (256, 300)):
        deltas = np.zeros((3, n_columns))
        deltas[0, :1], deltas[1, :2], deltas[2, :4] = 3.0, 3.0 / np.sqrt(2), 1.5
        seed, options = seed_of(rng), dict(kernel=Gaussian(), n_columns=n_columns)
        maps = (fitted("sorf", seed=seed + i, **options) for i in range(n_seeds))
        drawn = [np.cos(deltas @ map_.frequencies_).mean(axis=1) for map_ in maps]
        mean, error = mean_and_error(drawn)
        assert np.all(np.abs(mean - np.exp(-4.5)) <= 1 / n_columns + 6 * error)


# What a structured map stands for


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("size", "n_rows"), [*product((8, 16, 32, 64, 128, 256, 512, 1024), (16, 48)), (4096, 48)]
)
def test_the_fast_transform_is_the_product_with_the_matrix(rng, size, n_rows, dtype):
    A = rng.integers(-100, 101, (size, n_rows)).astype(dtype)
    expected = hadamard(size, dtype=float) @ A.astype(float)
    signed_transform(A.reshape(-1), A.reshape(-1), np.arange(size), np.ones(size, dtype), n_rows)
    np.testing.assert_array_equal(A, expected)  # whole numbers below 2²⁴: without rounding in both formats


def dense_of(sampling, arrays, widths):
    """W from the formulas, with explicit Hadamard matrices and sketches."""
    if sampling == "countsketch":
        S = np.zeros((len(arrays["sketched"]), len(widths)))
        S[arrays["buckets"], np.arange(len(widths))] = arrays["signs"]
        return (S / widths).T @ arrays["sketched"]
    size, radii = arrays["signs"].shape[-1], arrays["radii"]
    H = hadamard(size).astype(float)
    if sampling == "sorf":
        blocks = [(H * c) @ (H * b) @ (H * a) / size**1.5 for a, b, c in arrays["signs"].astype(float)]
    else:
        drawn = zip(arrays["signs"], arrays["normal"], arrays["order"], strict=True)
        blocks = [(H * g) @ (H * b)[p] / np.linalg.norm(g) / np.sqrt(size) for b, g, p in drawn]
    directions = np.concatenate(blocks)[: len(radii)]
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, rtol=1e-12)
    return (radii[:, None] * directions)[:, : len(widths)].T / np.reshape(widths, (-1, 1))


@pytest.mark.parametrize(
    ("sampling", "n_columns"),
    [
        *((sampling, d) for sampling in STRUCTURED_SAMPLINGS for d in (16, 17, 32, 100)),
        *(("fastfood", d) for d in (1, 2, 3, 9)),
    ],
)
def test_frequencies_are_those_of_the_formula(rng, sampling, n_columns):
    widths = tuple(rng.uniform(1.0, 4.0, n_columns))
    options = dict(n_components=300, n_columns=n_columns, seed=seed_of(rng))
    map_ = fitted(sampling, kernel=Matern(widths, nu=2.5), **options)
    W = dense_of(sampling, map_.specification_.derive(), np.array(widths))
    assert map_.frequencies_.shape == (n_columns, 150)
    np.testing.assert_allclose(map_.frequencies_, W, rtol=0, atol=1e-12 * np.abs(W).max())
    if sampling == "sorf" and n_columns in (16, 32):  # the directions of a block are orthogonal
        U = W * np.reshape(widths, (-1, 1))
        U = (U / np.linalg.norm(U, axis=0))[:, :n_columns]
        np.testing.assert_allclose(U.T @ U, np.eye(n_columns), atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [NARROW, SUM, PRODUCT], ids=["gaussian", "sum", "product"])
@pytest.mark.parametrize("sampling", NEW)
def test_rows_of_any_number_give_cosines_of_the_dense_product(rng, sampling, kernel, form, dtype):
    map_ = fitted(sampling, kernel=kernel, n_components=90, form=form, seed=seed_of(rng))
    X = rng.standard_normal((53, D_COLUMNS)).astype(dtype)
    arrays = map_.specification_.derive()
    theta = X.astype(float) @ map_.frequencies_ + arrays.get("phases", 0.0)
    m = theta.shape[1]
    scale = np.sqrt((2.0 if form == "phase" else 1.0) * kernel.at_zero / m)
    if form == "cos_sin":
        expected = np.stack([np.cos(theta), np.sin(theta)], axis=2).reshape(53, 90)
    else:
        expected = np.cos(theta) if form == "phase" else np.exp(1j * theta)
    Z = map_.transform(X)
    assert Z.dtype == np.result_type(dtype, np.complex64 if form == "complex" else dtype)
    # A phase is a sum whose terms, in any order and any transform, add to at most ‖x‖₁·‖ω‖·d'/d'^½.
    unit = 2.0**-24 if dtype == np.float32 else 2.0**-53
    W_norm = np.linalg.norm(map_.frequencies_, axis=0).max()
    error = 64 * unit * (1 + 6 * np.abs(X).sum(axis=1).max() * W_norm)
    np.testing.assert_allclose(Z / scale, expected, rtol=0, atol=error)
    for n in (0, 1, 15, 16, 17):  # tiles that are not full: the same bits where the product is one of ours
        some = map_.transform(X[:n]) if n else map_.apply(X[:0])
        np.testing.assert_allclose(some, Z[:n], rtol=0, atol=error * scale)
        if sampling in ("sorf", "fastfood"):
            np.testing.assert_array_equal(some, Z[:n])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("sampling", "kernel"),
    [
        *((sampling, kernel) for sampling in CHOICES for kernel in (NARROW, SUM, PRODUCT)),
        *((s, k) for s in ("iid", "qmc") for k in (Laplacian(), Cauchy(2.0) + Exponential() * Laplacian())),
    ],
)
def test_leading_columns_are_the_smaller_map(rng, sampling, kernel, form):
    X, seed = rng.standard_normal((20, D_COLUMNS)), seed_of(rng)
    large = fitted(sampling, kernel=kernel, n_components=128, form=form, seed=seed)
    assert large.nested_sizes() == (16, 32, 64, 128)
    for size in (16, 32, 64):
        small = fitted(sampling, kernel=kernel, n_components=size, form=form, seed=seed)
        if sampling in SAMPLINGS:
            m = small.frequencies_.shape[1]
            np.testing.assert_array_equal(large.frequencies_[:, :m], small.frequencies_)
        leading = large.transform(X)[:, :size] * np.sqrt(128 / size)
        np.testing.assert_allclose(small.transform(X), leading, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [NARROW, SUM], ids=["gaussian", "sum"])
@pytest.mark.parametrize("sampling", CHOICES)
def test_the_cost_is_known_before_the_fit_and_counts_the_arrays(sampling, kernel, form):
    """As drawn, and a dense product's as used: the least that a process holds."""
    map_ = fitted(sampling, kernel=kernel, form=form)
    spec = map_.specification_
    assert spec.cost == map_.outline(D_COLUMNS, 100).cost
    drawn = sum(A.nbytes for name, A in spec.derive().items() if name != "phases")
    assert drawn <= 8 * spec.cost.numbers(spec.n_features)
    large, iid = (
        FourierFeatures(None, sampling=s).outline(784, 9).cost.numbers(8192) for s in (sampling, "iid")
    )
    assert large < iid / 150 or sampling not in ("sorf", "fastfood")


@pytest.mark.parametrize("form", ["cos_sin", "phase"])
def test_the_flops_of_a_row_are_those_of_the_loops(form):
    """784 columns, 1100 frequencies: padded to 1024, of which two blocks are transformed."""
    assert [padded_size(d) for d in (1, 8, 9, 16, 784, 1024, 1025)] == [8, 8, 16, 16, 1024, 1024, 2048]
    D = 2200 if form == "cos_sin" else 1100

    def flops(sampling, kernel=None):
        return FourierFeatures(kernel, D, form=form, sampling=sampling).outline(784, 9).cost.flops(D)

    assert flops("iid") == flops("qmc") == pytest.approx(2 * 784 * 1100)
    assert flops("sorf") == flops("auto") == pytest.approx(2 * 3 * (10 + 1) * 1024 + 1100)
    assert flops("fastfood") == pytest.approx(2 * 2 * (10 + 1) * 1024 + 1100)
    assert flops("countsketch") == pytest.approx(2 * 784 + 2 * 2048 * 1100)
    # Half of the frequencies each: a block in place of two.
    assert flops("sorf", SUM) == pytest.approx(flops("sorf"))
    assert flops("countsketch", SUM) == pytest.approx(2 * 2 * 784 + 2 * 2048 * 1100)


@pytest.mark.parametrize("kernel", [NARROW, SUM], ids=["gaussian", "sum"])
@pytest.mark.parametrize("sampling", CHOICES)
def test_no_phase_is_larger_than_its_bound(rng, sampling, kernel):
    map_ = fitted(sampling, kernel=kernel, seed=seed_of(rng))
    X = 10 * rng.standard_normal((200, D_COLUMNS))
    bound = map_.specification_.build().prepared.projection.largest_phases(np.abs(X).max(axis=0))
    largest = np.abs(X @ map_.frequencies_).max(axis=0)
    assert np.all(largest <= bound * (1 + 1e-12))
    assert np.all(bound <= 100 * largest)


def test_auto_is_orthogonal_for_narrow_rows_and_structured_for_wide_ones(rng):
    wide = MIN_STRUCTURED_COLUMNS
    for kernel, m, d, expected in [
        (Gaussian(), 4096, wide, "sorf"),
        (Gaussian() + Matern(), 4096, wide, "sorf"),
        (Gaussian(), 4096, wide - 1, "orthogonal"),
        (Gaussian(), wide // 2 - 1, wide, "orthogonal"),
        (Laplacian(), 4096, wide, "iid"),
        (Gaussian() + Cauchy(), 4, 2, "iid"),
    ]:
        assert resolved_sampling("auto", kernel, m, d) == expected
        assert all(resolved_sampling(choice, kernel, m, d) == choice for choice in CHOICES)
    for n_columns, choice in ((4, "orthogonal"), (200, "sorf")):
        auto, own = (fitted(s, n_columns=n_columns, n_components=512) for s in ("auto", choice))
        assert (auto.sampling, auto.sampling_, own.sampling_) == ("auto", choice, choice)
        assert auto.specification_ == own.specification_


@pytest.mark.parametrize(
    ("sampling", "options", "message"),
    [
        *(
            (s, dict(kernel=kernel), f"sampling='{s}' needs.*rotation invariant.*use sampling='iid'")
            for s in ("orthogonal", *STRUCTURED_SAMPLINGS)
            for kernel in (Laplacian(), Cauchy(2.0), Gaussian() + Cauchy(), Gaussian() * Laplacian())
        ),
        ("orthogonal", dict(kernel=Cauchy(2.0)), re.escape(repr(Cauchy(2.0)))),
        *((s, dict(kernel=Gaussian((1.0, 2.0, 3.0))), "3 widths, the data 20 columns") for s in CHOICES),
        ("sorf", dict(n_columns=15), r"at least 16 columns.*got 15; use sampling='orthogonal'"),
        ("qmc", dict(n_columns=30_000, n_components=2), r"30000 coordinates.*use sampling='orthogonal'"),
    ],
)
def test_kernels_and_columns_that_do_not_fit_are_refused(sampling, options, message):
    with pytest.raises(InputError, match=message):
        fitted(sampling, **options)


# CountSketch: sparse rows, and the error that the sketch is allowed

N_COLUMNS = 30_000


def sparse_rows(rng, n_rows, dtype=np.float64, density=0.001):
    n = max(1, int(density * n_rows * N_COLUMNS))
    places = rng.integers(n_rows, size=n), rng.integers(N_COLUMNS, size=n)
    return sp.csr_array((rng.standard_normal(n).astype(dtype), places), shape=(n_rows, N_COLUMNS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [Gaussian(5.0), Gaussian(5.0) + Matern(6.0, nu=2.5)], ids=["one", "sum"])
def test_sparse_rows_give_the_values_of_dense_ones(rng, dtype, kernel):
    X = sparse_rows(rng, 30).astype(dtype)
    map_ = FourierFeatures(kernel, 32, sampling="countsketch", random_state=0).fit(X)
    Z = map_.transform(X)
    assert Z.dtype == dtype
    assert isinstance(Z, np.ndarray)
    np.testing.assert_array_equal(Z, map_.transform(X.toarray()))
    np.testing.assert_array_equal(Z, map_.transform(X.tocsc()))
    np.testing.assert_array_equal(Z, map_.fit(X.toarray()).transform(X))


def test_sparse_rows_are_not_for_hadamard_products_nor_for_a_likelihood(rng):
    X = sparse_rows(rng, 5)
    for kernel, sampling in ((Gaussian(), "fastfood"), (Gaussian("ard"), "countsketch")):
        with pytest.raises(TypeError, match=r"[Ss]parse"):
            FourierFeatures(kernel, 8, sampling=sampling).fit(X)
    with pytest.raises(InputError, match=r"X has 5 rows but y has shape \(4,\)"):
        FourierFeatures(Gaussian(), 8, sampling="countsketch").fit(X, np.zeros(4))


def test_the_error_is_within_its_bound(rng):
    """Of distances up to 2ℓ: the bias, and the mean square that the sketch and m frequencies leave."""
    n_maps, m, seed = 200, 64, int(rng.integers(2**62))
    X = np.zeros((4, 64))
    X[1, 0], X[2, :64], X[3, :2] = 1.0, 0.25, np.sqrt(2.0)  # at distances 1, 2 and 2, few columns and many
    squares = np.square(X[1:] - X[0]).sum(axis=1)
    errors = np.empty((n_maps, 3))
    for i in range(n_maps):
        Z = FourierFeatures(Gaussian(), 2 * m, sampling="countsketch", random_state=seed + i).fit_transform(X)
        errors[i] = Z[1:] @ Z[0] - np.exp(-squares / 2)
    standard_error = errors.std(axis=0) / np.sqrt(n_maps)
    assert np.all(np.abs(errors.mean(axis=0)) <= gaussian_sketch_error(squares) + 6 * standard_error)
    mean_square = np.square(errors).mean(axis=0)
    its_error = np.square(errors).std(axis=0) / np.sqrt(n_maps)
    assert np.all(mean_square <= 1 / (2 * m) + squares**2 / (2 * SKETCH_COLUMNS) + 6 * its_error)


WIDTHS = (0.5, 1.0, 2.0, 4.0)
SPHERICAL = [
    Gaussian(2.0),
    Gaussian(WIDTHS),
    3.0 * Matern(WIDTHS, nu=1.5),
    Exponential(0.7),
    Gaussian(2.0) * Matern(0.5, nu=2.5),
    Gaussian(WIDTHS) + Matern(2.0),
    0.25 * (Gaussian() + 2.0 * Exponential(3.0)) + Gaussian(5.0),
]


def directions(W, widths):
    U = W * np.reshape(widths, (-1, 1))
    return U / np.linalg.norm(U, axis=0)


@pytest.mark.parametrize(
    ("kernel", "n_columns"),
    [(kernel, 4) for kernel in SPHERICAL] + [(Gaussian(), 1), (Matern((3.0,)), 1), (Exponential(), 40)],
    ids=repr,
)
def test_directions_of_a_block_are_orthogonal_in_each_component(rng, kernel, n_columns):
    """Products of unit columns of a block of d, off by some d units of rounding each."""
    d, components = n_columns, kernel.components()
    m = 3 + 4 * d if len(components) == 1 else 200
    W = draw_frequencies(kernel, m, d, sampling="orthogonal", seed=seed_of(rng))
    order = component_order([share for share, _ in components], m)
    for index, (share, component) in enumerate(components):
        U = directions(W[:, order == index], component.widths(d))
        assert abs(U.shape[1] - m * share) <= len(components)
        for start in range(0, U.shape[1], d):
            block = U[:, start : start + d]
            np.testing.assert_allclose(block.T @ block, np.eye(block.shape[1]), atol=50 * d * 2.0**-53)
