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
    for x in points:  # ±π are one place, and points may lie on each other
        x[:4] = -np.pi, np.pi, np.nextafter(np.pi, 0), np.pi
    sums = PointSums(modes, eps, dtype)
    (F,), (again,) = (sums.at(points, [c]) for _ in range(2))
    assert_sums(F, points, c, modes, eps, dtype)
    assert F.tobytes() == again.tobytes()


@pytest.mark.parametrize("modes", [(17,), (4, 7), (3, 2, 5)], ids=str)
@pytest.mark.parametrize("dtype", UNIT)
def test_several_strengths_at_several_sets_of_points(rng, modes, dtype):
    """Later sums do not change earlier ones."""
    sums, eps, found = PointSums(modes, 1e-5, dtype), 1e-5, []
    for n in (50, 1, 120):
        points, C = uniform_points(rng, n, len(modes)), [normal(rng, n, dtype) for _ in range(3)]
        found += [(F, points, c) for F, c in zip(sums.at(points, C), C, strict=True)]
    assert len(found) == 9
    # All go through one grid, which is never handed out.
    assert not any(np.shares_memory(F, G) for (F, *_), (G, *_) in itertools.combinations(found, 2))
    for F, points, c in found:
        assert_sums(F, points, c, modes, eps, dtype)


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize(("dtype", "eps"), SETTINGS)
def test_values_at_points(rng, modes, dtype, eps):
    points, C = uniform_points(rng, 60, len(modes)), normal(rng, [2 * m + 1 for m in modes], dtype)
    f = values_at(points, C, eps)
    assert f.shape == (60,) and f.dtype == dtype
    expected = np.einsum("k,kn->n", C.ravel().astype(np.complex128), waves(points, modes).reshape(C.size, -1))
    # As of sums over points, with the strengths in place of the points.
    assert np.abs(f - expected).max() <= 10 * np.sqrt(2 * C.size) * error_of(eps, dtype, modes)
    # Of few points N products of numbers with an error of a few units, and of their phases.
    bound = UNIT[dtype] * (2 * C.size + 10 + 4 * np.pi * sum(modes)) * np.abs(C).sum()
    assert np.abs(values_of_few([x[:7] for x in points], C) - expected[:7]).max() <= bound


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
