"""Scores of any rows against scikit-learn's of the same."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as theirs

import distrff as drf
from distrff.errors import DataWarning, InputError, NonFiniteError

N = 500


def lazily(rng, values):
    """The rows as a dask array of a chunking of their own."""
    cuts = np.sort(rng.choice(np.arange(1, N), size=rng.integers(1, 6), replace=False))
    sizes = tuple(np.diff([0, *cuts, N]).tolist())
    return da.from_array(values, chunks=(sizes, *values.shape[1:]))


@pytest.fixture(params=["numpy", "dask"])
def held(request, rng):
    return (lambda values: values) if request.param == "numpy" else (lambda values: lazily(rng, values))


@pytest.fixture(params=[False, True], ids=["unweighted", "weighted"])
def weights(request, rng):
    return rng.integers(0, 3, N) * rng.uniform(0.5, 2.0) if request.param else None


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def options(held, weights):
    return {} if weights is None else {"sample_weight": held(weights)}


@pytest.mark.parametrize("shape", [(N,), (N, 3)])
@pytest.mark.parametrize(
    "multioutput", ["uniform_average", "raw_values", "variance_weighted", [3.0, 1.0, 0.5]]
)
def test_numbers(rng, held, weights, shape, multioutput):
    if not isinstance(multioutput, str) and len(shape) == 1:
        multioutput = "uniform_average"
    y = rng.standard_normal(shape) + 1e3
    p = y + 0.5 * rng.standard_normal(shape)
    theirs_of = {"sample_weight": weights, "multioutput": multioutput}
    given = options(held, weights)
    found = drf.metrics.r2_score(held(y), held(p), multioutput=multioutput, **given)
    # Σ(y − ȳ)² of numbers about 1000 is good to 1e6·2⁻⁵² in proportion, and of n terms.
    np.testing.assert_allclose(found, theirs.r2_score(y, p, **theirs_of), rtol=0, atol=N * 1e6 * 2.0**-52)
    if multioutput != "variance_weighted":
        found = drf.metrics.mean_squared_error(held(y), held(p), multioutput=multioutput, **given)
        np.testing.assert_allclose(found, theirs.mean_squared_error(y, p, **theirs_of), rtol=N * 2.0**-52)


@pytest.mark.parametrize("kind", [int, str, object])
@pytest.mark.parametrize("normalize", [None, "true", "pred", "all"])
def test_labels(rng, held, weights, kind, normalize):
    names = np.asarray(["a", "bcd", "ef", "g"], dtype=object) if kind is not int else np.arange(4) * 3 - 1
    names = names.astype(str) if kind is str else names
    y, p = names[rng.integers(0, 4, N)], names[rng.integers(0, 3, N)]
    given = options(held, weights)
    some = names[[2, 0]]
    for labels in (None, some):
        found = drf.metrics.confusion_matrix(held(y), held(p), labels=labels, normalize=normalize, **given)
        expected = theirs.confusion_matrix(y, p, labels=labels, normalize=normalize, sample_weight=weights)
        assert (found.dtype.kind == "i") == (normalize is None and weights is None)
        np.testing.assert_allclose(found, expected, rtol=N * 2.0**-52)
    found = drf.metrics.accuracy_score(held(y), held(p), **given)
    assert found == pytest.approx(theirs.accuracy_score(y, p, sample_weight=weights), rel=N * 2.0**-52)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_log_loss(rng, held, weights, k, dtype):
    P = rng.dirichlet(np.ones(max(k, 2)), N)
    P[:2] = np.eye(max(k, 2))[:2]  # certain, and one of them wrong
    y = np.asarray(["no", "yes", "zeta", "zz"])[np.append([0, 0], rng.integers(0, max(k, 2), N - 2))]
    P = (P[:, 1] if k == 1 else P).astype(dtype)
    found = drf.metrics.log_loss(held(y), held(P), **options(held, weights))
    # scikit-learn adds up in the dtype of the probabilities.
    tolerance = 16 * float(np.finfo(dtype).eps)
    assert found == pytest.approx(theirs.log_loss(y, P, sample_weight=weights), rel=tolerance)
    known = drf.metrics.log_loss(held(y), held(P), labels=np.unique(y)[::-1], **options(held, weights))
    assert known == found


@pytest.mark.parametrize("n_values", [5, 10**6], ids=["ties", "no ties"])
def test_area_of_two_labels(rng, held, weights, n_values):
    y = rng.integers(0, 2, N)
    scores = np.round(rng.uniform(0, n_values, N) + n_values * y / 4)
    found = drf.metrics.roc_auc_score(held(y), held(scores), **options(held, weights))
    assert found == pytest.approx(theirs.roc_auc_score(y, scores, sample_weight=weights), rel=N * 2.0**-52)


@pytest.mark.parametrize("average", ["macro", "weighted", None])
def test_area_of_several_labels(rng, held, weights, average):
    y = np.asarray(["x", "y", "z"])[rng.integers(0, 3, N)]
    P = rng.dirichlet(np.ones(3), N)
    choice = {"multi_class": "ovr", "average": average}
    found = drf.metrics.roc_auc_score(held(y), held(P), **choice, **options(held, weights))
    expected = theirs.roc_auc_score(y, P, **choice, sample_weight=weights)
    np.testing.assert_allclose(found, expected, rtol=N * 2.0**-52)


def test_many_segments_and_no_order(rng, monkeypatch):
    """What segments sum is merged to what one sum is, whatever the order of the rows."""
    from distrff import metrics as sums
    from distrff.engine.segments import Segmentation

    y, scores = rng.integers(0, 2, N), rng.integers(0, 40, N).astype(float)
    whole = drf.metrics.roc_auc_score(y, scores), drf.metrics.accuracy_score(y, scores > 20)
    monkeypatch.setattr(sums, "light_segmentation", lambda n, d: Segmentation(n, 64, 17))
    order = rng.permutation(N)
    y, scores = y[order], scores[order]
    parts = drf.metrics.roc_auc_score(y, scores), drf.metrics.accuracy_score(y, scores > 20)
    np.testing.assert_allclose(parts, whole, rtol=N * 2.0**-52)


def test_predictions_of_a_machine_are_scored_where_they_are_made(rng):
    X = da.from_array(rng.standard_normal((N, 3)), chunks=(120, 3))
    y = (X[:, 0] > 0).astype(int)
    machine = drf.KernelLikelihoodClassifier(drf.FourierFeatures(drf.Gaussian(2.0), 16, random_state=0))
    machine.fit(X, y)
    labels, P, truth = dask.compute(machine.predict(X), machine.predict_proba(X), y)
    assert drf.metrics.accuracy_score(y, machine.predict(X)) == theirs.accuracy_score(truth, labels)
    found = drf.metrics.log_loss(y, machine.predict_proba(X))
    assert found == pytest.approx(theirs.log_loss(truth, P), rel=1e-12)


def test_series_and_frames(rng):
    frame = pd.DataFrame(rng.standard_normal((N, 2)), columns=["a", "b"])
    expected = theirs.r2_score(frame["a"], frame["b"])
    assert drf.metrics.r2_score(frame["a"], frame["b"]) == pytest.approx(expected)
    assert drf.metrics.r2_score(frame, frame + 0.0) == 1.0
    lazy = dd.from_pandas(frame, npartitions=3)
    assert drf.metrics.r2_score(lazy["a"], lazy["b"]) == pytest.approx(expected)


def _unknown_sizes(values):
    return da.from_array(values, chunks=4)[da.from_array(values, chunks=4) >= 0]


ONES = np.ones(8)
HALVES = np.repeat([0, 1], 4)
REFUSED = {
    "lengths": (lambda m: m.r2_score(ONES, np.ones(7)), "y_true has 8 rows but y_pred has 7"),
    "columns": (lambda m: m.r2_score(ONES, np.ones((8, 2))), "y_true has 1 column.* but y_pred has 2"),
    "chunks": (lambda m: m.r2_score(ONES, _unknown_sizes(ONES)), "y_pred.compute_chunk_sizes"),
    "one row": (lambda m: m.r2_score([1.0], [1.0]), "at least two rows"),
    "no rows": (lambda m: m.accuracy_score([], []), "y_true has no rows"),
    "text": (lambda m: m.r2_score(["a", "b"], [1, 2]), "y_true must hold numbers"),
    "weights": (lambda m: m.r2_score(ONES, ONES, sample_weight=-ONES), "sample_weight must not be negative"),
    "no weight": (lambda m: m.accuracy_score(HALVES, HALVES, sample_weight=0 * ONES), "weights are zero"),
    "fractions": (lambda m: m.confusion_matrix(ONES / 2, ONES), "y_true must hold class labels, .* 0.5"),
    "mixed": (lambda m: m.accuracy_score(["a"] * 8, HALVES), "different types"),
    "normalize": (lambda m: m.confusion_matrix(HALVES, HALVES, normalize="row"), "normalize must be"),
    "labels": (lambda m: m.confusion_matrix(HALVES, HALVES, labels=[7]), r"none of labels=\[7\]"),
    "multioutput": (lambda m: m.mean_squared_error(ONES, ONES, multioutput="sum"), "multioutput"),
    "probability": (lambda m: m.log_loss(HALVES, 2 * ONES), "2 in row 0, column 0"),
    "unknown": (lambda m: m.log_loss(HALVES, ONES / 2, labels=[0, 2]), "label 1 in row 4"),
    "one label": (lambda m: m.log_loss(ONES, ONES), "one label only"),
    "width": (lambda m: m.log_loss(HALVES, np.ones((8, 3)) / 3), "is of 3 labels, but there are 2"),
    "two columns": (lambda m: m.roc_auc_score(HALVES, np.ones((8, 2))), r"y_score\[:, 1\]"),
    "no curve": (lambda m: m.roc_auc_score(ONES, ONES, labels=[0, 1]), "no ROC curve"),
    "several": (lambda m: m.roc_auc_score([0, 1, 2], np.eye(3)), "multi_class='ovr'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_by_name(what):
    call, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        call(drf.metrics)


def test_missing_values_are_named(rng, held):
    p = rng.standard_normal(N)
    row = int(rng.integers(N))
    p[row] = np.nan
    with pytest.raises(NonFiniteError, match=f"y_pred contains NaN in row {row}"):
        drf.metrics.r2_score(np.zeros(N), held(p))


def test_probabilities_that_do_not_sum_to_one():
    P = np.asarray([[0.5, 0.25], [0.5, 0.5]])
    with pytest.warns(DataWarning, match="does not sum to one in 1 rows"):
        drf.metrics.log_loss([0, 1], P)
