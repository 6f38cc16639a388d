"""Which steps a raw table needs: from its first rows where types alone decide, else from all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from distrff.columns.number_step import NumberStep
from distrff.columns.table_steps import TableSteps
from distrff.columns.target_step import TargetStep
from distrff.errors import InputError
from distrff.ingest.encoders import FIRST_INDEX, LABEL, RawSource
from distrff.ingest.ordered_blocks import in_order
from distrff.ingest.sources.libsvm_blocks import LibsvmSource
from distrff.ingest.table_choice import Choice
from distrff.ingest.table_options import TableOptions
from distrff.ingest.table_profile import TableProfile, steps_of

Told = Callable[[int], None]
"""Takes how much of a source was read so far."""


def table_steps(
    source: RawSource, choice: Choice, options: TableOptions, tell: Told
) -> tuple[TableSteps, dict[str, Any]]:
    """Return the steps for a table, and the report of what they do; see `steps_of`.

    Costs the first piece where the types of the columns decide everything, and else one pass: for
    categories, means, and the minima of times.

    Raises
    ------
    InputError
        If the table has no rows, or as `steps_of`.
    """

    def profiled(piece: Any) -> TableProfile:
        return TableProfile.of(source.raw(piece, choice.used), options.max_categories)

    first = next(iter(source.pieces(choice.used)), None)
    if first is None:
        raise InputError(f"{source.name} has no rows; give a file with rows")
    profile, is_whole = profiled(first), False
    if not _types_suffice(profile, choice, options):
        profile, is_whole = TableProfile.empty(options.max_categories), True
        for piece, part in in_order(profiled, source.pieces(choice.used)):
            profile = profile.merge(part)
            tell(piece.position)
    steps, report = steps_of(
        profile, options, columns=choice.columns, target=choice.target, weight=choice.weight
    )
    report["columns_dropped"] = choice.dropped | report["columns_dropped"]
    if not is_whole:
        del report["missing"]  # of the first rows alone
    return steps, report


def _types_suffice(head: TableProfile, choice: Choice, options: TableOptions) -> bool:
    """Whether no row after the first ones can change the steps."""
    if options.missing in ("mean", "indicator"):
        return False
    for name in choice.used:
        column = head.columns[name]
        if column.is_empty:
            return False
        if name in choice.columns and column.kind not in ("number", "clock"):
            return False
    if options.positive is None or not choice.target:
        return True
    target = head.columns[choice.target[0]]
    return target.kind != "text" or str(options.positive) in (target.words or {})


# Each column has a name and four sums: some 100 bytes. The widest of the usual sets have 16.6 (webspam) and
# 29.9 million (KDD cup 2010).
_MOST_COLUMNS = 2**25


class LibsvmShape(NamedTuple):
    """What one pass over libsvm files finds: the smallest and largest index, and whether labels are whole."""

    least: int = 1
    most: int = 0
    labels_are_whole: bool = True

    @property
    def first_index(self) -> int:
        """Index of the first column: 1, or 0 in files that use it."""
        return min(1, self.least)

    @property
    def n_columns(self) -> int:
        """Columns from the first index to the largest."""
        return self.most + 1 - self.first_index


def libsvm_shape(source: LibsvmSource, tell: Told) -> LibsvmShape:
    """Return the shape of libsvm files, in one pass.

    Raises
    ------
    InputError
        If no entry is in them, or a line is not of their form.
    """
    shape = LibsvmShape()
    for piece, rows in in_order(source.rows, source.pieces(())):
        whole = shape.labels_are_whole and bool((rows.labels == np.floor(rows.labels)).all())
        least, most = shape.least, shape.most
        if len(rows.indices):
            least, most = min(least, int(rows.indices.min())), max(most, int(rows.indices.max()))
        shape = LibsvmShape(least, most, whole)
        if shape.n_columns > _MOST_COLUMNS:
            raise InputError(
                f"{source.name}: index {most:,} makes {shape.n_columns:,} columns, of at most "
                f"{_MOST_COLUMNS:,}; renumber the columns that occur, or hash them to fewer"
            )
        tell(piece.position)
    if shape.n_columns < 1:
        raise InputError(f"{source.name} holds no entry index:value; give a file with some")
    return shape


def libsvm_steps(shape: LibsvmShape, dtype: np.dtype, positive: Any) -> TableSteps:
    """Return the steps for libsvm files: all columns as one list, and the label."""
    name = next(n for n, first in FIRST_INDEX.items() if first == shape.first_index)
    kind = "uint8" if positive is not None else "int64" if shape.labels_are_whole else "float64"
    target = TargetStep((LABEL,), "numbers", kind, positive=None if positive is None else str(positive))
    return TableSteps((NumberStep(name, str(dtype), shape.n_columns),), target)


def in_dtype(steps: TableSteps, dtype: np.dtype | None) -> TableSteps:
    """Return the steps with numbers written in a floating-point type straight away."""
    if dtype is None:
        return steps
    columns = tuple(
        replace(step, dtype=str(dtype)) if isinstance(step, NumberStep) else step for step in steps.columns
    )
    return replace(steps, columns=columns)
