"""The epoch sweep against steps by hand, for any order of arrival and any storage."""

from __future__ import annotations

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import distrff as drf
from distrff.engine.reduction import OrderedMerge
from distrff.io.arrays import as_dataset
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets, NumericTargets
from distrff.reductions.epoch import EpochReduction, sent_start
from distrff.solvers.losses import Logistic, Squared
from distrff.solvers.objective import Evaluation
from distrff.solvers.sgd import Epoch, LocalSteps, SGDProblem
from distrff.solvers.spectral_metric import SpectralMetric

D, N_ROWS, SEGMENT, BATCH = 8, 330, 50, 16
SPEC = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=3).fit(np.zeros((1, 2))).specification_
CLASSES = ClassTargets(np.array(["a", "b", "c"]), np.array([1.0, 2.0, 0.5]))


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
        self.reduction = EpochReduction(
            specification=SPEC,
            scaling=Scaling(),
            targets=CLASSES,
            dtype="float64",
            tile_rows=BATCH,
            loss=Logistic(),
            outputs=outputs,
            fit_intercept=fit_intercept,
        )
        self.sent = sent_start(self.metric, self.start)

    def partials(self, dataset, reduction=None):
        reduction = self.reduction if reduction is None else reduction
        bounds = [(i, min(i + SEGMENT, N_ROWS)) for i in range(0, N_ROWS, SEGMENT)]
        rows = [dask.delayed(dataset.rows(*pair)).compute(scheduler="sync") for pair in bounds]
        return [reduction.finish(reduction.update(reduction.zero(), r, self.sent)) for r in rows]


def _evaluation(x_and_gradient):
    x, gradient = x_and_gradient
    numbers = {"primal": 1.0, "value": 1.0, "curvature": 0.02, "smoothing": 0.0}
    return Evaluation(x=x, gradient=gradient, candidate=None, held_out=np.zeros(2), **numbers)


def merged(reduction, partials, arrivals):
    def merge(total, neighbours):
        for other, is_before in neighbours:
            total = reduction.merge(other, total) if is_before else reduction.merge(total, other)
        return total

    tree = OrderedMerge(len(partials), merge)
    for segment in arrivals:
        tree.add(segment, partials[segment])
    return tree.result()


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_segments_take_steps_of_their_own(rng, fit_intercept):
    rows = Rows(rng, fit_intercept)
    Y, s = CLASSES.encode(rows.y), CLASSES.row_weights(rows.y, rows.s)
    total, weight = 0.0, 0.0
    for first in range(0, N_ROWS, SEGMENT):
        steps = LocalSteps(Logistic(), rows.metric, rows.start)
        stop = min(first + SEGMENT, N_ROWS)
        for row in range(first, stop, BATCH):
            part = slice(row, min(row + BATCH, stop))
            steps.step(rows.Z[part], Y[part], s[part])
        total, weight = total + steps.weight * steps.X, weight + steps.weight
    partials = rows.partials(as_dataset(rows.X, rows.y, rows.s))
    found = merged(rows.reduction, partials, range(len(partials)))
    assert found.weight == pytest.approx(s.sum())
    np.testing.assert_allclose(found.mean(), total / weight, rtol=1e-9, atol=1e-12)
    assert found.X.nbytes <= rows.reduction.size_bytes(N_ROWS)


def test_the_same_bits_for_any_arrival_and_chunks(rng):
    rows = Rows(rng)
    partials = rows.partials(as_dataset(rows.X, rows.y, rows.s))
    expected = merged(rows.reduction, partials, range(len(partials)))
    for _ in range(5):
        found = merged(rows.reduction, partials, rng.permutation(len(partials)))
        np.testing.assert_array_equal(found.X, expected.X)
    chunked = as_dataset(
        da.from_array(rows.X, chunks=(37, 1)),
        da.from_array(rows.y, chunks=101),
        da.from_array(rows.s, chunks=11),
    )
    found = merged(rows.reduction, rows.partials(chunked), range(len(partials)))
    np.testing.assert_array_equal(found.X, expected.X)


def test_models_do_not_see_each_other(rng):
    rows = Rows(rng)
    dataset = as_dataset(rows.X, rows.y, rows.s)
    together = rows.partials(dataset)[0].X
    for j in range(3):
        start = replace(
            rows.start,
            **{
                name: getattr(rows.start, name)[..., j : j + 1]
                for name in ("X", "gradient", "curvature", "damping", "dimension")
            },
        )
        rows.sent = sent_start(rows.metric, start)
        alone = rows.partials(dataset, replace(rows.reduction, outputs=(j,)))[0].X
        np.testing.assert_allclose(alone[:, 0], together[:, j], rtol=1e-9, atol=1e-12)


def test_numbers_as_targets(rng):
    rows = Rows(rng, outputs=(0,))
    targets = NumericTargets(np.array([3.0]), np.array([2.0]))
    reduction = replace(rows.reduction, targets=targets, loss=Squared())
    y = rows.X[:, 0] + 3
    found = rows.partials(as_dataset(rows.X, y), reduction)[0]
    steps = LocalSteps(Squared(), rows.metric, rows.start)
    for row in range(0, SEGMENT, BATCH):
        part = slice(row, min(row + BATCH, SEGMENT))
        steps.step(rows.Z[part], targets.encode(y[part]), None)
    np.testing.assert_allclose(found.mean(), steps.X, rtol=1e-9, atol=1e-12)
    assert found.weight == SEGMENT


def test_sparse_features_are_stepped_over_as_dense_ones(rng):
    X = rng.standard_normal((SEGMENT, 2))
    y = np.where(X[:, 0] > 0, "b", "a")
    specification = (
        drf.RandomBinningFeatures(drf.Laplacian(3.0), 20, n_bins=200, random_state=1).fit(X).specification_
    )
    block_map = specification.build(None)
    Z = block_map.apply(X)
    targets = ClassTargets(np.array(["a", "b"]))
    ends = []
    for rows, tile in ((Z, lambda part: block_map.tile(X[part])), (Z.toarray(), Z.toarray().__getitem__)):
        metric = SpectralMetric.of_rows(rows[::2], None, 5, fit_intercept=True)
        problem = SGDProblem(metric, 0.1, float(SEGMENT), 0.25)
        epoch = Epoch(_evaluation(np.linspace(-1, 1, 402).reshape(2, 201)), 0.2, 0)
        start = problem.local_start([epoch])
        steps = LocalSteps(Logistic(), metric, start)
        for row in range(0, SEGMENT, BATCH):
            part = slice(row, min(row + BATCH, SEGMENT))
            steps.step(tile(part), targets.encode(y[part]), None)
        ends.append((steps.X, sent_start(metric, start)))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6, atol=1e-8)
    reduction = EpochReduction(
        specification=specification,
        scaling=Scaling(),
        targets=targets,
        dtype="float64",
        tile_rows=BATCH,
        loss=Logistic(),
        outputs=(0,),
        fit_intercept=True,
    )
    rows = dask.delayed(as_dataset(X, y).rows(0, SEGMENT)).compute(scheduler="sync")
    found = reduction.update(None, rows, ends[0][1])
    np.testing.assert_allclose(found.mean(), ends[0][0], rtol=1e-12, atol=1e-14)
