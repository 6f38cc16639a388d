"""Principal components: exact on plain columns, close to the exact kernel's."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.decomposition import KernelPCA as ExactKernelPCA

import distrff as drf
from distrff.diagnostics.bounds import spectral_norm_error
from distrff.engine import tasks as engine_tasks
from distrff.errors import InputError, NonFiniteError, PlanRefused
from distrff.io.arrays import as_dataset
from tests.support.fits import fourier, never


def sine_of_angle(T: np.ndarray, exact: np.ndarray) -> float:
    """Sine of the largest principal angle between the spaces that two sets of columns span."""
    Q, U = np.linalg.qr(T)[0], np.linalg.qr(exact)[0]
    return float(np.linalg.norm(Q - U @ (U.T @ Q), 2))


def test_plain_columns_give_plain_components(rng):
    Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]  # variances far apart, so that directions are certain
    X = rng.standard_normal((300, 5)) * [5, 4, 3, 2, 1] @ Q + 7.0
    mine, exact = drf.KernelPCA(drf.LinearFeatures(), 5, scale="none").fit(X), PCA(5).fit(X)
    signs = np.sign((mine.components_ * exact.components_).sum(axis=1))
    np.testing.assert_allclose(mine.components_, signs[:, None] * exact.components_, atol=1e-8)
    np.testing.assert_allclose(mine.explained_variance_, exact.explained_variance_ * 299 / 300, rtol=1e-9)
    np.testing.assert_allclose(mine.explained_variance_ratio_, exact.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(mine.transform(X), signs * exact.transform(X), atol=1e-7)


def test_coordinates_are_centred_uncorrelated_and_of_the_stated_variance(problem):
    X, s = problem.X, problem.s
    estimator = drf.KernelPCA(fourier(), 64, scale="standard").fit(X, sample_weight=s)
    T = estimator.transform(X)
    np.testing.assert_allclose(s @ T, 0, atol=1e-8)
    np.testing.assert_allclose((T * s[:, None]).T @ T, np.diag(estimator.eigenvalues_), atol=1e-8)
    np.testing.assert_allclose(estimator.explained_variance_, estimator.eigenvalues_ / s.sum())
    assert estimator.explained_variance_ratio_.sum() == pytest.approx(1)
    assert (np.diff(estimator.eigenvalues_) <= 0).all()
    C = estimator.components_
    np.testing.assert_allclose(C @ C.T, np.eye(64), atol=1e-10)
    assert (C.max(axis=1) == np.abs(C).max(axis=1)).all()


def test_the_angle_to_the_exact_components_is_within_its_bound(rng):
    """sin θ ≤ 2‖E‖/gap (Yu, Wang and Samworth 2015, theorem 2), ‖E‖ by matrix Bernstein at 1e-7."""
    X = rng.standard_normal((60, 3))
    kernel, D = drf.Gaussian(3.0), 2**11
    K = kernel(X)
    centring = np.eye(60) - 1 / 60
    values = np.linalg.eigvalsh(centring @ K @ centring)[::-1]
    exact = ExactKernelPCA(3, kernel="precomputed").fit_transform(K)
    estimator = drf.KernelPCA(
        drf.FourierFeatures(kernel, D, random_state=int(rng.integers(2**62))), 3, scale="none"
    )
    estimator.fit(X)
    T, Z = estimator.transform(X), estimator.features_.transform(X)
    error = np.linalg.norm(centring @ (Z @ Z.T - K) @ centring, 2)
    assert error <= spectral_norm_error(1e-7, D, 60, np.linalg.norm(K, 2))
    assert sine_of_angle(T, exact) <= 2 * np.sqrt(3) * error / (values[2] - values[3])
    np.testing.assert_allclose(estimator.eigenvalues_, values[:3], atol=error)  # Weyl


def test_a_target_is_not_looked_at_and_constant_rows_have_no_variance(problem):
    alone = drf.KernelPCA(fourier(length_scale="auto"), random_state=0, scale="none").fit(problem.X)
    beside = drf.KernelPCA(fourier(length_scale="auto"), random_state=0, scale="none").fit(
        as_dataset(problem.X, problem.Y)
    )
    np.testing.assert_array_equal(beside.components_, alone.components_)
    assert "components with" in repr(alone.report_)
    constant = drf.KernelPCA(fourier(16), 2, scale="none").fit(np.ones((30, 2)))
    np.testing.assert_allclose(constant.explained_variance_, 0, atol=1e-12)
    assert np.isfinite(constant.transform(np.ones((3, 2)))).all()


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (drf.KernelPCA(n_components=0, scale="none"), "n_components must be a positive integer"),
        (drf.KernelPCA(n_components=2.0, scale="none"), "n_components must be a positive integer"),
        (drf.KernelPCA(fourier(16), 17, scale="none"), "the map has 16 features"),
        (
            drf.KernelPCA(drf.FourierFeatures(form="complex"), scale="none"),
            "form='complex' is for transform only",
        ),
        (drf.KernelPCA(drf.RandomBinningFeatures(), scale="none"), "use FourierFeatures or NystroemFeatures"),
        (drf.KernelPCA("fourier", scale="none"), "features must be a distrff feature map"),
        (drf.KernelPCA(scale="minmax"), "scale must be one of"),
        (drf.KernelPCA(dtype="float16", scale="none"), "dtype must be one of"),
    ],
)
def test_bad_parameters(estimator, words):
    with pytest.raises(InputError, match=words):
        estimator.fit(np.zeros((20, 2)))


def test_bad_rows_and_what_does_not_fit(problem, monkeypatch):
    X = problem.X.copy()
    X[417, 2] = np.nan
    with pytest.raises(NonFiniteError, match="row 417, column 2"):
        drf.KernelPCA(fourier(), scale="none").fit(X)
    with pytest.raises(InputError, match="weights are zero"):
        drf.KernelPCA(fourier(), scale="none").fit(problem.X, sample_weight=np.zeros(900))
    fitted = drf.KernelPCA(fourier(), scale="none").fit(problem.X)
    with pytest.raises(ValueError, match="3 features, but KernelPCA is expecting 4"):
        fitted.transform(problem.X[:, :3])
    monkeypatch.setattr(engine_tasks, "reduce_rows", never)
    with pytest.raises(PlanRefused):
        drf.KernelPCA(fourier(2**20), scale="none").fit(problem.X)
