"""Targets: numbers shifted and scaled without loss, labels counted, as ±1 and back, and stored."""

import json
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.errors import InputError
from distrff.preprocessing.coding import (
    ClassTargets,
    LabelCounts,
    NumericTargets,
    Scaling,
    checked_classes,
    class_weights,
    coding_from_parts,
    coding_parts,
    plain_values,
)

UNIT = 2.0**-53


LABELS = {
    "int": np.array([-3, 0, 12]),
    "uint8": np.array([0, 200, 255], np.uint8),
    "uint64": np.array([2**64 - 3, 2**64 - 2, 2**64 - 1], np.uint64),
    "float": np.array([-1.0, 1.0, 1e17]),
    "float32": np.array([-1.0, 0.0, 2.0], np.float32),
    "bool": np.array([False, True]),
    "text": np.array(["ant", 'bee "x"', "naïve caterpillar"]),
    "object": np.array(["ant", "bee", "caterpillar"], object),
    "bytes": np.array([b"a", b"b", b"c"]),
    "date": np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "datetime64[D]"),
}


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
def test_decoding_gives_the_targets_back(rng, offset):
    y = offset + rng.standard_normal(100)
    targets = NumericTargets.centred(np.array([y.mean()]), np.array([y.std()]))
    mantissa, _ = np.frexp(targets.scale)  # a power of two next to the deviation
    assert mantissa == 0.5 and y.std() < targets.scale <= 2 * y.std()
    coded = targets.encode(y)
    assert coded.shape == (100, 1)
    # The difference from the shift is rounded once (or not at all), the scale is exact, the sum
    # rounded once more.
    back = coded[:, 0] * targets.scale[0] + targets.shift[0]
    np.testing.assert_allclose(back, y, rtol=0, atol=2 * UNIT * np.abs(y).max())
    assert np.abs(coded).max() <= 100  # no deviation of 100 rows exceeds √100 of their own
    constant = NumericTargets.centred(np.array([5.0]), np.array([0.0]))
    assert 0.5 <= constant.scale[0] <= 2
    np.testing.assert_array_equal(constant.encode(np.full(3, 5)), 0.0)


EXACT = np.array([2**53, 2**53 + 1])


@pytest.mark.parametrize(
    ("classes", "y", "places"),
    [
        (np.array([0, 1]), np.array(["1", "0", " 1", "1.0", "01", "a"]), [1, 0, 1, 1, -1, -1]),
        (np.array([0, 1]), np.array([True, False]), [1, 0]),
        (np.array([0, 1, 2]), np.array([True, False]), [-1, -1]),  # no truth values
        (np.array([0, 1]), np.array([1.0, 0.5]), [1, -1]),
        (np.array([False, True]), np.array(["true", "FALSE", "1", "yes"], object), [1, 0, 1, -1]),
        (np.array(["0", "1"], object), np.array([1, 0, 7]), [1, 0, -1]),
        (np.array(["1", "1.0"]), np.array([1.0]), [0]),  # the word of 1.0 is "1"
        (EXACT, np.array([2.0**53, 2.0**53 + 2]), [0, -1]),
        (EXACT.astype(np.uint64), EXACT[::-1].astype(object), [1, 0]),
        (EXACT, EXACT.astype(str), [0, 1]),
        (np.array([2**64 - 2, 2**64 - 1], np.uint64), np.array([-1, -2]), [-1, -1]),
    ],
)
def test_labels_in_other_types_and_spellings_are_the_same_classes(classes, y, places):
    assert ClassTargets(classes).indices(y).tolist() == places


def test_labels_of_several_types_are_counted_exactly():
    for listed, dtype in (
        ([1, 0], "int64"),
        ([True, False], "bool"),
        ([1, 2.5], "float64"),
        ([2**63, 1], "uint64"),
        ([2**53 + 1, 0.5], "object"),  # no float holds the first
        ([True, 1], "object"),
        ([np.timedelta64(1, "D")], "object"),
        (["a", "b"], "object"),
    ):
        values = np.fromiter(listed, object, len(listed))
        found = plain_values(values)
        assert found.dtype == dtype and found.tolist() == values.tolist()
    for blocks, labels, counts in (
        ([np.array([1, 2]), np.array([2.0, 3.0]), np.array([2], np.uint8)], [1, 2, 3], [1, 3, 1]),
        ([EXACT, np.array([2**53 + 1, 2**63 + 1], np.uint64)], [2**53, 2**53 + 1, 2**63 + 1], [1, 2, 1]),
    ):
        total = reduce(LabelCounts.merge, (LabelCounts.of(block, None) for block in blocks))
        assert (total.labels.tolist(), total.counts.tolist()) == (labels, counts)
    assert checked_classes([2**63 + 1, 1]).tolist() == [1, 2**63 + 1]


def test_class_weights_multiply_sample_weights():
    by_class, y, s = np.array([10.0, 30.0, 60.0]), np.array([7, 7, 9]), np.array([1.0, 2.0, 3.0])
    balanced = class_weights("balanced", np.array(["a", "b", "c"]), by_class)
    np.testing.assert_allclose(balanced * by_class, 100 / 3, rtol=4 * UNIT)
    np.testing.assert_array_equal(class_weights({"b": 2}, np.array(["a", "b"]), np.ones(2)), [1.0, 2.0])
    assert class_weights(None, np.arange(3), np.ones(3)) is None
    for key in (2**53 + 1, str(2**53 + 1), np.uint64(2**53 + 1)):
        np.testing.assert_array_equal(class_weights({key: 3}, EXACT, np.ones(2)), [1, 3])
    np.testing.assert_array_equal(class_weights({"true": 3}, np.array([False, True]), np.ones(2)), [1, 3])
    for weights in (None, class_weights({9: 4, 7: 0.5}, np.array([7, 9]), np.ones(2))):
        targets, factors = ClassTargets(np.array([7, 9]), weights), [0.5, 0.5, 4.0]
        found = targets.row_weights(y, s)
        np.testing.assert_array_equal(found, s if weights is None else s * factors)
        assert (found is s) == (weights is None)
        np.testing.assert_array_equal(targets.row_weights(y, None), None if weights is None else factors)


def counted(y, s=None, ends=()):
    total = LabelCounts.empty()
    for part in np.split(np.arange(len(y)), ends):
        if len(part):
            total = total.merge(LabelCounts.of(y[part], None if s is None else s[part]))
    return total


@given(
    kind=st.sampled_from(sorted(LABELS)),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 200),
    ends=st.lists(st.integers(0, 200), max_size=6).map(sorted),
    weighted=st.booleans(),
)
def test_counts_are_those_of_numpy_for_any_cuts(kind, seed, n, ends, weighted):
    rng = np.random.default_rng(seed)
    y = rng.choice(LABELS[kind], n)
    s = rng.exponential(size=n) if weighted else None
    labels, counts = np.unique(y, return_counts=True)
    weights = counts if s is None else [s[y == label].sum() for label in labels]
    total = counted(y, s, ends)
    for found in (total, LabelCounts.of(y[:, None], s), LabelCounts.empty().merge(total)):
        np.testing.assert_array_equal(found.labels, labels)
        assert found.labels.dtype == y.dtype
        np.testing.assert_array_equal(found.counts, counts)
        # Sums of at most 200 positive numbers.
        np.testing.assert_allclose(found.weights, weights, rtol=400 * 2.0**-53)
        assert found.weights.dtype == np.float64
    np.testing.assert_array_equal(total.merge(LabelCounts.empty()).labels, labels)
    assert len(LabelCounts.empty().merge(LabelCounts.empty()).labels) == 0


OF_TWO = ClassTargets(np.array(["a", "b"]), np.ones(2))


def labels(*values):
    return np.fromiter(values, object, len(values))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: ClassTargets(np.array([1, 5])).encode(np.array([1, 3])),
            "label 3, which is not one of the 2",
        ),
        (lambda: OF_TWO.encode(np.array(["b", "bb"])), "label 'bb', which is not one of the 2 classes"),
        (lambda: OF_TWO.row_weights(labels("c"), None), "label 'c', which is not one of the 2 classes"),
        *(
            (lambda given=given: class_weights(given, np.arange(2), np.ones(2)), message)
            for given, message in (
                ([1, 2], "must be None, 'balanced' or a dict"),
                ({0: np.inf}, r"class_weight\[0\] must be a finite number"),
                ({0: None}, r"class_weight\[0\] must be a finite number"),
                ({0: 0, 1: 0.0}, "class_weight gives fewer than two classes"),
            )
        ),
        *(
            (lambda y=y, ends=ends: counted(labels(*y), ends=ends), message)
            for y, message in (
                ((1, "a"), "y mixes labels that cannot be sorted together, of int and str"),
                ((True, 2), "of bool and int"),
                ((2**53 + 1, 2.0), "of float and int"),
                ((2**64, 1), "y holds integers that 64 bits do not hold"),
            )
            for ends in ((), (1,))
        ),
        (lambda: counted(labels("a", "b\0")), r"the label 'b\\x00' with a NUL"),
        (lambda: counted(labels("a", "\ud800")), "half of a surrogate pair"),
        (lambda: counted(np.zeros((3, 2), int)), r"one column of class labels, got shape \(3, 2\)"),
        (lambda: counted(np.float32([1, 0.25])), r"label type: continuous .*value 0\.25.*use KernelRidge"),
        *(
            (lambda ends=ends: counted(np.arange(10_001), ends=ends), "more than 10000 different values")
            for ends in ((), (3_000,), (10_000,))
        ),
        *(
            (lambda made=made: coding_parts(Scaling(), ClassTargets(made)), "stored; use numbers or strings")
            for made in (np.array([b"a", b"b"]), labels(1, "a"), np.array(["2020", "2021"], "datetime64[Y]"))
        ),
    ],
)
def test_labels_and_weights_that_cannot_be_are_refused(use, message):
    with pytest.raises(InputError, match=message):
        use()


NUMBERS = NumericTargets(np.array([1 / 3, -0.0]), np.array([2.0, 2.0**-300]))
STORED = [LABELS[kind] for kind in LABELS if kind not in ("bytes", "date")]


@pytest.mark.parametrize("scaling", [Scaling(), Scaling(np.array([0.1, -1e300]), np.array([3.0, 5e-324]))])
@pytest.mark.parametrize(
    "targets",
    [
        NUMBERS,
        *(ClassTargets(classes) for classes in STORED),
        *(ClassTargets(classes, 0.1 * np.arange(1.0, len(classes) + 1)) for classes in STORED),
    ],
)
def test_codings_come_back_from_json_and_arrays(scaling, targets):
    arrays, metadata = coding_parts(scaling, targets)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    found, back = coding_from_parts(arrays, json.loads(json.dumps(metadata, allow_nan=False)))
    assert found.equals(scaling)
    assert back.same_kind(targets)
    np.testing.assert_array_equal(back.shift, targets.shift)
    np.testing.assert_array_equal(back.scale, targets.scale)
    if targets is not NUMBERS:
        assert back.classes.dtype == targets.classes.dtype
        assert (back.class_weight is None) == (targets.class_weight is None)
        np.testing.assert_array_equal(back.decode(back.encode(targets.classes)), targets.classes)
