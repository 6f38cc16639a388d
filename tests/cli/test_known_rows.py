"""Known rows on disk: what the sweeps read is what was drawn."""

from __future__ import annotations

import numpy as np
import zarr

from distrff.cli.synthetic import KnownTruth, write_known_rows
from distrff.io.open import open_dataset


def test_what_is_written_is_what_was_drawn(tmp_path):
    truth = KnownTruth(1500, seed=3)
    n_rows = truth.block_rows + 17
    error = write_known_rows(tmp_path / "rows.zarr", truth, "train", n_rows)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="r")
    for block in truth.blocks("train", n_rows):
        for key in ("X", "f", "y"):
            assert np.array_equal(group[key][block.start : block.start + len(block.X)], getattr(block, key))
    assert np.isclose(error, np.sqrt(np.mean((group["y"][:] - group["f"][:]) ** 2)), rtol=1e-12)
    assert group.attrs["known_truth"]["noise"] == truth.noise


def test_it_is_a_dataset_of_bounded_chunks(tmp_path):
    truth = KnownTruth(2)
    n_rows = 2 * truth.block_rows + 1
    write_known_rows(tmp_path / "rows.zarr", truth, "train", n_rows)
    data = open_dataset(tmp_path / "rows.zarr")
    assert (data.n_rows, data.n_columns, data.n_targets) == (n_rows, 2, 1)
    assert (data.dtype, data.y_dtype) == (np.float32, np.float64)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="r")
    assert {array.chunks[0] for _, array in group.arrays()} == {truth.block_rows}


def test_few_rows_are_one_small_chunk(tmp_path):
    write_known_rows(tmp_path / "rows.zarr", KnownTruth(2), "test", 10)
    assert open_dataset(tmp_path / "rows.zarr").X.compute().shape == (10, 2)
    assert zarr.open_group(tmp_path / "rows.zarr", mode="r")["X"].chunks == (10, 2)
