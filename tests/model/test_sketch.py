"""Sketches of quantiles: within a bucket of brute force, and the same by parts, for any number but NaN."""

import numpy as np
import pytest

from distrff.errors import InputError, NonFiniteError
from distrff.model import intervals as module
from distrff.model.intervals import RELATIVE_ERROR, QuantileSketch, aligned
from distrff.utils.serialize import decoded, encoded

TINY = 2.0**-1032  # width of a bucket of subnormal numbers
EXTREMES = [0.0, -0.0, 5e-324, 2.0**-1040, 2.0**-1022, 1.0, np.nextafter(1.0, 0), 1.5, 3e7, 1e308]
EXTREMES += [np.finfo(float).max, np.inf]
EXTREMES = np.array([*EXTREMES, *(-x for x in EXTREMES)])


def numbers(rng: np.random.Generator, n: int = 3000) -> np.ndarray:
    """Both signs, sixty decades, some equal."""
    x = rng.choice([-1.0, 1.0], n) * 10 ** rng.uniform(-30, 30, n)
    x[rng.random(n) < 0.2] = rng.choice(x, 5)[0]
    x[rng.random(n) < 0.05] = 0.0
    return x


def same(a: QuantileSketch, b: QuantileSketch) -> None:
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.weights, b.weights)


@pytest.mark.parametrize("values", [EXTREMES, None], ids=["extremes", "drawn"])
def test_each_number_is_between_the_edges_of_its_bucket(rng, values):
    values = numbers(rng) if values is None else values
    for x in values:
        (lower,), (upper,) = QuantileSketch.of(np.array([x])).edges()
        assert lower <= x <= upper
        if np.isfinite(x):
            assert upper - lower < max(RELATIVE_ERROR * min(abs(lower), abs(upper)), TINY)
        else:
            assert lower == upper == x


def test_buckets_are_in_the_order_of_the_numbers_and_do_not_meet(rng):
    values = np.concatenate([numbers(rng), EXTREMES, np.linspace(1, 1.01, 500)])
    sketch = QuantileSketch.of(values)
    lower, upper = sketch.edges()
    assert (np.diff(sketch.keys) > 0).all()
    assert (lower[1:] > upper[:-1]).all()
    assert sketch.weight == len(values)
    assert sketch.is_valid()
    opposite = QuantileSketch.of(-values)
    np.testing.assert_array_equal(opposite.keys, -sketch.keys[::-1])
    np.testing.assert_array_equal(opposite.weights, sketch.weights[::-1])


def test_whole_weights_are_repeated_numbers_in_any_grouping(rng):
    x, s = numbers(rng), rng.integers(0, 5, 3000)
    whole = QuantileSketch.of(x, s)
    same(whole, QuantileSketch.of(np.repeat(x, s)))
    cuts = np.sort(rng.integers(0, len(x), 7))
    parts = [QuantileSketch.of(a, w) for a, w in zip(np.split(x, cuts), np.split(s, cuts), strict=True)]
    same(whole, sum(parts, QuantileSketch()))
    same(whole, sum(rng.permutation(np.array(parts, dtype=object)), QuantileSketch()))
    order = rng.permutation(len(x))
    same(whole, QuantileSketch.of(x[order], s[order]))


def test_ranks_and_quantiles_against_sorted_numbers(rng):
    x, s = numbers(rng), rng.integers(0, 4, 3000)
    sketch, ordered = QuantileSketch.of(x, s), np.sort(np.repeat(x, s))
    for rank in [1, *rng.integers(1, len(ordered), 50).tolist(), len(ordered)]:
        true, found = ordered[rank - 1], sketch.upper_at_rank(rank)
        assert true <= found <= true + RELATIVE_ERROR * abs(true)
        assert sketch.upper_at_rank(rank - 0.5) == found
    assert sketch.upper_at_rank(len(ordered) + 1e-6) == np.inf
    q = rng.random((5, 8))
    true = np.quantile(ordered, q, method="inverted_cdf")
    np.testing.assert_allclose(sketch.quantile(q), true, rtol=RELATIVE_ERROR)
    assert np.ndim(sketch.quantile(0.5)) == 0
    assert sketch.quantile(0) == pytest.approx(ordered[0], rel=RELATIVE_ERROR)
    assert sketch.quantile(1) == pytest.approx(ordered[-1], rel=RELATIVE_ERROR)


def test_no_numbers():
    empty = QuantileSketch.of(np.empty(0))
    assert empty.weight == 0
    assert empty.is_valid()
    assert np.isnan(empty.quantile(0.5))
    assert np.isnan(empty.quantile([0.1, 0.2])).all()
    assert empty.upper_at_rank(1) == np.inf
    some = QuantileSketch.of(np.array([1.0, 2.0]))
    same(empty + some, some)
    same(some + empty, some)
    same(QuantileSketch.of(np.array([1.0, 2.0]), np.array([0.0, 0.0])), empty)


def test_two_sketches_on_common_buckets(rng):
    x, y = numbers(rng), numbers(rng)
    a, b = QuantileSketch.of(x), QuantileSketch.of(np.concatenate([x[:100], y]))
    both, of_a, of_b = aligned(a, b)
    same(both, QuantileSketch.of(np.concatenate([x, x[:100], y])))
    np.testing.assert_array_equal(of_a + of_b, both.weights)
    for own, sketch in ((of_a, a), (of_b, b)):
        same(QuantileSketch(both.keys[own > 0], own[own > 0]), sketch)


@pytest.mark.parametrize(
    ("x", "s"),
    [([1.0, np.nan], None), ([1.0], [-1.0]), ([1.0], [np.inf]), ([1.0], [np.nan]), ([1.0], [1.0, 2.0])],
)
def test_what_has_no_rank(x, s):
    with pytest.raises(NonFiniteError if s is None else InputError):
        QuantileSketch.of(np.array(x), None if s is None else np.array(s))


@pytest.mark.parametrize("q", [-0.1, 1.1, np.nan])
def test_shares_that_are_none(q):
    with pytest.raises(InputError, match="q must be"):
        QuantileSketch.of(np.ones(3)).quantile(q)


@pytest.mark.parametrize(
    "forged",
    [
        lambda k, w: (k[::-1], w),
        lambda k, w: (k.astype(float), w),
        lambda k, w: (k, w.astype(np.float32)),
        lambda k, w: (k, w[:-1]),
        lambda k, w: (k[None], w[None]),
        lambda k, w: (k, -w),
        lambda k, w: (k, w * np.inf),
        lambda k, w: (k, np.full(len(w), 1e308)),
        lambda k, w: (k + 2**40, w),
        lambda k, w: (k - 2**40, w),
        lambda k, w: (np.r_[np.iinfo(np.int64).min, k[1:]], w),
        lambda k, w: (np.zeros_like(k), w),
    ],
)
def test_keys_and_weights_that_are_no_sketch(rng, forged):
    sketch = QuantileSketch.of(rng.normal(size=50))
    assert not QuantileSketch(*forged(sketch.keys, sketch.weights)).is_valid()


def test_the_stated_memory(rng):
    x = rng.choice([-1.0, 1.0], 200_000) * 2 ** rng.uniform(0, 8, 200_000)
    sketch = QuantileSketch.of(x)
    assert len(sketch.keys) <= 2 * 8 * 1024 + 2
    assert sketch.nbytes == 16 * len(sketch.keys)
    assert 2 * module._INFINITE + 1 == 4_192_259  # that of the docstring
    same(sketch, decoded(*encoded(sketch)))
