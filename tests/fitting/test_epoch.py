"""The epoch sweep against steps by hand, for any order of arrival and any storage."""

from dataclasses import replace

import numpy as np
import pytest

import distrff as drf
from distrff.fitting.sgd import EpochReduction, sent_start
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import ClassTargets, NumericTargets
from distrff.solvers.losses import Logistic, Squared
from distrff.solvers.objective import Evaluation
from distrff.solvers.sgd import Epoch, LocalSteps, SGDProblem
from distrff.solvers.spectral_metric import SpectralMetric
from tests.support.sweeps import merged_as_they_arrive, of_features, partials

D, N_ROWS, SEGMENT, BATCH = 8, 330, 50, 16
SPEC = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=3).fit(np.zeros((1, 2))).specification_
CLASSES = ClassTargets(np.array(["a", "b", "c"]), np.array([1.0, 2.0, 0.5]))


def reduction_of(specification, targets, outputs, *, fit_intercept):
    fields = of_features(specification, targets, tile_rows=BATCH)
    return EpochReduction(**fields, loss=Logistic(), outputs=outputs, fit_intercept=fit_intercept)


class Rows:
    """Three classes of points in the plane, and models somewhere on their way."""

    def __init__(self, rng, fit_intercept=True, outputs=(0, 1, 2)):
        self.X = rng.standard_normal((N_ROWS, 2))
        self.y = np.array(["a", "b", "c"])[(self.X > 0.2).sum(axis=1)]
        self.s = rng.uniform(0, 2, N_ROWS)
        self.Z = SPEC.build(None).apply(self.X)
        self.metric = SpectralMetric.of_rows(self.Z[::2], None, 5, fit_intercept=fit_intercept)
        problem = SGDProblem(self.metric, 0.1, float(N_ROWS), 0.25)
        size = D + fit_intercept
        self.start = problem.local_start(
            [Epoch(_evaluation(rng.standard_normal((2, size))), 0.2, j) for j in outputs]
        )
        self.reduction = reduction_of(SPEC, CLASSES, outputs, fit_intercept=fit_intercept)
        self.sent = sent_start(self.metric, self.start)

    def partials(self, dataset, reduction=None):
        cuts = range(SEGMENT, N_ROWS, SEGMENT)
        return partials(self.reduction if reduction is None else reduction, dataset, self.sent, cuts)

    def by_hand(self, loss, Y, s, first, stop):
        """The steps of one segment."""
        return stepped(LocalSteps(loss, self.metric, self.start), self.Z.__getitem__, Y, s, first, stop)


def stepped(steps, tile, Y, s, first, stop):
    for row in range(first, stop, BATCH):
        part = slice(row, min(row + BATCH, stop))
        steps.step(tile(part), Y[part], None if s is None else s[part])
    return steps


def _evaluation(x_and_gradient):
    x, gradient = x_and_gradient
    numbers = {"primal": 1.0, "value": 1.0, "curvature": 0.02, "smoothing": 0.0}
    return Evaluation(x=x, gradient=gradient, candidate=None, held_out=np.zeros(2), **numbers)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_segments_take_steps_of_their_own(rng, fit_intercept):
    rows = Rows(rng, fit_intercept)
    Y, s = CLASSES.encode(rows.y), CLASSES.row_weights(rows.y, rows.s)
    total, weight = 0.0, 0.0
    for first in range(0, N_ROWS, SEGMENT):
        steps = rows.by_hand(Logistic(), Y, s, first, min(first + SEGMENT, N_ROWS))
        total, weight = total + steps.weight * steps.X, weight + steps.weight
    results = rows.partials(as_dataset(rows.X, rows.y, rows.s))
    found = merged_as_they_arrive(rows.reduction, results, range(len(results)))
    assert found.weight == pytest.approx(s.sum())
    np.testing.assert_allclose(found.mean(), total / weight, rtol=1e-9, atol=1e-12)
    assert found.X.nbytes <= rows.reduction.size_bytes(N_ROWS)
    for _ in range(5):  # the same bits for any arrival
        again = merged_as_they_arrive(rows.reduction, results, rng.permutation(len(results)))
        np.testing.assert_array_equal(again.X, found.X)


def test_models_do_not_see_each_other(rng):
    rows = Rows(rng)
    dataset = as_dataset(rows.X, rows.y, rows.s)
    together = rows.partials(dataset)[0].X
    for j in range(3):
        names = ("X", "gradient", "curvature", "damping", "dimension")
        alone = {name: getattr(rows.start, name)[..., j : j + 1] for name in names}
        rows.sent = sent_start(rows.metric, replace(rows.start, **alone))
        alone = rows.partials(dataset, replace(rows.reduction, outputs=(j,)))[0].X
        np.testing.assert_allclose(alone[:, 0], together[:, j], rtol=1e-9, atol=1e-12)


def test_numbers_as_targets(rng):
    rows = Rows(rng, outputs=(0,))
    targets = NumericTargets(np.array([3.0]), np.array([2.0]))
    reduction = replace(rows.reduction, targets=targets, loss=Squared())
    y = rows.X[:, 0] + 3
    found = rows.partials(as_dataset(rows.X, y), reduction)[0]
    steps = rows.by_hand(Squared(), targets.encode(y), None, 0, SEGMENT)
    np.testing.assert_allclose(found.mean(), steps.X, rtol=1e-9, atol=1e-12)
    assert found.weight == SEGMENT


def test_sparse_features_are_stepped_over_as_dense_ones(rng):
    X = rng.standard_normal((SEGMENT, 2))
    y = np.where(X[:, 0] > 0, "b", "a")
    features = drf.RandomBinningFeatures(drf.Laplacian(3.0), 20, n_bins=200, random_state=1)
    specification = features.fit(X).specification_
    block_map = specification.build(None)
    Z = block_map.apply(X)
    targets = ClassTargets(np.array(["a", "b"]))
    ends = []
    for rows, tile in ((Z, lambda part: block_map.tile(X[part])), (Z.toarray(), Z.toarray().__getitem__)):
        metric = SpectralMetric.of_rows(rows[::2], None, 5, fit_intercept=True)
        problem = SGDProblem(metric, 0.1, float(SEGMENT), 0.25)
        epoch = Epoch(_evaluation(np.linspace(-1, 1, 402).reshape(2, 201)), 0.2, 0)
        start = problem.local_start([epoch])
        steps = stepped(LocalSteps(Logistic(), metric, start), tile, targets.encode(y), None, 0, SEGMENT)
        ends.append((steps.X, sent_start(metric, start)))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6, atol=1e-8)
    reduction = reduction_of(specification, targets, (0,), fit_intercept=True)
    found = reduction.update(None, as_dataset(X, y).rows(0, SEGMENT), ends[0][1])
    np.testing.assert_allclose(found.mean(), ends[0][0], rtol=1e-12, atol=1e-14)
