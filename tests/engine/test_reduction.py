"""One task: a segment summed, begun anew when storage fails in passing; and the order of merges."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.engine import tasks
from distrff.engine.reduction import OrderedMerge, Reduction, n_levels
from distrff.engine.tasks import LocalExecution, begin_task, merge_partials, reduce_rows
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from distrff.io.dataset import RowBlock
from distrff.utils.process import Cancelled, cancel, working_for

X = np.arange(20.0).reshape(10, 2)


@pytest.fixture(scope="module", autouse=True)
def begun_as_in_a_fit():
    """The first task of a process measures its BLAS threads, of which a fit leaves one."""
    LocalExecution("synchronous").submit(begin_task, "-")


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
    monkeypatch.setattr(tasks.time, "sleep", seconds.append)
    return seconds


def summed(rows, *sent):
    return reduce_rows(Columns(), rows, list(sent), "fit")


def test_sums_of_segments_and_their_merge(waits):
    first, second = summed(as_dataset(X).rows(0, 4)), summed(as_dataset(X).rows(4, 10))
    assert first.value == X[:4].sum(axis=0).tolist()  # finished
    assert first.record.n_rows == 4
    assert first.record.seconds > 0
    assert len(first.record.processes) == 1
    merged = merge_partials(Columns(), None, second, [(first, True)], (1, 0))
    assert merged.value == X.sum(axis=0).tolist()
    assert (first.value, second.value) == (X[:4].sum(axis=0).tolist(), X[4:].sum(axis=0).tolist())
    assert merged.record.n_rows == 10
    assert merged.record.seconds >= first.record.seconds + second.record.seconds
    sent = summed(as_dataset(X).rows(0, 10), {"factor": 2.0}, {"another": 1.0})
    assert sent.value == (2 * X.sum(axis=0)).tolist()
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


@pytest.mark.parametrize(
    ("errors", "waited"),
    [
        ([OSError("first"), OSError("second"), OSError("third")], [0.2, 1.0]),
        *(
            ([error], [])
            for error in (InputError("bad"), ValueError("wrong"), MemoryError(), KeyboardInterrupt())
        ),
    ],
)
def test_storage_that_goes_on_failing_and_other_errors_are_raised(waits, errors, waited):
    rows = Failing([*errors, OSError("of a pass that nobody makes")])
    with pytest.raises(type(errors[-1])) as caught:
        summed(rows)
    assert caught.value is errors[-1]
    assert waits == waited
    assert len(rows.errors) == 1


# The order of merges: one expression for a number of segments, however they arrive


def bracketed(expression, neighbours, node):
    for neighbour, is_before in neighbours:
        first, second = (neighbour, expression) if is_before else (expression, neighbour)
        expression = f"({first}+{second})"
    return expression


def merged(order):
    merge = OrderedMerge(len(order), bracketed)
    for index in order:
        merge.add(index, str(index))
    return merge.result()


@given(n=st.integers(1, 300), data=st.data())
def test_any_order_of_arrival_gives_the_same_expression(n, data):
    """All merges that one arrival makes possible are one call."""
    merges = []

    def merging(expression, neighbours, node):
        merges.append(neighbours)
        return bracketed(expression, neighbours, node)

    merge = OrderedMerge(n, merging)
    for index in data.draw(st.permutations(range(n))):
        before = len(merges)
        merge.add(index, str(index))
        assert len(merges) <= before + 1
    expression = merge.result()
    assert expression == merged(range(n))
    # Every partial once, in order: addition need not be commutative.
    names = expression.replace("(", "").replace(")", "").split("+")
    assert names == [str(i) for i in range(n)]


def test_small_expressions():
    expected = ["0", "(0+1)", "((0+1)+2)", "((0+1)+(2+3))", "(((0+1)+(2+3))+4)"]
    assert [merged(range(n)) for n in range(1, 6)] == expected
    assert merged([6, 5, 4, 3, 2, 1, 0]) == "(((0+1)+(2+3))+((4+5)+6))"


@given(n=st.integers(2, 1000), data=st.data())
def test_few_partials_wait(n, data):
    """In order one a level; behind one that is late two a level."""
    for late, bound in ((n - 1, n_levels(n)), (data.draw(st.integers(0, n - 1)), 2 * n_levels(n))):
        merge, most = OrderedMerge(n, lambda number, near, node: number + sum(one for one, _ in near)), 0
        for index in [*range(late), *range(late + 1, n)]:
            merge.add(index, 1)
            most = max(most, merge.n_waiting)
        assert most <= bound and n_levels(n) == (n - 1).bit_length()
        with pytest.raises(RuntimeError, match="were not merged"):
            merge.result()
        merge.add(late, 1)
        assert merge.result() == n


def test_a_thread_whose_pass_is_abandoned_ends_at_its_next_tile():
    rows = as_dataset(np.ones((100, 2))).rows(0, 100)
    seen = []
    with working_for("pass"), pytest.raises(Cancelled):
        for block in rows.tiles(10):
            seen.append(block.start)
            if len(seen) == 3:
                cancel("pass")
    assert seen == [0, 10, 20]
    assert len(list(rows.tiles(10))) == 10  # nobody has abandoned what this thread does now
