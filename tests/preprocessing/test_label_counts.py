"""Labels counted block by block, of any type that can be sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.errors import InputError
from distrff.preprocessing import targets as label_counts
from distrff.preprocessing.targets import LabelCounts

KINDS = {
    "int": np.array([-3, 0, 7, 100]),
    "uint8": np.array([0, 1, 200, 255], np.uint8),
    "float": np.array([-1.0, 0.0, 2.0, 1e15]),
    "bool": np.array([False, True]),
    "text": np.array(["a", "bc", "d", "longest"]),
    "object": np.array(["a", "bc", "d", "longest"], object),
    "bytes": np.array([b"x", b"y"]),
    "date": np.array(["2020-01-01", "2021-06-01"], "datetime64[D]"),
}


def counted(y, s=None, ends=()):
    total = LabelCounts.empty()
    for part in np.split(np.arange(len(y)), ends):
        if len(part):
            total = total.merge(LabelCounts.of(y[part], None if s is None else s[part]))
    return total


@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 200),
    ends=st.lists(st.integers(0, 200), max_size=6).map(sorted),
    weighted=st.booleans(),
)
def test_counts_are_those_of_numpy_for_any_cuts(kind, seed, n, ends, weighted):
    rng = np.random.default_rng(seed)
    y = rng.choice(KINDS[kind], n)
    s = rng.exponential(size=n) if weighted else None
    found = counted(y, s, ends)
    labels, counts = np.unique(y, return_counts=True)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.labels.dtype == y.dtype
    np.testing.assert_array_equal(found.counts, counts)
    weights = counts if s is None else [s[y == label].sum() for label in labels]
    # Sums of at most 200 positive numbers.
    np.testing.assert_allclose(found.weights, weights, rtol=400 * 2.0**-53)
    assert found.weights.dtype == np.float64


def test_a_column_counts_as_its_rows():
    y = np.array([3, 1, 3])
    for found in (
        LabelCounts.of(y[:, None], np.array([1.0, 2.0, 4.0])),
        counted(y, np.array([1.0, 2.0, 4.0]), [2]),
    ):
        np.testing.assert_array_equal(found.labels, [1, 3])
        np.testing.assert_array_equal(found.counts, [1, 2])
        np.testing.assert_array_equal(found.weights, [2.0, 5.0])


def test_nothing_is_neutral():
    some = LabelCounts.of(np.array(["a", "b"]), None)
    for total in (some.merge(LabelCounts.empty()), LabelCounts.empty().merge(some)):
        assert total.labels.dtype == some.labels.dtype
        np.testing.assert_array_equal(total.labels, some.labels)
    assert len(LabelCounts.empty().merge(LabelCounts.empty()).labels) == 0


def test_two_columns_are_no_labels():
    with pytest.raises(InputError, match=r"one column of class labels, got shape \(3, 2\)"):
        LabelCounts.of(np.zeros((3, 2), int), None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fractions_are_no_classes(dtype):
    with pytest.raises(InputError, match=r"Unknown label type: continuous .*value 0\.25.*use KernelRidge"):
        LabelCounts.of(np.array([1, 0.25, 2], dtype), None)


@pytest.mark.parametrize("ends", [(), (2,)])
def test_types_that_cannot_be_sorted_together_are_refused(ends):
    """Within a block, and where they only meet when blocks are merged."""
    y = np.array(["a", "b", 1, 2], dtype=object)
    with pytest.raises(InputError, match=r"y mixes labels that cannot be sorted together.*use one type"):
        counted(y, ends=ends)


@pytest.mark.parametrize("ends", [(), (30,)])
def test_too_many_labels_are_no_classes(ends, monkeypatch):
    monkeypatch.setattr(label_counts, "_MAX_LABELS", 50)
    assert len(counted(np.arange(50), ends=ends).labels) == 50
    with pytest.raises(InputError, match="more than 50 different values, too many for classes"):
        counted(np.arange(51), ends=ends)
