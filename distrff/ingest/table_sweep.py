"""Passes over the raw rows of a table: what its columns hold, and how many rows lack no value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distrff.columns.table_steps import complete_rows
from distrff.data.arrow_values import raw_columns
from distrff.data.raw_table import RawRows, RawTable
from distrff.data.storage import SPAN_BYTES
from distrff.ingest.table_profile import TableProfile
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.reduction import Shipped

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
class ProfileReduction:
    """Reduction to the `TableProfile` of some columns."""

    names: tuple[str, ...]
    most_words: int
    batch_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return _WORD_BYTES * len(self.names) * min(self.most_words, n_rows)

    def zero(self) -> TableProfile:
        return TableProfile.empty(self.most_words)

    def finish(self, accumulator: TableProfile) -> TableProfile:
        return accumulator

    def update(self, found: TableProfile, rows: Any, shipped: Shipped) -> TableProfile:
        for part in rows.parts:
            for batch in part.batches(self.names, self.batch_rows):
                found = found.merge(TableProfile.of(raw_columns(batch, self.names), self.most_words))
        return found

    def merge(self, first: TableProfile, second: TableProfile) -> TableProfile:
        return first.merge(second)


@dataclass(frozen=True)
class CompleteRowsReduction:
    """Reduction to the number of rows without a missing value in some columns, part by part."""

    names: tuple[str, ...]
    batch_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8

    def zero(self) -> tuple[int, ...]:
        return ()

    def finish(self, accumulator: tuple[int, ...]) -> tuple[int, ...]:
        return accumulator

    def update(self, counts: tuple[int, ...], rows: Any, shipped: Shipped) -> tuple[int, ...]:
        return counts + tuple(self._count(part) for part in rows.parts)

    def merge(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        return first + second

    def _count(self, part: RawRows) -> int:
        n = 0
        for batch in part.batches(self.names, self.batch_rows):
            kept = complete_rows(raw_columns(batch, self.names).values())
            n += batch.num_rows if kept is None else int(np.count_nonzero(kept))
        return n


def profile_of(run: SweepRun, table: RawTable, names: tuple[str, ...], most_words: int) -> TableProfile:
    """Return the profile of some columns, after one pass over the table."""
    reduction = ProfileReduction(names, most_words, _batch_rows(table))
    return run.gather([run.sweep_segments("table profile", raw_segments(table.parts), reduction)])[0]


def complete_rows_of(run: SweepRun, table: RawTable, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how many rows of each part have a value in each of some columns, after one pass over these."""
    reduction = CompleteRowsReduction(names, _batch_rows(table))
    return run.gather([run.sweep_segments("complete rows", raw_segments(table.parts), reduction)])[0]


def _batch_rows(table: RawTable) -> int:
    return max(1, SPAN_BYTES // table.row_bytes)
