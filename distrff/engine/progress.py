"""Progress: a bar of a pass, after two seconds, and what callbacks are told after each pass of a fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tqdm import tqdm

from distrff.errors import FitStopped


class Progress(tqdm):
    """A bar on standard error after two seconds, removed at the end; none if that is not a terminal.

    A notebook shows the bar as text. `tqdm.auto` would make widgets for each of hundreds of passes, most of
    which end within two seconds, and warns if ipywidgets is missing.

    `total` is the amount of work, usually the rows of the pass, and `unit` its unit in the plural.
    """

    monitor_interval = 0  # no monitor thread of tqdm, as each update may draw

    def __init__(self, label: str, total: int, unit: str = "rows") -> None:
        stream = sys.stderr
        is_watched = stream.isatty() or type(stream).__module__ == "ipykernel.iostream"
        super().__init__(
            desc=label,
            total=total,
            unit=f" {unit}",
            unit_scale=True,
            file=stream,
            disable=not is_watched,
            delay=2,
            mininterval=0.2,
            miniters=1,
            leave=False,
            dynamic_ncols=True,
        )


# What a fit tells its callbacks after each pass.

_PRESUMED_SWEEPS = 10  # of a solver whose error has not fallen yet, as plans presume
_MIN_TREND = 3  # errors, from which a trend is read
_MAX_GROWTH = 3  # times the sweeps so far are expected at most
_MAX_SHARE = 0.98  # of the error that is left after a sweep: what falls less has no trend


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """How far a fit is after a pass over the rows.

    Attributes
    ----------
    sweep : int
        Number of the light sweep of the solver, or where there is no error yet, of the pass in the fit.
    label : str
        What the pass summed.
    measure : str or None
        What `error` is: "duality gap", "relative residual" or "relative gradient".
    error : float or None
        That of the best point so far, the largest of all outputs; None after passes that tell none.
    tol : float or None
        The error at which the solver ends.
    n_expected : int or None
        About how many light sweeps there will be; None if unknown.
    seconds_a_sweep : float
        Median over the light sweeps so far, or of the pass itself.
    seconds_left : float or None
        About how long the light sweeps still take; None if unknown.
    """

    sweep: int
    label: str
    measure: str | None = None
    error: float | None = None
    tol: float | None = None
    n_expected: int | None = None
    seconds_a_sweep: float = 0.0
    seconds_left: float | None = None
    _model: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> Any:
        """The frozen `Model` of the best point so far, made when asked for; None before there is one."""
        return None if self._model is None else self._model()


Callback = Callable[[SweepProgress], Any]


def expected_sweeps(errors: Sequence[float], tol: float) -> int:
    """Return about how many light sweeps a solver takes, from the errors after each of those so far.

    The error is taken to go on falling by the share that it fell by over the later half of the sweeps. Only
    the best so far counts, since errors rise at times and fall in jumps.
    """
    n, best = len(errors), math.inf
    falling = [best := min(best, e if e == e else math.inf) for e in errors]
    if n and best <= tol:
        return n
    known = [e for e in falling if 0 < e < math.inf]
    presumed = max(_PRESUMED_SWEEPS, n + 1)
    if len(known) < _MIN_TREND or not tol > 0:
        return presumed
    n_back = max(_MIN_TREND - 1, len(known) // 2)
    share = (known[-1] / known[-1 - n_back]) ** (1 / n_back)
    if share > _MAX_SHARE:
        return presumed
    n_more = max(1, math.ceil(math.log(tol / best) / math.log(share)))
    # The first sweeps of quasi-Newton steps fall slowly, and would predict hundreds more.
    return min(n + n_more, max(_PRESUMED_SWEEPS, _MAX_GROWTH * n))


class Observer:
    """Tells the callbacks of a fit about its passes; one that returns True ends the fit.

    It ends once there is a model: after the next pass that shows an error, or that judges a model.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        self._n_told = 0  # passes
        self._errors: list[float] = []
        self._seconds: list[float] = []
        self._wants_stop = False
        # The frozen model of coefficients and intercepts in own units; set once the map is known.
        self.model_of: Callable[..., Any] | None = None

    def begin_solver(self) -> None:
        """Forget the errors so far: another solver, or another penalty, begins."""
        self._errors, self._seconds = [], []

    def passes(self, sweeps: Sequence[tuple[str, float]]) -> None:
        """Tell of the passes that have ended since the last call, and show no error."""
        for number in range(self._n_told, len(sweeps)):
            label, seconds = sweeps[number]
            self._tell(SweepProgress(sweep=number + 1, label=label, seconds_a_sweep=seconds))
        self._n_told = len(sweeps)

    def light_sweep(
        self,
        sweeps: Sequence[tuple[str, float]],
        sweep: int,
        measure: str,
        error: float,
        tol: float,
        parts: Callable[[], tuple[Any, ...]] | None = None,
    ) -> None:
        """Tell of the last pass, after which the error is known; raise FitStopped where a callback says so.

        `parts` returns the arguments of `model_of` at the best point so far.
        """
        if not self._callbacks:
            return
        self.passes(sweeps[:-1])
        label, seconds = sweeps[-1] if len(sweeps) > self._n_told else (sweeps[-1][0], 0.0)
        self._n_told = len(sweeps)
        self._errors.append(error)
        self._seconds.append(seconds)
        model_of, usual = self.model_of, median(self._seconds)
        n_more = expected_sweeps(self._errors, tol) - len(self._errors)
        self._tell(
            SweepProgress(
                sweep=sweep,
                label=label,
                measure=measure,
                error=error,
                tol=tol,
                n_expected=sweep + n_more,
                seconds_a_sweep=usual,
                seconds_left=n_more * usual,
                _model=None if parts is None or model_of is None else lambda: model_of(*parts()),
            )
        )
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise FitStopped if a callback has returned True."""
        if self._wants_stop:
            raise FitStopped

    def _tell(self, progress: SweepProgress) -> None:
        for callback in self._callbacks:
            if callback(progress) is True:
                self._wants_stop = True
