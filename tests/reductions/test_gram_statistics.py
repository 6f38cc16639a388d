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


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_sums_are_grams_of_all_rows(rng, offset, k):
    """Targets that were centred on other means are brought to those of the first."""
    X1, y1, s1 = rows(rng, 200, offset)
    X2, y2, s2 = rows(rng, 150, offset + 1)
    if k is not None:
        y1, y2 = np.column_stack([y1, 3 * X1[:, 1]]), np.column_stack([y2, 7 + 4 * X2[:, 0]])
    first, second = statistics_of(X1, y1, s1), statistics_of(X2, y2, s2)
    copies = first.A.copy(), second.A.copy(), second.targets.shift.copy()
    total = first + second
    assert total.n_rows == 350
    assert total.n_folds == 3
    assert (total - second).n_folds == 1  # which fold a forgotten row was in is not known
    assert total.weight == pytest.approx(s1.sum() + s2.sum(), rel=400 * UNIT)
    assert total.targets is first.targets
    same_coding = statistics_of(X2, y2, s2, targets=first.targets)
    # The shifts differ by a few units of the scale, so nothing cancels.
    shift = np.max(np.abs(first.targets.shift - second.targets.shift) / first.targets.scale)
    assert_same_gram(total, replace(same_coding, A=first.A + same_coding.A), 350, larger=shift)
    nothing = first - first
    assert nothing.n_rows == 0 and not nothing.A.any()
    for found, before in zip((first.A, second.A, second.targets.shift), copies, strict=True):
        np.testing.assert_array_equal(found, before)


def test_mixed_products_count_as_the_coarser(rng):
    first, second = statistics_of(*rows(rng, 60)), statistics_of(*rows(rng, 50))
    coarse = replace(second, dtype="float32", tile_rows=8192)
    assert (first + second).dtype == "float64"
    for total in (first + coarse, coarse + first):
        assert (total.dtype, total.tile_rows) == ("float32", 8192)


def test_grams_that_do_not_fit_are_refused(rng):
    X, y, s = rows(rng, 60)
    gram = statistics_of(X, y, s)
    other_map = drf.FourierFeatures(drf.Gaussian(2.0), D, random_state=4).fit(X).specification_
    classes = ClassTargets(np.array([0, 1]))
    labels, other_scaling = (y > 0).astype(int), Scaling(np.zeros(2), np.ones(2))
    by_class = statistics_of(X, labels, s, targets=classes)
    remedy = r"make the second one with gram\(\.\.\., like=the first\)"
    cases = [
        (statistics_of(X, y, s, spec=other_map), f"of different maps .*{remedy}"),
        (statistics_of(X, y, s, scaling=other_scaling), f"scale their columns differently; {remedy}"),
        (statistics_of(X, y, s, n_folds=2), r"shapes \(3, 18, 18\) and \(2, 18, 18\)"),
        (statistics_of(X, np.column_stack([y, y]), s), "the same number of folds, features and targets"),
        (by_class, f"code their targets differently .*{remedy}"),
    ]
    for other, message in cases:
        for combine in (gram.__add__, gram.__sub__):
            with pytest.raises(InputError, match=message):
                combine(other)
    for targets in (ClassTargets(np.array([0, 1]), np.array([1.0, 3.0])), ClassTargets(np.array([0, 1, 2]))):
        with pytest.raises(InputError, match="these Grams"):
            by_class + statistics_of(X, labels, s, targets=targets)
    for other in (3, None, "gram", np.zeros((18, 18))):
        for combine in (lambda other=other: gram + other, lambda other=other: gram - other):
            with pytest.raises(TypeError):
                combine()
    few, many = statistics_of(*rows(rng, 50)), statistics_of(*rows(rng, 90))
    with pytest.raises(InputError, match=r"cannot take 90 rows of weight .* away from 50 rows"):
        few - many
    with pytest.raises(InputError, match="they are not among them"):
        few - statistics_of(X[:40], y[:40], np.full(40, 1e3))


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
    targets = ClassTargets(np.array(["a", "b", "c"], object), np.array([1.0, 2.0, 3.0]))
    labelled = statistics_of(X, targets.classes[np.digitize(y - 1e6, [-0.3, 0.3])], targets=targets)
    with pytest.raises(InputError, match="overwrite"):
        labelled.save(url)
    assert not drf.GramStatistics.load(url).targets.same_kind(targets)
    labelled.save(url, overwrite=True)
    back = drf.GramStatistics.load(url)
    assert back.targets.same_kind(targets)
    assert back.y_is_1d
    np.testing.assert_array_equal((labelled - back).A, 0.0)
    np.testing.assert_array_equal((labelled + back).A, 2 * labelled.A)


def test_files_that_lack_something_are_refused(tmp_path):
    url = str(tmp_path / "gram.zarr")
    write_group(url, {"A": np.zeros((1, 2, 2))}, {"targets": "numeric"}, kind="gram")
    with pytest.raises(ModelFileError, match="lacks"):
        drf.GramStatistics.load(url)
    write_group(url, {"A": np.zeros((1, 2, 2))}, {}, kind="model", overwrite=True)
    with pytest.raises(ModelFileError):
        drf.GramStatistics.load(url)
