"""Callbacks of fits that are shipped: early stopping on held-out rows."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

from distrff.diagnostics.evaluate import errors_of
from distrff.engine.progress import SweepProgress
from distrff.engine.run import Run, begin_run
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from distrff.model.model import Model
from distrff.utils.validation import check_count, is_finite


@dataclass(eq=False, repr=False)
class EarlyStopping:
    """Ends a fit once the score of held-out rows has not improved for some light sweeps.

    After each light sweep the best model so far is scored on the held-out rows, in one light pass over them
    where the fit runs: by its accuracy if it is a classifier, else by R². If the best score of the last
    `patience` sweeps is not above the best one before them by more than `min_delta`, the fit ends with the
    status STOPPED.

    The fit keeps the model of the last light sweep, which has the least objective so far; that is the
    point at which held-out rows no longer gain from more sweeps. The model of the best held-out score
    is `best_model_`. In a search for C or alpha, whose models leave out folds, no score is taken. A fit that
    needs no light sweeps, such as one by a Gram alone, is not affected.

    Parameters
    ----------
    X, y, sample_weight
        Held-out rows of any storage, as for `fit`; a `Dataset` brings its own y. With the columns that the
        fit has.
    patience : int
        Light sweeps without a better score.
    min_delta : float
        By how much a score must rise to be better.

    Attributes
    ----------
    scores_ : list of (int, float)
        Number and score of each light sweep, of the last fit.
    best_score_ : float
    best_sweep_ : int
    best_model_ : Model
        The frozen model of the best score, without a report.

    Raises
    ------
    InputError
        At the beginning of a fit, for parameters or rows that cannot be used.

    Notes
    -----
    Each fit starts afresh. Passes over held-out rows are no sweeps of the fit, but take their time; its
    measured peak memory counts them where they share a worker. Copies, such as those of
    `sklearn.base.clone`, share the rows.

    Examples
    --------
    >>> import distrff as drf
    >>> stopping = drf.EarlyStopping(held_out, patience=2)  # doctest: +SKIP
    >>> drf.KernelSVC(C=100, callbacks=[stopping]).fit(rows)  # doctest: +SKIP
    """

    X: Any
    y: Any = None
    _: KW_ONLY
    sample_weight: Any = None
    patience: int = 3
    min_delta: float = 1e-4

    def begin_fit(self) -> Self:
        """Forget the scores of an earlier fit, and check the parameters and rows."""
        check_count("patience", self.patience)
        if not is_finite(self.min_delta) or self.min_delta < 0:
            raise InputError(f"min_delta must be a finite number of at least 0, got {self.min_delta!r}")
        self._rows = as_dataset(self.X, self.y, self.sample_weight)
        if not self._rows.n_targets:
            raise InputError("EarlyStopping scores held-out rows, which need targets; give y")
        self._run: Run | None = None
        self._n_worse, self._to_beat = 0, -math.inf
        self.scores_: list[tuple[int, float]] = []
        for name in ("best_score_", "best_sweep_", "best_model_"):
            self.__dict__.pop(name, None)
        return self

    def __call__(self, progress: SweepProgress) -> bool:
        """Score the model of one sweep; return whether the score has not improved for long."""
        if "_rows" not in self.__dict__:  # called outside of a fit
            self.begin_fit()
        model = progress.model
        # Of a search by folds, or before the first step of a solver: there is no model of all rows.
        if model is None or progress.error is None:
            return False
        score = self._score(model)
        self.scores_.append((progress.sweep, score))
        # A first score of NaN, of targets that are all equal, has a model too.
        if score > getattr(self, "best_score_", -math.inf) or len(self.scores_) == 1:
            self.best_score_, self.best_sweep_, self.best_model_ = score, progress.sweep, model
        # The mark stays while scores rise by less than min_delta: slow gains count once they add up to it.
        if score > self._to_beat + self.min_delta:
            self._to_beat, self._n_worse = score, 0
        else:
            self._n_worse += 1
        return self._n_worse >= self.patience

    def _score(self, model: Model) -> float:
        # At the first score, as the columns of a fit are not known when it begins.
        if self._rows.n_columns != model.n_columns:
            raise InputError(
                f"EarlyStopping has held-out rows of {self._rows.n_columns} columns, but the fit has "
                f"{model.n_columns}; give the same columns"
            )
        # At the first score, in the fit's own environment, and once: a run asks for the workers and their
        # memory.
        self._run = self._run or begin_run()
        return errors_of(model, self._rows, run=self._run).scores()[model.measure]

    def __deepcopy__(self, memo: Any) -> Self:
        return replace(self)  # shares the rows, which clones of estimators would copy
