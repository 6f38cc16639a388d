"""The names under which Dask's dashboard shows the tasks of distrff."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.utils import key_split

import distrff as drf
from distrff.engine.reduction import Reduction
from distrff.engine.tasks import reduce_rows
from distrff.utils.random import group_of, new_key
from tests.support.fits import fourier, margin_classifier


@pytest.mark.parametrize(
    ("what", "group"),
    [
        ("Gram", "distrff-gram"),
        ("held-out errors", "distrff-held-out-errors"),
        ("bins of grid 2 to 20", "distrff-bins-of-grid"),
        (reduce_rows, "distrff-reduce-rows"),
        (dict, "distrff-dict"),
        (Reduction.merge, "distrff-reduction-merge"),
    ],
)
def test_dask_finds_the_group_of_a_key(what, group):
    assert group_of(what) == group == key_split(new_key(what)) == key_split((new_key(what), 3, 0))


def test_no_two_keys_are_equal():
    assert len({new_key("Gram") for _ in range(100)}) == 100


def seen_prefixes(client):
    return set(client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes)))


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(2000, 3))
    return X, np.where(X[:, 0] + X[:, 1] * X[:, 2] > 0, 1, -1)


@pytest.mark.parametrize("kind", ["NumPy", "Parquet"])
def test_all_tasks_have_a_group(client, rows, tmp_path, kind):
    before = seen_prefixes(client)
    data = rows
    if kind == "Parquet":
        pd.DataFrame(rows[0], columns=list("abc")).assign(y=rows[1]).to_parquet(tmp_path / "rows.parquet")
        data = (drf.open_dataset(str(tmp_path / "rows.parquet"), target="y"),)
    ridge = drf.KernelRidgeClassifier(fourier(), random_state=0)
    for estimator in (ridge, margin_classifier("hinge", fourier(), 1.0)):
        estimator.fit(*data)
        estimator.score(*data)
    if kind == "NumPy":
        drf.write_predictions(estimator, data[0], str(tmp_path / "out.zarr"))
    else:
        assert key_split(estimator.predict(data[0].X).name) == "distrff-predict"
        estimator.predict(data[0].X).compute()
    drf.evaluate(ridge)
    drf.permutation_importance(ridge, *data)
    drf.partial_dependence(ridge, data[0], 0)
    out_of_fold = drf.cross_val_predict(ridge, *data)
    np.asarray(out_of_fold)
    new = seen_prefixes(client) - before
    # Dask itself puts the blocks of a computed array together.
    assert not {name for name in new if not name.startswith(("distrff-", "finalize"))}
    groups = {"gram", "margins", "score", "predict", "solution-of", "column-statistics"}
    assert {f"distrff-{group}" for group in groups} <= seen_prefixes(client)


def test_rows_of_the_user_keep_their_names(rows):
    X = da.from_array(rows[0], chunks=(700, 3), name="mine")
    predicted = drf.KernelRidge(fourier(), 1.0, random_state=0).fit(*rows).predict(X)
    assert {key_split(name) for name in predicted.dask.layers} == {"mine", "distrff-predict"}
