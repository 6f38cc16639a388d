"""Fitted maps: values that derive their arrays once a process and notice when they derive others."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest

from distrff.errors import FrequencyMismatch, InputError, ModelFileError
from distrff.features.compose import LinearMap
from distrff.features.fitted import _CACHE, arrays_digest, canonical_json, map_from_dict
from distrff.features.fourier import FourierFeatures, FourierMap
from distrff.kernels.stationary import Gaussian, Matern
from tests.support.draws import derivations


def fresh(rng, **options):
    """A map that this process has not seen."""
    options = {"random_state": int(rng.integers(2**62))} | options
    return FourierFeatures(Gaussian(), 16, **options).fit(np.zeros((1, 3))).specification_


def test_equal_maps_have_equal_specifications(rng):
    seed = int(rng.integers(2**62))
    one = fresh(rng, random_state=seed)
    assert one == fresh(rng, random_state=seed)
    assert hash(one) == hash(fresh(rng, random_state=seed))
    for other in (dict(random_state=seed + 1), dict(form="phase"), dict(sampling="orthogonal")):
        assert one != fresh(rng, **({"random_state": seed} | other))
    assert one != replace(one, kernel_json=canonical_json(Gaussian(2.0).to_dict()))
    assert one != replace(one, n_columns=4)
    assert one != LinearMap(n_columns=3)
    spec = FourierFeatures(Matern((1.0,) * 8) + Gaussian(), 8192).fit(np.zeros((1, 8))).specification_
    assert spec.kernel.at_zero == 2.0  # parsed and kept, which must change nothing
    assert len(pickle.dumps(spec)) < 1500
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)


def test_the_digest_sees_six_digits_and_no_more(rng):
    exact = np.ldexp(rng.integers(2**19, 2**20, (5, 7)) * rng.choice([-1.0, 1.0], (5, 7)), -15)
    digest = arrays_digest({"W": exact})
    # These numbers have 20 bits, so that a perturbation in the 40th rounds back to them.
    assert arrays_digest({"W": exact * (1 + 2.0**-40)}) == digest
    assert arrays_digest({"W": exact.astype(np.float32)}) == digest
    assert arrays_digest({"W": np.asfortranarray(exact)}) == digest
    for j in range(7):
        changed = exact.copy()
        changed[2, j] *= 1 + 2.0**-18
        assert arrays_digest({"W": changed}) != digest
    assert arrays_digest({"W": -exact}) != digest
    assert arrays_digest({"W": 2 * exact}) != digest
    assert arrays_digest({"W": exact.T}) != digest
    assert arrays_digest({"V": exact}) != digest
    assert arrays_digest({"W": exact, "b": exact[0]}) != digest
    assert arrays_digest({}) != digest
    a, b = exact[:2]
    assert arrays_digest({"a": a, "b": b}) == arrays_digest({"b": b, "a": a})
    assert arrays_digest({"a": a, "b": b}) != arrays_digest({"a": b, "b": a})


def test_a_fitted_map_has_the_digest_of_its_arrays_and_without_one_trusts_itself(rng):
    spec, X = fresh(rng), rng.standard_normal((4, 3))
    assert spec.digest == arrays_digest(spec.derive())
    assert fresh(rng).digest != spec.digest
    undigested = replace(spec, digest="")
    np.testing.assert_array_equal(undigested.build().apply(X), spec.build().apply(X))
    assert undigested.with_digest() == spec


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
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(_CACHE)


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


def test_the_cache_is_bounded_and_keeps_what_was_used_last(rng):
    specs = [fresh(rng) for _ in range(20)]
    kept = specs[0].build()
    for spec in specs[1:]:
        spec.build()
        assert specs[0].build() is kept
    before = derivations()
    specs[-1].build()
    assert derivations() == before
    specs[1].build()
    assert derivations() == before + 1
    assert len(_CACHE._maps) <= 8


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


def test_a_stored_kernel_is_checked_when_it_is_used(rng):
    data = fresh(rng).to_dict() | {"kernel": {"kernel": "linear"}}
    spec = map_from_dict(data)
    assert isinstance(spec, FourierMap)
    with pytest.raises(InputError, match='"kernel" must be one of'):
        spec.build()
