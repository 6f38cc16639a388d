"""This process: signals as exceptions, one BLAS thread, and threads whose work nobody waits for any more."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, NoReturn

from threadpoolctl import ThreadpoolController

# Signals that end the work by an exception in the main thread, which is raised again where it is lost.

_AGAIN_SECONDS = 0.01  # until a lost one is sent again; if another finalizer runs then, once more
_NUMBER = "distrff_signal"  # the attribute of an exception that says which signal raised it


@contextmanager
def signals_raise(
    exceptions: Mapping[int, Callable[[], BaseException]], *, once: bool = False
) -> Iterator[None]:
    """Raise what `exceptions` returns for a signal, in the main thread; elsewhere do nothing.

    Signals that the process ignores, as `nohup` has it, stay ignored. With `once`, a second signal ends the
    process at once.

    A handler runs between any two instructions of Python. In a finalizer (`__del__`, the callback of a weak
    reference) whatever it raises is printed and dropped, and the work goes on as if there had been no signal:
    a fit on a cluster releases thousands of futures so. Python reports each such exception to
    `sys.unraisablehook`, from where the signal is sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main, timers = threading.get_ident(), list[threading.Timer]()

    def handle(number: int, frame: object) -> NoReturn:
        if once:
            signal.signal(number, signal.SIG_DFL)
        error = exceptions[number]()
        setattr(error, _NUMBER, number)
        raise error

    def report(lost: sys.UnraisableHookArgs) -> None:
        number: int | None = getattr(lost.exc_value, _NUMBER, None)
        if number is None or number not in exceptions:
            report_before(lost)
            return
        if once:
            signal.signal(number, handle)
        timers.append(threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, number)))
        timers[-1].daemon = True
        timers[-1].start()

    handlers: dict[int, Any] = {}
    report_before, sys.unraisablehook = sys.unraisablehook, report
    try:
        for number in exceptions:
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers[number] = signal.signal(number, handle)
        yield
    finally:
        try:
            for timer in timers:  # what is still to be sent is for these handlers
                timer.join()
        finally:
            for number, handler in handlers.items():  # None: not Python's own, which Python cannot set again
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            sys.unraisablehook = report_before


# One BLAS thread for work whose bits must not depend on how many there are.


@cache
def libraries() -> ThreadpoolController:
    """The BLAS libraries of this process; cached, as the search takes milliseconds."""
    return ThreadpoolController()


class _OneThread:
    """The limit that all users of this process share."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_users = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the limit for a block."""
        with self._lock:
            # Each time: in some builds each thread has its own count.
            limits = libraries().limit(limits=1, user_api="blas")
            if self._n_users == 0:
                self._first = limits
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    self._first.restore_original_limits()


one_blas_thread = _OneThread().held
"""A context that limits BLAS to one thread. Contexts may overlap: the last to end restores the former number.

`libraries().limit` alone would not do: of two tasks side by side, the first to end lifts the limit of both.
"""


# Tasks in threads of this process that nobody waits for any more, and how they end early.
#
# A thread cannot be interrupted. After Ctrl-C those of a pass would sum their segments to the end, and
# neither the process nor the next fit would have its cores before that.

_THIS_THREAD = threading.local()
_CANCELLED: set[str] = set()


class Cancelled(Exception):
    """Nobody waits for the result of this task."""


@contextmanager
def working_for(work: str) -> Iterator[None]:
    """Say for which work this thread runs the block."""
    before = getattr(_THIS_THREAD, "work", None)
    _THIS_THREAD.work = work
    try:
        yield
    finally:
        _THIS_THREAD.work = before


def cancel(work: str) -> None:
    """Let all threads of a work end at their next tile."""
    _CANCELLED.add(work)


def check_cancelled() -> None:
    """Raise Cancelled if nobody waits for what this thread does."""
    if _CANCELLED and getattr(_THIS_THREAD, "work", None) in _CANCELLED:
        raise Cancelled
