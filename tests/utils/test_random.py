"""Named streams: repeatable, independent of each other and of the order of their use."""

from itertools import combinations

import numpy as np
import pytest

from distrff.errors import InputTypeError
from distrff.utils.random import child_seed, resolve_seed, stream


def test_none_is_fresh_entropy():
    seeds = {resolve_seed(None) for _ in range(5)}
    assert len(seeds) == 5  # two of 2**63 equal ones: 1e-18
    children = {child_seed(0, "part", i) for i in range(1000)}
    assert len(children) == 1000  # two equal ones: 1000²/2**64 = 5e-14
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds | children)
    for value in (0, 2**70, np.int64(7), np.uint8(7)):  # an integer is the seed itself
        assert resolve_seed(value) == int(value) and type(resolve_seed(value)) is int


@pytest.mark.parametrize(
    "value", [-1, np.int64(-1), True, np.True_, 1.0, "1", [1], np.random.default_rng(0), np.random]
)
def test_other_states_are_refused(value):
    with pytest.raises(InputTypeError, match="random_state must be a non-negative integer or None, got"):
        resolve_seed(value)


def test_the_numbers_do_not_depend_on_what_else_was_drawn(rng):
    seed = int(rng.integers(2**63))
    alone = stream(seed, "b", 3).random(5)
    stream(seed, "a").random(1000)
    other = stream(seed, "b", 4)
    other.random(17)
    for names in (("b", 3), (np.str_("b"), np.int64(3)), ("b", np.uint8(3))):
        np.testing.assert_array_equal(stream(seed, *names).random(5), alone)
    np.testing.assert_array_equal(stream(np.int64(seed), "b", 3).random(5), alone)


def test_the_numbers_are_those_of_every_version():
    # Grams of different days are added only if their maps have the same frequencies.
    assert stream(0, "frequencies", 1).bit_generator.random_raw() == 14561543983320838353
    assert child_seed(0, "features") == 1583246599671474848


NAMES = [(), ("a",), ("b",), ("a", "b"), ("ab",), ("a", ""), (1,), ("1",), (1, 2), (12,), (-1,)]


def test_other_names_and_seeds_give_independent_numbers(rng):
    seed, n = int(rng.integers(2**62)), 4096
    draws = np.array(
        [stream(s, *names).standard_normal(n) for s in (seed, seed + 1, 2 * seed + 1) for names in NAMES]
    )
    # The correlation of two independent standard normal samples is about N(0, 1/n); eight
    # deviations on 528 pairs: 1e-12.
    worst = max(abs(np.corrcoef(x, y)[0, 1]) for x, y in combinations(draws, 2))
    assert worst < 8 / np.sqrt(n)
