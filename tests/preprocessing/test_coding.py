"""Scaling and targets survive the way through arrays and strict JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distrff.errors import InputError, ModelFileError
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets, NumericTargets, coding_from_parts, coding_parts

SCALINGS = [Scaling(), Scaling(np.array([0.1, -1e300]), np.array([3.0, 5e-324]))]
CLASSES = [
    np.array([-3, 0, 2**62]),
    np.array([0, 255], np.uint8),
    np.array([2**64 - 2, 2**64 - 1], np.uint64),
    np.array([-0.5, 1.0, 1e17]),
    np.array([1.0, 2.0], np.float32),
    np.array([False, True]),
    np.array(["ant", "naïve", 'quoted "x"']),
    np.array(["ant", "bee"], object),
]


def through_json(scaling, targets):
    arrays, metadata = coding_parts(scaling, targets)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    return coding_from_parts(arrays, json.loads(json.dumps(metadata, allow_nan=False)))


@pytest.mark.parametrize("scaling", SCALINGS, ids=["none", "both"])
def test_numeric_targets_round_trip(scaling):
    targets = NumericTargets(np.array([1 / 3, -0.0]), np.array([2.0, 2.0**-300]))
    found, back = through_json(scaling, targets)
    assert found.equals(scaling)
    assert isinstance(back, NumericTargets)
    np.testing.assert_array_equal(back.shift, targets.shift)
    np.testing.assert_array_equal(back.scale, targets.scale)


@pytest.mark.parametrize("classes", CLASSES, ids=lambda classes: classes.dtype.str)
@pytest.mark.parametrize("weight", [None, 0.1])
def test_classes_round_trip(classes, weight):
    targets = ClassTargets(classes, None if weight is None else weight * np.arange(1.0, len(classes) + 1))
    found, back = through_json(SCALINGS[1], targets)
    assert found.equals(SCALINGS[1])
    assert back.same_kind(targets)
    assert back.classes.dtype == classes.dtype
    assert (back.class_weight is None) == (weight is None)
    np.testing.assert_array_equal(back.decode(targets.encode(classes)), classes)


@pytest.mark.parametrize(
    "classes",
    [np.array([b"a", b"b"]), np.array([1, "a"], object), np.array(["2020", "2021"], "datetime64[Y]")],
)
def test_labels_that_json_cannot_hold_are_refused(classes):
    with pytest.raises(InputError, match="cannot be stored; use numbers or strings"):
        coding_parts(Scaling(), ClassTargets(classes))


def test_targets_of_the_future_are_refused():
    with pytest.raises(ModelFileError, match="'ranks' are not known; update distrff"):
        coding_from_parts({}, {"targets": "ranks"})
