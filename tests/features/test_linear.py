"""The identity as a map, with all that a map promises."""

from __future__ import annotations

import json
import math
import pickle

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

from distrff.errors import InputError
from distrff.features.compose import LinearFeatures, LinearSpecification
from distrff.features.registry import specification_from_dict
from distrff.features.specification import MapCost


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_come_out_as_they_went_in(rng, dtype):
    X = rng.standard_normal((6, 3)).astype(dtype)
    map_ = LinearFeatures().fit(X)
    Z = map_.transform(X)
    assert Z.dtype == dtype
    assert not np.shares_memory(Z, X)
    np.testing.assert_array_equal(Z, X)


def test_integers_become_float64():
    Z = LinearFeatures().fit_transform(np.arange(6).reshape(3, 2))
    assert Z.dtype == np.float64
    np.testing.assert_array_equal(Z, [[0, 1], [2, 3], [4, 5]])


def test_apply_writes_into_strided_rows(rng):
    X, wide = rng.standard_normal((5, 2)), np.full((5, 4), 7.0)
    assert np.shares_memory(LinearFeatures().fit(X).apply(X, out=wide[:, 1:3]), wide)
    np.testing.assert_array_equal(wide, np.column_stack([np.full(5, 7.0), X, np.full(5, 7.0)]))


@pytest.mark.parametrize("chunks", [(2, 3), (5, 1)])
def test_dask_arrays_stay_lazy(rng, chunks):
    X = rng.standard_normal((7, 3)).astype(np.float32)
    lazy = da.from_array(X, chunks=chunks)
    Z = LinearFeatures().fit(X).transform(lazy)
    assert Z.chunks == (lazy.chunks[0], (3,))
    assert Z.dtype == Z._meta.dtype == np.float32
    np.testing.assert_array_equal(Z.compute(scheduler="sync"), X)


def test_what_it_says_of_itself():
    map_ = LinearFeatures().fit(np.zeros((2, 40)))
    assert map_.nested_sizes() == (40,)  # no leading columns are a model of their own
    assert map_.n_features_for(17) == 17
    assert math.isnan(map_.specification_.at_zero)
    assert not map_.specification_.rescaled_when_nested
    assert map_.specification_.cost == map_.cost_for(3) == MapCost()
    assert map_.get_feature_names_out().tolist()[:2] == ["linearfeatures0", "linearfeatures1"]
    assert map_.get_params() == clone(map_).get_params() == {}


def test_specifications_are_values():
    one, other = (LinearFeatures().fit(np.zeros((1, d))).specification_ for d in (3, 4))
    assert one == LinearFeatures().fit(np.ones((5, 3))).specification_ != other
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    back = specification_from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False)))
    assert isinstance(back, LinearSpecification)
    assert back == one


def test_rows_of_other_widths_are_refused():
    map_ = LinearFeatures().fit(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="3 features"):
        map_.transform(np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"shape \(n_samples, 3\)"):
        map_.transform(da.zeros((1, 2)))
