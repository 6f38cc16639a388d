"""One task: a segment summed, begun anew when storage fails in passing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from distrff.engine import reduction
from distrff.engine.reduction import Reduction, merge_partials, reduce_rows
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from distrff.io.rows import RowBlock

X = np.arange(20.0).reshape(10, 2)


@dataclass(frozen=True)
class Columns(Reduction):
    """Sums of the columns, in place as a Gram's are, which travel as lists."""

    def zero(self):
        return np.zeros(2)

    def finish(self, accumulator):
        return accumulator.tolist()

    def update(self, accumulator, rows, arrays):
        for block in rows.tiles(3):
            accumulator += block.X.sum(axis=0)
        return accumulator * arrays.get("factor", 1.0)

    def merge(self, first, second):
        return [a + b for a, b in zip(first, second, strict=True)]

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


def summed(rows, *sent):
    return reduce_rows(Columns(), rows, list(sent), "fit")


def test_the_sum_of_a_segment(waits):
    partial = summed(as_dataset(X).rows(2, 9))
    assert partial.value == X[2:9].sum(axis=0).tolist()  # finished
    assert partial.record.n_rows == 7
    assert partial.record.seconds > 0
    assert len(partial.record.processes) == 1
    assert waits == []


@pytest.mark.parametrize("n_failures", [1, 2])
@pytest.mark.parametrize("error", [OSError("connection reset"), TimeoutError(), FileNotFoundError("chunk")])
def test_storage_that_fails_in_passing_changes_nothing(waits, caplog, n_failures, error):
    caplog.set_level("WARNING")  # a cluster of this session may have silenced the handlers
    partial = summed(Failing([error] * n_failures))
    assert partial.value == X.sum(axis=0).tolist()  # what was added before the failure is thrown away
    assert partial.record.n_rows == 10
    assert waits == [0.2, 1.0][:n_failures]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * n_failures
    assert "rows 0 to 10 could not be read" in caplog.text


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


def test_what_was_sent_arrives(waits):
    partial = summed(as_dataset(X).rows(0, 10), {"factor": 2.0}, {"another": 1.0})
    assert partial.value == (2 * X.sum(axis=0)).tolist()


def test_merging_adds_values_and_records(waits):
    first, second = summed(as_dataset(X).rows(0, 4)), summed(as_dataset(X).rows(4, 10))
    merged = merge_partials(Columns(), second, [(first, True)])
    assert merged.value == X.sum(axis=0).tolist()
    assert (first.value, second.value) == (X[:4].sum(axis=0).tolist(), X[4:].sum(axis=0).tolist())
    assert merged.record.n_rows == 10
    assert merged.record.seconds >= first.record.seconds + second.record.seconds
