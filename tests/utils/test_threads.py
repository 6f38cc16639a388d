"""One BLAS thread, for as long as anyone asks for it."""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

from distrff.utils.process import one_blas_thread


def counts() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_limit_ends_with_the_last_that_holds_it():
    """They end in the order of their beginning, as tasks side by side do."""
    with threadpool_limits(2, user_api="blas"):
        before = counts()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert counts() == {1}
        second.__exit__(None, None, None)
        assert counts() == before
        with one_blas_thread():
            assert counts() == {1}
        assert counts() == before
