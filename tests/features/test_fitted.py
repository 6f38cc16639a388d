"""Fitted maps: values that derive their arrays once a process and notice when they derive others."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest

from distrff import FourierFeatures, Gaussian
from distrff.errors import FrequencyMismatch, InputError, ModelFileError
from distrff.features.fitted import arrays_digest, map_from_dict
from tests.support.draws import derivations


def fresh(rng, **options):
    """A map that this process has not seen."""
    options = {"random_state": int(rng.integers(2**62))} | options
    return FourierFeatures(Gaussian(), 16, **options).fit(np.zeros((1, 3))).specification_


def test_the_digest_sees_six_digits_and_no_more(rng):
    exact = np.ldexp(rng.integers(2**19, 2**20, (5, 7)) * rng.choice([-1.0, 1.0], (5, 7)), -15)
    digest, spec = arrays_digest({"W": exact}), fresh(rng)
    assert spec.digest == arrays_digest(spec.derive()) != fresh(rng).digest
    # These numbers have 20 bits, so that a perturbation in the 40th rounds back to them.
    assert arrays_digest({"W": exact * (1 + 2.0**-40)}) == digest
    assert arrays_digest({"W": exact.astype(np.float32)}) == digest
    assert arrays_digest({"W": np.asfortranarray(exact)}) == digest
    for j in range(7):
        changed = exact.copy()
        changed[2, j] *= 1 + 2.0**-18
        assert arrays_digest({"W": changed}) != digest
    for other in (
        {"W": -exact},
        {"W": 2 * exact},
        {"W": exact.T},
        {"V": exact},
        {"W": exact, "b": exact},
        {},
    ):
        assert arrays_digest(other) != digest
    a, b = exact[:2]
    assert arrays_digest({"a": a, "b": b}) == arrays_digest({"b": b, "a": a})
    assert arrays_digest({"a": a, "b": b}) != arrays_digest({"a": b, "b": a})


def test_a_process_derives_once(rng):
    before = derivations()
    fresh(rng).build()
    assert derivations() == before + 1  # by the fit
    spec = replace(fresh(rng), digest="")  # which this process has not derived yet
    before = derivations()
    ready = spec.build()
    assert derivations() == before + 1
    assert spec.build() is ready
    assert pickle.loads(pickle.dumps(spec)).build() is ready
    assert derivations() == before + 1
    others = [fresh(rng) for _ in range(20)]  # of which the process keeps a few, and those used last
    assert spec.build() is not ready
    before = derivations()
    others[-1].build()
    assert derivations() == before
    others[0].build()
    assert derivations() == before + 1


def test_many_threads_derive_once(rng):
    spec = replace(fresh(rng), digest="")
    before, barrier = derivations(), Barrier(16)

    def build():
        barrier.wait()
        return pickle.loads(pickle.dumps(spec)).build()

    with ThreadPoolExecutor(16) as pool:
        maps = [future.result() for future in [pool.submit(build) for _ in range(16)]]
    assert all(one is maps[0] for one in maps)
    assert derivations() == before + 1


def test_other_arrays_than_the_clients_are_noticed_each_time_unless_sent(rng):
    X, spec = rng.standard_normal((4, 3)), replace(fresh(rng), digest="0" * 32)
    arrays = {"frequencies": rng.standard_normal((3, 8))}
    before = derivations()
    ready = spec.build(arrays)
    assert spec.build(arrays) is ready
    assert derivations() == before
    np.testing.assert_array_equal(ready.apply(X), spec.ready(arrays).apply(X))
    for _ in range(2):
        with pytest.raises(FrequencyMismatch, match="another processor or NumPy version"):
            spec.build()
    error = pickle.loads(pickle.dumps(FrequencyMismatch("why")))  # as it comes from a worker
    assert isinstance(error, FrequencyMismatch)


def test_unknown_kinds_and_missing_fields_are_named(rng):
    data = fresh(rng).to_dict()
    with pytest.raises(
        ModelFileError, match=r"kind 'hashing' is not known .*update distrff \(known: fourier, .*\)"
    ):
        map_from_dict(data | {"kind": "hashing"})
    with pytest.raises(ModelFileError, match="kind None is not known"):
        map_from_dict({})
    for field in data.keys() - {"kind"}:
        with pytest.raises(ModelFileError, match=f"the stored fourier map lacks '{field}'"):
            map_from_dict({name: value for name, value in data.items() if name != field})
    with pytest.raises(InputError, match='"kernel" must be one of'):  # when it is used
        map_from_dict(data | {"kernel": {"kernel": "linear"}}).build()
