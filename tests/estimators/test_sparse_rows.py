"""Rows in scipy's CSR, in memory and as dask chunks: the models of the same rows written out."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError, NonFiniteError
from distrff.features.search import ridge

pytestmark = pytest.mark.usefixtures("in_this_thread")

N, D = 300, 40


@pytest.fixture
def X(rng):
    return sparse.csr_matrix(np.where(rng.random((N, D)) < 0.1, rng.standard_normal((N, D)), 0.0))


@pytest.fixture
def y(X):
    return np.sin(np.asarray(X[:, :5].sum(axis=1)).ravel())


def fourier(sampling="iid", **options):
    return drf.FourierFeatures(drf.Gaussian(3.0), 32, sampling=sampling, random_state=0, **options)


def lazily(rng, X):
    """The rows as dask chunks in CSR, cut anywhere."""
    cuts = np.sort(rng.choice(np.arange(1, N), size=4, replace=False))
    parts = [X[a:b] for a, b in zip([0, *cuts], [*cuts, N], strict=True)]
    meta = sparse.csr_matrix((0, 0), dtype=X.dtype)
    blocks = [
        da.from_delayed(dask.delayed(part), shape=part.shape, dtype=X.dtype, meta=meta) for part in parts
    ]
    return da.concatenate(blocks)


@pytest.mark.parametrize("sampling", ["iid", "countsketch"])
def test_scale_and_width_choose_themselves_and_rows_stay_sparse(rng, X, y, sampling, monkeypatch):
    X = sparse.csr_matrix(X.multiply(10.0 ** rng.uniform(-2, 2, D)))
    s = rng.uniform(0.5, 2.0, N)
    size = np.sqrt(s @ X.power(2) / s.sum())
    # The least penalty is that of the rounding noise of float32 Grams, which moves errors by a tenth.
    monkeypatch.setattr(ridge, "_MIN_ALPHA", 1e-3)
    monkeypatch.setattr(ridge, "_ALPHA", 1e-2)
    features = drf.FourierFeatures(drf.Gaussian("auto"), 32, sampling=sampling, random_state=0)
    model = drf.KernelRidge(features, 1e-2, random_state=0).fit(X, y, s)
    np.testing.assert_allclose(model.model_.scaling.scale, size, rtol=1e-12)
    assert model.model_.scaling.shift is None
    by_hand = drf.KernelRidge(features, 1e-2, scale="none", random_state=0).fit(X.toarray() / size, y, s)
    assert model.features_.kernel_.length_scale == pytest.approx(by_hand.features_.kernel_.length_scale)
    np.testing.assert_allclose(model.predict(X), by_hand.predict(X.toarray() / size), atol=1e-6)
    np.testing.assert_allclose(model.predict(X.toarray()), model.predict(X), atol=1e-9)


def test_a_hard_margin_and_grams(X, y):
    sums = np.asarray(X[:, :5].sum(axis=1)).ravel()
    labels, clear = np.where(sums > 0, 1, -1), np.abs(sums) > 0.5
    model = drf.KernelSVC(
        drf.FourierFeatures(drf.Gaussian(3.0), 1024, random_state=0), C=np.inf, scale="none"
    )
    found, expected = (clone(model).fit(rows, labels[clear]) for rows in (X[clear], X[clear].toarray()))
    assert found.margin_ == pytest.approx(expected.margin_, rel=1e-2)
    gram = drf.gram(X, fourier(), y, scale="none")
    np.testing.assert_allclose(gram.A, drf.gram(X.toarray(), fourier(), y, scale="none").A, atol=1e-9)
    fitted = drf.fit_features(fourier(), X, y, scale="none")
    assert fitted.transform(X).shape == (N, 32)


@pytest.mark.parametrize("kind", ["csc_matrix", "coo_array", "csr_array"])
def test_other_formats_and_whole_numbers(X, y, kind):
    counts = (np.abs(X) * 3).astype(np.int64)
    model = drf.KernelRidge(fourier(), alpha=1.0, scale="none").fit(getattr(sparse, kind)(counts), y)
    expected = drf.KernelRidge(fourier(), alpha=1.0, scale="none").fit(counts.toarray(), y)
    np.testing.assert_allclose(model.predict(counts), expected.predict(counts.toarray()), atol=1e-8)
    scaled = drf.KernelRidge(fourier(), scale="standard", alpha=1.0).fit(X.toarray(), y)
    np.testing.assert_allclose(scaled.predict(X), scaled.predict(X.toarray()), atol=1e-9)


def test_wide_rows_are_planned_by_their_entries(rng):
    rows, columns = np.repeat(np.arange(2000), 5), rng.integers(0, 10**6, 10_000)
    X = sparse.csr_matrix((np.ones(10_000), (rows, columns)), shape=(2000, 10**6))
    plan = drf.KernelRidge(drf.FourierFeatures(n_components=4), 1.0, scale="none").plan(X, np.zeros(2000))
    assert plan.worker_peak_bytes < 2**30 < 8 * X.shape[0] * X.shape[1]


def test_predictions_of_others_are_refused(rng, X, y):
    model = drf.KernelRidge(drf.LinearFeatures(), alpha=1.0, scale="none").fit(X.toarray(), y)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        model.predict(X)
    for function, *data in ((model.predict, lazily(rng, X)), (model.score, X, y)):
        with pytest.raises(InputError, match="linear features take no sparse rows"):
            function(*data)


def test_missing_values_are_named(X, y):
    entry = X.nnz // 2
    row = int(np.searchsorted(X.indptr, entry, "right")) - 1
    X.data[entry] = np.nan
    with pytest.raises(NonFiniteError, match=f"X contains NaN in row {row}, column {X.indices[entry]}"):
        drf.KernelRidge(fourier(), alpha=1.0, scale="none").fit(X, y)
