"""Compiled loops, and arrays that a thread keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from distrff.utils.jit import compiled, scratch


def test_functions_without_a_place_to_cache_compile_all_the_same():
    # code that comes from no file has no folder beside it: as for a read-only install without a home
    namespace = {}
    exec("def double(x):\n    return 2 * x", namespace)
    assert compiled()(namespace["double"])(4) == 8


def test_it_is_kept_and_grows():
    first = scratch("a test", 4, 5, np.dtype(np.float32))
    assert first.shape == (4, 5)
    assert first.dtype == np.float32
    assert first.flags.c_contiguous and first.flags.aligned and first.flags.writeable
    assert np.shares_memory(first, scratch("a test", 2, 3, np.dtype(np.float64)))
    assert scratch("a test", 40, 50, np.dtype(np.float64)).shape == (40, 50)
    assert not np.shares_memory(
        scratch("a test", 4, 5, np.dtype(np.float32)), scratch("another test", 4, 5, np.dtype(np.float32))
    )


def test_large_ones_are_fresh():
    first, second = (scratch("a test", 2**12, 2**11, np.dtype(np.float64)) for _ in range(2))
    assert not np.shares_memory(first, second)


def test_each_thread_has_its_own():
    together = Barrier(2)

    def ask(_):
        array = scratch("a test", 8, 8, np.dtype(np.float64))
        together.wait()
        return array

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert not np.shares_memory(first, second)
