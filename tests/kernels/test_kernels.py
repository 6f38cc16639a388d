"""Kernels: each pair of kernel and measure, values, errors, parity with scikit-learn."""

import dataclasses
import json
import math
import pickle
from decimal import Decimal, localcontext
from functools import partial

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.gaussian_process.kernels import Matern as SklearnMatern
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel, rbf_kernel

from distrff import Cauchy, Exponential, FourierFeatures, Gaussian, Laplacian, Matern, Polynomial
from distrff.errors import InputError
from distrff.kernels.base import Product, Scaled, Sum, kernel_from_dict
from distrff.kernels.stationary import KERNELS
from distrff.utils.random import stream
from tests.support.draws import seed_of

N_COLUMNS = 3
WIDTHS = (0.5, 1.0, 2.0)
P = ((1.0, 0.5, 0.0), (0.0, -1.0, 0.5))
METRICS = [kind(0.9, metric=P) for kind in (Gaussian, Laplacian, Cauchy, Exponential, Matern)]

ALL = [
    Gaussian(),
    Gaussian(WIDTHS),
    Laplacian(0.7),
    Laplacian(WIDTHS),
    Cauchy(),
    Cauchy(WIDTHS),
    Exponential(1.3),
    Exponential(WIDTHS),
    *(Matern(nu=nu) for nu in (0.25, 0.5, 0.8, 1.5, 2.5, 3.2, 40.0)),
    Matern(WIDTHS, nu=1.7),
    2.5 * Cauchy(0.8),
    Gaussian() + 2.0 * Laplacian(3.0),
    Gaussian(0.5) + (Matern(nu=0.8) + Cauchy(WIDTHS)),
    3.0 * (Exponential() + 0.5 * Gaussian(WIDTHS)),
    Gaussian() * Gaussian(),
    Matern(nu=1.5) * Laplacian(2.0) * Cauchy(WIDTHS),
    (Gaussian() + 3.0 * Laplacian()) * (Matern(0.5) + Cauchy()),
    0.5 * (2.0 * (Exponential() + Cauchy()) + Gaussian() * (4.0 * (Gaussian(2.0) + 3.0 * Laplacian(WIDTHS)))),
]
SPHERICAL = [
    Gaussian(),
    Gaussian(WIDTHS),
    Exponential(WIDTHS),
    Matern(WIDTHS, nu=0.25),
    Matern(nu=2.5),
    2.0 * Matern(2.0),
    Gaussian() * Gaussian(),
    Gaussian(WIDTHS) * (3.0 * Matern((1.0, 2.0, 4.0))),
    Exponential(2.0) * Gaussian(0.3) * Matern(0.5, nu=3.0),
    Gaussian(2.0) * Exponential((1.0, 1.0, 1.0)),
]


@pytest.fixture
def seed(rng):
    return seed_of(rng)


def streams(seed, *names):
    return partial(stream, seed, *names)


@pytest.mark.parametrize("kernel", ALL + METRICS, ids=repr)
def test_the_mean_cosine_of_the_frequencies_is_the_kernel(kernel, seed):
    n = 50_000
    deltas = np.array(
        [[0.02, 0.0, 0.0], [0.0, 0.3, -0.1], [1.0, 0.0, 0.0], [0.5, -0.7, 0.9], [1.0, 2.0, -4.0]]
    )
    W = kernel.frequencies(n, N_COLUMNS, streams(seed))
    assert W.shape == (N_COLUMNS, n)
    assert W.dtype == np.float64
    assert np.isfinite(W).all()
    origin = np.zeros((1, N_COLUMNS))
    k = kernel(deltas, origin)[:, 0] / kernel.at_zero
    # cos² θ = (1 + cos 2θ)/2 and E cos θ = k(δ)/k(0), E cos 2θ = k(2δ)/k(0).
    variance = (1.0 + kernel(2 * deltas, origin)[:, 0] / kernel.at_zero) / 2 - k**2
    # Bernstein's inequality holds for every bounded law, however heavy the tails of ω: as
    # |cos θ − k| ≤ b = 1 + |k|, P(|mean − k| > t) ≤ 2 exp(−n t²/(2 variance + 2bt/3)). Solved for t at
    # 1e-12 a comparison, with some hundred comparisons: a false alarm in 1e-10 of all runs.
    level = math.log(2 / 1e-12)
    linear = level * (1 + np.abs(k)) / (3 * n)
    bound = linear + np.sqrt(linear**2 + 2 * level * np.maximum(variance, 0) / n)
    assert np.all(np.abs(np.cos(deltas @ W).mean(axis=1) - k) <= bound)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_no_two_draws_of_an_expression_share_a_stream(kernel, seed):
    names = []

    def recorded(name):
        names.append(name)
        return stream(seed, name)

    W = kernel.frequencies(100, N_COLUMNS, recorded)
    assert len(names) == len(set(names))
    np.testing.assert_array_equal(W, (5.0 * kernel).frequencies(100, N_COLUMNS, streams(seed)))
    np.testing.assert_array_equal(W[:, :7], kernel.frequencies(7, N_COLUMNS, streams(seed)))
    if kernel in SPHERICAL:
        names.clear()
        kernel.radii(10, N_COLUMNS, recorded)
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kernel", "n_columns"),
    [
        *((kernel, N_COLUMNS) for kernel in SPHERICAL),
        *((Gaussian(), 1), (Exponential((0.5,)) * Gaussian(2.0), 1), (Matern(nu=3.0) * Gaussian(2.0), 30)),
    ],
    ids=repr,
)
def test_spherical_kernels_have_radii_and_do_not_change_under_rotation(kernel, n_columns, seed):
    assert kernel.is_spherical
    radii = kernel.radii(20_000, n_columns, streams(seed, "radii"))
    W = kernel.frequencies(20_000, n_columns, streams(seed, "frequencies"))
    norms = np.linalg.norm(kernel.widths(n_columns)[:, np.newaxis] * W, axis=0)
    # Kolmogorov-Smirnov at a level that a dozen cases pass in all but 1e-8 of the runs.
    assert ks_2samp(radii, norms).pvalue > 1e-9
    np.testing.assert_array_equal(radii[:5], kernel.radii(5, n_columns, streams(seed, "radii")))
    rng, widths = stream(seed, "rotation"), kernel.widths(n_columns)
    Q, _ = np.linalg.qr(rng.standard_normal((n_columns, n_columns)))
    U = rng.standard_normal((20, n_columns))
    # Distances keep a few digits of 2⁻⁵² relative to coordinates below ten widths.
    np.testing.assert_allclose(kernel(U * widths), kernel(U @ Q * widths), rtol=1e-12, atol=1e-12)


def test_other_measures_are_not_spherical(seed):
    for kernel in (
        *(Laplacian(), 2.0 * Cauchy(), Gaussian() * Laplacian(), Gaussian() * Gaussian(WIDTHS)),
        Gaussian((1.0, 1.0, 1.1)) * Matern((2.0, 2.0, 2.0)),
        *(Gaussian() + Cauchy(), (Gaussian() + Cauchy()) * Gaussian(), METRICS[0]),
        (Gaussian() + Gaussian(WIDTHS)) * Gaussian(),
    ):
        assert not kernel.is_spherical
        with pytest.raises(InputError, match="no widths"):
            kernel.widths(N_COLUMNS)
        with pytest.raises(InputError, match=r"no (radii|widths)"):
            kernel.radii(5, N_COLUMNS, streams(seed))


@pytest.mark.parametrize(
    "kernel", [k for k in ALL + METRICS if np.isfinite(k.second_moment(N_COLUMNS))], ids=repr
)
def test_the_second_moment_is_the_curvature_at_zero(kernel):
    for rough in (Laplacian(), Exponential(), Matern(nu=0.8), Matern(nu=1.0)):  # infinite
        assert rough.second_moment(1) == (rough + Gaussian()).second_moment(1) == math.inf
        assert (rough * Gaussian()).second_moment(1) == math.inf
        assert (1e-200 * rough + 1e200 * Gaussian()).second_moment(1) == 1.0  # a share of nothing
    # −Σ_j ∂²k/∂δ_j² = Σ_j 2(1 − k(h e_j))/h². For ν = 1.5, 1 − k = s²/2 − s³/3 + …, a relative
    # error of 2s/3 < 3e-4 at s ≤ √3·h/0.5; smoother kernels have less. Rounding adds below 1e-14/h² = 1e-6.
    h = 1e-4
    k = kernel(h * np.eye(N_COLUMNS), np.zeros((1, N_COLUMNS)))[:, 0] / kernel.at_zero
    assert kernel.second_moment(N_COLUMNS) == pytest.approx(np.sum(2 * (1 - k) / h**2), rel=1e-3)


def matrices(seed):
    return stream(seed, "X").standard_normal((30, N_COLUMNS)), stream(seed, "Y").standard_normal(
        (20, N_COLUMNS)
    )


@pytest.mark.parametrize("width", [0.7, WIDTHS])
def test_kernels_equal_those_of_scikit_learn(width, seed):
    X, Y = matrices(seed)
    np.testing.assert_allclose(Gaussian(width)(X, Y), RBF(width)(X, Y), rtol=1e-13)
    # It expands the square, which costs about 1e-15 times the squared norms.
    np.testing.assert_allclose(Gaussian.from_gamma(0.3)(X, Y), rbf_kernel(X, Y, gamma=0.3), rtol=1e-11)
    for nu in (0.5, 0.8, 1.5, 2.5, 3.2):
        # Its Bessel branch moves zero distances by an epsilon; sums of squares keep 14 digits, and
        # exp(−s) turns a relative error of s into s times as much, s < 50.
        np.testing.assert_allclose(Matern(width, nu=nu)(X, Y), SklearnMatern(width, nu=nu)(X, Y), rtol=1e-11)
    np.testing.assert_array_equal(Exponential(width)(X, Y), Matern(width, nu=0.5)(X, Y))
    for kernel in (Polynomial(3, bias=0.5), Polynomial(1, bias=0)):
        theirs = polynomial_kernel(X, Y, degree=kernel.degree, gamma=1.0, coef0=kernel.bias)
        np.testing.assert_allclose(kernel(X, Y), theirs, rtol=1e-12, atol=1e-12)
    for nu in (1e6, 1e12, 1e300):  # k = E exp(−r²/2t), t of variance 1/ν
        np.testing.assert_allclose(Matern(nu=nu)(X, Y), Gaussian()(X, Y), rtol=0, atol=1 / nu + 1e-14)
    assert Cauchy((3.0, 2.0))([[0.0, 0.0]], [[3.0, 4.0]])[0, 0] == pytest.approx(1 / 2 / 5, rel=1e-15)
    assert (2.0 * (Gaussian() + 3.0 * Cauchy()) * (0.5 * Cauchy())).at_zero == 4.0
    of_one, theirs = np.array(width), partial(laplacian_kernel, gamma=1.0)
    np.testing.assert_allclose(Laplacian(width)(X, Y), theirs(X / of_one, Y / of_one), rtol=1e-13)


def exact_matern(p, r):
    """The Matern correlation of ν = p + ½, a polynomial times an exponential, in 50 digits."""
    with localcontext() as context:
        context.prec = 50
        s = Decimal(2 * p + 1).sqrt() * Decimal(r)
        terms = (math.comb(p, i) * Decimal(math.perm(p + i, i)) * (2 * s) ** (p - i) for i in range(p + 1))
        return float(sum(terms) * math.factorial(p) / math.factorial(2 * p) * (-s).exp())


@pytest.mark.parametrize("p", [0, 1, 2, 3, 10, 29, 30, 100, 400])
def test_matern_is_exact_at_every_smoothness_and_distance(p):
    r = np.array([1e-12, 1e-6, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    K = Matern(nu=p + 0.5)(r[:, np.newaxis], [[0.0]])[:, 0]
    # The exponent reaches s ≈ 16√(2ν), at most 130 where it is large, or 450 for the Bessel functions' s.
    np.testing.assert_allclose(K, [exact_matern(p, float(x)) for x in r], rtol=450 * 2**-52)


@pytest.mark.parametrize("kernel", ALL + METRICS, ids=repr)
def test_the_kernel_is_finite_at_all_distances(kernel):
    r = [0.0, 5e-324, 1e-300, 1e-160, 1e-30, 1e-8, 1.0, 30.0, 800.0, 1e5, 1e160, 1e307]
    X = np.zeros((len(r), N_COLUMNS))
    X[:, 0] = r
    k = kernel(X, np.zeros((1, N_COLUMNS)))[:, 0] / kernel.at_zero
    assert np.isfinite(k).all()
    # The Bessel function keeps 14 digits.
    assert np.all(np.diff(k) <= 1e-14)
    np.testing.assert_allclose(k[:4], 1.0, rtol=1e-14)
    assert 0 <= k[-1] < 1e-300
    np.testing.assert_allclose(np.diag(kernel(X)), kernel.at_zero, rtol=1e-15)


@pytest.mark.parametrize("kernel", ALL + METRICS, ids=repr)
def test_the_kernel_matrix_is_symmetric_and_leaves_its_input_alone(kernel, seed):
    X, Y = matrices(seed)
    before = X.copy()
    K = kernel(X)
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(kernel(X.tolist(), Y), kernel(X, Y))
    terms = (share * term(X) / term.at_zero for share, term in kernel.components())
    np.testing.assert_allclose(kernel.at_zero * sum(terms), K, rtol=1e-14)
    # A kernel matrix is positive semi-definite up to rounding.
    assert np.linalg.eigvalsh(K).min() > -1e-13 * kernel.at_zero * len(X)


NESTED = [
    Gaussian("auto") * Laplacian("auto"),
    Sum(Gaussian(), Sum(Cauchy(), Laplacian())),
    Product(Gaussian(), Product(Cauchy(), Laplacian())),
    Product(Gaussian(), Scaled(2.0, Cauchy())),
    Product(Scaled(2.0, Gaussian()), Cauchy()),
    Product(Sum(Gaussian(), Cauchy()), Sum(Cauchy(), Laplacian())),
    Scaled(2.0, Product(Gaussian(), Cauchy())),
    Scaled(2.0, Sum(Gaussian(), Cauchy())),
    Scaled(2.0, Scaled(0.1, Gaussian())),
    Sum(Product(Gaussian(), Cauchy()), Scaled(1e-30, Laplacian())),
    Polynomial(3, bias=2),
    2.0 * Polynomial(3, bias=2) + Gaussian("auto"),
]


LEARNED = [Gaussian("auto", metric="learned"), Matern(metric="learned")]


@pytest.mark.parametrize("kernel", ALL + NESTED + METRICS + LEARNED, ids=repr)
def test_a_kernel_is_a_value(kernel):
    names = {cls.__name__: cls for cls in (*KERNELS.values(), Polynomial)}
    if kernel in METRICS:
        assert kernel != kernel.set_params(metric=[[1.0, 0.0, 0.0]])
        assert kernel.set_params(metric=None) == kernel.without_metric() != kernel
    else:
        assert eval(repr(kernel), names) == kernel
    assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict(), allow_nan=False))) == kernel
    undecided = kernel in LEARNED or "auto" in repr(kernel)
    assert kernel.is_auto == undecided
    assert "learned" in repr(kernel) or not kernel.with_widths(0.5).is_auto
    for copy in (pickle.loads(pickle.dumps(kernel)), kernel.set_params()):
        assert copy == kernel
        assert hash(copy) == hash(kernel)
    assert clone(kernel) is kernel
    assert type(kernel)(**kernel.get_params(deep=False)) == kernel
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.k1 = None


def test_spellings_and_widths_are_canonical():
    assert repr(Matern((1, 2), nu=2.5)) == "Matern(length_scale=(1.0, 2.0), nu=2.5)"
    expected = "Gaussian(length_scale=1.0) + 2.0*Laplacian(length_scale=3.0)"
    assert repr(Gaussian() + 2 * Laplacian(3)) == expected
    assert repr((Gaussian() + Cauchy()) * Cauchy()).startswith("(Gaussian(length_scale=1.0) + Cauchy(")
    assert Gaussian([1, 2]) == Gaussian((1.0, 2.0)) == Gaussian(np.array([1, 2], dtype=np.int8))
    assert Gaussian(np.float32(2)) == Gaussian(2) == Gaussian(np.array(2.0)) == Gaussian.from_gamma(0.125)
    assert type(Gaussian(np.float32(2)).length_scale) is float
    assert Gaussian((1.0, 1.0)) != Gaussian(1.0) != Exponential(1.0) != Matern(1.0, nu=0.5)
    assert np.float64(2) * Gaussian() == Gaussian() * 2 == 2 * Gaussian() == np.array(2.0) * Gaussian()
    kernel = Gaussian("auto") + 2.0 * (Laplacian("auto") * Matern(3.0, nu=0.5))
    assert kernel.with_widths(0.5) == Gaussian(0.5) + 2.0 * (Laplacian(0.5) * Matern(3.0, nu=0.5))
    assert Polynomial(3, bias=2).set_params(degree=2) == Polynomial(2, 2.0)
    assert Gaussian(2.0).to_dict() == {"kernel": "gaussian", "length_scale": 2.0}  # no metric is stored


def test_parameters_follow_scikit_learn():
    kernel = Gaussian(2.0) + 3.0 * Matern(nu=2.5)
    assert kernel.get_params() == {
        "k1": kernel.k1,
        "k1__length_scale": 2.0,
        "k1__metric": None,
        "k2": kernel.k2,
        "k2__a": 3.0,
        "k2__k": Matern(nu=2.5),
        "k2__k__length_scale": 1.0,
        "k2__k__metric": None,
        "k2__k__nu": 2.5,
    }
    assert set(kernel.get_params(deep=False)) == {"k1", "k2"}
    changed = kernel.set_params(k1=Laplacian(), k1__length_scale=4.0, k2__k__nu=0.5, k2__a=1)
    assert changed == Laplacian(4.0) + 1.0 * Matern(nu=0.5)
    assert kernel == Gaussian(2.0) + 3.0 * Matern(nu=2.5)


WIDTHS_THAT_ARE_NONE = [
    *(0, -1.0, math.nan, math.inf, 1e-320, 10**400, 1j, None, True, np.bool_(True)),
    *("1.0", {"a": 1}, [], [1.0, -1.0], [[1.0]], [1, [2]], [True], ["auto"]),
    *(np.ones((2, 2)), np.array([]), np.array([1.0, np.nan])),
]
FACTORS = (0, -2.0, math.nan, math.inf, True, None, "2", 1j, np.ones(2))
WRONG = (1.0, None, True, "gaussian")
ARD, UNDECIDED = Gaussian("ard"), Gaussian("auto") + 2.0 * (Laplacian("auto") * Matern(3.0, nu=0.5))
OF_THREE = Gaussian() * Laplacian(WIDTHS)
UNKNOWN = ("k3", "k1__nu", "k1__length_scale__x", "length_scale", "k1__")  # parameters
TINY, A_SUM, CENTRE = 1e-300 * Gaussian(), Gaussian() + Cauchy(), np.full((1, 3), 0.5)
OF_TWO = [Gaussian((0.5, 2.0)), Laplacian((0.5, 2.0)), Cauchy((0.5, 2.0))]


def nested(depth):
    data = {"kernel": "gaussian"}
    for _ in range(depth):
        data = {"kernel": "scaled", "a": 1.0, "k": data}
    return data


GAUSSIAN, TWO = {"kernel": "gaussian"}, np.zeros((2, 2))
WITH_P, LEARNS = Gaussian(metric=P), Matern(metric="learned")
REFUSED = {
    "length_scale": [
        *(partial(kind, width) for kind in KERNELS.values() for width in WIDTHS_THAT_ARE_NONE),
        *(partial(A_SUM.set_params, **{name: 1.0}) for name in UNKNOWN),
        partial(A_SUM.set_params, k1__length_scale=-1.0),
    ],
    "nu must be": [partial(Matern, nu=nu) for nu in (0.2, 0, -1.5, math.inf, math.nan, None, "1.5", True)],
    "factor of a kernel": [lambda a=a: a * Gaussian() for a in FACTORS]
    + [lambda a=a: Gaussian() * a for a in FACTORS],
    "must be a kernel": [
        *(lambda k=k: Gaussian() + k for k in WRONG),
        *(partial(Product, k, Gaussian()) for k in WRONG),
        *(partial(Scaled, 2.0, k) for k in WRONG),
    ],
    r"equally many, got \[2, 3\]": [lambda: Gaussian((1.0, 2.0)) + 2.0 * OF_THREE],
    r"k\(0\) must be positive and finite": [lambda: 1e300 * (1e300 * Gaussian()), lambda: TINY * TINY],
    "'ard' is for one kernel alone": [lambda: ARD + Laplacian(), lambda: ARD * Gaussian(), lambda: 2.0 * ARD],
    "gamma must be positive": [lambda: Gaussian.from_gamma(0.0)],
    "degree must be": [partial(Polynomial, degree) for degree in (0, -1, 2.0, "2", True, None)],
    "bias must be": [partial(Polynomial, 2, bias) for bias in (-1.0, math.inf, math.nan)],
    "undecided": [
        lambda: UNDECIDED(TWO),
        lambda: UNDECIDED.frequencies(3, 2, streams(0)),
        lambda: UNDECIDED.second_moment(2),
        lambda: Gaussian("auto").widths(2),
        lambda: LEARNS(TWO),
        lambda: LEARNS.frequencies(4, 2, streams(0)),
    ],
    "has 3 widths, the data 2 columns": [
        lambda: OF_THREE(TWO),
        lambda: OF_THREE.frequencies(3, 2, streams(0)),
        lambda: OF_THREE.second_moment(2),
        lambda: (Gaussian() * Matern(WIDTHS[:1] * 3)).widths(2),
    ],
    "2 widths, the data 3 ": [partial(kernel.quantile_frequencies, CENTRE, 3) for kernel in OF_TWO],
    "overflow": [lambda: Gaussian(1e-200)([[1e200]]), lambda: Gaussian(metric=[[1e150]])([[1e200]])],
    # What a sum has only by its components, and a polynomial not at all
    "take its components": [
        lambda: A_SUM.n_uniforms(2),
        partial(A_SUM.quantile_frequencies, CENTRE[:, :2], 2),
    ],
    "not shift-invariant": [
        *(lambda k=k: k.frequencies(3, 2, streams(0)) for k in (Polynomial(2), Gaussian() + Polynomial(2))),
        lambda: Polynomial(2).second_moment(2),
        lambda: FourierFeatures(Gaussian() * Polynomial(2), 8).fit(TWO),
    ],
    # Rows
    "two dimensions": [
        lambda: Gaussian()(TWO[0]),
        lambda: Gaussian(metric=[1.0, 2.0]),
        lambda: Gaussian(metric=3),
    ],
    "must be a matrix": [
        lambda: Gaussian()([[1.0], [1.0, 2.0]]),
        lambda: Gaussian(metric=[[1.0], [1.0, 2.0]]),
    ],
    "same columns, got 2 and 1": [lambda: Gaussian()(TWO, TWO[:, :1])],
    "real numbers": [lambda: Gaussian()(TWO + 1j), lambda: Gaussian(metric=[["a"]])],
    "Y holds nan in row 1, column 0": [lambda: Gaussian()(TWO, [[0, 0], [math.nan, 0]])],
    # Metrics
    'metric must be None, "learned" or a matrix': [lambda: Gaussian(metric="identity")],
    "metric holds nan in row 0, column 1": [lambda: Gaussian(metric=[[1.0, math.nan]])],
    "not all zeros": [lambda: Gaussian(metric=np.zeros((2, 3))), lambda: Gaussian(metric=np.zeros((0, 3)))],
    "overflow nor vanish in float64, got a largest": [
        lambda: Gaussian(metric=1e300 * np.eye(2)),
        lambda: Gaussian(metric=1e-300 * np.eye(2)),
    ],
    "goes with one width": [
        lambda: Gaussian((1.0, 2.0), metric=np.eye(2)),
        lambda: Gaussian("ard", metric="learned"),
        lambda: WITH_P.set_params(length_scale=WIDTHS),
    ],
    "a learned metric is for one kernel alone": [lambda: LEARNS + Laplacian(), lambda: Laplacian() * LEARNS],
    "has 3 columns, the data 2": [
        lambda: WITH_P(TWO),
        lambda: WITH_P.frequencies(4, 2, streams(0)),
        lambda: WITH_P.second_moment(2),
        lambda: WITH_P.n_uniforms(2),
    ],
    "has no spherical measure": [lambda: WITH_P.radii(4, 3, streams(0)), lambda: WITH_P.widths(3)],
    # Stored kernels
    "must be a dictionary": [
        *(partial(kernel_from_dict, data) for data in (None, "gaussian", [])),
        partial(kernel_from_dict, {"kernel": "product", "k1": GAUSSIAN, "k2": 2.0}),
    ],
    '"kernel" must be one of gaussian, .*matern': [
        partial(kernel_from_dict, data) for data in ({}, {"kernel": ["gaussian"]}, {"kernel": "rbf"})
    ],
    "has no parameter 'nu'; its parameters are": [partial(kernel_from_dict, GAUSSIAN | {"nu": 1.5})],
    "length_scale must be": [
        partial(kernel_from_dict, GAUSSIAN | {"length_scale": value}) for value in (None, math.nan, GAUSSIAN)
    ],
    "lacks 'k2'": [partial(kernel_from_dict, {"kernel": "sum", "k1": GAUSSIAN})],
    "nested too deeply": [lambda: kernel_from_dict(nested(500)), lambda: kernel_from_dict(nested(100_000))],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message):
    for use in REFUSED[message]:
        with pytest.raises(InputError, match=message):
            use()


@pytest.mark.parametrize(
    "kernel",
    [*OF_TWO, Exponential(2.0), Matern((0.5, 2.0), nu=2.5), Gaussian() * (3.0 * Laplacian(0.5))],
    ids=repr,
)
def test_uniform_points_give_the_measure_of_the_kernel(rng, kernel):
    W = kernel.quantile_frequencies(rng.random((4000, kernel.n_uniforms(2))), 2)
    drawn = kernel.frequencies(4000, 2, lambda name: rng)
    assert W.shape == (2, 4000)
    # Three projections of six kernels, each by Kolmogorov-Smirnov: one false alarm in 10⁹ runs.
    for direction in ([1.0, 0.0], [0.0, 1.0], [1.0, -1.0]):
        assert ks_2samp(direction @ W, direction @ drawn).pvalue > 1e-10 / 2
    centre = np.full((1, kernel.n_uniforms(2)), 0.5)
    np.testing.assert_allclose(kernel.quantile_frequencies(centre, 2), 0.0, atol=1e-15)


@pytest.mark.parametrize(
    "kernel",
    [
        *(Gaussian(WIDTHS), Matern(2.0, nu=1.5), Matern(0.7, nu=3.2), Matern(0.7, nu=0.8), Exponential(1.3)),
        *(Laplacian(0.7), Cauchy(), Polynomial(3, bias=0.5)),
        *(Polynomial(2) + 2.0 * Gaussian(), Polynomial(2) * Matern(nu=2.5)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("offset", [0.0, 30.0, 1e7])
def test_a_block_is_what_a_call_gives(rng, kernel, offset):
    X, Y = rng.standard_normal((40, 3)) + offset, rng.standard_normal((30, 3)) + offset
    X[:5], X[5] = Y[:5], 1e9
    exact = kernel(X, Y)
    # Distances within 45 widths of the mean are off by at most 2⁻⁴⁰, and no derivative exceeds 2.
    np.testing.assert_allclose(kernel.block(X, Y), exact, rtol=1e-13, atol=2.0**-39)
    if kernel.is_shift_invariant:  # rows many widths apart lose no digits
        far = np.array([[1e300, -1e300], [0.0, 1.0]]) if offset else 1e6 * rng.standard_normal((5, 2))
        far = np.c_[far, far[:, :1]]
        np.testing.assert_array_equal(kernel.block(far, far), kernel(far, far))


# Metrics


@pytest.mark.parametrize("kernel", METRICS, ids=repr)
def test_a_metric_is_that_of_projected_rows(kernel, seed):
    X, Y = matrices(seed)
    at = np.transpose(P)
    U, V = X @ at, Y @ at
    plain = kernel.without_metric()
    assert plain == type(kernel)(0.9) and plain.metric is None and plain.without_metric() is plain
    points = stream(seed, "points").random((9, kernel.n_uniforms(N_COLUMNS)))
    for found, expected in (
        (kernel(X, Y), plain(U, V)),
        (kernel.block(X, Y), plain.block(U, V)),
        (kernel.frequencies(9, 3, streams(seed)), at @ plain.frequencies(9, 2, streams(seed))),
        (kernel.quantile_frequencies(points, 3), at @ plain.quantile_frequencies(points, 2)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11)
    K, M = kernel(X), np.ones((30, 30))
    np.testing.assert_allclose(kernel.width_gradient(X, K, M), plain.width_gradient(U, K, M), rtol=1e-10)
    given = np.array(P, order="F")
    kept = Gaussian(metric=given)
    given[:] = 0.0
    for one in (kept, pickle.loads(pickle.dumps(kept))):
        np.testing.assert_array_equal(np.asarray(one.metric), P)
        assert not np.asarray(one.metric).flags.writeable
    assert Gaussian(metric=[[0.0, 1.0]]) == Gaussian(metric=np.array([[-0.0, 1.0]]))
    assert Gaussian(metric=[[1.0, 2.0]]) != Gaussian(metric=[[1.0], [2.0]])
    assert Gaussian(0.5, metric=[[3.0, 4.0]]).second_moment(2) == 100
