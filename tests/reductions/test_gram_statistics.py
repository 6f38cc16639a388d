"""Grams as values: joined, forgotten, recoded, stored, and refused where they do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import distrff as drf
from distrff.errors import InputError, ModelFileError
from distrff.io.arrays import as_dataset
from distrff.io.groups import write_group
from distrff.model.persistence import load_model
from distrff.preprocessing.scaling import Scaling
from distrff.preprocessing.targets import ClassTargets, NumericTargets
from distrff.reductions.base import Folds
from distrff.reductions.gram import GramReduction
from tests.support.sweeps import of_features

UNIT = 2.0**-53
D = 16
SPEC = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=3).fit(np.zeros((1, 2))).specification_


def statistics_of(X, y, s=None, *, targets=None, spec=SPEC, scaling=None, n_folds=3):
    """The Gram of some rows by one reduction in float64."""
    scaling = Scaling() if scaling is None else scaling
    if targets is None:
        Y = np.reshape(y, (len(X), -1))
        targets = NumericTargets.centred(Y.mean(axis=0), Y.std(axis=0))
    folds = Folds(n_folds, 0, "hash", len(X))
    fields = of_features(spec, targets, scaling=scaling, tile_rows=64)
    reduction = GramReduction(**fields, folds=folds, members=tuple(range(n_folds)))
    A = reduction.update(reduction.zero(), as_dataset(X, y, s).rows(0, len(X)), {})
    return drf.GramStatistics(A, len(X), spec, scaling, targets, "float64", 64, np.ndim(y) == 1)


def rows(rng, n, offset=0.0):
    X = rng.standard_normal((n, 2))
    return X, offset + np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n), rng.uniform(0.5, 2, n)


def assert_same_gram(found, expected, n, larger=0.0):
    """Both are sums of n products, recoded in four roundings of quantities up to the larger offset."""
    size = np.sqrt(np.einsum("fii->fi", expected.A))
    scale = size[:, :, None] * size[:, None, :]
    assert np.all(np.abs(found.A - expected.A) <= 4 * (n + 10) * UNIT * (1 + larger) ** 2 * scale.max())


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_sums_are_grams_of_all_rows(rng, offset):
    """Targets that were centred on other means are brought to those of the first."""
    X1, y1, s1 = rows(rng, 200, offset)
    X2, y2, s2 = rows(rng, 150, offset + 1)
    first, second = statistics_of(X1, y1, s1), statistics_of(X2, y2, s2)
    total = first + second
    assert total.n_rows == 350
    assert total.n_folds == 3
    assert total.weight == pytest.approx(s1.sum() + s2.sum(), rel=400 * UNIT)
    assert total.targets is first.targets
    same_coding = statistics_of(X2, y2, s2, targets=first.targets)
    # The shifts differ by one or two units of the scale, so nothing cancels.
    shift = np.max(np.abs(first.targets.shift - second.targets.shift) / first.targets.scale)
    assert_same_gram(total, replace(same_coding, A=first.A + same_coding.A), 350, larger=shift)


def test_adding_changes_neither(rng):
    first, second = statistics_of(*rows(rng, 60)), statistics_of(*rows(rng, 50))
    copies = first.A.copy(), second.A.copy(), second.targets.shift.copy()
    assert ((first + second) - second).n_folds == 1  # which fold a forgotten row was in is not known
    nothing = first - first
    assert nothing.n_rows == 0 and not nothing.A.any()
    np.testing.assert_array_equal(first.A, copies[0])
    np.testing.assert_array_equal(second.A, copies[1])
    np.testing.assert_array_equal(second.targets.shift, copies[2])


def test_mixed_products_count_as_the_coarser(rng):
    first, second = statistics_of(*rows(rng, 60)), statistics_of(*rows(rng, 50))
    coarse = replace(second, dtype="float32", tile_rows=8192)
    assert (first + second).dtype == "float64"
    for total in (first + coarse, coarse + first):
        assert total.dtype == "float32"
        assert total.tile_rows == 8192


@pytest.mark.parametrize("k", [1, 2])
def test_recoded_targets_are_those_of_another_coding(rng, k):
    X, _, s = rows(rng, 120)
    Y = rng.standard_normal((120, k)) * 3 + 7
    old, new = statistics_of(X, Y, s), NumericTargets(rng.standard_normal(k), np.exp2(np.arange(k) + 2.0))
    expected = statistics_of(X, Y, s, targets=new)
    found = old.with_targets(new)
    assert found.targets is new
    assert_same_gram(found, expected, 120, larger=10)
    np.testing.assert_array_equal(found.A[:, : D + 1, : D + 1], old.A[:, : D + 1, : D + 1])


def test_classes_are_joined_as_they_are(rng):
    X1, y1, s1 = rows(rng, 80)
    X2, y2, s2 = rows(rng, 70)
    targets = ClassTargets(np.array(["high", "low"]), np.array([1.0, 2.0]))
    names = np.array(["low", "high"])
    first, second = (
        statistics_of(X, names[(y > 0).astype(int)], s, targets=targets)
        for X, y, s in ((X1, y1, s1), (X2, y2, s2))
    )
    np.testing.assert_array_equal((first + second).A, first.A + second.A)
    assert (first + second).targets.same_kind(targets)


# Refusals


def test_grams_that_do_not_fit_are_refused(rng):
    X, y, s = rows(rng, 60)
    gram = statistics_of(X, y, s)
    other_map = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=4).fit(X).specification_
    classes = ClassTargets(np.array([0, 1]))
    labels, other_scaling = (y > 0).astype(int), Scaling(np.zeros(2), np.ones(2))
    remedy = r"make the second one with gram\(\.\.\., like=the first\)"
    cases = [
        (statistics_of(X, y, s, spec=other_map), f"of different maps .*{remedy}"),
        (statistics_of(X, y, s, scaling=other_scaling), f"scale their columns differently; {remedy}"),
        (statistics_of(X, y, s, n_folds=2), r"shapes \(3, 18, 18\) and \(2, 18, 18\)"),
        (statistics_of(X, np.column_stack([y, y]), s), "the same number of folds, features and targets"),
        (statistics_of(X, labels, s, targets=classes), f"code their targets differently .*{remedy}"),
    ]
    for other, message in cases:
        for combine in (gram.__add__, gram.__sub__):
            with pytest.raises(InputError, match=message):
                combine(other)
    by_class = statistics_of(X, labels, s, targets=classes)
    for targets in (ClassTargets(np.array([0, 1]), np.array([1.0, 3.0])), ClassTargets(np.array([0, 1, 2]))):
        with pytest.raises(InputError, match="these Grams"):
            by_class + statistics_of(X, labels, s, targets=targets)


def test_more_rows_or_weight_than_there_are_cannot_be_taken_away(rng):
    few, many = statistics_of(*rows(rng, 50)), statistics_of(*rows(rng, 90))
    with pytest.raises(InputError, match=r"cannot subtract 90 rows of weight .* from 50 rows"):
        few - many
    X, y, _ = rows(rng, 40)
    with pytest.raises(InputError, match="that the first Gram holds"):
        few - statistics_of(X, y, np.full(40, 1e3))


@pytest.mark.parametrize("other", [3, None, "gram", np.zeros((18, 18))], ids=repr)
def test_other_things_are_no_grams(rng, other):
    gram = statistics_of(*rows(rng, 20))
    for combine in (lambda: gram + other, lambda: gram - other):
        with pytest.raises(TypeError):
            combine()


# Files


def test_a_gram_comes_back_from_its_file(rng, tmp_path):
    X, y, s = rows(rng, 60, 1e6)
    scaling = Scaling(np.array([0.5, 0.1]), np.array([2.0, 3.0]))
    gram = replace(statistics_of(X, y, s, scaling=scaling), dtype="float32", tile_rows=2048)
    url = str(tmp_path / "gram.zarr")
    gram.save(url)
    back = drf.GramStatistics.load(url)
    np.testing.assert_array_equal(back.A, gram.A)
    assert back.specification == gram.specification
    assert back.scaling.equals(gram.scaling)
    for name in ("n_rows", "dtype", "tile_rows", "y_is_1d"):
        assert getattr(back, name) == getattr(gram, name)
    np.testing.assert_array_equal(back.targets.shift, gram.targets.shift)
    np.testing.assert_array_equal((gram + back).A, 2 * gram.A)
    with pytest.raises(InputError, match="gram"):
        load_model(url)


def test_classes_come_back_from_their_file(rng, tmp_path):
    X, y, _ = rows(rng, 60)
    targets = ClassTargets(np.array(["a", "b", "c"], object), np.array([1.0, 2.0, 3.0]))
    gram = statistics_of(X, targets.classes[np.digitize(y, [-0.3, 0.3])], targets=targets)
    gram.save(str(tmp_path / "gram.zarr"))
    back = drf.GramStatistics.load(str(tmp_path / "gram.zarr"))
    assert back.targets.same_kind(targets)
    assert back.y_is_1d
    np.testing.assert_array_equal((gram - back).A, 0.0)


def test_an_earlier_file_is_kept_unless_told(rng, tmp_path):
    url = str(tmp_path / "gram.zarr")
    first, second = statistics_of(*rows(rng, 20)), statistics_of(*rows(rng, 30))
    first.save(url)
    with pytest.raises(InputError, match="overwrite"):
        second.save(url)
    assert drf.GramStatistics.load(url).n_rows == 20
    second.save(url, overwrite=True)
    assert drf.GramStatistics.load(url).n_rows == 30


def test_files_that_lack_something_are_refused(tmp_path):
    url = str(tmp_path / "gram.zarr")
    write_group(url, {"A": np.zeros((1, 2, 2))}, {"targets": "numeric"}, kind="gram")
    with pytest.raises(ModelFileError, match="lacks"):
        drf.GramStatistics.load(url)
    write_group(url, {"A": np.zeros((1, 2, 2))}, {}, kind="model", overwrite=True)
    with pytest.raises(ModelFileError):
        drf.GramStatistics.load(url)
