"""Frequencies are drawn once a process; a process that draws others is sent the client's."""

from __future__ import annotations

import logging

import dask
import dask.array as da
import numpy as np
import pytest

from distrff.errors import FrequencyMismatch
from distrff.features import fourier as sampling
from distrff.features.specification import derivations_in_this_process
from tests.support.fits import in_process, small_ridge

pytestmark = pytest.mark.usefixtures("small_segments")


def test_each_worker_draws_the_frequencies_once(rows, client, rng):
    X, y = rows
    before = client.run(derivations_in_this_process)
    fitted = small_ridge(random_state=int(rng.integers(2**40))).fit(X, y)
    assert fitted.plan_.n_segments > 10
    after = client.run(derivations_in_this_process)
    assert [after[worker] - before[worker] for worker in before] == [1, 1]
    lazy = da.from_array(X, chunks=(3000, 3))
    fitted.predict(lazy).compute()
    fitted.score(lazy, y)
    fitted.fit(lazy, y)
    assert client.run(derivations_in_this_process) == after


def spoil_frequencies():
    """Make this process draw other frequencies, as another processor or NumPy might."""
    draw = sampling.draw_frequencies
    sampling.draw_frequencies = lambda *args, **kwargs: 1.001 * draw(*args, **kwargs)
    sampling.draw_frequencies.original = draw


def mend_frequencies():
    sampling.draw_frequencies = sampling.draw_frequencies.original


@pytest.fixture
def other_frequencies(client):
    client.run(spoil_frequencies)
    yield
    client.run(mend_frequencies)


def said(caplog):
    """What distrff logged, and nobody else."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("distrff")]


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_frequencies_that_differ_are_shipped(rows, client, other_frequencies, caplog, rng, alpha):
    X, y = rows
    seed = int(rng.integers(2**40))
    expected = in_process(small_ridge(alpha=alpha, random_state=seed), X, y)
    with dask.config.set(scheduler="synchronous"):
        score = expected.score(X, y)
    caplog.set_level(logging.WARNING, "distrff")
    fitted = small_ridge(alpha, random_state=seed).fit(X, y)
    (line,) = said(caplog)
    assert "derives other frequencies" in line and "are sent to the workers instead" in line
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    # The model knows from now on.
    lazy = da.from_array(X, chunks=(8000, 3))
    np.testing.assert_allclose(fitted.predict(lazy).compute(), expected.predict(X), rtol=0, atol=1e-10)
    assert fitted.score(lazy, y) == pytest.approx(score, rel=1e-10)
    assert said(caplog) == [line]


def test_a_model_from_elsewhere(rows, client, other_frequencies, caplog, rng):
    """Scores find the difference and ship; lazy predictions cannot, but never return other values."""
    X, y = rows
    fitted = in_process(small_ridge(random_state=int(rng.integers(2**40))), X, y)
    with dask.config.set(scheduler="synchronous"):
        score = fitted.score(X, y)
    caplog.set_level(logging.WARNING, "distrff")
    assert fitted.score(X, y) == pytest.approx(score, rel=1e-12)
    assert len(said(caplog)) == 1
    with pytest.raises(FrequencyMismatch):
        fitted.predict(da.from_array(X, chunks=(8000, 3))).compute()
