"""The writing sweep: every row's result in its place, whatever the cuts, locally and in an object store."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import zarr

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets, NumericTargets
from distrff.data.arrays import as_dataset
from distrff.errors import InputError, NonFiniteError
from distrff.features.fourier import FourierFeatures
from distrff.model import Model
from distrff.sweeps import write
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.execution import LocalExecution
from distrff.sweeps.write import open_array, output_segmentation, write_rows


def machine(classes: np.ndarray | None = None, n_outputs: int = 1) -> Model:
    rng = np.random.default_rng(0)
    features = FourierFeatures(n_components=8, random_state=0).fit(np.zeros((1, 2)))
    targets = NumericTargets(np.zeros(n_outputs), np.ones(n_outputs))
    return Model(
        kind="KernelRidge",
        specification=features.specification_,
        scaling=Scaling(),
        targets=targets if classes is None else ClassTargets(classes),
        coef=rng.standard_normal((8, n_outputs)),
        intercept=np.zeros(n_outputs),
        dtype="float64",
        y_is_1d=n_outputs == 1,
    )


def written(model: Model, X: np.ndarray, url: object, method: str = "predict") -> zarr.Array:
    run = SweepRun(LocalExecution("threads"))
    return write_rows(run, model, as_dataset(X), str(url), method=method)


@pytest.fixture
def small_cuts(monkeypatch):
    """Three rows a chunk of one float64 column, several segments of some chunks."""
    monkeypatch.setattr(write, "_CHUNK_BYTES", 24)
    light = write.light_segmentation
    monkeypatch.setattr(
        write, "light_segmentation", lambda n, d: dataclasses.replace(light(n, d), segment_rows=7)
    )


@pytest.mark.parametrize("method", ["predict", "transform"])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_rows_are_written_in_order(method, n_outputs, small_cuts, rng, tmp_path):
    X, model = rng.standard_normal((40, 2)), machine(n_outputs=n_outputs)
    array = written(model, X, tmp_path / "out.zarr", method)
    assert array.nchunks > 4
    # Blocks of other sizes: BLAS may add 8 products in another order.
    np.testing.assert_allclose(array[:], getattr(model, method)(X), rtol=1e-13, atol=1e-13)
    assert array.attrs["distrff"]["complete"]


@pytest.mark.parametrize(
    "classes",
    [np.array([3, 5]), np.array([False, True]), np.array(["no", "yes"]), np.array(["no", "yes"], object)],
    ids=["integers", "booleans", "text", "objects"],
)
def test_labels_are_written_as_they_are(classes, rng, tmp_path):
    X, model = rng.standard_normal((20, 2)), machine(classes)
    array = written(model, X, tmp_path / "out.zarr")
    assert array.dtype.kind == ("T" if classes.dtype.kind in "OU" else classes.dtype.kind)
    np.testing.assert_array_equal(array[:].astype(classes.dtype), model.predict(X))


def test_an_object_store(rng):
    X, model = rng.standard_normal((20, 2)), machine()
    array = written(model, X, "memory://distrff-write/out.zarr")
    np.testing.assert_array_equal(array[:], model.predict(X))


def test_the_maps_arrays_of_a_stored_machine_are_taken(rng, tmp_path):
    X, model = rng.standard_normal((20, 2)), machine()
    stored = dataclasses.replace(model, arrays={"frequencies": np.zeros((2, 4))})
    array = written(stored, X, tmp_path / "out.zarr", "transform")
    np.testing.assert_array_equal(array[:], np.tile([0.5, 0.0], (20, 4)))


def test_rows_that_hold_no_numbers(rng, tmp_path):
    X = rng.standard_normal((20, 2))
    X[7, 1] = np.nan
    with pytest.raises(NonFiniteError, match="X contains NaN in row 7, column 1"):
        written(machine(), X, tmp_path / "out.zarr")
    assert not zarr.open_array(tmp_path / "out.zarr").attrs["distrff"]["complete"]


def test_a_worker_that_does_not_see_the_folder(tmp_path):
    with pytest.raises(InputError, match="write to a folder that all of them share"):
        open_array(str(tmp_path / "elsewhere.zarr"), None, mode="r+")


@pytest.mark.parametrize("n_rows", [1, 1000, 10**7])
@pytest.mark.parametrize(("n_columns", "row_bytes"), [(2, 8), (784, 8), (10, 8 * 16384)])
def test_segments_hold_whole_chunks_of_bounded_size(n_rows, n_columns, row_bytes):
    cuts = output_segmentation(n_rows, n_columns, row_bytes)
    assert cuts.segment_rows % cuts.tile_rows == 0
    assert cuts.tile_rows * row_bytes <= 2**25
    assert 1 <= cuts.tile_rows <= n_rows
