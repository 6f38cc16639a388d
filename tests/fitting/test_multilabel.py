"""Several labels of a row: one ±1 regression each from one Gram, as scikit-learn's RidgeClassifier has it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, precision_score, recall_score

import distrff as drf
from distrff.errors import InputError
from tests.support.fits import refusal, ridge_classifier


@pytest.fixture
def labels(problem):
    """Three labels, of which the last is constant in all rows."""
    found = np.column_stack([problem.y > 0, problem.Y[:, 1] > 0, np.zeros(len(problem.y))])
    return found.astype(np.int64)


@pytest.mark.parametrize("solver", ["gram", "cg"])
def test_as_scikit_learn_on_the_same_features(problem, labels, solver):
    model = ridge_classifier(1.0, solver=solver, tol=1e-10).fit(problem.X, labels, problem.s)
    Z = model.features_.transform(problem.X)
    expected = RidgeClassifier(alpha=1.0).fit(Z, labels, problem.s)
    # Σs/alpha is 1e3, and the residual 1e-10.
    atol = 1e-6 * np.abs(expected.coef_).max()
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=atol)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=0, atol=atol)
    np.testing.assert_array_equal(model.classes_, expected.classes_)
    found = model.predict(problem.X)
    assert found.shape == labels.shape and found.dtype == expected.predict(Z).dtype
    np.testing.assert_array_equal(found, (model.decision_function(problem.X) > 0).astype(int))
    assert not found[:, 2].any()  # −1 in all rows
    assert model.score(problem.X, labels) == pytest.approx(accuracy_score(labels, found), rel=1e-12)
    pipeline = model.to_sklearn()
    np.testing.assert_allclose(
        pipeline.decision_function(problem.X), model.decision_function(problem.X), rtol=0, atol=1e-9
    )
    assert pipeline.predict(problem.X).shape == labels.shape


def test_evaluation_is_that_of_scikit_learn(problem, labels):
    names = ["p", "q", "r"]
    model = ridge_classifier("cv", random_state=1).fit(problem.X, pd.DataFrame(labels, columns=names))
    found = drf.cross_val_predict(model, problem.X, labels)
    values = drf.evaluate(model)
    assert (values["rows"], values["kind"]) == ("out of fold", "labels")
    assert values["accuracy"] == pytest.approx(accuracy_score(labels, found))
    assert values["hamming_loss"] == pytest.approx(hamming_loss(labels, found))
    assert values["constant_hamming_loss"] == pytest.approx(
        np.minimum(labels.mean(0), 1 - labels.mean(0)).mean()
    )
    for j, one in enumerate(values["labels"][:2]):
        for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            assert one[name] == pytest.approx(score(labels[:, j], found[:, j]))
    assert values["labels"][2]["precision"] is None
    assert "all labels right" in repr(values) and values.to_html()
    quality = model.report_["quality"]
    assert quality["accuracy"] == pytest.approx(values["accuracy"]) and model.report_.to_html()
    assert "all labels right" in repr(model.report_)


def test_sums_of_several_labels(problem, labels, tmp_path):
    X, features = problem.X, ridge_classifier().features
    expected = ridge_classifier(1.0).fit(X, labels)
    first = drf.gram(X[:400], features, labels[:400], targets="classes", scale="none")
    first.save(str(tmp_path / "gram.zarr"))
    first = drf.GramStatistics.load(str(tmp_path / "gram.zarr"))
    both = first + drf.gram(X[400:], y=labels[400:], like=first)
    late = drf.KernelRidgeClassifier(alpha=1.0).fit_gram(both)
    grown = ridge_classifier(1.0).partial_fit(X[:400], labels[:400]).partial_fit(X[400:], labels[400:])
    for model in (late, grown):
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    assert "several labels" in refusal(ridge_classifier().partial_fit, X, labels, None, [0, 1])
    assert "1 column(s)" in refusal(grown.partial_fit, X, labels[:, 0])


def test_what_several_labels_cannot_be_used_for(problem, labels, tmp_path):
    X, model = problem.X, ridge_classifier(1.0).fit(problem.X, labels)
    for call in (
        lambda: model.predict_set(X),
        lambda: model.calibrate(X[:100], labels[:100]),
        lambda: drf.calibrate(model.model_, X[:100], labels[:100]),
        lambda: drf.permutation_importance(model, X, labels),
        lambda: drf.predict_raster(model, {j: [0.0, 1.0] for j in range(4)}, str(tmp_path / "raster")),
        lambda: ridge_classifier(class_weight="balanced").fit(X, labels),
        lambda: ridge_classifier().fit(X, labels + 1),
        lambda: ridge_classifier().fit(X, labels.astype(str)),
    ):
        assert "several" in refusal(call)
    with pytest.raises(InputError, match="one column of class labels, got 3 columns"):
        drf.KernelSVC(ridge_classifier().features).fit(X, labels)
