"""Classes of any number, kind and weight, as ridge on ±1."""

from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import zarr
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import accuracy_score

import distrff as drf
from distrff.engine.run import Run
from distrff.errors import DataWarning, InputError
from tests.support.fits import classes_of, ridge, ridge_classifier

# κ ≤ 1e6 as in test_ridge: the weights agree to a few u·κ.
AGREEMENT = 1e-8

LABELS = {
    "text": np.array(["b", "a", "long name", "c"]),
    "objects": np.array(["b", "a", "long name", "c"], dtype=object),
    "integers": np.array([7, -3, 2**40, 0]),
    "unsigned": np.array([7, 3, 200, 0], dtype=np.uint8),
    "whole floats": np.array([7.0, -3.0, 2.5e9, 0.0]),
    "booleans": np.array([True, False]),
}


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 3.0, 1: 0.25}])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_ridge_classifier_on_its_features(problem, n_classes, class_weight, weighted):
    y, s = classes_of(problem.y, n_classes), problem.s if weighted else None
    y[:200] = 0  # so that balancing means something
    ours = ridge_classifier(alpha=1e-2, class_weight=class_weight).fit(problem.X, y, s)
    Z = ours.features_.transform(problem.X)
    # scikit-learn balances by counts and lets weights multiply, as class_weight dictionaries do in both.
    if class_weight == "balanced" and weighted:
        by_class = np.bincount(y, s)
        class_weight = dict(enumerate(s.sum() / (n_classes * by_class)))
    theirs = RidgeClassifier(alpha=1e-2, class_weight=class_weight, solver="svd").fit(Z, y, s)
    assert ours.coef_.shape == (1 if n_classes == 2 else n_classes, 64)
    scale = np.linalg.norm(theirs.coef_)
    assert np.linalg.norm(ours.coef_ - theirs.coef_) < AGREEMENT * scale
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0, atol=AGREEMENT * scale)
    F = theirs.decision_function(Z)
    np.testing.assert_allclose(ours.decision_function(problem.X), F, rtol=0, atol=AGREEMENT * scale)
    # Labels agree where the decision is not within the error of a tie.
    first, second = (np.zeros(len(F)), F) if F.ndim == 1 else np.sort(F, axis=1)[:, -2:].T
    clear = np.abs(second - first) > 2 * AGREEMENT * scale
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(ours.predict(problem.X)[clear], theirs.predict(Z)[clear])


def test_two_classes_a_tie_and_labels_that_scoring_has_not_seen(problem):
    model = ridge_classifier().fit(problem.X, problem.y > 0)
    F = model.decision_function(problem.X)
    assert F.shape == (len(problem.X),) and model.coef_.shape == (1, 64) and model.intercept_.shape == (1,)
    np.testing.assert_array_equal(model.predict(problem.X), F > 0)
    np.testing.assert_array_equal(model.model_.targets.decode(np.zeros((1, 1))), [False])
    named = ridge_classifier().fit(problem.X, np.where(problem.y > 0, "a", "b"))
    other = np.where(np.arange(900) < 90, "other", named.predict(problem.X))
    assert named.score(problem.X, other) == pytest.approx(0.9, rel=1e-12)


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_alpha_is_chosen_on_plus_and_minus_one(problem, alpha):
    y = classes_of(problem.y, 3)
    alphas = [1e-2, 1.0, 1e2]
    model = ridge_classifier(alpha, alphas=alphas, random_state=0).fit(problem.X, y)
    coded = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    regression = ridge(alpha, alphas=alphas, random_state=0).fit(problem.X, coded)
    assert model.alpha_ == regression.alpha_
    assert model.cv_score_ == pytest.approx(regression.cv_score_, rel=AGREEMENT)


def test_a_column_of_labels_is_taken_with_a_warning(problem):
    y = classes_of(problem.y, 3)
    reference = ridge_classifier().fit(problem.X, y)
    message = "A column-vector y was passed when a 1d array was expected"
    with pytest.warns(UserWarning, match=message) as caught:
        model = ridge_classifier().fit(problem.X, y[:, None])
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    assert model.predict(problem.X).shape == y.shape


COLUMNS = {
    "category of integers": lambda i: pd.Series(pd.Categorical(i)),
    "category of booleans": lambda i: pd.Series(pd.Categorical(i > 0)),
    "category of words": lambda i: pd.Series(pd.Categorical(np.where(i, "u", "v"))),
    "objects": lambda i: pd.Series(i, dtype=object),
    "objects of booleans": lambda i: pd.Series(i > 0, dtype=object),
    "nullable integers": lambda i: pd.Series(i, dtype="Int64"),
    "nullable booleans": lambda i: pd.Series(i > 0, dtype="boolean"),
    "category of nullable integers": lambda i: pd.Series(i, dtype="Int64").astype("category"),
    "Arrow integers": lambda i: pd.Series(i, dtype="int64[pyarrow]"),
    "Arrow words": lambda i: pd.Series(np.where(i, "u", "v"), dtype="string[pyarrow]"),
    "polars words": lambda i: pl.Series(np.where(i, "u", "v").tolist()).cast(pl.Categorical),
    "integers and floats": lambda i: np.array([1 if v else 0.0 for v in i], object),
    "large integers": lambda i: np.where(i, 2**53 + 1, 2**53).astype(object),
    "large unsigned integers": lambda i: pd.Series(np.where(i, 2**64 - 1, 2**64 - 2).astype("u8")),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_labels_of_any_column_come_back_in_their_type(problem, kind, tmp_path):
    X, y = problem.X[:200], COLUMNS[kind]((problem.y[:200] > 0).astype(int))
    plain = np.asarray(y.to_list() if hasattr(y, "to_list") else y.tolist())
    model = ridge_classifier(alpha=1e-2).fit(X, y)
    assert model.classes_.tolist() == np.unique(plain).tolist()
    assert set(map(type, model.classes_.tolist())) == set(map(type, plain.tolist()))
    predicted = model.predict(X)
    right = accuracy_score(plain, predicted)
    assert right > 0.8
    assert model.score(X, y) == drf.evaluate(model, X, y)["accuracy"] == pytest.approx(right)
    assert drf.metrics.accuracy_score(y, predicted) == pytest.approx(right)
    model.save(tmp_path / "m.zarr")
    stored = drf.load_model(tmp_path / "m.zarr")
    assert stored.targets.classes.dtype == model.classes_.dtype
    drf.write_predictions(stored, X, tmp_path / "p.parquet")
    drf.write_predictions(stored, X, tmp_path / "p.zarr")
    assert pd.read_parquet(tmp_path / "p.parquet")["prediction"].tolist() == predicted.tolist()
    assert zarr.open_array(tmp_path / "p.zarr")[:].tolist() == predicted.tolist()


@pytest.mark.parametrize(
    ("spell", "named"),
    [
        (lambda i: i.astype("S1"), r"got b'0' of type bytes_ in row 0; convert them, as by \[label.decode"),
        (lambda i: i.astype("S1").astype(object), "got b'0' of type bytes in row 0"),
        (lambda i: np.datetime64("2020-01-01") + i, "of type datetime64 in row 0; .* y.astype"),
        (lambda i: np.timedelta64(1, "h") * i, "of type timedelta64"),
        (lambda i: [Decimal(int(v)) for v in i], r"of type Decimal in row 0; .* \[float\(label\) for"),
        (lambda i: [date(2020, 1, 1 + v) for v in i], "got 2020-01-01 of type date in row 0"),
        (lambda i: pd.Series(pd.PeriodIndex(np.where(i, "2020-01", "2020-02"), freq="M")), "of type Period"),
        (
            lambda i: pd.Series(pd.Categorical(pd.to_datetime("2020-01-01") + pd.to_timedelta(i, "D"))),
            "datetime",
        ),
        (lambda i: pd.Series(pd.cut(i, 2)), "of type Interval"),
    ],
)
def test_labels_of_other_types_are_refused_before_the_first_pass(problem, spell, named, monkeypatch):
    monkeypatch.setattr(Run, "reduce", lambda *args, **kwargs: pytest.fail("a pass was made"))
    with pytest.raises(InputError, match=f"class labels must be numbers, booleans or text, .*{named}"):
        ridge_classifier().fit(problem.X, spell(np.resize([0, 1], 900)))


def test_scores_say_which_labels_the_model_never_saw(problem):
    y = (problem.y > 0).astype(int)
    model = ridge_classifier().fit(problem.X, y)
    for same in (y * 1.0, y > 0, y.astype(str), pd.Series(y).astype("category")):
        assert model.score(problem.X, same) == model.score(problem.X, y)
    with pytest.warns(
        DataWarning, match="900 of 900 rows have labels .* such as 5, and count as wrong; .* 0, 1"
    ):
        assert model.score(problem.X, y + 5) == 0


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(900, 3), r"y has one class only \(3\); a classifier needs rows of at least two classes"),
        (np.full(900, "a"), r"y has one class only \('a'\)"),
        (np.linspace(0, 1, 900), r"Unknown label type: continuous .*KernelRidge for .* text: y.astype"),
        (np.full((900, 2), 2), "several labels of a row, 0 or 1 each, got 2 in row 0, column 0"),
        (np.array([1, "a"] * 450, dtype=object), "y mixes labels that cannot be sorted together"),
    ],
)
def test_targets_that_are_no_classes(problem, y, message):
    with pytest.raises(InputError, match=message):
        ridge_classifier().fit(problem.X, y)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight must be None, 'balanced' or a dict"),
        ({1: 2.0, "1": 5.0}, "class_weight names one class twice"),
        ({5: 1.0}, r"class_weight names 5, which is not one of the classes \[0, 1, 2\]"),
        ({1: -1.0}, r"class_weight\[1\] must be a finite number ≥ 0, got -1.0"),
        ({1: np.nan}, r"class_weight\[1\] must be a finite number"),
        ({1: "heavy"}, r"class_weight\[1\] must be a finite number"),
        (None, "all rows of class 2 have zero weight"),
    ],
)
def test_class_weights_that_cannot_be_used(problem, class_weight, message):
    y = classes_of(problem.y, 3)
    s = (y != 2).astype(float) if class_weight is None else None
    with pytest.raises(InputError, match=message):
        ridge_classifier(class_weight=class_weight).fit(problem.X, y, s)


def test_a_plan_says_that_classes_are_not_counted_yet(problem):
    model = drf.KernelRidgeClassifier(drf.FourierFeatures(drf.Gaussian(2.0), 32), alpha=1.0, scale="none")
    labels = problem.X[:, 0] > 0
    plan = model.plan(problem.X, labels)
    assert "presumed until the classes are counted" in str(plan)
    assert plan.to_dict()["outputs_are_presumed"]
    fitted = model.fit(problem.X, labels).plan_
    assert fitted.size.n_outputs == 1
    assert "presumed" not in str(fitted)
