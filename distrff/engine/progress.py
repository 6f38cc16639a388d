"""How far a fit is: one line that is drawn again and again, lines in a log, and events for callbacks."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any, Self

import numpy as np

from distrff.errors import FitStopped, InputError

logger = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
REDRAW_SECONDS = 0.2
_LOG_SECONDS = 10.0


def _is_notebook(stream: Any) -> bool:
    return type(stream).__module__ == "ipykernel.iostream"


def is_watched(stream: Any) -> bool:
    """Whether a person sees what is drawn over: a terminal, or a notebook."""
    return stream.isatty() or _is_notebook(stream)


# The line of a fit, which stays from its first pass to its last.

_ECHO: ContextVar[Callable[[str], None] | None] = ContextVar("echo", default=None)


@contextmanager
def lines_echoed(echo: Callable[[str], None]) -> Iterator[None]:
    """Write lines of the fits in the block by `echo` where nobody watches: one in ten seconds at most."""
    token = _ECHO.set(echo)
    try:
        yield
    finally:
        _ECHO.reset(token)


class FitLine:
    """One line on standard error that is drawn again and again; nothing in the first two seconds of a fit.

    Where standard error is no terminal or notebook, nothing is drawn; the texts between passes go to the
    `lines_echoed`, if there are any. It follows one pass after another, and counts their rows.
    """

    def __init__(self) -> None:
        self._stream, self._echo = sys.stderr, _ECHO.get()
        self._is_watched = is_watched(self._stream)
        self._began = self._spoke = monotonic()
        self._text, self._stays = "", False
        self._n_drawn = 0  # characters that are shown
        self._label, self._n_rows, self._unit, self.n = "", 0, "rows", 0
        self._pass_began = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stay until the next pass, as the client may work for minutes in between, unless logs come."""
        self._n_rows = 0
        if logger.isEnabledFor(logging.INFO):
            self.clear()

    def begin_pass(self, label: str, n_rows: int, unit: str = "rows") -> Self:
        """Count the rows, or other units, of another pass from now on."""
        self._label, self._n_rows, self._unit, self.n = label, n_rows, unit, 0
        self._pass_began = monotonic()
        self._draw_when_due()
        return self

    def update(self, n: int) -> None:
        """Count more rows of the pass."""
        self.n += n
        self._draw_when_due()

    def say(self, text: str, *, stays: bool = True) -> None:
        """Show another text; it `stays` beside the share of the next pass, or goes when that begins."""
        self._text, self._stays = text, stays
        now = monotonic()
        if not self._is_watched and self._echo is not None and now >= self._spoke + _LOG_SECONDS:
            self._spoke = now
            self._echo(text)
        self._draw_when_due()

    def clear(self) -> None:
        """Remove the line until it is drawn again."""
        if self._n_drawn:
            self._write("\r" + " " * self._n_drawn + "\r")
            self._n_drawn = 0

    def _draw_when_due(self) -> None:
        now = monotonic()
        if not self._is_watched or now < self._began + QUIET_SECONDS:
            return
        if now < self._spoke + REDRAW_SECONDS:
            return
        self._spoke = now
        text = self._of_pass(now) if self._n_rows else self._text
        if not _is_notebook(self._stream):
            # A line that wraps could not be drawn over: "\r" goes back to the start of its last part only.
            # The column that stays free is for terminals that wrap as soon as the last one is filled.
            text = text[: shutil.get_terminal_size().columns - 1]
        # Blanks over the rest of a longer text.
        self._write("\r" + text.ljust(self._n_drawn))
        self._n_drawn = len(text)

    def _of_pass(self, now: float) -> str:
        share = f"{self.n / self._n_rows:.0%}"
        if self._stays:  # the whole has to fit in 80 columns
            return f"{self._text} · {share}"
        text = f"{self._label}, {share} of {self._n_rows:,} {self._unit}"
        if not self.n:
            return text
        left = (now - self._pass_began) * (self._n_rows - self.n) / self.n
        return f"{text} · about {roughly(left)} left of this pass"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def pass_line(label: str, n_rows: int, unit: str = "rows") -> Iterator[FitLine]:
    """The line of one pass that belongs to no fit; it goes with the block, after Ctrl-C as well."""
    line = FitLine()
    try:
        yield line.begin_pass(label, n_rows, unit)
    finally:
        line.clear()


def roughly(seconds: float) -> str:
    """Write a duration with two digits at most, in the unit that people would say."""
    if seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 90:
        return f"{float(f'{seconds:.2g}'):g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{float(f'{minutes / 60:.2g}'):g} h"


# What a fit tells of its passes: to callbacks, to the line that a person sees, and to the log.

_SHORT = {"duality gap": "gap", "relative residual": "residual", "relative gradient": "gradient"}


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """How far a fit is after a pass over the rows; its text is the line that a terminal shows.

    A light sweep of an iterative solver has an error, which falls to `tol`. Other passes, such as those of
    the column statistics, a Gram or the search for alpha, have None for it.

    Attributes
    ----------
    sweep : int
        Number of the light sweep in this fit, from 1, those of a search over C included; of a pass without an
        error its number among all passes.
    n_expected : int or None
        About how many light sweeps there will be: more than `sweep` until the error is at `tol`, but never
        more than `max_sweeps`. At first it is the plan's number, then it follows from how the error falls. Of
        passes without an error the number of all passes, where the plan is certain of it. None if unknown.
    label : str
        What the pass summed.
    stage : str
        In a search the penalty that is tried, such as "C = 0.1, 2 of 6"; else empty.
    measure : str or None
        What `error` is: "duality gap", "relative residual" or "relative gradient".
    error : float or None
        That of the best point so far, the largest of all outputs; inf where nothing bounds it yet.
    tol : float or None
        The error at which the solver ends; None where another rule ends it, as for SGD.
    seconds_a_sweep : float
        Median over the last light sweeps, work between them included; of other passes the seconds of the
        pass itself.
    seconds_left : float or None
        About how long the light sweeps still take; None if unknown.
    """

    sweep: int
    n_expected: int | None = None
    label: str
    stage: str = ""
    measure: str | None = None
    error: float | None = None
    tol: float | None = None
    seconds_a_sweep: float = 0.0
    seconds_left: float | None = None
    _model: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> Any:
        """The frozen `Model` of the best point so far; None before there is one.

        It is made when asked for, without a report: ask during the call, or it is that of a later point.
        """
        return None if self._model is None else self._model()

    def __str__(self) -> str:
        if self.error is None:
            of_all = f" of {self.n_expected}" if self.n_expected else ""
            return f"{self.label}, pass {self.sweep}{of_all} · {roughly(self.seconds_a_sweep)}"
        of_all = "" if self.n_expected is None else f" of about {self.n_expected}"
        parts = [self.stage] if self.stage else []
        parts.append(f"sweep {self.sweep}{of_all}")
        if math.isfinite(self.error):
            name = _SHORT.get(self.measure or "", self.measure)
            parts.append(f"{name} {self.error:.2g}" + ("" if self.tol is None else f" → {self.tol:g}"))
        parts.append(f"{roughly(self.seconds_a_sweep)} a sweep")
        if self.seconds_left:
            parts.append(f"about {roughly(self.seconds_left)} left")
        return " · ".join(parts)


Callback = Callable[[SweepProgress], Any]


def callbacks_of_fit(given: Any) -> list[Callback]:
    """Callbacks of a new fit; one with a method `begin_fit` begins there with a new state.

    Raises InputError if `given` is no list of functions.
    """
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise InputError(f"callbacks must be None or a list of functions, got {given!r}; give [{given!r}]")
    for callback in given:
        if not callable(callback):
            raise InputError(f"callbacks must be functions of a SweepProgress, got {callback!r}")
    return [callback.begin_fit() if hasattr(callback, "begin_fit") else callback for callback in given]


# How many light sweeps there will be.

PRESUMED_SWEEPS = 10  # of a solver whose error has not fallen yet, as plans presume
_MIN_TREND = 2  # sweeps, over which a trend is read
_MAX_GROWTH = 3  # times the sweeps so far are expected at most
_BLIND_GROWTH = 1.5  # the same where no trend is seen
_MAX_GAP = 0.999


def expected_sweeps(errors: Sequence[float], tol: float, presumed: int = PRESUMED_SWEEPS) -> int:
    """About how many light sweeps a solver takes, from the errors after each of those so far.

    ln(e/(1 − e)) is taken to go on falling as it did over the later half of the sweeps, by the best errors so
    far, since errors rise at times and fall in jumps. A gap e relative to the objective is e/(1 − e) relative
    to its bound, which falls steadily from the first sweeps on: on 6,000 digits of MNIST the gap was 0.93,
    0.80, 0.42, 0.039 and 0.0046 after sweeps 1, 3, 5, 10 and 15, of 20. After the third, ln(e) alone would
    foresee another 85.
    """
    n, best = len(errors), math.inf
    # NaN, of numbers that overflowed, is no progress.
    falling = [best := min(best, e if e == e else math.inf) for e in errors]
    if n and best <= tol:
        return n
    blind = max(presumed, n + 1, round(_BLIND_GROWTH * n))
    known = [_height(e) for e in falling if 0 < e < math.inf]
    n_back = max(_MIN_TREND, len(known) // 2)
    if len(known) <= n_back or not tol > 0:
        return blind
    fall = (known[-1 - n_back] - known[-1]) / n_back
    to_go, most = known[-1] - _height(tol), max(presumed, _MAX_GROWTH * n) - n
    if not fall > 0:
        return blind
    return n + max(1, min(math.ceil(to_go / fall), most))


def _height(error: float) -> float:
    """ln(e/(1 − e)), continued for errors of 1 and more."""
    return math.log(error) - math.log1p(-min(error, _MAX_GAP))


# Who is told.

_RECENT = 5  # sweeps, over which the median of seconds is taken: soon that of another kind of steps


class Observer:
    """Tells of the passes of a fit: its callbacks, the line that is shown, and the log.

    A callback that returns True ends the fit once there is a model to keep: after the next pass that shows an
    error, or that judges a model in a search.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), line: FitLine | None = None) -> None:
        self._callbacks = tuple(callbacks)
        self._line = line
        self._n_notified = self._n_to_skip = 0  # events
        self._wants_stop = False
        self._begin()

    def _begin(self) -> None:
        self._n_passes_told = 0
        # Of all solvers: seconds of the last sweeps, and the sweeps of those that have ended.
        self._seconds: list[float] = []
        self._of_solvers: list[int] = []
        # Of the present solver: the error after each of its sweeps.
        self._errors: list[float] = []
        # The number of all passes, where it is certain.
        self.n_passes: int | None = None
        # The frozen model of coefficients and intercepts in the targets' own units, once the map is known.
        self.model_of: Callable[..., Any] | None = None
        self.begin_solver(sys.maxsize)

    def begin_again(self) -> None:
        """Forget the passes so far, which the fit makes again; callbacks hear of each of them once."""
        self._n_to_skip = self._n_notified
        self._begin()

    def rows_of(self, label: str, n_rows: int) -> Any:
        """Context that counts the rows of a pass: on the line of the fit, or on one of its own."""
        return pass_line(label, n_rows) if self._line is None else self._line.begin_pass(label, n_rows)

    def begin_solver(
        self, max_sweeps: int, *, presumed: int = PRESUMED_SWEEPS, stage: str = "", n_after: int = 0
    ) -> None:
        """Forget the errors so far, as another solver begins; `n_after` more will follow it."""
        if self._errors:
            self._of_solvers.append(len(self._errors))
        self._errors, self._measure = [], ""  # of one measure: errors of two have no common trend
        # In a search the solver before is a better guide than a presumption for any.
        self._presumed = self._of_solvers[-1] + 1 if self._of_solvers else presumed
        self._max_sweeps, self._stage, self._n_after = max_sweeps, stage, n_after
        self._ended = time.perf_counter()  # the last light sweep, or what came before the first

    def passes(self, sweeps: Sequence[tuple[str, float]]) -> None:
        """Tell of the passes that have ended since the last call, and show no error."""
        new = enumerate(sweeps[self._n_passes_told :], self._n_passes_told + 1)
        self._n_passes_told = len(sweeps)
        for number, (label, seconds) in new:
            told = SweepProgress(sweep=number, n_expected=self.n_passes, label=label, seconds_a_sweep=seconds)
            self._notify(told)

    def light_sweep(
        self,
        sweeps: Sequence[tuple[str, float]],
        sweep: int,
        measure: str,
        error: float,
        tol: float | None,
        parts: Callable[[], tuple[Any, ...]] | None = None,
    ) -> None:
        """Tell of the last pass, after which the error is known; raise FitStopped where a callback says so.

        `sweep` is its number of this solver, and `parts` returns the arguments of `model_of` at the best
        point so far.
        """
        self.passes(sweeps[:-1])
        self._n_passes_told = len(sweeps)
        n_new = sweep - len(self._errors)
        if n_new <= 0:
            return
        if measure != self._measure:
            self._errors, self._measure = [math.inf] * len(self._errors), measure
        self._errors += [error] * n_new
        now = time.perf_counter()
        # Sweeps that a checkpoint held took no time now, but tell how long others will take.
        spent = max(now - self._ended, sum(seconds for _, seconds in sweeps[-n_new:]))
        self._seconds = [*self._seconds, *[spent / n_new] * n_new][-_RECENT:]
        n_before, usual, model_of = sum(self._of_solvers), median(self._seconds), self.model_of
        here = self._expected(sweep, tol)
        n_expected = None
        if here is not None:  # solvers to come take as many sweeps as those so far, on average
            mean = (n_before + here) / (len(self._of_solvers) + 1)
            n_expected = n_before + here + round(self._n_after * mean)
        progress = SweepProgress(
            sweep=n_before + sweep,
            n_expected=n_expected,
            label=sweeps[-1][0],
            stage=self._stage,
            measure=measure,
            error=error,
            tol=tol,
            seconds_a_sweep=usual,
            seconds_left=None if n_expected is None else (n_expected - n_before - sweep) * usual,
            _model=None if parts is None or model_of is None else lambda: model_of(*parts()),
        )
        logger.info("%s", progress)  # before it is drawn, or both would be in one line
        self._notify(progress)
        self._ended = time.perf_counter()  # what callbacks take is no part of a sweep
        self.stop_if_asked()

    def between_passes(self, text: str) -> None:
        """Show what is done, perhaps for minutes, until the next pass begins."""
        if self._line is not None:
            self._line.say(text, stays=False)

    def stop_if_asked(self) -> None:
        """Raise FitStopped if a callback has returned True."""
        if self._wants_stop:
            raise FitStopped

    def close(self) -> None:
        """Remove the line, and forget the fit: its estimator holds this, and would not be freed at once."""
        self.model_of = None
        if self._line is not None:
            self._line.clear()

    def _expected(self, sweep: int, tol: float | None) -> int | None:
        if tol is None:
            return min(self._presumed, self._max_sweeps) if sweep <= self._presumed else None
        return min(expected_sweeps(self._errors, tol, self._presumed), max(sweep, self._max_sweeps))

    def _notify(self, progress: SweepProgress) -> None:
        if self._line is not None:
            self._line.say(str(progress), stays=progress.error is not None)
        if self._n_to_skip:
            self._n_to_skip -= 1
            return
        self._n_notified += 1
        for callback in self._callbacks:
            answer = callback(progress)
            # No other true value counts, as a callback may return whatever its last call does.
            if isinstance(answer, bool | np.bool_) and answer:
                self._wants_stop = True
