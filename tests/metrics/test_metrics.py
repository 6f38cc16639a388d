"""Scores of any rows against scikit-learn's of the same."""

from functools import partial

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as theirs

import distrff as drf
from distrff.errors import DataWarning, InputError, NonFiniteError

pytestmark = pytest.mark.usefixtures("in_this_thread")

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


@pytest.mark.parametrize(
    ("kind", "normalize"),
    [(int, None), (str, None), (object, None), (str, "true"), (object, "pred"), (int, "all")],
)
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
    y_held, P_held, given = held(y), held(P), options(held, weights)
    found = drf.metrics.log_loss(y_held, P_held, **given)
    # scikit-learn adds up in the dtype of the probabilities.
    tolerance = 16 * float(np.finfo(dtype).eps)
    assert found == pytest.approx(theirs.log_loss(y, P, sample_weight=weights), rel=tolerance)
    assert drf.metrics.log_loss(y_held, P_held, labels=np.unique(y)[::-1], **given) == found
    total = drf.metrics.log_loss(y_held, P_held, normalize=False, **given)
    assert total == pytest.approx(found * (N if weights is None else weights.sum()), rel=N * 2.0**-52)


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
    if average is None:  # decision values, too, where scikit-learn's area takes probabilities only
        F = rng.standard_normal((N, 3))
        found = drf.metrics.roc_auc_score(held(y), held(F), **choice, **options(held, weights))
        one_label = partial(theirs.roc_auc_score, sample_weight=weights)
        expected = [one_label(y == label, F[:, j]) for j, label in enumerate(["x", "y", "z"])]
        np.testing.assert_allclose(found, expected, rtol=N * 2.0**-52)


SCORES = {
    "r2": lambda m, y, p, **given: m.r2_score(y, p, **given),
    "squares": lambda m, y, p, **given: m.mean_squared_error(y, p, **given),
    "accuracy": lambda m, y, p, **given: m.accuracy_score(y, p > 0.5, **given),
    "confusion": lambda m, y, p, **given: m.confusion_matrix(y, p > 0.5, **given),
    "loss": lambda m, y, p, **given: m.log_loss(y, p, **given),
    "area": lambda m, y, p, **given: m.roc_auc_score(y, p, **given),
}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_neither_order_nor_chunks_matter(rng, weights, score):
    """Blocks of one label or without rows are blocks as well; some 170 are merged in three rounds."""
    y, p = np.sort(rng.integers(0, 2, N)), rng.integers(0, 40, N) / 40
    s = np.ones(N) if weights is None else weights
    whole = score(drf.metrics, y, p, sample_weight=weights)
    order = rng.permutation(N)
    for rows, chunks in ((slice(None), 3), (slice(None), (0, 200, 0, 300, 0)), (order, 17), (order, N)):
        lazy = (da.from_array(A[rows], chunks=(chunks,)) for A in (y, p, s))
        found = score(drf.metrics, next(lazy), next(lazy), sample_weight=next(lazy))
        np.testing.assert_allclose(found, whole, rtol=N * 2.0**-52)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_one_pass_over_what_truths_and_predictions_have_in_common(rng, score):
    read = []

    def counted(block):
        read.append(len(block))
        return block

    rows = da.from_array(rng.uniform(size=N), chunks=100).map_blocks(counted, meta=np.empty(0))
    y, p = (rows > 0.4).astype(int), rows / 2
    given = {"labels": [0, 1]} if score is SCORES["loss"] else {}  # whose truths are read before otherwise
    score(drf.metrics, y, p, **given)
    assert sum(read) == N


@pytest.mark.parametrize("is_lazy", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_arrays_beside_dask_arrays(rng, score, is_lazy):
    y, p, s = rng.integers(0, 2, N), rng.uniform(size=N), rng.uniform(size=N)
    mixed = [lazily(rng, A) if lazy else A for A, lazy in zip((y, p, s), is_lazy, strict=True)]
    found = score(drf.metrics, mixed[0], mixed[1], sample_weight=mixed[2])
    np.testing.assert_allclose(found, score(drf.metrics, y, p, sample_weight=s), rtol=N * 2.0**-52)


def test_text_of_another_width_in_each_block():
    y, p = ["a", "a", "abc", "ab"], ["a", "abc", "abc", "ab"]
    lazy = [da.concatenate([da.from_array(np.array(A[:2])), da.from_array(np.array(A[2:]))]) for A in (y, p)]
    np.testing.assert_array_equal(drf.metrics.confusion_matrix(*lazy), theirs.confusion_matrix(y, p))
    assert drf.metrics.accuracy_score(*lazy) == 0.75
    assert drf.metrics.log_loss(lazy[0], np.full((4, 3), 1 / 3)) == pytest.approx(np.log(3))


@pytest.mark.parametrize("kind", [object, "category", "Int64"])
def test_labels_in_objects_are_what_they_hold(rng, held, kind):
    y, p = rng.integers(0, 3, (2, N))
    made = [held(A.astype(object)) if kind is object else pd.Series(A).astype(kind) for A in (y, p)]
    if isinstance(held(y), da.Array) and kind is not object:
        made = [dd.from_pandas(A, npartitions=n) for A, n in zip(made, (2, 3), strict=True)]
    np.testing.assert_array_equal(drf.metrics.confusion_matrix(*made), theirs.confusion_matrix(y, p))
    assert drf.metrics.accuracy_score(*made) == pytest.approx(theirs.accuracy_score(y, p), rel=N * 2.0**-52)


def test_constant_targets(held):
    """Rounding makes the mean of equal numbers another number, of some of these on any processor."""
    y = np.tile([0.1, 0.3, 0.7, 1.1, 0.123], (N, 1))
    for miss, expected in ((0.0, 1.0), (1e-9, 0.0)):
        found = drf.metrics.r2_score(held(y), held(y + miss), multioutput="raw_values")
        np.testing.assert_array_equal(found, np.full(5, expected))


def test_series_and_frames(rng):
    frame = pd.DataFrame(rng.standard_normal((N, 2)), columns=["a", "b"])
    expected = theirs.r2_score(frame["a"], frame["b"])
    assert drf.metrics.r2_score(frame["a"], frame["b"]) == pytest.approx(expected)
    assert drf.metrics.r2_score(frame, frame + 0.0) == 1.0
    lazy = dd.from_pandas(frame, npartitions=3)
    assert drf.metrics.r2_score(lazy["a"], lazy["b"]) == pytest.approx(expected)


def test_columns_of_a_shuffled_frame(rng):
    frame = pd.DataFrame(rng.standard_normal((N, 2)), columns=["a", "b"])
    with dask.config.set(scheduler="threads"):
        lazy = dd.from_pandas(frame, npartitions=3).shuffle("b")
        assert drf.metrics.r2_score(lazy["a"], lazy["a"] + 0.0) == 1.0
        with pytest.raises(
            InputError, match=r"y_true comes from a merged or shuffled .* y_pred is in memory"
        ):
            drf.metrics.r2_score(lazy["a"], frame["a"])


def _unknown_sizes(values):
    return da.from_array(values, chunks=4)[da.from_array(values, chunks=4) >= 0]


ONES = np.ones(8)
HALVES = np.repeat([0, 1], 4)
TEXT, HALF, NONE = np.array(["a"] * 8), ONES / 2, 0 * ONES
REFUSED = [
    ("r2_score", ONES, np.ones(7), {}, "y_true has 8 rows but y_pred has 7"),
    ("r2_score", ONES, np.ones((8, 2)), {}, "y_true has 1 .* y_pred has 2"),
    ("r2_score", ONES, _unknown_sizes(ONES), {}, "y_pred.compute_chunk_sizes"),
    ("r2_score", ONES[:1], ONES[:1], {}, "at least two rows"),
    ("accuracy_score", ONES[:0], ONES[:0], {}, "y_true has no rows"),
    ("r2_score", 1j * ONES, ONES, {}, "Complex data not supported: y_true"),
    ("r2_score", TEXT, ONES, {}, "y_true must hold numbers"),
    ("r2_score", ONES, ONES, {"sample_weight": -ONES}, "not be negative"),
    ("r2_score", ONES, ONES, {"sample_weight": np.eye(8)}, "be one column"),
    ("r2_score", ONES, ONES, {"sample_weight": NONE}, "weights are zero"),
    # The latter are scikit-learn's words.
    ("accuracy_score", HALVES, HALVES, {"sample_weight": NONE}, "weights are zero|at least one non-zero"),
    ("confusion_matrix", HALVES, HALVES, {"sample_weight": NONE}, "weights are zero"),
    ("log_loss", HALVES, ONES, {"sample_weight": NONE}, "weights are zero"),
    ("confusion_matrix", HALF, ONES, {}, "y_true must hold class labels"),
    ("accuracy_score", ONES, HALF, {}, "y_pred .* the fraction 0.5"),
    ("accuracy_score", TEXT, HALVES, {}, "different types|string and number"),
    ("confusion_matrix", TEXT, HALVES, {}, "different types"),
    ("accuracy_score", np.eye(8), HALVES, {}, "y_true must be one column"),
    ("confusion_matrix", HALVES, HALVES, {"normalize": "row"}, "normalize must"),
    ("confusion_matrix", HALVES, HALVES, {"labels": [7]}, "must be in y_true"),
    ("mean_squared_error", ONES, ONES, {"multioutput": "sum"}, "multioutput"),
    ("r2_score", ONES, ONES, {"multioutput": [1, 2]}, "one weight for each of 1"),
    ("log_loss", HALVES, 2 * ONES, {}, "y_proba has 2, .* no probability"),
    ("log_loss", HALVES, HALF, {"labels": [0, 2]}, "label 1, which is not"),
    ("log_loss", ONES, ONES, {}, r"for 2 labels, but there are 1: \[1\]"),
    ("log_loss", HALVES, np.ones((8, 3)) / 3, {}, "for 3 labels, but there are 2"),
    ("roc_auc_score", HALVES, np.ones((8, 2)), {}, r"y_score\[:, 1\]"),
    ("roc_auc_score", ONES, ONES, {"labels": [0, 1]}, "no ROC curve"),
    ("roc_auc_score", HALVES, ONES, {"sample_weight": 1.0 - HALVES}, "no ROC curve"),
    ("roc_auc_score", HALVES, np.ones((8, 3)), {}, "multi_class='ovr'"),
    ("roc_auc_score", HALVES, ONES, {"multi_class": "ovo"}, "multi_class must be"),
]


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(("score", "y", "p", "given", "message"), REFUSED)
def test_bad_input_is_refused_by_name(score, y, p, given, message, is_lazy):
    def held(A):
        return da.from_array(A, chunks=3) if is_lazy and isinstance(A, np.ndarray) else A

    with pytest.raises(InputError, match=message):
        getattr(drf.metrics, score)(held(y), held(p), **{name: held(value) for name, value in given.items()})


def test_values_and_blocks_that_are_refused(rng, monkeypatch, held):
    monkeypatch.setattr(drf.metrics, "MAX_LABELS", 9)
    y, p, row = np.arange(N) % 10, rng.standard_normal(N), int(rng.integers(N))
    for score in (drf.metrics.confusion_matrix, drf.metrics.log_loss):
        with pytest.raises(InputError, match="more than 9 different labels"):
            score(held(y), held(np.zeros(N, int)))
    p[row] = np.nan
    with pytest.raises(NonFiniteError, match=f"y_pred contains NaN in row {row}"):
        drf.metrics.r2_score(np.zeros(N), held(p))
    short = da.from_array(ONES, chunks=4).map_blocks(lambda block: block[:1], meta=np.empty(0))
    with pytest.raises(InputError, match=r"a block of y_pred has shape \(1,\)"):
        drf.metrics.r2_score(ONES, short)


def test_probabilities_that_do_not_sum_to_one():
    P = np.asarray([[0.5, 0.25], [0.5, 0.5]])
    with pytest.warns(DataWarning, match="does not sum to one in 1 rows"):
        drf.metrics.log_loss([0, 1], P)


def test_large_integers_of_two_types_are_compared_exactly():
    y, p = np.array([2**53, 2**53 + 1]), np.array([2**53 + 1, 2**53], np.uint64)
    assert drf.metrics.accuracy_score(y, p) == 0.0
    np.testing.assert_array_equal(drf.metrics.confusion_matrix(y, p), [[0, 1], [1, 0]])
    assert drf.metrics.accuracy_score(y, p[::-1].astype(object)) == 1.0
