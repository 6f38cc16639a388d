"""Models of kernels with a metric, on rows of any storage."""

import pickle

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

import distrff as drf
from tests.support.fits import stored

# Targets are functions of these two directions of four columns. Three quarters of a short number are exact.
P = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.75, 0.75, 0.0]])
GAUSSIAN, LAPLACIAN = drf.Gaussian(1.5, metric=P), drf.Laplacian(3.0, metric=P)
FOURIER, LANDMARKS = drf.FourierFeatures(GAUSSIAN, 128), drf.NystroemFeatures(GAUSSIAN, 64)
OF_UNKNOWN_WIDTH = drf.FourierFeatures(drf.Matern("auto", metric=P), 128)
BINS = drf.RandomBinningFeatures(LAPLACIAN, 32)
HASHED = drf.RandomBinningFeatures(LAPLACIAN, 32, n_bins=2048)
ESTIMATORS = {
    "ridge": drf.KernelRidge(FOURIER, alpha=0.1, scale="none"),
    "cg": drf.KernelRidge(FOURIER, alpha=1.0, solver="cg", scale="none"),
    "auto": drf.KernelRidge(OF_UNKNOWN_WIDTH, alpha=1.0, scale="standard"),
    "of unknown width": drf.KernelRidge(OF_UNKNOWN_WIDTH, alpha=1.0, scale="none"),
    "nystroem": drf.KernelRidge(LANDMARKS, alpha="cv", scale="none"),
    "landmarks by cg": drf.KernelRidge(LANDMARKS, alpha=1.0, solver="cg", scale="none"),
    "binning": drf.KernelRidge(BINS, alpha=0.1, scale="none"),
    "hashed": drf.KernelRidge(HASHED, alpha=0.1, scale="none"),
    "svc": drf.KernelSVC(FOURIER, C=1.0, scale="none"),
    "likelihood": drf.KernelLikelihoodClassifier(LANDMARKS, C=1.0, scale="none"),
}


@pytest.fixture
def rows(rng):
    # Bounded: of normal rows a few lie alone, and one draw of 400 then scores below 0.8.
    X = rng.uniform(-1.7, 1.7, (600, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(600)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_fit_predict_and_are_stored(rows, tmp_path, name, dtype):
    X, y = rows[0].astype(dtype), rows[1]
    y = y > 0 if name in ("svc", "likelihood") else y
    fitted = clone(ESTIMATORS[name]).set_params(random_state=0).fit(X[:450], y[:450])
    assert fitted.score(X[450:], y[450:]) > 0.8
    assert fitted.report_["kernel"].endswith("metric=ndarray[2, 4])")
    expected = fitted.predict(X)
    np.testing.assert_array_equal(stored(fitted, tmp_path).predict(X), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), expected)
    decide = fitted.predict if y.dtype == float else fitted.decision_function
    lazily = decide(da.from_array(X, chunks=(100, -1))).compute(scheduler="sync")
    np.testing.assert_allclose(lazily, decide(X), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["ridge", "of unknown width", "nystroem", "binning", "svc"])
def test_sparse_rows(name, rng):
    X = np.where(rng.random((400, 4)) < 0.5, rng.standard_normal((400, 4)), 0.0)
    # Multiples of 2⁻²⁰ have exact projections. Landmarks on two lines are many more than the numerical rank
    # of their kernel, and rounding of the projections would decide whether the last direction is kept.
    X = np.round(X * 2**20) / 2**20
    y = X[:, 0] + X[:, 1]
    estimator = clone(ESTIMATORS[name]).set_params(random_state=0)
    if name == "svc":
        # A gap g of the objective leaves w within sqrt(2g) of the optimum, and features have norm 1 or less.
        y, estimator = y > 0, estimator.set_params(tol=1e-12)
    of_dense, of_sparse = clone(estimator).fit(X, y), estimator.fit(csr_matrix(X), y)
    decide = "decision_function" if name == "svc" else "predict"
    expected = getattr(of_dense, decide)(X)
    np.testing.assert_allclose(getattr(of_sparse, decide)(csr_matrix(X)), expected, rtol=1e-4, atol=1e-4)


def test_phases_too_large_for_float32_are_counted_through_the_metric(rng):
    X = rng.standard_normal((100, 4)).astype(np.float32)
    for width, are_large in ((1.0, True), (1e5, False)):
        map_ = drf.FourierFeatures(drf.Gaussian(width, metric=1e5 * P), 16, random_state=0)
        notes = drf.KernelRidge(map_, alpha=1.0, scale="none").fit(X, X[:, 0]).report_["notes"]
        assert any("phases too large for float32" in note for note in notes) == are_large


@pytest.mark.parametrize("name", ["ridge", "nystroem", "binning"])
def test_the_error_of_the_kernel_is_within_its_bound(rows, name):
    map_ = clone(ESTIMATORS[name].features).set_params(random_state=0).fit(rows[0])
    error = drf.kernel_error(map_, rows[0], random_state=0, confidence=1 - 1e-9)
    assert error.kernel.endswith("metric=ndarray[2, 4])")
    assert 0 < error.max_error <= error.max_bound
