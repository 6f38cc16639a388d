"""What columns explain alone: nothing by noise, the right share of a function, whatever values they take."""

import numpy as np
import pytest

from distrff.features.search.screening import explained_alone


def shares(X, y, s=None):
    Y = y.reshape(len(y), -1)
    s = np.ones(len(y)) if s is None else s
    return explained_alone(X, Y - np.average(Y, axis=0, weights=s), s)


def test_noise_explains_next_to_nothing(rng):
    """Six shares a column, each beyond three deviations with probability .01 at most, then by little."""
    found = shares(rng.standard_normal((2000, 50)), rng.standard_normal(2000))
    assert np.mean(found > 0) < 0.25
    assert found.max() < 0.02


@pytest.mark.parametrize(
    "effect", [np.sign, np.abs, lambda x: np.cos(2 * np.pi * x), lambda x: x > 0.8], ids=range(4)
)
def test_a_function_explains_its_share(rng, effect):
    """The rest is noise of the same variance, and the margin for 64 bins 3·√126/5000 = .007."""
    X = rng.uniform(-1, 1, (5000, 3))
    f = effect(X[:, 1]).astype(float)
    y = (f - f.mean()) / f.std() + rng.standard_normal(5000)
    found = shares(X, y)
    # The correlation of 5000 rows deviates by about (1 − .5)/√5000 = .007, its square by .01.
    assert found[1] == pytest.approx(0.5, abs=0.06)
    assert found[[0, 2]].max() < 0.02


def test_only_the_order_of_values_counts_not_their_size(rng):
    X, y = rng.standard_normal((500, 2)), rng.standard_normal(500)
    y += X[:, 0]
    # Edges lie between two rows, at other places after the transformation.
    np.testing.assert_allclose(shares(np.exp(5 * X), y), shares(X, y), rtol=0, atol=1e-12)
    np.testing.assert_allclose(shares(1e6 + X, y * 1e9), shares(X, y), rtol=0, atol=1e-9)


def test_two_values_are_two_bins(rng):
    x = (rng.random(400) < 0.1).astype(float)
    y = x + 0.1 * rng.standard_normal(400)
    r2 = np.corrcoef(x, y)[0, 1] ** 2
    expected = 1 - (1 - r2) * 399 / 398 - 3 * np.sqrt(2) / 400
    assert shares(np.column_stack([x, np.ones(400)]), y) == pytest.approx([expected, 0.0])


def test_rows_of_no_weight_do_not_count(rng):
    X, y = rng.standard_normal((600, 2)), rng.standard_normal(600)
    y[:300] += np.sin(X[:300, 0])
    y[300:] += 3 * np.sin(X[300:, 1])
    s = np.repeat([1.0, 1e-9], 300)
    found = shares(X, y, s)
    assert found[0] > 0.1
    assert found[1] < 0.05


def test_outputs_share_their_columns_and_few_rows_say_nothing(rng):
    X = rng.standard_normal((300, 3))
    both = shares(X, np.column_stack([X[:, 0], X[:, 2]]))
    assert both[[0, 2]].min() > 0.2
    assert both[1] < 0.1
    assert not shares(X[:15], X[:15, 0]).any()
