"""Signals that end the work by an exception in the main thread, which is raised again where it is lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

_AGAIN_SECONDS = 0.01  # until a signal is sent again: by then the finalizer is over


@contextmanager
def signals_raise(
    exceptions: Mapping[int, Callable[[], BaseException]], *, once: bool = False
) -> Iterator[None]:
    """Raise what `exceptions` returns for a signal, in the main thread; elsewhere do nothing.

    A handler runs between any two instructions of Python. In a finalizer (`__del__`, the callback of a weak
    reference) whatever it raises is printed and dropped, and the work goes on as if there had been no signal:
    a fit on a cluster releases thousands of futures so. Python reports each such exception to
    `sys.unraisablehook`, from where the signal is sent again.

    With `once`, a second signal ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main, numbers = threading.get_ident(), dict[type[BaseException], int]()

    def handle(number: int, frame: object) -> NoReturn:
        if once:
            signal.signal(number, signal.SIG_DFL)
        error = exceptions[number]()
        numbers[type(error)] = number
        raise error

    def report(lost: Any) -> None:
        number = numbers.get(lost.exc_type)
        if number is None:
            report_before(lost)
            return
        signal.signal(number, handle)
        timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, number))
        timer.daemon = True
        timer.start()

    handlers = {number: signal.signal(number, handle) for number in exceptions}
    report_before, sys.unraisablehook = sys.unraisablehook, report
    try:
        yield
    finally:
        sys.unraisablehook = report_before
        for number, handler in handlers.items():  # None: not Python's own, which Python cannot set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
