"""What is summed over rows, as data: any reduction of this form runs on the one engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from distrff.data.rows import Rows
from distrff.sweeps.process_record import WorkRecord, begin_task, end_task

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 1.0)

Shipped = Mapping[str, np.ndarray] | None


class Reduction(Protocol):
    """A monoid over runs of rows; picklable, and the same whatever worker runs it."""

    def zero(self) -> Any:
        """Return a fresh accumulator, which belongs to the task that asked for it."""

    def copy(self, accumulator: Any) -> Any:
        """Return an accumulator of the same sum that `update` may change."""

    def update(self, accumulator: Any, rows: Rows, shipped: Shipped) -> Any:
        """Return the accumulator with the rows added; it may be changed in place.

        `shipped` holds arrays that this process was sent instead of deriving them.
        """

    def merge(self, first: Any, second: Any) -> Any:
        """Return the sum of two accumulators, neither of which is changed."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of an accumulator of that many rows."""


@dataclass(frozen=True)
class Partial:
    """The accumulator of some rows, with the record of how it came about."""

    value: Any
    record: WorkRecord


def reduce_rows(
    reduction: Reduction, rows: Rows, shipped: Shipped, fit: str, previous: Partial | None = None
) -> Partial:
    """Return the sum of one segment, added to that of its chain so far."""
    begin_task(fit)
    started = time.perf_counter()
    value = _reduce_with_retries(reduction, rows, shipped, None if previous is None else previous.value)
    record = end_task(rows.stop - rows.start, time.perf_counter() - started)
    return Partial(value, record if previous is None else previous.record.merge(record))


def _reduce_with_retries(reduction: Reduction, rows: Rows, shipped: Shipped, previous: Any) -> Any:
    """Read and sum the rows; begin the segment anew when storage fails in passing."""
    for wait in _RETRY_SECONDS:
        try:
            return reduction.update(_begin(reduction, previous), rows, shipped)
        except OSError as error:
            logger.warning(
                "rows %d to %d could not be read (%s); again in %.1f s", rows.start, rows.stop, error, wait
            )
            time.sleep(wait)
    return reduction.update(_begin(reduction, previous), rows, shipped)


def _begin(reduction: Reduction, previous: Any) -> Any:
    return reduction.zero() if previous is None else reduction.copy(previous)


def merge_partials(reduction: Reduction, first: Partial, second: Partial) -> Partial:
    """Return the partial result of both."""
    started = time.perf_counter()
    value = reduction.merge(first.value, second.value)
    seconds = time.perf_counter() - started
    return Partial(value, first.record.merge(second.record).merge(end_task(0, seconds)))
