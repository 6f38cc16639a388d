"""Rows of a raw source on their way into a Zarr group: encoded, split, shuffled, written."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from distrff.columns.table_steps import TableSteps
from distrff.data.raw_table import RawTable
from distrff.errors import InputError
from distrff.ingest.encoders import Encoder, SparseEncoder, TableEncoder
from distrff.ingest.ordered_blocks import in_order
from distrff.ingest.raw_steps import Told, in_dtype, libsvm_shape, libsvm_steps, table_steps
from distrff.ingest.shuffle import SetApart, Shuffled
from distrff.ingest.sources.csv_blocks import CsvSource, WiderTypes
from distrff.ingest.sources.libsvm_blocks import LibsvmSource
from distrff.ingest.sources.open_source import Source
from distrff.ingest.table_choice import choose_columns
from distrff.ingest.table_options import TableOptions
from distrff.ingest.zarr_writer import DenseWriter, Sink, SparseWriter, mark_complete, new_group
from distrff.model_store.own_folders import own_folder
from distrff.model_store.places import full_disk_told
from distrff.public_names import public_name
from distrff.sweeps.progress import Progress

TEST = "test"
"""Name of the group of the rows set apart, inside that of the others."""


@dataclass(frozen=True)
class Layout:
    """How rows are stored.

    Parameters
    ----------
    dtype : dtype, or None
        Of X; None for that of the columns.
    chunk_rows : int or None
        Rows of a chunk of X; None for about 4 MB.
    shuffle : int or None
        Seed of the order of rows; None for that of the files.
    test_fraction : float or None
        Share of rows that are set apart.
    """

    dtype: np.dtype | None = None
    chunk_rows: int | None = None
    shuffle: int | None = None
    test_fraction: float | None = None

    @property
    def seed(self) -> int:
        """Of what is random: order, and which rows are set apart."""
        return self.shuffle or 0


def write_table(
    source: Source,
    dst: Any,
    options: TableOptions,
    layout: Layout,
    *,
    steps: TableSteps | None = None,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the rows of a source to a Zarr group; see `convert`.

    Parameters
    ----------
    source : Source
    dst : str or path
    options : TableOptions
        What to make of the columns, unless `steps` says so.
    layout : Layout
    steps : TableSteps, optional
        Those of a model, whose columns the rows get.
    overwrite : bool
    storage_options : dict, optional
    """
    started = time.perf_counter()
    while True:
        try:
            with new_group(dst, overwrite=overwrite, storage_options=storage_options) as group:
                report = _written(source, group, options, layout, steps)
            break
        except WiderTypes as wider:
            assert isinstance(source, CsvSource)
            source.widen(wider.types)
    return {"out": public_name(dst), **report, "seconds": time.perf_counter() - started}


def _written(
    source: Source,
    group: zarr.Group,
    options: TableOptions,
    layout: Layout,
    steps: TableSteps | None,
) -> dict[str, Any]:
    encoder, steps, report = _encoder(source, options, layout, steps)
    pieces: Iterator[Any] = source.pieces(steps.raw_names)
    n_raw = n_kept = n_positive = 0
    with _disk_room(group) as folder, _told("convert", source) as tell:
        outlet = _Outlet(group, layout, folder)
        for piece, rows in in_order(encoder.encode, pieces):
            if n := rows.X.shape[0]:
                outlet.take(rows.X, rows.y, rows.sample_weight, encoder.is_sparse)
            n_raw, n_kept = n_raw + rows.n_raw, n_kept + n
            if options.positive is not None:
                assert rows.y is not None
                n_positive += int(rows.y.sum())
            tell(piece.position)
        if not n_kept:
            raise InputError(
                f"no row of {source.name} is left, each lacks a value; take another rule for missing values"
            )
        if options.positive is not None and not n_positive:
            raise InputError(
                f"no row of {source.name} has the label positive={options.positive!r}; give one that the "
                f"target holds"
            )
        report |= {"rows_read": n_raw, "rows_dropped": n_raw - n_kept} | outlet.finish()
    if layout.test_fraction is not None:
        _describe(group[TEST], encoder, steps, report)
    _describe(group, encoder, steps, report)
    return report


def _encoder(
    source: Source, options: TableOptions, layout: Layout, steps: TableSteps | None
) -> tuple[Encoder, TableSteps, dict[str, Any]]:
    if isinstance(source, LibsvmSource):
        if steps is None:
            with _told("look through", source) as tell:
                shape = libsvm_shape(source, tell)
            steps = libsvm_steps(shape, layout.dtype or np.dtype(np.float64), options.positive)
        return SparseEncoder(source, steps), steps, {"columns_made": len(steps.names_out)}
    if steps is not None:
        source.follow(steps)
        return TableEncoder(source, steps, layout.dtype), steps, {"columns_made": len(steps.names_out)}
    choice = choose_columns(RawTable((), source.kinds, source.name, 0), options)
    if isinstance(source, CsvSource):
        source.refuse_mixtures([*choice.used, *choice.dropped])
        source.keep_whole(choice.target)
    with _told("look through", source) as tell:
        steps, report = table_steps(source, choice, options, tell)
    steps = in_dtype(steps, layout.dtype)
    return TableEncoder(source, steps, layout.dtype), steps, report


class _Outlet:
    """Where encoded rows go: to the group, or part of them to the group inside; shuffled or not."""

    def __init__(self, group: zarr.Group, layout: Layout, folder: Path) -> None:
        self._group, self._layout, self._folder = group, layout, folder
        self._sink: Sink | None = None
        self._is_sparse = False

    def take(self, X: Any, y: Any, sample_weight: Any, is_sparse: Callable[[Any], bool]) -> None:
        """Take some rows; the first decide how all are stored."""
        if self._sink is None:
            self._is_sparse = is_sparse(X)
            self._sink = self._open()
        self._sink.append(X, y, sample_weight)

    def _open(self) -> Sink:
        training = self._writer(self._group, "training")
        if self._layout.test_fraction is None:
            return training
        test = self._writer(self._group.create_group(TEST), "test")
        self._split = SetApart(training, test, self._layout.test_fraction, self._layout.seed)
        return self._split

    def _writer(self, group: zarr.Group, name: str) -> Sink:
        kind = SparseWriter if self._is_sparse else DenseWriter
        writer = kind(group, self._layout.chunk_rows)
        if self._layout.shuffle is None:
            return writer
        folder = self._folder / name
        folder.mkdir()
        return Shuffled(writer, self._layout.shuffle, folder)

    def finish(self) -> dict[str, Any]:
        """Write what is left, and return what was written."""
        assert self._sink is not None
        n_rows, n_test = self._sink.finish(), 0
        if self._layout.test_fraction is not None:
            n_rows, n_test = self._split.n_written
            if not n_rows or not n_test:
                raise InputError(
                    f"test_fraction={self._layout.test_fraction} of {n_rows + n_test} rows leaves none "
                    f"{'to train on' if not n_rows else 'for testing'}; choose another"
                )
        return {
            "rows_written": n_rows,
            "rows_test": n_test,
            "layout": "csr" if self._is_sparse else "dense",
            "dtype": str((self._group["X/data"] if self._is_sparse else self._group["X"]).dtype),
        }


def _describe(group: zarr.Group, encoder: Encoder, steps: TableSteps, report: dict[str, Any]) -> None:
    """Leave with the rows where they come from and what was done to them."""
    group.update_attributes({"steps": steps.to_dict(), "report": report})
    if isinstance(encoder, TableEncoder):
        group.update_attributes({"column_names": list(steps.names_out)})
    mark_complete(group)


@contextmanager
def _disk_room(group: zarr.Group) -> Iterator[Path]:
    """Give an empty folder for buckets of rows: inside a local group, else where temporary files go."""
    store = group.store
    if isinstance(store, zarr.storage.LocalStore):
        with own_folder(Path(store.root), ".buckets-") as folder:
            yield folder
        return
    parent = Path(tempfile.gettempdir())
    with full_disk_told(parent), own_folder(parent, "distrff-buckets-", mode=0o700) as folder:
        yield folder


@contextmanager
def _told(label: str, source: Source) -> Iterator[Told]:
    """Give what tells progress by the share of the source that was read."""
    progress, before = Progress(label, max(1, source.total), unit=source.unit), 0

    def tell(position: int) -> None:
        nonlocal before
        progress.advance(position - before)
        before = position

    try:
        yield tell
    finally:
        progress.close()
