"""Scores against scikit-learn's, for any cuts of the rows."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score

from distrff.features.fourier import FourierFeatures
from distrff.io.arrays import as_dataset
from distrff.kernels.stationary import Gaussian
from distrff.model.score import ScoreReduction, ScoreSums
from distrff.preprocessing.scaling import Moments
from distrff.preprocessing.targets import ClassTargets
from tests.support.models import frozen_model
from tests.support.sweeps import swept

UNIT = 2.0**-53
FEATURES = FourierFeatures(Gaussian(2.0), 8, random_state=3)


def model_of(rng, k=1, classes=None):
    k = k if classes is None else ClassTargets(classes).n_outputs
    return frozen_model(FEATURES, rng, n_outputs=k, classes=classes)


def scored(model, X, y, s=None, cuts=()):
    return swept(ScoreReduction(model, 16), as_dataset(X, y, s), cuts=cuts)


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
    scores, prediction = sums.regression_scores(), model.predict(X)
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
    "classes",
    [np.array([0, 1]), np.array(["a", "b", "c"]), np.array(["a", "bc"], object), np.array([False, True])],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_classification_scores_are_those_of_scikit_learn(rng, classes, weighted):
    model = model_of(rng, classes=classes)
    X, y = rng.standard_normal((100, 2)), rng.choice(classes, 100)
    s = rng.exponential(size=100) if weighted else None
    scores = scored(model, X, y, s, (30, 31)).classification_scores()
    expected = accuracy_score(y, model.predict(X), sample_weight=s)
    assert scores["accuracy"] == pytest.approx(expected, rel=500 * UNIT)
    assert scores["error"] == pytest.approx(1 - expected, abs=500 * UNIT)


def test_constant_targets_score_as_in_scikit_learn():
    def scores(squared_error, deviations):
        mean, reach = np.full(len(deviations), 5.0), np.sqrt(np.divide(deviations, 2.0))
        no_small = np.zeros(len(deviations), bool)
        moments = Moments(2.0, mean, np.array(deviations), mean - reach, mean + reach, no_small)
        return ScoreSums(
            2, np.array(squared_error), np.full(len(deviations), 50.0), moments
        ).regression_scores()

    assert scores([0.0], [0.0])["r2"] == r2_score([5, 5], [5, 5]) == 1
    assert scores([2.0], [0.0])["r2"] == r2_score([5, 5], [4, 6]) == 0
    assert scores([2.0, 1.0], [0.0, 4.0])["r2"] == 0.375
    nothing = ScoreSums(
        2, np.ones(1), np.zeros(1), Moments.empty(1).merge(Moments.of(np.zeros((2, 1)), None))
    )
    assert np.isnan(nothing.regression_scores()["relative_error"])
