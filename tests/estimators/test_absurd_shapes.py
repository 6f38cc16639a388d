"""Groups of a few hundred bytes that declare more than any worker holds: refused before anything is drawn."""

import tracemalloc

import dask
import numpy as np
import pytest
import zarr

import distrff as drf
from distrff.diagnostics.survey import survey_rows
from distrff.engine.run import Run
from distrff.errors import PlanRefused

FEW_BYTES = 2**25


@pytest.fixture(autouse=True)
def workers(monkeypatch):
    monkeypatch.setattr("distrff.engine.tasks.MEMORY_LIMIT", 4 * 2**30)
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def few_bytes():
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FEW_BYTES


def declared(tmp_path, shape, chunks):
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", shape=shape, chunks=chunks, dtype="f8")
    group.create_array("y", shape=shape[:1], chunks=(max(1, min(shape[0], 1000)),), dtype="f8")
    return tmp_path / "rows.zarr"


SHAPES = {
    "wide": ((10, 10**9), (10, 1000)),
    "one chunk": ((10**12, 10), (10**12, 10)),
    "more chunk than array": ((10, 10), (10**12, 10**6)),
    "wide chunk": ((1000, 10), (1000, 10**9)),
}
MODELS = [
    drf.KernelRidge(drf.FourierFeatures(n_components=1024), alpha=1.0, scale="none"),
    drf.KernelRidge(drf.RandomBinningFeatures(n_grids=20), alpha=1.0, scale="none"),
    drf.KernelSVC(scale="none"),
    drf.KernelPCA(scale="none"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", [*SHAPES.values(), ((10**9, 10**6), (100, 1000))])
def test_no_model_is_planned_or_fitted(tmp_path, few_bytes, shape, model):
    data = drf.open_dataset(declared(tmp_path, *shape))
    for begin in (model.plan, model.fit):
        with pytest.raises(PlanRefused) as caught:
            begin(data)
        assert "\n" not in str(caught.value)


def test_more_rows_than_tasks_can_have(tmp_path, few_bytes):
    data = drf.open_dataset(declared(tmp_path, (10**15, 10), (10, 10)))
    for begin in (
        drf.KernelSVC(scale="none").plan,
        drf.KernelSVC(scale="none").fit,
        lambda data: survey_rows(Run(), data),
    ):
        with pytest.raises(PlanRefused, match="3,814,697,266 tasks per pass, but at most 1,048,576 are"):
            begin(data)


@pytest.mark.parametrize("name", SHAPES)
def test_no_row_is_read(tmp_path, few_bytes, name):
    data = drf.open_dataset(declared(tmp_path, *SHAPES[name]))
    what = "1,000,000,000 columns" if name == "wide" else "a chunk or row group"
    with pytest.raises(PlanRefused, match=f"rows.zarr: .*{what}.* memory limit is 4.29 GB"):
        survey_rows(Run(), data)


def test_a_score_is_refused_as_well(tmp_path, few_bytes):
    X = np.arange(40.0).reshape(20, 2)
    model = drf.KernelRidge(drf.FourierFeatures(n_components=4), alpha=1.0, scale="none").fit(X, X[:, 0])
    data = drf.open_dataset(declared(tmp_path, (10**12, 2), (10**12, 2)))
    with pytest.raises(PlanRefused, match="rewrite the rows in smaller ones"):
        model.score(data)
