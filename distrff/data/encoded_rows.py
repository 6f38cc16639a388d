"""Rows of a table, made by steps in the task that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np

from distrff.columns.table_steps import TableSteps
from distrff.data.arrow_values import raw_columns
from distrff.data.dataset import BLOCK_BYTES, Dataset, delayed_blocks, lazy_blocks
from distrff.data.raw_table import RawRows, RawTable
from distrff.data.row_group_batches import Held, held_by
from distrff.data.rows import FIELDS, Feed, RowBlock, Span, cut_tiles
from distrff.data.storage import SPAN_BYTES
from distrff.display.names import listed
from distrff.errors import InputError


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
