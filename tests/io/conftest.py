"""What the tests of all sources share."""

import dask
import numpy as np
import pytest
from scipy.sparse import issparse


def _collect(rows, tile_rows):
    """The tiles of a run of rows, checked for where they are cut and put together."""
    tiles = list(rows.tiles(tile_rows))
    starts = list(range(rows.start, rows.stop, tile_rows))
    assert [tile.start for tile in tiles] == starts
    assert [tile.X.shape[0] for tile in tiles] == [min(tile_rows, rows.stop - start) for start in starts]
    return [
        None if tiles[0][field] is None else np.concatenate([_dense(tile[field]) for tile in tiles])
        for field in (1, 2, 3)
    ]


def _dense(values):
    return values.toarray() if issparse(values) else values


@pytest.fixture(scope="session")
def read_rows():
    """`read_rows(rows, tile_rows)`: X, y and sample_weight of a run of rows, read by tiles."""
    return _collect


@pytest.fixture(scope="session")
def read_dataset():
    """`read_dataset(data, segment_rows, tile_rows)`: the same of all rows, by segments read in tasks."""

    def read(data, segment_rows, tile_rows, **options):
        bounds = [(a, min(data.n_rows, a + segment_rows)) for a in range(0, data.n_rows, segment_rows)]
        tasks = [dask.delayed(_collect, pure=False)(data.rows(a, b), tile_rows) for a, b in bounds]
        parts = dask.compute(*tasks, **({"scheduler": "sync"} | options))
        return [None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)]

    return read
