"""How good a model is: out of fold on its own rows, as it is on others, for rows of any storage."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import PredefinedSplit, ShuffleSplit

import distrff as drf
from distrff.diagnostics.report import judge_fit
from distrff.errors import InputError
from tests.support.pages import headings, words

N = 600


def _features(n_components: int = 48) -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(1.5), n_components, random_state=1)


def _rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(N, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=N) + 3.0


MODELS = {
    "ridge": lambda: drf.KernelRidge(_features(), random_state=0),
    "cg": lambda: drf.KernelRidge(
        drf.RandomBinningFeatures(drf.Laplacian(2.0), 20, random_state=0), random_state=0, cv=3
    ),
    "equispaced": lambda: drf.KernelRidge(
        drf.EquispacedFourierFeatures(drf.Matern(1.0, nu=1.5), 300), random_state=0, scale="none"
    ),
    "ridge classifier": lambda: drf.KernelRidgeClassifier(_features(), random_state=0),
    "svc": lambda: drf.KernelSVC(_features(), "cv", loss="squared_hinge", Cs=[0.1, 1.0], random_state=0),
    "likelihood": lambda: drf.KernelLikelihoodClassifier(_features(), "cv", Cs=[0.1, 1.0], random_state=0),
}


def _targets(name: str, y: np.ndarray) -> np.ndarray:
    if name in ("ridge", "cg", "equispaced"):
        return y
    return np.array(["low", "middle", "high"])[np.digitize(y, [2.5, 3.5])] if name == "svc" else y > 3


@pytest.mark.parametrize("name", MODELS)
def test_own_rows_are_judged_out_of_fold(rng: np.random.Generator, name: str) -> None:
    X, y = _rows(rng)
    y, model = _targets(name, y), MODELS[name]()
    if name == "equispaced":
        X = X[:, :2]
    model.fit(X, y)
    evaluation = drf.evaluate(model)
    assert evaluation["rows"] == "out of fold" and evaluation["n_samples"] == N
    given = drf.evaluate(model, X.copy(), y)
    assert given.to_dict() == evaluation.to_dict()
    predicted = drf.cross_val_predict(model, X, y)
    if model.model_.is_classifier:
        assert evaluation["accuracy"] == pytest.approx(np.mean(predicted == y))
    else:
        mse = np.mean(np.square(predicted - y))
        assert evaluation["rmse"] == pytest.approx(np.sqrt(mse), rel=1e-6)
        if name != "equispaced":  # whose search solves less precisely, which isolated rows notice
            tolerance = 1e-4 if name == "ridge" else 0.05  # of conjugate gradients
            assert evaluation["rmse"] ** 2 == pytest.approx(model.cv_score_, rel=tolerance)
    other = drf.evaluate(model, X[:300], y[:300])
    assert other["rows"] == "other rows"
    frozen = drf.evaluate(model.model_, X, y)
    assert frozen["rows"] == "the rows given" and frozen.get("accuracy", frozen.get("r2")) == model.score(
        X, y
    )


def test_predictions_out_of_fold_are_those_of_models_without_the_fold(rng: np.random.Generator) -> None:
    X, y = _rows(rng)
    model = drf.KernelRidge(_features(), 0.3, fold_by="contiguous", cv=4, scale="none", random_state=0)
    predicted = drf.cross_val_predict(model, X, y)
    split = PredefinedSplit(np.arange(N) * 4 // N)
    for train, test in split.split():
        own = drf.KernelRidge(_features(), 0.3, scale="none", random_state=0).fit(X[train], y[train])
        np.testing.assert_allclose(predicted[test], own.predict(X[test]), rtol=1e-6, atol=1e-8)
    assert not hasattr(model, "model_"), "the estimator itself is not fitted"


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
def test_methods(rng: np.random.Generator, method: str) -> None:
    X, y = _rows(rng)
    model, y = drf.KernelLikelihoodClassifier(_features(), 0.5, random_state=0), y > 3
    found = drf.cross_val_predict(model, X, y, method=method)
    fitted = getattr(model.fit(X, y), method)(X)
    assert found.shape == fitted.shape and found.dtype == fitted.dtype
    if method != "predict":
        assert np.corrcoef(found.ravel(), fitted.ravel())[0, 1] > 0.9


def test_without_folds_it_says_that_it_is_optimistic(rng: np.random.Generator) -> None:
    X, y = _rows(rng)
    model = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X, y)
    judge_fit(model)
    evaluation = model.report_["evaluation"]
    assert evaluation["rows"] == "the rows of the fit"
    shown = words(model.report_.to_html())
    assert "optimistic" in shown and "The fit held no rows out" in shown
    assert evaluation["r2"] == model.score(X, y)


def test_the_report_takes_the_evaluation(rng: np.random.Generator) -> None:
    X, y = _rows(rng)
    model = MODELS["ridge"]().fit(X, y)
    before = model.report_["quality"]
    assert before["rows"] == "out of fold" and before["rmse"] == pytest.approx(np.sqrt(model.cv_score_))
    assert before["rmse"] < before["linear_rmse"] < before["constant_rmse"] == pytest.approx(y.std())
    assert f"R² {before['r2']:.3f}" in repr(model.report_)
    judge_fit(model)
    quality, evaluation = model.report_["quality"], drf.evaluate(model)
    assert quality["rmse"] == pytest.approx(before["rmse"], rel=1e-6)
    assert quality["linear_rmse"] == before["linear_rmse"]
    assert quality["exchangeability"] == before["exchangeability"] and before["exchangeability"]
    assert model.report_["evaluation"] == evaluation.to_dict()
    shown = headings(model.report_.to_html())
    assert shown[:3] == ["Quality", "Predicted against actual", "Residuals against prediction"]
    assert "What matters" in shown and "Mean prediction against column 0" in shown
    assert shown.index("What matters") < shown.index("What was fitted") < shown.index("Error against alpha")
    json.dumps(model.report_.to_dict(), allow_nan=False)


def test_the_linear_model_is_that_of_least_squares(rng: np.random.Generator) -> None:
    X = rng.normal(size=(N, 4)) * [1.0, 100.0, 1e-3, 1.0] + 50.0
    X[:, 3] = X[:, 0] + 2 * X[:, 1]  # dependent
    X = np.column_stack([X, np.full(N, 7.0)])
    Y = X[:, :3] @ [[1.0, 2.0], [0.01, 0.0], [300.0, 1.0]] + rng.normal(size=(N, 2))
    s = rng.integers(1, 4, N).astype(float)
    quality = drf.KernelRidge(_features(), 1.0, random_state=0).fit(X, Y, s).report_["quality"]
    A = np.column_stack([np.ones(N), X[:, :3] - 50.0])
    W = np.sqrt(s)[:, None]
    E = Y - A @ np.linalg.lstsq(W * A, W * Y)[0]
    mse = np.average(np.square(E), axis=0, weights=s).mean() / (1 - 4 / N) ** 2
    assert quality["linear_rmse"] == pytest.approx(np.sqrt(mse), rel=1e-6)


def test_the_accuracy_of_a_fit_is_that_of_sampled_rows(rng: np.random.Generator) -> None:
    X, y = _rows(rng)
    labels = np.array(["low", "high"])[(y > 3.5).astype(int)]
    model = drf.KernelSVC(_features(), "cv", Cs=[0.1, 1.0], loss="squared_hinge", random_state=0).fit(
        X, labels
    )
    quality, exact = model.report_["quality"], drf.evaluate(model)
    assert (quality["rows"], quality["n_rows"]) == ("out of fold", N)  # few rows are a sample of all
    for name in ("accuracy", "balanced_accuracy"):
        assert quality[name] == pytest.approx(exact[name])
    assert quality["majority"] == exact["majority"] == "low"
    assert quality["majority_accuracy"] == pytest.approx(np.mean(labels == "low"))


@pytest.mark.parametrize(
    "cv",
    [drf.GroupFolds(), drf.ForwardFolds(n_folds=3), ShuffleSplit(4, test_size=0.2, random_state=0)],
    ids=str,
)
def test_judgements_of_a_group_or_a_row_are_one_for_the_error_of_the_accuracy(
    rng: np.random.Generator, cv: Any
) -> None:
    X, y = _rows(rng)
    is_grouped = isinstance(cv, drf.GroupFolds)
    groups = {"groups": np.arange(N) // 40} if is_grouped else {}
    labels = y + 0.5 * np.repeat(rng.normal(size=N // 40), 40) > 3  # neighbours are wrong together
    model = drf.KernelRidgeClassifier(_features(), cv=cv, scale="none", random_state=0).fit(
        X, labels, **groups
    )
    quality, folds = model.report_["quality"], model._out_of_fold_models()
    assert folds is not None and model._fit_rows is not None
    _, judged = folds.folds.masks(next(model._fit_rows.rows(0, N).tiles(N)).keys, range(folds.folds.n_folds))
    F = (model.features_.transform(X) @ folds.coef + folds.intercept[:, None])[:, :, 0]
    p = judged / np.maximum(1, judged.sum(axis=1, keepdims=True))
    p /= p.sum()
    right = (F.T > 0) == labels[:, None]
    of_unit = (p * (right - (p * right).sum())).sum(axis=1)[judged.any(axis=1)]
    of_unit = of_unit.reshape(-1, 40 if is_grouped else 1).sum(axis=1)
    error = np.linalg.norm(of_unit) * np.sqrt(len(of_unit) / (len(of_unit) - 1))
    assert (quality["rows"], quality["n_rows"]) == ("out of fold", judged.any(axis=1).sum())
    assert quality["accuracy"] == pytest.approx((p * right).sum())
    assert quality["accuracy_error"] == pytest.approx(error)


def test_a_constant_is_as_accurate_as_the_most_frequent_class(rng: np.random.Generator) -> None:
    """Both are judged on the same rows, of which a fit takes some."""
    X, y = rng.standard_normal((5000, 2)), (np.arange(5000) % 50 == 0).astype(int)
    model = drf.KernelSVC(_features(), 1e-12, random_state=0).fit(X, y)
    quality = model.report_["quality"]
    assert quality["n_rows"] < len(X)
    assert quality["accuracy"] == quality["majority_accuracy"]
    assert quality["balanced_accuracy"] == 0.5 and "balanced accuracy 0.500 on" in str(model.report_)
    assert quality["only_class"] == 0 and "judged on the model says 0" in str(model.report_)
    two = drf.KernelSVC(_features(), random_state=0).fit(X, X[:, 0] > 0).report_
    assert two["quality"]["only_class"] is None and "of every row" not in str(two)
    weighted = drf.KernelSVC(_features(), "cv", Cs=[1e-12], class_weight={1: 1.5}, random_state=0)
    assert "other classes\n" in str(weighted.fit(X, y).report_) + "\n"


def test_a_cluster_has_the_same_bits(rng: np.random.Generator, request: pytest.FixtureRequest) -> None:
    X, y = _rows(rng)
    model = MODELS["ridge"]().fit(X, y)
    here = drf.evaluate(model).to_dict()
    pickled = pickle.loads(pickle.dumps(model))
    assert drf.evaluate(pickled, X, y)["rows"] == "other rows", "it does not know its rows any more"
    request.getfixturevalue("client")
    assert drf.evaluate(model).to_dict() == here


ridge, out_of_fold = MODELS["ridge"], drf.cross_val_predict
REFUSED = [
    (lambda X, y: drf.evaluate(drf.KernelPCA(_features(), 2, random_state=0).fit(X)), "predicts"),
    (lambda X, y: drf.evaluate("a"), "fitted|estimator"),
    (lambda X, y: drf.evaluate(ridge().fit(X, y), y=y), "go with data"),
    (lambda X, y: drf.evaluate(ridge().fit(X, y), X), "y"),
    (lambda X, y: drf.evaluate(ridge().fit(X, y).model_, X), "needs targets"),
    (lambda X, y: drf.evaluate(ridge().fit(X, y).model_, X[:, :2], y), "X has 2 features"),
    (lambda X, y: out_of_fold(ridge(), X, y, method="fit"), "method must be"),
    (lambda X, y: out_of_fold(ridge(), X, y, method="predict_proba"), "a KernelRidge has no predict_proba"),
    (lambda X, y: out_of_fold(ridge(), X, y, method="decision_function"), "no decision_function"),
    (lambda X, y: out_of_fold(drf.KernelPCA(_features(), 2), X, y), "a KernelPCA has no predict;"),
    (lambda X, y: out_of_fold(drf.KernelRidge(_features(), 1.0, solver="sgd"), X, y), "no folds"),
    (lambda X, y: out_of_fold(drf.KernelSVC(_features(), np.inf), X, y > 3), "finite C"),
    (lambda X, y: out_of_fold("a", X, y), "estimators"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_judged(rng: np.random.Generator, call: Any, message: str) -> None:
    with pytest.raises((InputError, TypeError, ValueError), match=message):
        call(*_rows(rng))
