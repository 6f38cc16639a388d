"""Compiling where there is no place for a cache."""

from __future__ import annotations

from distrff.utils.jit import compiled


def test_functions_without_a_place_to_cache_compile_all_the_same():
    # code that comes from no file has no folder beside it: as for a read-only install without a home
    namespace = {}
    exec("def double(x):\n    return 2 * x", namespace)
    assert compiled()(namespace["double"])(4) == 8
