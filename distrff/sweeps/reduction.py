"""What is summed over rows, as data: any reduction of this form runs on the one engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from distrff.data.rows import Rows
from distrff.sweeps.merge_order import Neighbour
from distrff.sweeps.process_record import WorkRecord, begin_task, end_task

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 1.0)

Shipped = Mapping[str, np.ndarray] | None


class Reduction(Protocol):
    """A monoid over runs of rows; picklable, and the same whatever worker runs it."""

    def zero(self) -> Any:
        """Return a fresh accumulator, which belongs to the task that asked for it."""

    def update(self, accumulator: Any, rows: Rows, shipped: Shipped) -> Any:
        """Return the accumulator with the rows added; it may be changed in place.

        `shipped` holds arrays that this process was sent instead of deriving them.
        """

    def finish(self, accumulator: Any) -> Any:
        """Return the partial in which the accumulator waits and travels."""

    def merge(self, first: Any, second: Any) -> Any:
        """Return the sum of two partials, neither of which is changed."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of a partial of that many rows."""


@dataclass(frozen=True)
class Partial:
    """The finished sum of some rows, with the record of how it came about."""

    value: Any
    record: WorkRecord


def reduce_rows(
    reduction: Reduction, rows: Rows, shipped: list[Mapping[str, np.ndarray]], fit: str
) -> Partial:
    """Return the partial of one segment, to which all arrays of `shipped` were sent."""
    begin_task(fit)
    started = time.perf_counter()
    arrays = joined(shipped)
    value = _reduce_with_retries(reduction, rows, arrays)
    return Partial(value, end_task(rows.stop - rows.start, time.perf_counter() - started))


def joined(shipped: list[Mapping[str, np.ndarray]]) -> Shipped:
    """Return all arrays that were sent, or None if there are none."""
    return {name: A for part in shipped for name, A in part.items()} or None


def _reduce_with_retries(reduction: Reduction, rows: Rows, shipped: Shipped) -> Any:
    """Read and sum the rows; begin the segment anew when storage fails in passing."""
    for wait in _RETRY_SECONDS:
        try:
            return reduction.finish(reduction.update(reduction.zero(), rows, shipped))
        except OSError as error:
            logger.warning(
                "rows %d to %d could not be read (%s); again in %.1f s", rows.start, rows.stop, error, wait
            )
            time.sleep(wait)
    return reduction.finish(reduction.update(reduction.zero(), rows, shipped))


def merge_partials(reduction: Reduction, partial: Partial, neighbours: list[Neighbour]) -> Partial:
    """Return the sum of a partial with one neighbour after the other, each before or after what is summed."""
    started = time.perf_counter()
    merged = merged_here(reduction, partial, neighbours)
    return Partial(merged.value, merged.record.merge(end_task(0, time.perf_counter() - started)))


def merged_here(reduction: Reduction, partial: Partial, neighbours: list[Neighbour]) -> Partial:
    """Return the same sum, with nothing on record of the process that adds it up."""
    value, record = partial.value, partial.record
    for neighbour, is_before in neighbours:
        first, second = (neighbour.value, value) if is_before else (value, neighbour.value)
        value, record = reduction.merge(first, second), record.merge(neighbour.record)
    return Partial(value, record)
