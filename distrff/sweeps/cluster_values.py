"""Values on the workers, and how each is made again when the cluster has lost it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from distributed import Future

from distrff.errors import ClusterError


class Lost(Exception):
    """The cluster lost what was under way, and will not bring it back by itself.

    Parameters
    ----------
    cause : str
        A sentence without its full stop.
    restarting : bool
        Whether the workers that are there may be about to leave.
    lacks_input : bool
        Whether a task was refused because what it takes is gone.
    """

    def __init__(self, cause: str, *, restarting: bool = False, lacks_input: bool = False) -> None:
        super().__init__(cause)
        self.restarting = restarting
        self.lacks_input = lacks_input


class Call:
    """What makes a value on the workers.

    A call names the values that it takes by their calls, never by their futures. So a
    value is freed on the workers as soon as nobody holds it, and can be made again from
    the rows on.

    Parameters
    ----------
    begin : callable
        `begin()`: a new future of the value. It may take as long as a pass over the rows.
    n_losses : callable
        `n_losses()`: how often the cluster has lost everything so far.
    """

    def __init__(self, begin: Callable[[], Future], n_losses: Callable[[], int]) -> None:
        self._begin = begin
        self._n_losses = n_losses
        self._value: Callable[[], ClusterValue | None] = lambda: None

    def value(self) -> ClusterValue:
        """Begin, and return the value."""
        value = ClusterValue(self, self._begin(), self._n_losses())
        self._value = weakref.ref(value)
        return value

    def future(self) -> Future:
        """Return the future of the value while somebody holds it, else that of a new one."""
        value = self._value()
        if value is None:
            return self._begin()
        if value.is_gone(self._n_losses()):
            value.future, value.n_losses = self._begin(), self._n_losses()
        return value.future

    def gone_future(self) -> Future | None:
        """Return the future of the value if somebody holds it and it will never finish."""
        value = self._value()
        if value is None:
            return None
        was_there = self._begin is _not_again and value.future.status != "finished"
        return value.future if was_there or value.is_gone(self._n_losses()) else None

    def forget(self) -> None:
        """Let go of the rows and arrays that the value was made of; then it cannot be made again."""
        self._begin = _not_again


class ClusterValue:
    """A value on the workers.

    Parameters
    ----------
    call : Call
        Makes it again.
    future : distributed.Future
    n_losses : int
        How often the cluster had lost everything when the future was made.
    """

    def __init__(self, call: Call, future: Future, n_losses: int) -> None:
        self.call = call
        self.future = future
        self.n_losses = n_losses

    def is_gone(self, n_losses: int) -> bool:
        """Return whether the future will never finish.

        The scheduler computes again what a dead worker held. But where all workers are gone, a
        task that is bound to one of them waits for ever (distributed 2026.8 looks at the
        address alone when a worker joins), and so does all that depends on it.
        """
        status = self.future.status
        return status == "cancelled" or (status in ("pending", "lost") and self.n_losses != n_losses)


def futures_in(args: Any) -> Any:
    """Return arguments with the future in place of each call; calls may be in lists and tuples."""
    if isinstance(args, Call):
        return args.future()
    return type(args)(map(futures_in, args)) if type(args) in (list, tuple) else args


def calls_in(args: Any) -> Any:
    """Return arguments with the call in place of each value; values may be in lists and tuples."""
    if isinstance(args, ClusterValue):
        return args.call
    return type(args)(map(calls_in, args)) if type(args) in (list, tuple) else args


def _not_again() -> NoReturn:
    raise ClusterError(
        "the cluster lost the Gram of this machine (its workers were restarted or replaced since the fit); "
        "fit again"
    )
