"""The writing sweep: what a frozen machine makes of each row goes to that row's place in a Zarr array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from distrff.data.checks import check_block
from distrff.data.dataset import Dataset
from distrff.data.rows import RowBlock, Rows
from distrff.data.storage import is_local, locate
from distrff.errors import InputError, public_name
from distrff.features.specification import MapSpecification
from distrff.model import Model
from distrff.model_store.groups import ROOT
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.frozen import arrived, travelling
from distrff.sweeps.reduction import Shipped
from distrff.sweeps.segments import Segmentation, light_segmentation

_CHUNK_BYTES = 2**25
_KINDS = {"predict": "predictions", "transform": "features"}

Remote = dict[str, Any] | None


@dataclass(frozen=True)
class WriteReduction:
    """Writes the model's `method` of every row; the sum is the number of rows written.

    A segment holds whole chunks of the array, so no two tasks write to one chunk, and a
    task that is run again writes the same bytes.
    """

    model: Model
    url: str
    storage_options: Remote
    method: str
    chunk_rows: int

    @property
    def specification(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8

    def zero(self) -> int:
        return 0

    def finish(self, accumulator: int) -> int:
        return accumulator

    def update(self, n_written: int, rows: Rows, shipped: Shipped) -> int:
        model = arrived(self.model, shipped)
        for block in rows.tiles(self.chunk_rows):
            check_block(RowBlock(block.start, block.X), "none")
            values = getattr(model, self.method)(block.X)
            # Opened each time: after an interrupt it is gone, and must not come back chunk by chunk.
            array = open_array(self.url, self.storage_options, mode="r+")
            array[block.start : block.start + len(values)] = values.astype(array.dtype, copy=False)
            n_written += len(values)
        return n_written

    def merge(self, first: int, second: int) -> int:
        return first + second


def write_rows(
    run: SweepRun,
    model: Model,
    dataset: Dataset,
    url: str,
    *,
    method: str,
    storage_options: Remote = None,
) -> zarr.Array:
    """Write what the model makes of every row to a new Zarr array, in one pass.

    Parameters
    ----------
    run : SweepRun
    model : Model
    dataset : Dataset
    url : str
        Where nothing or an empty folder is; for other processes to reach as well.
    method : {"predict", "transform"}
    storage_options : dict, optional
        For fsspec.

    Returns
    -------
    zarr.Array
        Of shape (n_rows,) or (n_rows, k). Its attribute `distrff` says what it is, and
        whether it is complete.

    Raises
    ------
    InputError
        For NaN or infinity in the rows, or a place that a worker cannot reach.
    """
    if method == "transform" and model.specification.is_sparse:
        raise InputError(
            "features of random binning are sparse, and no dense array is made of them; call the model's "
            "transform on blocks of rows, which returns scipy CSR matrices"
        )
    example = getattr(model, method)(np.zeros((1, dataset.n_columns)))
    cuts = output_segmentation(dataset.n_rows, dataset.n_columns, example.nbytes)
    header = {"kind": _KINDS[method], "model": model.kind, "complete": False}
    array = zarr.create_array(
        store_of(url, storage_options),
        shape=(dataset.n_rows, *example.shape[1:]),
        chunks=(cuts.tile_rows, *example.shape[1:]),
        dtype=str if example.dtype.kind in "OU" else example.dtype,
        # Cosines do not compress.
        compressors=None if method == "transform" else "auto",
        attributes={ROOT: header},
    )
    light, sent = travelling(model)
    reduction = WriteReduction(light, url, storage_options, method, cuts.tile_rows)
    n_written = run.gather([run.sweep(method, dataset, reduction, cuts, sent)])[0]
    assert n_written == dataset.n_rows, f"{n_written} of {dataset.n_rows} rows were written"
    array.update_attributes({ROOT: header | {"complete": True}})
    return array


def output_segmentation(n_rows: int, n_columns: int, row_bytes: int) -> Segmentation:
    """Return cuts whose tiles are the chunks of an array of `row_bytes` a row, at most 32 MB each."""
    segment_rows = light_segmentation(n_rows, n_columns).segment_rows
    chunk_rows = max(1, min(n_rows, segment_rows, _CHUNK_BYTES // row_bytes))
    return Segmentation(n_rows, chunk_rows * max(1, segment_rows // chunk_rows), chunk_rows)


def open_array(url: str, storage_options: Remote, *, mode: str) -> zarr.Array:
    """Return the Zarr array at `url`.

    Raises
    ------
    InputError
        If this process finds none there.
    """
    try:
        return zarr.open_array(store_of(url, storage_options), mode=mode)
    except FileNotFoundError as error:
        raise InputError(
            f"there is no array at {public_name(url)} as this process sees it; if workers "
            f"run on several machines, write to a folder that all of them share, or to an object store"
        ) from error


def store_of(url: str, storage_options: Remote) -> Any:
    """Return what zarr takes as a store: a local path, or fsspec's."""
    fs, path = locate(url, storage_options)
    if is_local(fs):
        return path
    return zarr.storage.FsspecStore.from_url(url, storage_options=storage_options)
