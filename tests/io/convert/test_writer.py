"""Groups written shard by shard, split and shuffled: every row once, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, issparse, random_array, vstack
from scipy.stats import chi2

from distrff.errors import InputError
from distrff.io.convert import runs as writer
from distrff.io.convert.runs import (
    DenseWriter,
    SetApart,
    Shuffled,
    SparseWriter,
    is_test_row,
    mark_complete,
    new_group,
    shuffle_keys,
)
from distrff.io.open import open_dataset
from distrff.io.storage import Location


class Kept:
    """A sink that keeps all rows in memory."""

    def __init__(self) -> None:
        self.blocks: list[dict] = []

    def append(self, rows) -> None:
        self.blocks.append(rows)

    def finish(self) -> int:
        return sum(rows["X"].shape[0] for rows in self.blocks)

    def field(self, name):
        parts = [rows[name] for rows in self.blocks]
        return vstack(parts).toarray() if issparse(parts[0]) else np.concatenate(parts)


def send(sink, cuts, **columns) -> None:
    for part in np.split(np.arange(columns["X"].shape[0]), cuts):
        if len(part):
            sink.append({name: column[part] for name, column in columns.items()})


@pytest.fixture(params=[2**20, 2000], ids=["one level", "several levels"])
def bucket_bytes(request, monkeypatch):
    """Buckets that fit at once, and those that are cut again, four by four."""
    monkeypatch.setattr(writer, "_BUCKET_BYTES", request.param)
    monkeypatch.setattr(writer, "_PART_BYTES", request.param // 4)
    monkeypatch.setattr(writer, "_BUCKET_BITS", 2)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix])
def test_rows_stand_in_the_order_of_their_keys_and_keep_their_types(tmp_path, bucket_bytes, kind, rng):
    n, seed = 800, int(rng.integers(2**31))
    X = kind((rng.standard_normal((n, 4)) * (rng.random((n, 4)) < 0.5)).astype(np.float32))
    labels = np.array([f"row {i}" for i in range(n)], dtype=object)
    y = labels if kind is np.asarray else np.arange(n).astype(np.uint8)
    columns = {"y": y, "sample_weight": rng.random(n)}
    kept = Kept()
    shuffled = Shuffled(kept, seed, tmp_path)
    send(shuffled, np.sort(rng.integers(0, n, 5)), X=X, **columns)
    assert shuffled.finish() == n
    order = np.argsort(shuffle_keys(np.arange(n), seed))
    columns["X"] = X.toarray() if issparse(X) else X
    for name, column in columns.items():
        assert kept.field(name).dtype == column.dtype
        np.testing.assert_array_equal(kept.field(name), column[order])
    assert not list(tmp_path.iterdir())


def test_places_are_uniform(rng):
    """Where the rows of each twentieth went is as even as chance makes it; wrong once in a million."""
    n, parts = 100_000, 20
    place = np.argsort(np.argsort(shuffle_keys(np.arange(n), int(rng.integers(2**62)))))
    table = np.bincount(np.arange(n) * parts // n * parts + place * parts // n, minlength=parts**2)
    statistic = ((table - n / parts**2) ** 2).sum() / (n / parts**2)
    # Rows and columns of the table have fixed sums.
    assert chi2.sf(statistic, (parts - 1) ** 2) > 1e-6
    assert chi2.cdf(statistic, (parts - 1) ** 2) > 1e-6
    # The rank correlations of row and place and of neighbours are 0 but for chance: six of its deviations.
    assert abs(np.corrcoef(np.arange(n), place)[0, 1]) < 6 / np.sqrt(n)
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 6 / np.sqrt(n)


def test_rows_are_set_apart_by_their_numbers_alone(rng):
    n, seed, fraction = 20_000, int(rng.integers(2**31)), 0.3
    training, test = Kept(), Kept()
    split = SetApart(training, test, fraction, seed)
    X = np.arange(n)[:, None]
    send(split, np.sort(rng.integers(0, n, 7)), X=X, y=X[:, 0])
    split.finish()
    assert split.n_written == (len(training.field("y")), len(test.field("y")))
    expected = is_test_row(np.arange(n), seed, fraction)
    np.testing.assert_array_equal(test.field("X")[:, 0], np.flatnonzero(expected))
    np.testing.assert_array_equal(training.field("X")[:, 0], np.flatnonzero(~expected))
    assert abs(expected.mean() - fraction) < 6 * np.sqrt(fraction * (1 - fraction) / n)


def write(path, kind, X, y, cuts, **options):
    with new_group(Location.of(path)) as group:
        rows = kind(group, **options)
        send(rows, cuts, X=X, y=y, sample_weight=np.ones(X.shape[0]))
        assert rows.finish() == X.shape[0]
        mark_complete(group)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("chunk_rows", [None, 3, 10, 100])
def test_any_cuts_give_the_same_rows(tmp_path, chunk_rows, labels, rng):
    X = rng.standard_normal((133, 3)).astype(np.float32)
    y = np.array([f"ä{i}" for i in range(133)], dtype=object) if labels else np.arange(133)
    write(tmp_path / "a.zarr", DenseWriter, X, y, np.sort(rng.integers(0, 133, 4)), chunk_rows=chunk_rows)
    data = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(data.X.compute(), X)
    assert data.y.compute().tolist() == y.tolist()
    assert data.sample_weight.compute().tolist() == [1.0] * 133
    group, chunk = zarr.open_group(tmp_path / "a.zarr"), min(133, chunk_rows or 133)
    assert group["X"].chunks == (chunk, 3)
    if chunk_rows == 10:
        assert (group["X"].shards, group["y"].chunks) == ((80, 3), (80,))  # eight chunks


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_sparse_rows_are_read_as_they_were(tmp_path, monkeypatch, chunk_rows, rng):
    monkeypatch.setattr(writer, "_SPARSE_CHUNK", 50)
    X = csr_matrix(random_array((200, 3000), density=0.002, rng=rng))
    write(tmp_path / "a.zarr", SparseWriter, X, np.arange(200), [1, 50, 51], chunk_rows=chunk_rows)
    rows = open_dataset(tmp_path / "a.zarr").rows(13, 190)
    for n in (1, 60, 1000):
        blocks = list(rows.tiles(n))
        assert (vstack([b.X for b in blocks]) != X[13:190]).nnz == 0
        assert np.concatenate([b.y for b in blocks]).tolist() == list(range(13, 190))


def test_an_unfinished_group_is_refused(tmp_path):
    with new_group(Location.of(tmp_path / "a.zarr")) as group:
        DenseWriter(group).append({"X": np.zeros((3, 1))})
    with pytest.raises(InputError, match="incomplete, its writing was interrupted"):
        open_dataset(tmp_path / "a.zarr")
