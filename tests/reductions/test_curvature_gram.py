"""The Gram of rows weighted by the curvature of their losses, against the dense formula."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.io.arrays import as_dataset
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.base import Folds
from distrff.reductions.gram import CurvatureGramReduction
from distrff.solvers.losses import Laplace, Logistic, Probit, SquaredHinge
from distrff.solvers.ridge import unpack

N, D = 301, 12
FOURIER = drf.FourierFeatures(drf.Gaussian(1.0), D, random_state=0)
LANDMARKS = drf.NystroemFeatures(drf.Exponential(1.0), D, random_state=0)


@pytest.mark.parametrize("loss", [Logistic(), Probit(0.5), Laplace(), SquaredHinge()])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sent_map", [True, False])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("light_rows", [7, 50])  # fewer and more than a product takes
@pytest.mark.parametrize("features", [FOURIER, LANDMARKS], ids=["Fourier", "landmarks"])
def test_it_is_the_weighted_sum(rng, loss, weighted, sent_map, sampled, light_rows, features):
    X, y = rng.standard_normal((N, 3)), rng.choice(3, N)
    s = rng.exponential(size=N) if weighted else None
    folds = Folds(2, 7, "hash", N) if sampled else None
    reduction = CurvatureGramReduction(
        specification=clone(features).fit(X).specification_,
        scaling=Scaling(),
        targets=ClassTargets(np.arange(3), np.array([1.0, 2.0, 0.5]) if weighted else None),
        dtype="float64",
        tile_rows=16,
        light_rows=light_rows,
        folds=folds,
        loss=loss,
        output=1,
    )
    point = {"coef": rng.standard_normal((D, 1)), "intercept": rng.standard_normal(1)}
    arrays = reduction.specification.arrays_to_send(derived=True) if sent_map else {}
    dataset = as_dataset(X, y, s)
    parts = [
        reduction.finish(reduction.update(reduction.zero(), dataset.rows(start, stop), point | arrays))
        for start, stop in ((0, 100), (100, N))
    ]
    found = unpack(reduction.merge(*parts)[0])
    Z = reduction.specification.build().apply(X)
    Y = reduction.targets.encode(y)
    f = Z @ point["coef"][:, 0] + point["intercept"]
    weights = loss.second_derivative(f, Y[:, 1])
    if sampled:
        weights = weights * (folds.of_rows(0, N) == 0)
    if weighted:
        weights = weights * reduction.targets.row_weights(y, s)
    T = np.column_stack([Z, np.ones(N), Y])
    np.testing.assert_allclose(found, T.T @ (weights[:, None] * T), atol=1e-11 * weights.sum())
