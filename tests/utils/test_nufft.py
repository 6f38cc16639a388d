"""Non-uniform Fourier transforms against direct sums over all points and modes."""

import itertools

import numpy as np
import pytest

from distrff.utils.nufft import PointSums, values_at, values_of_few, values_on_grid

MODES = [(0,), (1,), (17,), (40,), (4, 7), (0, 5), (9, 0), (3, 2, 5), (0, 0, 2), (1, 0, 0)]
UNIT = {"complex128": 2.0**-53, "complex64": 2.0**-24}
SETTINGS = [("complex128", 1e-4), ("complex128", 1e-8), ("complex128", 1e-10), ("complex64", 1e-5)]


def waves(points, modes):
    """exp(i⟨k, x⟩) of all modes and points, (2·m_1 + 1, …, n_points)."""
    K = np.meshgrid(*(np.arange(-m, m + 1) for m in modes), indexing="ij")
    phase = sum(k[..., None] * x.astype(np.float64) for k, x in zip(K, points, strict=True))
    return np.exp(1j * phase)


def uniform_points(rng, n, d):
    return [rng.uniform(-np.pi, np.pi, n) for _ in range(d)]


def normal(rng, shape, dtype="complex128"):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def hermitian(rng, modes):
    C = normal(rng, [2 * m + 1 for m in modes])
    return C + np.flip(C).conj()


def error_of(eps, dtype, modes):
    """A bound of the error of one wave: three times eps, and the rounding of points and phases."""
    return 3 * eps + 4 * UNIT[dtype] * (1 + np.pi * sum(modes))


def assert_sums(F, points, c, modes, eps, dtype="complex128"):
    # Each wave of a point is off by at most its error; the sum of n normal strengths times these has the
    # deviation √2·√n of them, and is above ten of these with a probability of e^−100.
    assert F.shape == tuple(2 * m + 1 for m in modes)
    assert F.dtype == dtype
    expected = waves(points, modes).conj() @ c.astype(np.complex128)
    assert np.abs(F - expected).max() <= 10 * np.sqrt(2 * len(c)) * error_of(eps, dtype, modes)


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize(("dtype", "eps"), SETTINGS)
def test_sums_over_points(rng, modes, dtype, eps):
    points, c = uniform_points(rng, 200, len(modes)), normal(rng, 200, dtype)
    (F,) = PointSums(modes, eps, dtype).at(points, [c])
    assert_sums(F, points, c, modes, eps, dtype)


def test_the_relative_error_is_about_eps(rng):
    points, c = uniform_points(rng, 300, 2), normal(rng, 300)
    expected = waves(points, (12, 9)).conj() @ c
    for eps in (1e-3, 1e-6, 1e-9):
        (F,) = PointSums((12, 9), eps).at(points, [c])
        error = np.linalg.norm(F - expected) / np.linalg.norm(expected)
        assert error < 10 * eps


@pytest.mark.parametrize("modes", [(17,), (4, 7), (3, 2, 5)], ids=str)
@pytest.mark.parametrize("dtype", UNIT)
def test_several_strengths_at_several_sets_of_points(rng, modes, dtype):
    """What came first is not changed by what comes later."""
    sums, eps, found = PointSums(modes, 1e-5, dtype), 1e-5, []
    for n in (50, 1, 120):
        points, C = uniform_points(rng, n, len(modes)), [normal(rng, n, dtype) for _ in range(3)]
        found += [(F, points, c) for F, c in zip(sums.at(points, C), C, strict=True)]
    assert len(found) == 9
    # All go through one grid, which is never handed out.
    assert not any(np.shares_memory(F, G) for (F, *_), (G, *_) in itertools.combinations(found, 2))
    for F, points, c in found:
        assert_sums(F, points, c, modes, eps, dtype)


@pytest.mark.parametrize("modes", [(8,), (3, 4), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("dtype", UNIT)
def test_points_at_the_ends(rng, modes, dtype):
    """±π are one place, up to its rounding; points may lie on each other."""
    d = len(modes)
    corner = np.array([-np.pi, np.pi, np.nextafter(np.pi, 0), 0.0, np.pi])
    points, c = [corner] * d, normal(rng, len(corner), dtype)
    (F,) = PointSums(modes, 1e-5, dtype).at(points, [c])
    assert_sums(F, points, c, modes, 1e-5, dtype)
    low, high = (
        next(PointSums(modes, 1e-5, dtype).at([np.full(1, x)] * d, [np.ones(1, dtype)])) for x in corner[:2]
    )
    assert np.abs(low - high).max() <= 2 * error_of(1e-5, dtype, modes)


def test_the_same_points_give_the_same_bits(rng):
    points, c = uniform_points(rng, 100, 2), normal(rng, 100)
    sums = PointSums((5, 6), 1e-8)
    (first,) = sums.at(points, [c])
    list(sums.at(uniform_points(rng, 30, 2), [normal(rng, 30)]))
    (again,) = sums.at(points, [c])
    (other,) = PointSums((5, 6), 1e-8).at(points, [c])
    assert first.tobytes() == again.tobytes() == other.tobytes()


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize(("dtype", "eps"), SETTINGS)
def test_values_at_points(rng, modes, dtype, eps):
    points, C = uniform_points(rng, 60, len(modes)), normal(rng, [2 * m + 1 for m in modes], dtype)
    f = values_at(points, C, eps)
    assert f.shape == (60,) and f.dtype == dtype
    expected = np.einsum("k,kn->n", C.ravel().astype(np.complex128), waves(points, modes).reshape(C.size, -1))
    # As of sums over points, with the strengths in place of the points.
    assert np.abs(f - expected).max() <= 10 * np.sqrt(2 * C.size) * error_of(eps, dtype, modes)


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_values_of_few_points(rng, modes):
    points, C = uniform_points(rng, 7, len(modes)), normal(rng, [2 * m + 1 for m in modes])
    f = values_of_few(points, C)
    assert f.shape == (7,)
    expected = np.einsum("k,kn->n", C.ravel(), waves(points, modes).reshape(C.size, -1))
    # N products of numbers with an error of a few units, and of their phases.
    bound = UNIT["complex128"] * (2 * C.size + 10 + 4 * np.pi * sum(modes)) * np.abs(C).sum()
    assert np.abs(f - expected).max() <= bound


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize("longer", [False, True])
def test_values_on_a_grid(rng, modes, longer):
    lengths = (9, 4, 6)[: len(modes)] if longer else (1,) * len(modes)
    axes = [rng.uniform(-np.pi, np.pi, n) for n in lengths]
    C = hermitian(rng, modes)
    F = values_on_grid(axes, C)
    assert F.shape == lengths and F.dtype == np.float64 and F.flags.c_contiguous
    points = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
    expected = np.einsum("k,kn->n", C.ravel(), waves(points, modes).reshape(C.size, -1)).real
    bound = UNIT["complex128"] * (2 * C.size + 10 + 4 * np.pi * sum(modes)) * np.abs(C).sum()
    assert np.abs(F.ravel() - expected).max() <= bound
