"""Ridge on a lattice of frequencies against dense systems whose sums are taken row by row."""

import numpy as np
import pytest

from distrff.solvers.toeplitz import (
    Ending,
    SpanOfRows,
    SumsOfRows,
    Toeplitz,
    ToeplitzProblem,
    ToeplitzSums,
    half_of,
    held_out_path,
    squared_error,
    whole_of,
)
from distrff.utils.linalg import inner

UNIT = np.finfo(np.float64).eps
EPS = 1e-10  # of the transforms
MODES = [(0,), (6,), (3, 4), (0, 3), (3, 0), (2, 3, 1), (1, 0, 2)]


def some_rows(rng, d, n=60, k=1):
    """Phases, targets and weights."""
    phases = [rng.uniform(-np.pi, np.pi, n) for _ in range(d)]
    return phases, rng.standard_normal((n, k)) + 0.5, rng.uniform(0.5, 2.0, n)


def waves(phases, modes):
    """exp(−i⟨j, x̃⟩), (2·m_1 + 1, …, n)."""
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in modes), indexing="ij")
    return np.exp(-1j * sum(j[..., None] * x for j, x in zip(J, phases, strict=True)))


def direct_sums(modes, phases, Y, s):
    v = half_of(waves(phases, [2 * m for m in modes]) @ s)
    E = waves(phases, modes)
    b = [half_of(E @ (s * y)) for y in Y.T]
    return ToeplitzSums(v, np.stack(b), s @ Y**2, len(s))


def assert_sums_equal(found, expected, atol):
    assert found.n_rows == expected.n_rows
    for name in ("v", "b", "squares"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def size_of(Y, s):
    """Σ s(1 + |y| + y²): an error of each wave is multiplied by less."""
    return float(s @ (1 + np.abs(Y) + Y**2).sum(axis=1))


def hermitian(rng, modes):
    """The kept half of random coefficients of a real function."""
    C = rng.standard_normal((*(2 * m + 1 for m in modes), 2)).view(np.complex128)[..., 0]
    return half_of(C + np.flip(C).conj())


def dense(v, modes):
    """T_{jj'} = v_{j−j'}."""
    whole, J = whole_of(v), np.stack([j.ravel() for j in np.indices([2 * m + 1 for m in modes])], axis=1)
    places = J[:, None] - J[None] + 2 * np.asarray(modes)
    return whole[tuple(np.moveaxis(places, -1, 0))]


def smooth_weights(modes):
    """Weights that fall, of the whole lattice."""
    J = np.meshgrid(*(np.arange(-m, m + 1) for m in modes), indexing="ij")
    return np.exp(-0.1 * sum(np.square(j) for j in J))


def dense_system(sums, weights, alpha, fit_intercept):
    """The system of the whole lattice, its right sides and the roots of the weights."""
    modes, size = sums.modes, weights.size
    root, penalty = np.sqrt(weights).ravel(), np.full(size, alpha)
    if fit_intercept:
        root[size // 2], penalty[size // 2] = 1.0, 0.0
    A = root[:, None] * dense(sums.v, modes) * root
    return A + np.diag(penalty), np.stack([root * whole_of(b).ravel() for b in sums.b]), root


# The sums.


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_sums_of_rows(rng, modes, k):
    transform = SumsOfRows(modes, k, EPS)
    for n in (60, 1):
        phases, Y, s = some_rows(rng, len(modes), n, k)
        found = transform.sums(phases, Y, s)
        assert_sums_equal(found, direct_sums(modes, phases, Y, s), 10 * EPS * size_of(Y, s))
        assert found.modes == modes
        assert found.weight == pytest.approx(s.sum(), rel=10 * EPS)
        np.testing.assert_allclose(found.sums, s @ Y, atol=10 * EPS * size_of(Y, s))


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_targets_are_recoded(rng, modes):
    phases, Y, s = some_rows(rng, len(modes), 60, 3)
    ratio, offset = np.array([2.0, -0.5, 1.0]), np.array([3.0, 0.0, -1.0])
    found = direct_sums(modes, phases, Y, s).recoded(ratio, offset)
    expected = direct_sums(modes, phases, Y * ratio + offset, s)
    assert_sums_equal(found, expected, 60 * UNIT * size_of(10 * np.abs(Y) + 10, s))


# The ridge problem.


def problem_of(rng, modes, fit_intercept, k=1, n=60):
    rows = some_rows(rng, len(modes), n, k)
    weights = smooth_weights(modes)
    problem = ToeplitzProblem(direct_sums(modes, *rows), half_of(weights).copy(), fit_intercept)
    return problem, weights, rows


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_the_solution_is_that_of_the_dense_system(rng, modes, fit_intercept, alpha):
    problem, weights, _ = problem_of(rng, modes, fit_intercept, k=2)
    A, B, root = dense_system(problem.sums, weights, alpha, fit_intercept)
    least = np.linalg.eigvalsh(A)[0]
    tol = 1e-10
    for target, right in enumerate(B):
        found = problem.solve(target, alpha, Ending(1.0, 2000, tol))
        expected = np.linalg.solve(A, right)
        # ‖c − c̃‖ ≤ ‖r‖/λ with ‖r‖ ≤ tol·‖B‖; the residual that conjugate gradients update and the dense
        # solution are off by some units of ‖A‖‖c‖.
        rounding = 1000 * UNIT * np.linalg.norm(A, 2) * np.linalg.norm(expected)
        bound = (tol * np.linalg.norm(right) + rounding) / least
        C = whole_of(problem.functions(found.c)).ravel()
        assert np.linalg.norm(C - root * expected) <= bound * max(1.0, root.max())
        assert found.error <= tol
        penalised = expected.copy()
        penalised[len(penalised) // 2] *= not fit_intercept
        assert abs(problem.norm(found.c) - np.linalg.norm(penalised)) <= bound


# Errors of rows by their sums.


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_squared_errors_are_exact_for_every_function(rng, modes):
    rows = phases, Y, s = some_rows(rng, len(modes), 60, 2)
    sums, C = direct_sums(modes, *rows), hermitian(rng, modes)
    f = np.einsum("k,kn->n", whole_of(C).ravel(), waves(phases, modes).conj().reshape(-1, 60)).real
    toeplitz = Toeplitz(sums.v, modes)
    for target, y in enumerate(Y.T):
        found = squared_error(sums, toeplitz, target, C)
        # Sums of terms of up to s(|y| + Σ|C|)², with FFTs that lose some units of them.
        size = s @ np.square(np.abs(y) + np.abs(whole_of(C)).sum())
        assert found == pytest.approx(s @ np.square(y - f), rel=0, abs=1000 * UNIT * size)


# The path of penalties.

ALPHAS = np.geomspace(1e4, 1e-6, 21)


def path_of(training, held_out, patience=2):
    return list(held_out_path(training, held_out, ALPHAS, Ending(1e-8, 2000), patience))


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_a_path_ends_where_the_error_rises(rng, patience):
    """Targets are noise, so that the largest alpha is the best but for chance."""
    modes, weights = (20,), np.ones(41)
    training = direct_sums(modes, *some_rows(rng, 1, 30))
    held_out = direct_sums(modes, *some_rows(rng, 1, 2000))
    path = path_of(ToeplitzProblem(training, half_of(weights).copy(), True), held_out, patience)
    errors = np.array([errors.sum() for _, errors, _ in path])
    assert [alpha for alpha, _, _ in path] == ALPHAS[: len(path)].tolist()
    assert len(path) < len(ALPHAS)
    # The path has ended with `patience` errors in a row above the least so far, for the first time.
    best = np.minimum.accumulate(errors)
    risen = [bool(e >= b) for e, b in zip(errors[1:], best[:-1], strict=True)]
    runs = "".join("x" if r else "." for r in risen)
    assert runs.endswith("x" * patience)
    assert "x" * patience not in runs[:-1]


def test_a_path_has_the_errors_of_separate_solutions(rng):
    phases, _, s = some_rows(rng, 1, 300)
    Y = np.stack([np.sin(2 * phases[0]), np.cos(phases[0])], axis=1) + 0.01 * rng.standard_normal((300, 2))
    held, rest = slice(100), slice(100, None)
    training, held_out = (direct_sums((6,), [phases[0][part]], Y[part], s[part]) for part in (rest, held))
    problem = ToeplitzProblem(training, half_of(smooth_weights((6,))).copy(), True)
    toeplitz = Toeplitz(held_out.v, (6,))
    path = path_of(problem, held_out)
    assert len(path) > 5
    for alpha, errors, steps in path:
        for target, error in enumerate(errors):
            one = problem.solve(target, alpha, Ending(1e-15, 2000, 1e-12))
            expected = squared_error(held_out, toeplitz, target, problem.functions(one.c))
            # The objective is within 1e-8 of its least; an error moves by the root of that.
            assert error == pytest.approx(expected, rel=1e-2, abs=1e-6)
        assert steps > 0


def layout_scale(c):
    """√2 for the modes whose conjugates a problem's layout leaves out."""
    return np.where(np.arange(c.shape[-1]) > 0, np.sqrt(2.0), 1.0)


# The approximate inverse, whose coarse modes are those of a lattice that has enough others.

LARGE = [(90,), (12, 9), (4, 3, 5)]


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("modes", LARGE, ids=str)
def test_the_preconditioner_is_exact_for_the_coarse_modes(rng, monkeypatch, modes, fit_intercept):
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PAIRS", 10)
    problem, weights, _ = problem_of(rng, modes, fit_intercept)
    alpha = 0.3
    M, _, _ = dense_system(problem.sums, weights, alpha, fit_intercept)
    found = problem.preconditioner(alpha)
    pairs = problem.coarse.modes
    assert 0 < len(pairs) <= 10
    J = np.concatenate([-pairs[::-1], np.zeros((1, len(modes)), int), pairs]) + np.array(modes)
    places = np.ravel_multi_index(tuple(J.T), weights.shape)
    # What is left out weighs no more than what is in.
    rest = np.delete(weights.ravel(), places)
    assert rest.max() <= weights.ravel()[np.delete(places, len(pairs))].min() * (1 + 1e-9)
    P = np.diag(np.diag(M).real).astype(complex)
    P[np.ix_(places, places)] = M[np.ix_(places, places)]
    sign, log_determinant = np.linalg.slogdet(P)
    assert sign == pytest.approx(1.0) and found.log_determinant == pytest.approx(log_determinant, rel=1e-8)
    c = hermitian(rng, modes)
    z = found.inverse(c * layout_scale(c)) / layout_scale(c)
    rounding = 1000 * UNIT * np.linalg.cond(P)
    difference = whole_of(z).ravel() - np.linalg.solve(P, whole_of(c).ravel())
    assert np.linalg.norm(difference) <= rounding * np.linalg.norm(whole_of(z))


def test_coarse_modes_reach_across_a_gap_in_few_steps(rng, monkeypatch):
    """Half of the box has no rows: the diagonal alone takes several times as many steps."""
    modes = (300,)
    phases = [rng.uniform(-np.pi, 0, 4000)]
    Y = np.sin(7 * phases[0])[:, None] + 0.01 * rng.standard_normal((4000, 1))
    weights = half_of(1.0 / (1.0 + np.square(np.arange(-300, 301) / 4.0)) ** 2).copy()
    sums = SumsOfRows(modes, 1, EPS).sums(phases, Y, np.ones(4000))
    steps = []
    for n_pairs in (1000, 0):
        monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PAIRS", n_pairs)
        found = ToeplitzProblem(sums, weights, False).solve(0, 1e-3, Ending(1e-8, 5000, 1e-6))
        steps.append(found.steps)
    assert 2 * steps[0] <= steps[1]


# The posterior.


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.5, 500.0])
@pytest.mark.parametrize("modes", [(4,), (1, 2), *LARGE], ids=str)
def test_roots_of_the_inverse_have_its_covariance_and_its_determinant(
    rng, monkeypatch, modes, alpha, fit_intercept
):
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PAIRS", 10)
    problem, weights, _ = problem_of(rng, modes, fit_intercept)
    M, _, _ = dense_system(problem.sums, weights, alpha, fit_intercept)
    size, n_samples = weights.size, 40
    Z = np.stack([problem.normal(rng) for _ in range(n_samples)])
    P = problem.preconditioner(alpha)
    z, x = Z[0], problem.root_inverses(Z[:2], alpha, P, 1e-8).X[0]
    c = whole_of(x / layout_scale(x)).ravel()
    # x = BᵀQz with M⁻¹ = BᵀB and QᵀQ = 1, so that x*Mx = z*z for every z.
    # 120 steps leave some 1e-5 of it where vectors of the process are no longer orthogonal.
    assert (c.conj() @ M @ c).real == pytest.approx(inner(z, z), rel=1e-3)
    logs = problem.root_inverses(Z, alpha, P, 1e-6).logs
    _, dimensions = problem.samples(alpha, rng, n_samples)
    expected = np.linalg.slogdet(M)[1] - P.log_determinant
    # Var zᵀBz = 2·tr B² for the logarithm B of LᵀM⁻¹L, whose eigenvalues are those of P⁻¹M.
    spread = np.sqrt(2 * n_samples) * max(logs.std(), 1e-6 * size)
    assert abs(logs.mean() - expected) <= 6 * spread / n_samples + 1e-6 * size
    A = M - alpha * np.diag((np.arange(size) != size // 2) | (not fit_intercept))
    dimension = np.trace(np.linalg.solve(M, A)).real
    assert abs(np.mean(dimensions) - dimension) <= 6 * np.sqrt(2 * size / n_samples)


def test_single_precision_has_the_samples_of_double(rng, monkeypatch):
    monkeypatch.setattr("distrff.solvers.toeplitz._MOST_PAIRS", 10)
    problem, _, _ = problem_of(rng, (12, 9), True)
    Z = np.stack([problem.normal(rng) for _ in range(3)])
    P = problem.preconditioner(1.0)
    double, single = (problem.root_inverses(one, 1.0, P, 1e-4).X for one in (Z, Z.astype(np.complex64)))
    assert single.dtype == np.complex64
    # Both end by 1e-4; single precision loses some 1e-6 of it.
    assert np.linalg.norm(double - single) <= 1e-3 * np.linalg.norm(double)


@pytest.mark.parametrize("modes", [(6,), (3, 4), (6, 8), (2, 3, 1)])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_roots_by_the_span_of_few_rows(rng, modes, fit_intercept):
    alpha = 1e-6
    sums = direct_sums(modes, *some_rows(rng, len(modes), n=30))
    weights = half_of(
        np.exp(-0.3 * sum(np.square(j) for j in np.ogrid[tuple(slice(-m, m + 1) for m in modes)]))
    )
    problem = ToeplitzProblem(sums, weights.copy(), fit_intercept)
    span = SpanOfRows.of(problem, alpha)
    for _ in range(3):
        z = problem.normal(rng)
        # The square of the root is the inverse: M·(M^{−½}·(M^{−½}z)) = z.
        back = problem.product(span.root_inverse(span.root_inverse(z)), alpha)
        assert np.sqrt(inner(back - z, back - z)) < 1e-4 * np.sqrt(inner(z, z))
    assert SpanOfRows.of(problem, 1e-18) is None
