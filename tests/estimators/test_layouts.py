"""The order of numbers in memory shows in no bit of a model, nor of what it makes of rows.

BLAS takes other paths for other layouts, of one row and of many, and has more of them for small matrices on
processors with AVX-512.
"""

from functools import partial
from itertools import product

import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix, issparse
from sklearn.decomposition import PCA

import distrff as drf
from distrff.features.fitted import Trait

pytestmark = pytest.mark.usefixtures("in_this_thread")

D = 32
WHOLE = [3, 8]  # columns of integers

# What is fitted


WIDE = drf.Gaussian(4.0)
fourier = partial(drf.FourierFeatures, WIDE, D, random_state=0)
nystroem = partial(drf.NystroemFeatures, n_components=D, random_state=0)


SAMPLINGS = ("orthogonal", "qmc", "sorf", "fastfood", "countsketch")
MAPS = {
    "linear": drf.LinearFeatures,
    "pairs": fourier,
    "phases": partial(fourier, form="phase"),
    **{name: partial(fourier, sampling=name) for name in SAMPLINGS},
    "landmarks": partial(nystroem, WIDE),
    "polynomial": partial(nystroem, drf.Polynomial(2), landmarks="leverage"),
    "binning": partial(drf.RandomBinningFeatures, drf.Laplacian(8.0), 10, random_state=0),
    "concatenated": lambda: drf.ConcatenatedFeatures([fourier(), drf.LinearFeatures()], weights=[2.0, 0.3]),
    "with a basis": lambda: drf.ConcatenatedFeatures([nystroem(WIDE), fourier()]),
    "transformer": lambda: drf.TransformerFeatures(PCA(11)),
}
UNDECIDED_MAPS = {
    "automatic width": partial(drf.FourierFeatures, drf.Gaussian("auto"), D, random_state=0),
    "a width a column": partial(drf.FourierFeatures, drf.Gaussian("ard"), D, random_state=0),
}


ridge = partial(drf.KernelRidge, random_state=0)
svc = partial(drf.KernelSVC, tol=0.1, random_state=0)
likelihood = partial(drf.KernelLikelihoodClassifier, tol=0.1, random_state=0)
TARGETS = {
    "one": lambda Y: Y[:, 0],
    "many": lambda Y: Y,
    "two classes": lambda Y: Y[:, 0] > 0,
    "three classes": lambda Y: Y[:, :3].argmax(axis=1),
    "none": lambda Y: None,
}
MODELS = {
    "one target": (partial(ridge, alpha=1.0), "one"),
    "ten targets, scaled": (partial(ridge, alpha=1.0, scale="standard"), "many"),
    "float32": (partial(ridge, alpha=1.0, dtype="float32"), "many"),
    "two classes": (partial(drf.KernelRidgeClassifier, alpha=1.0), "two classes"),
    "three classes": (partial(drf.KernelRidgeClassifier, alpha=1.0), "three classes"),
    "svc": (svc, "three classes"),
    "softmax": (partial(likelihood, multi_class="softmax"), "three classes"),
    "components": (partial(drf.KernelPCA, n_components=10, random_state=0), "none"),
}
OTHER_FITS = {
    "conjugate gradients": (partial(ridge, alpha=1.0, solver="cg"), "many"),
    "alpha by folds": (partial(ridge, alpha="cv", scale="standard"), "many"),
    "probit": (partial(likelihood, noise="probit"), "two classes"),
    "sgd": (partial(svc, solver="sgd"), "three classes"),
}
FITS = MODELS | OTHER_FITS


def targets_of(name, Y):
    return TARGETS[FITS[name][1]](Y)


def fitted(name, features, X, y=None, s=None):
    return FITS[name][0](features).fit(X, y, s)


# How it lies in memory


def with_gaps(A):
    """A as a view of every second row and column of a larger array."""
    view = np.empty([2 * size for size in A.shape], A.dtype)[(slice(None, None, 2),) * A.ndim]
    view[...] = A
    return view


def backwards(A):
    return np.flip(np.flip(A).copy())


def unaligned(A):
    view = np.empty(A.nbytes + 1, np.uint8)[1:].view(A.dtype).reshape(A.shape)
    view[...] = A
    return view


def read_only(A):
    A = A.copy()
    A.flags.writeable = False
    return A


ARRAYS = {
    "by columns": np.asfortranarray,
    "gaps": with_gaps,
    "backwards": backwards,
    "unaligned": unaligned,
    "read-only": read_only,
}


def frame_of(A):
    """Rows of a larger frame, of blocks of two types."""
    frame = pd.DataFrame(A).astype(dict.fromkeys(WHOLE, np.int32))
    return pd.concat([frame, frame]).assign(last=0.0).iloc[: len(A), : A.shape[1]]


def lazy_runs(A):
    """Predictions of fewer rows at a time may differ in their last bits; fits see tiles of one size."""
    return da.from_array(A, chunks=(41, 9)[: A.ndim])


ROWS = ARRAYS | {
    "frame": frame_of,
    "dask": lambda A: da.from_array(np.asfortranarray(A), chunks=(len(A), 9)[: A.ndim]),
}


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((150, 17))  # no multiple of what vectors hold
    X[:, WHOLE] = np.rint(4 * X[:, WHOLE])
    return X, X[:, :10] + np.cos(X[:, 7:]), rng.uniform(0.5, 2.0, len(X))


@pytest.fixture
def place():
    """A place to store to that no disk slows down."""
    yield "memory://a-model-of-any-layout"
    fsspec.filesystem("memory").rm("/a-model-of-any-layout", recursive=True)


def answers(estimator, X):
    """Everything that a fitted model, or a frozen one, makes of rows."""
    made = {}
    for method in ("predict", "decision_function", "decision", "predict_proba", "transform"):
        has_it = method != "predict" or getattr(estimator, "kind", "") != "KernelPCA"
        has_it &= method != "predict_proba" or getattr(estimator, "likelihood", True) is not None
        if hasattr(estimator, method) and has_it:
            Z = getattr(estimator, method)(X)
            made[method] = Z.toarray() if issparse(Z) else np.asarray(Z)
    if isinstance(estimator, drf.KernelRidge) and Trait.SPARSE not in estimator.model_.specification.traits:
        made["std"] = np.asarray(estimator.predict(X, return_std=True)[1])
    elif getattr(estimator, "posterior", None) is not None:
        made["std"] = estimator.std(X)
    return made


def assert_same_bits(found, expected):
    for method, A in found.items():
        np.testing.assert_array_equal(A, expected[method], err_msg=method)


# What must not show


@pytest.mark.parametrize(
    ("name", "features"),
    [pair for pair in product(MODELS, MAPS) if pair != ("components", "binning")],
)
def test_rows_in_any_layout_and_a_stored_model(rows, place, name, features):
    X, Y, _ = rows
    estimator = fitted(name, MAPS[features](), X, targets_of(name, Y))
    expected, of_one = answers(estimator, X), answers(estimator, X[:1])
    for lie in ROWS.values():
        same = lie(X)
        assert_same_bits(answers(estimator, same), expected)
        if not isinstance(same, da.Array):
            assert_same_bits(answers(estimator, same[:1]), of_one)
    estimator.save(place, **({"include_std": True} if "std" in expected else {}))
    stored = drf.load_model(place)
    for some in (X, X[:1]):
        assert_same_bits(answers(stored, some), answers(estimator.model_, some))
    assert stored.digest == estimator.model_.digest


@pytest.mark.parametrize(
    ("name", "features"),
    [("ten targets, scaled", features) for features in MAPS | UNDECIDED_MAPS]
    + [(name, "pairs") for name in FITS if name != "ten targets, scaled"]
    + [(name, "binning") for name in OTHER_FITS],
)
def test_fits_to_rows_in_any_layout(rows, name, features):
    X, Y, s = rows
    y, make_map = targets_of(name, Y), (MAPS | UNDECIDED_MAPS)[features]
    expected = fitted(name, make_map(), X, y, s).model_
    for lie in (*ROWS.values(), lazy_runs):
        lie_beside = lie if lie in ARRAYS.values() else with_gaps
        y_there = None if y is None else lie_beside(y)
        model = fitted(name, make_map(), lie(X), y_there, lie_beside(s)).model_
        np.testing.assert_array_equal(model.coef, expected.coef)
        np.testing.assert_array_equal(model.intercept, expected.intercept)


@pytest.mark.parametrize("features", ["pairs", "orthogonal", "qmc", "countsketch"])
def test_sparse_rows_whose_entries_are_in_any_order(rows, features):
    X, Y, _ = rows
    ordered = csr_matrix(np.where(np.abs(X) < 1, X, 0.0))
    rearranged = ordered.copy()
    for start, stop in zip(ordered.indptr, ordered.indptr[1:], strict=False):
        for entries in (rearranged.indices, rearranged.data):
            entries[start:stop] = entries[start:stop][::-1].copy()
    rearranged.has_sorted_indices = False
    expected = ridge(MAPS[features](), 1.0).fit(ordered, Y)
    np.testing.assert_array_equal(ridge(MAPS[features](), 1.0).fit(rearranged, Y).coef_, expected.coef_)
    np.testing.assert_array_equal(expected.predict(rearranged), expected.predict(ordered))
