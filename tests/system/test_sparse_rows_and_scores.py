"""Sparse rows and scores on worker processes: the bits of this process."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

import distrff as drf


def test_workers_find_what_this_process_finds(cluster, rng):
    n, d = 4000, 30
    X = sparse.csr_matrix(np.where(rng.random((n, d)) < 0.1, rng.standard_normal((n, d)), 0.0))
    y = np.where(np.asarray(X.sum(axis=1)).ravel() > 0, "p", "n")
    lazy = da.from_array(X, chunks=(700, d), asarray=False)
    assert sparse.issparse(lazy._meta)
    model = drf.KernelSVC(drf.FourierFeatures(drf.Gaussian(3.0), 32, random_state=0), loss="squared_hinge")
    with Client(cluster):
        model.fit(lazy, da.from_array(y, chunks=900))
        F, truth = model.decision_function(lazy), da.from_array(y, chunks=1100)
        area = drf.metrics.roc_auc_score(truth, F)
        counts = drf.metrics.confusion_matrix(truth, model.predict(lazy))
        accuracy = model.score(lazy, truth)
        # The two count rows and misses in another order of rounding.
        assert accuracy == pytest.approx(drf.metrics.accuracy_score(truth, model.predict(lazy)), rel=1e-12)
    with dask.config.set(scheduler="synchronous"):
        here = drf.KernelSVC(model.features, loss="squared_hinge").fit(X, y)
        np.testing.assert_array_equal(here.coef_, model.coef_)
        assert drf.metrics.roc_auc_score(truth, F) == area
        np.testing.assert_array_equal(drf.metrics.confusion_matrix(truth, model.predict(lazy)), counts)
