"""Rows of a table, made by steps in the task that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.engine.run import Run
from distrff.errors import InputError
from distrff.io.arrow import raw_columns
from distrff.io.dataset import BLOCK_BYTES, Dataset, delayed_blocks, lazy_blocks
from distrff.io.parquet_rows import Held, held_by
from distrff.io.rows import FIELDS, Feed, RowBlock, Span, cut_tiles
from distrff.io.storage import SPAN_BYTES
from distrff.io.table_sources import RawRows, RawTable
from distrff.preprocessing.profile import TableProfile
from distrff.preprocessing.table import TableSteps, complete_rows
from distrff.utils.text import listed


class Encoding:
    """What becomes of a batch; not a dataclass, so that dask does not walk it."""

    def __init__(self, steps: TableSteps, fields: tuple[str, ...], batch_rows: int) -> None:
        self.steps = steps
        self.fields = fields
        self.batch_rows = batch_rows

    def spans(self, part: RawRows, first: int, last: int | None) -> Iterator[Span]:
        """Yield what the steps make of the rows [first, last) of a part, batch by batch; all for None."""
        names, at = self.steps.raw_names, part.start + first
        for batch in part.batches(names, self.batch_rows, first, last):
            made = self.steps.apply(raw_columns(batch, names), first_row=at, fields=self.fields)
            at += batch.num_rows
            yield {name: values for name in FIELDS if (values := getattr(made, name)) is not None}


@dataclass(frozen=True)
class TableRows:
    """The rows [start, stop) of those that are kept, with the parts of the table that hold them.

    `skipped` kept rows of the first part come before `start`.
    """

    start: int
    stop: int
    skipped: int
    parts: list[Any] = field(repr=False)
    encoding: Encoding = field(repr=False)

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield the rows in blocks of `n_rows`.

        Raises
        ------
        InputError
            If a value is missing that may not be, a column is of another kind than when its step was made,
            or the table was changed.
        OSError
            If a store fails otherwise; a retry may succeed.
        """
        return cut_tiles(self.start, self.stop, n_rows, [Feed(self._spans(), self.stop - self.start)])

    def _spans(self) -> Iterator[Span]:
        before, left = self.skipped, self.stop - self.start
        for part in self.parts:
            first, last = 0, None
            if not self.encoding.steps.drops_missing:  # else which rows are kept shows in them alone
                first, last = before, min(part.stop - part.start, before + left)
                before = 0
            for span in self.encoding.spans(part, first, last):
                n = len(next(iter(span.values())))
                begin, end = min(before, n), min(n, before + left)
                before -= begin
                left -= end - begin
                if end > begin:
                    yield {name: values[begin:end] for name, values in span.items()}
                if not left:
                    return


class EncodedReader:
    """Hands out rows of a table with the parts that hold them.

    Parameters
    ----------
    table : RawTable
    steps : TableSteps
    kept : sequence of int
        How many rows of each part the steps keep.
    """

    def __init__(self, table: RawTable, steps: TableSteps, kept: Sequence[int]) -> None:
        self._parts = [part for part, n in zip(table.parts, kept, strict=True) if n]
        self._bounds = np.cumsum([0, *(n for n in kept if n)])
        self._steps = steps
        self._is_delayed = table.is_delayed
        self._row_bytes = table.row_bytes + steps.row_bytes

    @property
    def n_rows(self) -> int:
        return int(self._bounds[-1])

    @property
    def batch_rows(self) -> int:
        """Rows that are decoded at once."""
        return max(1, SPAN_BYTES // self._row_bytes)

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> TableRows:
        """Return the rows [start, stop)."""
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        last = int(np.searchsorted(self._bounds, stop, side="left"))
        skipped = start - int(self._bounds[first])
        encoding = Encoding(self._steps, fields, self.batch_rows)
        return TableRows(start, stop, skipped, self._parts[first:last], encoding)

    def lazy(self, field: str) -> da.Array:
        """Return one field; the blocks of all fields are the same parts, several if they are small."""
        limit = max(1, BLOCK_BYTES // self._row_bytes)
        row_chunks: list[int] = []
        for start, stop in pairwise(self._bounds.tolist()):
            if row_chunks and row_chunks[-1] + stop - start <= limit:
                row_chunks[-1] += stop - start
            else:
                row_chunks.append(stop - start)
        target = self._steps.target
        shapes = {"X": (len(self._steps.names_out),), "sample_weight": ()}
        dtypes = {"X": self._steps.dtype, "sample_weight": np.dtype(np.float64)}
        if target is not None:
            shapes["y"], dtypes["y"] = (() if target.is_1d else (len(target.names),)), np.dtype(target.dtype)
        blocks = delayed_blocks if self._is_delayed else lazy_blocks
        return blocks(self, field, tuple(row_chunks), shapes[field], dtypes[field])


def encoded_dataset(
    table: RawTable, steps: TableSteps, kept: Sequence[int] | None, report: dict[str, Any] | None
) -> Dataset:
    """Return the dataset of what the steps make of a table.

    Parameters
    ----------
    table : RawTable
    steps : TableSteps
    kept : sequence of int, or None
        How many rows of each part the steps keep; None for all.
    report : dict or None
        What was done, for `Dataset.table_report`.

    Raises
    ------
    InputError
        If the table lacks a column, or no row is kept.
    """
    steps.check_names(table.kinds, table.source)
    if kept is None:
        kept = [part.stop - part.start for part in table.parts]
    reader = EncodedReader(table, steps, kept)
    if not reader.n_rows:
        raise InputError(
            f"{table.source}: none of the {table.n_rows} rows is left, for each lacks a value of one of "
            f"{listed(steps.raw_names)}; leave out columns that are seldom filled, or give another rule"
        )
    target = steps.target
    held = _held(table, steps)
    return Dataset(
        reader=reader,
        n_rows=reader.n_rows,
        n_columns=len(steps.names_out),
        dtype=steps.dtype,
        source=table.source,
        row_bytes=table.row_bytes + steps.row_bytes,
        # A partition of dask's arrives whole in the task.
        chunk_rows=max(kept) if table.is_delayed else min(reader.batch_rows, max(kept)),
        column_names=steps.names_out,
        target_names=None if target is None else target.names,
        y_dtype=None if target is None else np.dtype(target.dtype),
        n_targets=0 if target is None else len(target.names),
        y_is_1d=target is None or target.is_1d,
        has_weights=steps.weight is not None,
        steps=steps,
        table_report=report,
        held_bytes=held.pack_bytes,
        whole_rows=held.whole_rows,
    )


def _held(table: RawTable, steps: TableSteps) -> Held:
    """What decoding the raw columns holds beside a batch."""
    if not table.column_bytes:
        return Held(0, 0)
    sizes = np.column_stack([table.column_bytes[name] for name in steps.raw_names])
    part_rows = [part.stop - part.start for part in table.parts]
    return held_by(sizes, part_rows, together=steps.drops_missing)


# Passes over the raw rows of a table: what its columns hold, and how many rows lack no value.

_SEGMENT_ROWS = 2**17
_WORD_BYTES = 100


@dataclass(frozen=True)
class RawSegment:
    """Consecutive parts of a table: what one task reads."""

    start: int
    stop: int
    parts: list[Any] = field(repr=False)


def raw_segments(parts: Sequence[RawRows]) -> list[RawSegment]:
    """Return the parts in runs of at least 2¹⁷ rows, as long as there are enough."""
    segments: list[RawSegment] = []
    run: list[RawRows] = []
    for part in parts:
        run.append(part)
        if part.stop - run[0].start >= _SEGMENT_ROWS:
            segments.append(RawSegment(run[0].start, part.stop, run))
            run = []
    if run:
        segments.append(RawSegment(run[0].start, run[-1].stop, run))
    return segments


@dataclass(frozen=True)
class ProfileReduction(Reduction):
    """Reduction to the `TableProfile` of some columns."""

    names: tuple[str, ...]
    most_words: int
    batch_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return _WORD_BYTES * len(self.names) * min(self.most_words, n_rows)

    def zero(self) -> TableProfile:
        return TableProfile.empty(self.most_words)

    def update(self, found: TableProfile, rows: Any, arrays: Arrays) -> TableProfile:
        for part in rows.parts:
            for batch in part.batches(self.names, self.batch_rows):
                found = found.merge(TableProfile.of(raw_columns(batch, self.names), self.most_words))
        return found

    def merge(self, first: TableProfile, second: TableProfile) -> TableProfile:
        return first.merge(second)


@dataclass(frozen=True)
class CompleteRowsReduction(Reduction):
    """Reduction to the number of rows without a missing value in some columns, part by part."""

    names: tuple[str, ...]
    batch_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8

    def zero(self) -> tuple[int, ...]:
        return ()

    def update(self, counts: tuple[int, ...], rows: Any, arrays: Arrays) -> tuple[int, ...]:
        return counts + tuple(self._count(part) for part in rows.parts)

    def merge(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        return first + second

    def _count(self, part: RawRows) -> int:
        n = 0
        for batch in part.batches(self.names, self.batch_rows):
            kept = complete_rows(raw_columns(batch, self.names).values())
            n += batch.num_rows if kept is None else int(np.count_nonzero(kept))
        return n


def profile_of(run: Run, table: RawTable, names: tuple[str, ...], most_words: int) -> TableProfile:
    """Return the profile of some columns, after one pass over the table."""
    reduction = ProfileReduction(names, most_words, _batch_rows(table))
    return run.gather([run.sweep_segments("table profile", raw_segments(table.parts), reduction)])[0]


def complete_rows_of(run: Run, table: RawTable, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how many rows of each part have a value in each of some columns, after one pass over these."""
    reduction = CompleteRowsReduction(names, _batch_rows(table))
    return run.gather([run.sweep_segments("complete rows", raw_segments(table.parts), reduction)])[0]


def _batch_rows(table: RawTable) -> int:
    return max(1, SPAN_BYTES // table.row_bytes)
