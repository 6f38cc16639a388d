"""Scores against scikit-learn's, for any cuts of the rows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import metrics
from sklearn.metrics import mean_squared_error, r2_score

from distrff import FourierFeatures, Gaussian
from distrff.diagnostics.errors import NumberErrors
from distrff.diagnostics.evaluate import ErrorSum
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets
from tests.support.models import frozen_model
from tests.support.sweeps import swept

UNIT = 2.0**-53
FEATURES = FourierFeatures(Gaussian(2.0), 8, random_state=3)


def model_of(rng, k=1, classes=None):
    k = k if classes is None else ClassTargets(classes).n_outputs
    return frozen_model(FEATURES, rng, n_outputs=k, classes=classes)


def scored(model, X, y, s=None, cuts=()):
    return swept(ErrorSum(model, 16, min(8, model.n_outputs)), as_dataset(X, y, s), cuts=cuts)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cuts", [(), (50,), (1, 33, 70, 99)])
def test_regression_scores_are_those_of_scikit_learn(rng, k, weighted, cuts):
    model = model_of(rng, k)
    X = rng.standard_normal((100, 2))
    Y = model.predict(X).reshape(100, k) + rng.standard_normal((100, k)) + 3
    y = Y[:, 0] if k == 1 else Y
    s = rng.exponential(size=100) * (rng.random(100) < 0.8) if weighted else None
    sums = scored(model, X, y, s, cuts)
    scores, prediction = sums.scores(), model.predict(X)
    w = np.ones(100) if s is None else s
    # Sums of a hundred positive terms, merged a few times; r2 is one minus a ratio of order one.
    near = dict(rel=1000 * UNIT, abs=1000 * UNIT)
    assert sums.n_rows == 100
    assert scores["rmse"] == pytest.approx(
        np.sqrt(mean_squared_error(y, prediction, sample_weight=s)), **near
    )
    assert scores["r2"] == pytest.approx(r2_score(y, prediction, sample_weight=s), **near)
    error = np.reshape(prediction, (100, k)) - Y
    relative = np.sqrt(np.sum(w[:, None] * error**2) / np.sum(w[:, None] * Y**2))
    assert scores["relative_error"] == pytest.approx(relative, **near)


@pytest.mark.parametrize(
    ("targets", "predictions"), [([5, 5], [5, 5]), ([5, 5], [4, 6]), ([[5, 4], [5, 6]], [[4, 5], [6, 6]])]
)
def test_r2_of_equal_targets_is_not_defined(targets, predictions):
    """scikit-learn has 0 or 1, which a mean over targets or folds takes for a result."""
    Y, F = (np.reshape(np.array(A, float), (2, -1)) for A in (targets, predictions))
    model = SimpleNamespace(judge=None, n_targets=Y.shape[1], has_band=False, of_link=lambda F: F)
    errors = NumberErrors.of(model, F, Y, np.ones(2), np.arange(2), np.zeros(2, bool), 1)
    of_others = r2_score(Y[:, 1:], F[:, 1:]) if Y.shape[1] > 1 else np.nan
    np.testing.assert_equal(errors.scores()["r2"], of_others)
    np.testing.assert_equal(
        [one["r2"] for one in errors.values()["targets"]], [np.nan, of_others][: Y.shape[1]]
    )


# Numbers, beyond the scores.


@pytest.mark.parametrize("cuts", [(), (1, 40, 311)])
def test_details_of_numbers(rng, cuts):
    model, n = model_of(rng, 2), 400
    X = rng.standard_normal((n, 2))
    Y = model.predict(X) + rng.standard_normal((n, 2))
    s = rng.integers(0, 3, n).astype(float)
    values = scored(model, X, Y, s, cuts).values(("a", "b"))
    F, kept = model.predict(X), np.repeat(np.arange(n), s.astype(int))
    assert [one["target"] for one in values["targets"]] == ["a", "b"]
    for j, one in enumerate(values["targets"]):
        E = F[:, j] - Y[:, j]
        assert one["bias"] == pytest.approx(np.average(E, weights=s), abs=1e-12)
        assert one["mae"] == pytest.approx(np.average(np.abs(E), weights=s), rel=1e-12)
        assert one["constant_rmse"] == pytest.approx(Y[kept, j].std(), rel=1e-12)
        for share, found in one["residual_quantiles"].items():
            exact = np.quantile(-E[kept], float(share), method="inverted_cdf")
            assert found == pytest.approx(exact, rel=2.0**-10)
        assert sum(bin_["n_rows"] for bin_ in one["bins"]) == np.count_nonzero(s)
        predictions = [bin_["prediction"] for bin_ in one["bins"]]
        assert predictions == sorted(predictions)
        assert all(bin_["actual"] == sorted(bin_["actual"]) for bin_ in one["bins"])


def test_pictures_are_of_the_same_rows_however_these_are_cut(rng, monkeypatch):
    monkeypatch.setattr("distrff.diagnostics.errors._SAMPLE_ROWS", 50)
    model, X = model_of(rng), rng.standard_normal((300, 2))
    y = model.predict(X) + rng.standard_normal(300)
    whole, cut = (scored(model, X, y, None, cuts).values() for cuts in ((), (7, 100, 101, 250)))
    # A product of one row alone may have other last bits; the rows of a fit are always cut alike.
    near = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(whole["targets"][0]["points"], cut["targets"][0]["points"], **near)
    for one, other in zip(whole["targets"][0]["bins"], cut["targets"][0]["bins"], strict=True):
        np.testing.assert_allclose(one["prediction"], other["prediction"], **near)
        np.testing.assert_allclose(one["actual"], other["actual"], rtol=2.0**-9)
    assert sum(one["n_rows"] for one in whole["targets"][0]["bins"]) == 50


def test_many_targets_have_sums_but_no_sketches(rng):
    model, X = model_of(rng, 12), rng.standard_normal((50, 2))
    targets = scored(model, X, model.predict(X) + 1.0).values()["targets"]
    assert all(one["bias"] == pytest.approx(-1.0) for one in targets)
    assert ["residual_quantiles" in one for one in targets] == [True] * 8 + [False] * 4


# Classes, beyond the scores.


def likely_model(rng, classes, multi_class="ovr"):
    model = model_of(rng, classes=classes)
    likelihood = {"noise": "logistic", "sigma": 1.0, "multi_class": multi_class}
    return replace(model, kind="KernelLikelihoodClassifier", likelihood=likelihood)


LABELS = (np.array([0, 1]), np.array(["a", "bc"], object), np.array([False, True]), np.array(list("abcd")))


@pytest.mark.parametrize("classes", LABELS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cuts", [(), (1, 90, 222)])
def test_details_of_classes_are_those_of_scikit_learn(rng, classes, weighted, cuts):
    model, n, n_classes = likely_model(rng, classes), 500, len(classes)
    X = rng.standard_normal((n, 2))
    y = np.where(rng.random(n) < 0.5, model.predict(X), rng.choice(classes, n))
    s = rng.exponential(size=n) if weighted else None
    values, predicted, P = scored(model, X, y, s, cuts).values(), model.predict(X), model.predict_proba(X)
    near = {"rel": 1e-12, "abs": 1e-12}
    expected = metrics.accuracy_score(y, predicted, sample_weight=s)
    assert (values["accuracy"], 1 - values["error"]) == pytest.approx((expected, expected), **near)
    assert values["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(y, predicted, sample_weight=s), **near
    )
    matrix = metrics.confusion_matrix(y, predicted, labels=classes, sample_weight=s)
    np.testing.assert_allclose(values["confusion"]["matrix"], matrix, rtol=1e-12, atol=1e-12)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        y, predicted, labels=classes, sample_weight=s, zero_division=0
    )
    for c, one in enumerate(values["classes"]):
        assert (one["label"], one["n_rows"]) == (classes[c], np.count_nonzero(y == classes[c]))
        found = [np.nan_to_num(one["precision"]), one["recall"], one["f1"]]
        assert found == pytest.approx([precision[c], recall[c], f1[c]], **near)
    assert values["log_loss"] == pytest.approx(
        metrics.log_loss(y, P, labels=classes, sample_weight=s), **near
    )
    truth = y[:, None] == classes
    brier = np.average(np.square(P - truth).sum(axis=1), weights=s)
    assert values["brier"] == pytest.approx(brier, **near)
    w = np.ones(n) if s is None else s
    shares = np.array([w[y == label].sum() for label in classes]) / w.sum()
    assert values["majority"] == classes[shares.argmax()]
    assert values["majority_accuracy"] == pytest.approx(shares.max(), **near)
    assert values["majority_log_loss"] == pytest.approx(-(shares * np.log(shares)).sum(), **near)
    bins = values["reliability"]["bins"]
    assert sum(one["weight"] for one in bins) == pytest.approx(w.sum(), **near)
    p = P[:, 1] if n_classes == 2 else P.max(axis=1)
    assert sum(one["weight"] * one["probability"] for one in bins) == pytest.approx(w @ p, **near)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rounded", [False, True], ids=["all different", "many equal"])
def test_areas_are_those_of_scikit_learn_within_their_stated_errors(rng, weighted, rounded):
    model, n = model_of(rng, classes=np.array([0, 1])), 3000
    X = rng.standard_normal((n, 2))
    if rounded:
        X = X.round(0)
    f = model.decision(X)[:, 0]
    y = (f + rng.standard_normal(n) > 0).astype(int)
    s = rng.exponential(size=n) if weighted else None
    values = scored(model, X, y, s, (1000, 1500)).values()
    for name, error, exact in (
        ("roc_auc", "roc_auc_error", metrics.roc_auc_score(y, f, sample_weight=s)),
        (
            "average_precision",
            "average_precision_error",
            metrics.average_precision_score(y, f, sample_weight=s),
        ),
    ):
        assert abs(values[name] - exact) <= values[error] + 1e-12
        # Few buckets have rows of both classes; those of the largest values bear most on the precision.
        assert values[error] < (0.5 if rounded else 0.02 if name == "roc_auc" else 0.1)
    assert values["positive"] == 1
    assert len(values["roc"]["true_positive_rate"]) <= 202
    assert values["roc"]["false_positive_rate"][0] == 0 and values["roc"]["true_positive_rate"][-1] == 1


def test_labels_never_seen_are_named_and_counted(rng):
    model = model_of(rng, classes=np.array(["a", "b", "c"]))
    X = rng.standard_normal((90, 2))
    y = model.predict(X).astype("U8")
    y[:7], y[7:9] = "new", "other"
    values = scored(model, X, y, None, (4, 8)).values()
    assert values["n_unseen"], values["n_unseen_labels"] == (9, 2)
    assert [(one["label"], one["n_rows"]) for one in values["unseen_labels"]] == [("new", 7), ("other", 2)]
    assert values["accuracy"] == pytest.approx(81 / 90)
    numbers = scored(model, X, rng.integers(0, 3, 90)).values()
    assert numbers["n_unseen"] == 90 and numbers["accuracy"] == 0


def test_of_many_classes_only_what_is_confused_most(rng):
    classes = np.arange(100)
    model = model_of(rng, classes=classes)
    X = rng.standard_normal((200, 2))
    values = scored(model, X, rng.choice(classes, 200)).values()
    assert "confusion" not in values and len(values["classes"]) == 100
    assert len(values["confused"]) == 10
