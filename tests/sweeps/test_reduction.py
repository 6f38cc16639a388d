"""One task: a segment summed, begun anew when storage fails in passing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from distrff.data.arrays import as_dataset
from distrff.data.rows import RowBlock
from distrff.errors import InputError
from distrff.sweeps import reduction
from distrff.sweeps.process_record import WorkRecord
from distrff.sweeps.reduction import Partial, merge_partials, reduce_rows

X = np.arange(20.0).reshape(10, 2)


@dataclass(frozen=True)
class Columns:
    """Sums of the columns, in place, as a Gram's are."""

    def zero(self):
        return np.zeros(2)

    def copy(self, accumulator):
        return accumulator.copy()

    def update(self, accumulator, rows, shipped):
        for block in rows.tiles(3):
            accumulator += block.X.sum(axis=0)
        return accumulator if shipped is None else accumulator * shipped["factor"]

    def merge(self, first, second):
        return first + second

    def size_bytes(self, n_rows):
        return 16


@dataclass
class Failing:
    """Rows whose storage fails in the middle, as often as it has errors left."""

    errors: list[Exception] = field(default_factory=list)
    start: int = 0
    stop: int = 10

    def tiles(self, n_rows):
        yield RowBlock(0, X[:5])
        if self.errors:
            raise self.errors.pop(0)
        yield RowBlock(5, X[5:])


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited; none passes."""
    seconds = []
    monkeypatch.setattr(reduction.time, "sleep", seconds.append)
    return seconds


def summed(rows, previous=None, shipped=None):
    return reduce_rows(Columns(), rows, shipped, "fit", previous)


def test_the_sum_of_a_segment(waits):
    partial = summed(as_dataset(X).rows(2, 9))
    np.testing.assert_array_equal(partial.value, X[2:9].sum(axis=0))
    assert partial.record.n_rows == 7
    assert partial.record.seconds > 0
    assert len(partial.record.processes) == 1
    assert waits == []


@pytest.mark.parametrize("n_failures", [1, 2])
@pytest.mark.parametrize("error", [OSError("connection reset"), TimeoutError(), FileNotFoundError("chunk")])
@pytest.mark.parametrize("continued", [False, True])
def test_storage_that_fails_in_passing_changes_nothing(waits, caplog, n_failures, error, continued):
    caplog.set_level("WARNING")  # a cluster of this session may have silenced the handlers
    previous = Partial(np.array([100.0, 200.0]), WorkRecord(5, 1.0)) if continued else None
    partial = summed(Failing([error] * n_failures), previous)
    np.testing.assert_array_equal(partial.value, X.sum(axis=0) + (previous.value if continued else 0))
    assert partial.record.n_rows == (15 if continued else 10)
    assert waits == [0.2, 1.0][:n_failures]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * n_failures
    assert "rows 0 to 10 could not be read" in caplog.text
    if continued:
        np.testing.assert_array_equal(previous.value, [100.0, 200.0])  # another attempt may need it


def test_storage_that_goes_on_failing_is_an_error(waits):
    rows = Failing([OSError("first"), OSError("second"), OSError("third")])
    with pytest.raises(OSError, match="third"):
        summed(rows)
    assert waits == [0.2, 1.0]
    assert rows.errors == []


@pytest.mark.parametrize(
    "error", [InputError("damaged"), ValueError("wrong"), MemoryError(), KeyboardInterrupt()]
)
def test_other_errors_are_not_tried_again(waits, error):
    with pytest.raises(type(error)):
        summed(Failing([error, OSError()]))
    assert waits == []


def test_a_chain_goes_on_from_its_sum(waits):
    first = summed(as_dataset(X).rows(0, 4))
    kept = first.value.copy()
    second = summed(as_dataset(X).rows(4, 10), first)
    np.testing.assert_array_equal(second.value, X.sum(axis=0))
    np.testing.assert_array_equal(first.value, kept)
    assert second.record.n_rows == 10
    assert second.record.seconds >= first.record.seconds


def test_what_was_shipped_arrives(waits):
    partial = summed(as_dataset(X).rows(0, 10), shipped={"factor": 2.0})
    np.testing.assert_array_equal(partial.value, 2 * X.sum(axis=0))


def test_merging_adds_values_and_records(waits):
    first, second = summed(as_dataset(X).rows(0, 4)), summed(as_dataset(X).rows(4, 10))
    values = first.value.copy(), second.value.copy()
    merged = merge_partials(Columns(), first, second)
    np.testing.assert_array_equal(merged.value, X.sum(axis=0))
    np.testing.assert_array_equal(first.value, values[0])
    np.testing.assert_array_equal(second.value, values[1])
    assert merged.record.n_rows == 10
    assert merged.record.seconds >= first.record.seconds + second.record.seconds
