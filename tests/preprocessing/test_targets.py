"""Targets: numbers shifted and scaled without loss, labels of any type as ±1 and back."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.errors import InputError
from distrff.preprocessing.targets import ClassTargets, NumericTargets, class_weights

UNIT = 2.0**-53

LABELS = {
    "int": np.array([-3, 0, 12]),
    "uint8": np.array([1, 4, 7], np.uint8),
    "float": np.array([-1.0, 0.0, 2.0]),
    "text": np.array(["ant", "bee", "caterpillar"]),
    "object": np.array(["ant", "bee", "caterpillar"], object),
    "bytes": np.array([b"a", b"b", b"c"]),
    "date": np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "datetime64[D]"),
}
TWO = {name: labels[:2] for name, labels in LABELS.items()} | {"bool": np.array([False, True])}


# Numbers


def test_the_scale_is_a_power_of_two_next_to_the_deviation(rng):
    deviation = np.exp2(rng.uniform(-300, 300, 50))
    targets = NumericTargets.centred(rng.standard_normal(50), deviation)
    mantissa, _ = np.frexp(targets.scale)
    assert np.all(mantissa == 0.5)
    assert np.all((deviation < targets.scale) & (targets.scale <= 2 * deviation))
    assert targets.n_outputs == 50


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
def test_decoding_gives_the_targets_back(rng, offset):
    y = offset + rng.standard_normal(100)
    targets = NumericTargets.centred(np.array([y.mean()]), np.array([y.std()]))
    coded = targets.encode(y)
    assert coded.shape == (100, 1)
    # The difference from the shift is rounded once (or not at all), the scale is exact, the sum
    # rounded once more.
    back = coded[:, 0] * targets.scale[0] + targets.shift[0]
    np.testing.assert_allclose(back, y, rtol=0, atol=2 * UNIT * np.abs(y).max())
    assert np.abs(coded).max() <= 100  # no deviation of 100 rows exceeds √100 of their own


def test_constant_targets_are_shifted_alone():
    targets = NumericTargets.centred(np.array([5.0]), np.array([0.0]))
    assert 0.5 <= targets.scale[0] <= 2
    np.testing.assert_array_equal(targets.encode(np.full(3, 5)), 0.0)


def test_targets_of_several_columns_and_any_real_type():
    targets = NumericTargets(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    for dtype in (np.int8, np.uint64, np.float32, object):
        np.testing.assert_array_equal(targets.encode(np.array([[3, 6], [1, 2]], dtype)), [[1, 1], [0, 0]])


def test_numeric_targets_leave_weights_alone():
    targets = NumericTargets(np.zeros(1), np.ones(1))
    assert targets.row_weights(np.zeros(2), None) is None
    s = np.array([1.0, 2.0])
    assert targets.row_weights(np.zeros(2), s) is s


def test_kinds_of_numeric_targets():
    one, two = NumericTargets(np.zeros(1), np.ones(1)), NumericTargets(np.zeros(2), np.ones(2))
    assert one.same_kind(NumericTargets(np.ones(1), np.full(1, 4.0)))
    assert not one.same_kind(two)
    assert not one.same_kind(ClassTargets(np.array([0, 1])))


# Classes


@pytest.mark.parametrize("kind", TWO)
def test_two_classes_are_one_column(kind):
    classes = TWO[kind]
    targets = ClassTargets(classes)
    y = classes[[1, 0, 0, 1]]
    np.testing.assert_array_equal(targets.encode(y), [[1.0], [-1.0], [-1.0], [1.0]])
    decoded = targets.decode(targets.encode(y))
    np.testing.assert_array_equal(decoded, y)
    assert decoded.dtype == classes.dtype
    assert targets.n_outputs == 1


@pytest.mark.parametrize("kind", LABELS)
def test_more_classes_are_a_column_each(kind):
    classes = LABELS[kind]
    targets = ClassTargets(classes)
    y = classes[[2, 0, 1, 2]]
    np.testing.assert_array_equal(targets.encode(y), 2.0 * np.eye(3)[[2, 0, 1, 2]] - 1)
    np.testing.assert_array_equal(targets.decode(targets.encode(y)), y)
    assert targets.n_outputs == 3
    np.testing.assert_array_equal(targets.shift, np.zeros(3))
    np.testing.assert_array_equal(targets.scale, np.ones(3))


def test_decision_values_need_not_be_one():
    two, three = ClassTargets(np.array(["no", "yes"])), ClassTargets(np.array([1, 2, 3]))
    np.testing.assert_array_equal(two.decode(np.array([[0.1], [-5.0], [0.0]])), ["yes", "no", "no"])
    np.testing.assert_array_equal(three.decode(np.array([[-3, -1, -2], [0.3, 0.1, 0.2]])), [2, 1])


def test_labels_in_a_column():
    targets = ClassTargets(np.array([1, 5]), np.array([2.0, 3.0]))
    y = np.array([[5], [1], [1]])
    np.testing.assert_array_equal(targets.encode(y), [[1.0], [-1.0], [-1.0]])
    np.testing.assert_array_equal(targets.row_weights(y, None), [3.0, 2.0, 2.0])


def test_labels_stored_as_another_type_are_the_same_labels():
    whole = ClassTargets(np.array([1, 5]))
    np.testing.assert_array_equal(whole.encode(np.array([5.0, 1.0])), [[1.0], [-1.0]])
    text = ClassTargets(np.array(["ab", "cd"]))
    np.testing.assert_array_equal(text.encode(np.array(["cd", "ab"], object)), [[1.0], [-1.0]])


@pytest.mark.parametrize(
    ("classes", "y", "named"),
    [
        (np.array([1, 5]), np.array([1, 3]), "3"),
        (np.array([1, 5]), np.array([6]), "6"),
        (np.array([1, 5]), np.array([-1]), "-1"),
        (np.array(["a", "b"]), np.array(["b", "bb"]), "'bb'"),  # longer than any class
        (np.array(["a", "b"], object), np.array(["c"], object), "'c'"),
    ],
)
def test_unknown_labels_are_named(classes, y, named):
    targets = ClassTargets(classes, np.ones(2))
    with pytest.raises(InputError, match=f"label .*{named}.*none of the 2 classes"):
        targets.encode(y)
    with pytest.raises(InputError, match="none of the 2 classes"):
        targets.row_weights(y, None)
    assert (targets.indices(y) < 0).any()


def test_class_weights_multiply_sample_weights():
    y, s = np.array([7, 7, 9]), np.array([1.0, 2.0, 3.0])
    targets = ClassTargets(np.array([7, 9]), np.array([0.5, 4.0]))
    np.testing.assert_array_equal(targets.row_weights(y, None), [0.5, 0.5, 4.0])
    np.testing.assert_array_equal(targets.row_weights(y, s), [0.5, 1.0, 12.0])
    assert ClassTargets(np.array([7, 9])).row_weights(y, None) is None
    assert ClassTargets(np.array([7, 9])).row_weights(y, s) is s


def test_kinds_of_class_targets():
    targets = ClassTargets(np.array([0, 1]))
    assert targets.same_kind(ClassTargets(np.array([0, 1]), np.ones(2)))
    assert not targets.same_kind(ClassTargets(np.array([0, 1]), np.array([1.0, 2.0])))
    assert not targets.same_kind(ClassTargets(np.array([0, 2])))
    assert not targets.same_kind(ClassTargets(np.array([0, 1, 2])))
    assert not targets.same_kind(ClassTargets(np.array(["0", "1"])))
    assert not targets.same_kind(NumericTargets(np.zeros(1), np.ones(1)))


# Class weights


def test_balanced_weights_give_every_class_the_same():
    by_class = np.array([10.0, 30.0, 60.0])
    weights = class_weights("balanced", np.array(["a", "b", "c"]), by_class)
    np.testing.assert_allclose(weights * by_class, 100 / 3, rtol=4 * UNIT)


def test_class_weights_by_label():
    ones = np.ones(3)
    assert class_weights(None, np.arange(3), ones) is None
    np.testing.assert_array_equal(class_weights({2: 5, 0: 0.5}, np.arange(3), ones), [0.5, 1.0, 5.0])
    np.testing.assert_array_equal(class_weights({"b": 2}, np.array(["a", "b"]), ones[:2]), [1.0, 2.0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("even", "must be None, 'balanced' or a dict"),
        ([1, 2], "must be None, 'balanced' or a dict"),
        ({3: 1.0}, "names 3, which is none of the classes"),
        ({0: -1.0}, r"class_weight\[0\] must be a finite number"),
        ({0: np.nan}, r"class_weight\[0\] must be a finite number"),
        ({0: np.inf}, r"class_weight\[0\] must be a finite number"),
        ({0: "much"}, r"class_weight\[0\] must be a finite number"),
        ({0: None}, r"class_weight\[0\] must be a finite number"),
        ({0: 0, 1: 0.0}, "class_weight leaves fewer than two classes"),
    ],
)
def test_other_class_weights_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        class_weights(given, np.arange(2), np.ones(2))
