"""Signals that raise: anywhere in the main thread, also where Python drops what is raised."""

import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from distrff.errors import Terminated
from distrff.utils.process import one_blas_thread, signals_raise

# Signals that raise: anywhere in the main thread, also where Python drops what is raised.

SECONDS = 20.0  # at most, for a signal that takes ten milliseconds


class Finalized:
    """Is told to end while Python finalizes it."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0)  # the handler runs here at the latest


def by_a_finalizer():
    """Lose the exception in `__del__`."""
    one = Finalized()
    del one


def by_a_weak_reference():
    """Lose it in the callback of a weak reference."""

    class Referred:
        pass

    one = Referred()
    kept = weakref.ref(one, lambda _: signal.raise_signal(signal.SIGTERM))
    del one
    assert kept() is None


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("lose", [by_a_finalizer, by_a_weak_reference])
def test_an_exception_that_a_finalizer_drops_is_raised_again(lose, once):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), signals_raise({signal.SIGTERM: Terminated}, once=once):
        lose()
        time.sleep(SECONDS)
        pytest.fail("the signal was lost")
    assert signal.getsignal(signal.SIGTERM) is handler


def test_handlers_are_set_where_they_should_be_and_set_back():
    """Not for signals that are ignored, nor in other threads; what is lost at the end is still raised."""

    def state():
        return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1), sys.unraisablehook

    found, ignored = [], signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        before = state()

        def other():
            with signals_raise({signal.SIGTERM: Terminated}):
                found.append(state())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found == [before]
        with (
            pytest.raises(Terminated),
            signals_raise({s: Terminated for s in (signal.SIGUSR1, signal.SIGTERM)}),
        ):
            signal.raise_signal(signal.SIGUSR1)
            by_a_finalizer()
        assert state() == before
    finally:
        signal.signal(signal.SIGUSR1, ignored)


TOLD_TWICE = """
import signal
from distrff.errors import Terminated
from distrff.utils.process import signals_raise
with signals_raise({signal.SIGTERM: Terminated}, once=True):
    try:
        signal.raise_signal(signal.SIGTERM)
    except Terminated:
        print("saves", flush=True)
        signal.raise_signal(signal.SIGTERM)
        print("is not reached")
"""


def test_a_second_one_ends_the_process_at_once():
    command = (sys.executable, "-c", TOLD_TWICE)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "saves\n"), done.stderr


# One BLAS thread, for as long as anyone asks for it.


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
