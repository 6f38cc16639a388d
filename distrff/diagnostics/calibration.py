"""The pass from which a model gets its intervals: over rows that its fit did not see, or left out in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distrff.diagnostics.evaluate import Errors, errors_of
from distrff.errors import DataWarning, InputError, InputTypeError, warn
from distrff.io.dataset import Dataset
from distrff.model.intervals import CALIBRATED, OUT_OF_FOLD, Intervals
from distrff.model.model import FoldModels, Model
from distrff.model.rows import check_columns, check_target, rows_for


def calibrate(model: Model, X: Any, y: Any = None, sample_weight: Any = None) -> Model:
    """Return a frozen model with intervals, or prediction sets, from rows that its fit did not see.

    This is split conformal prediction: see `predict_interval` and `predict_set` of the model for what is
    guaranteed. Rows that chose a width, a metric or a penalty were seen by the fit. Leave out copies of its
    rows, and others of the same group, such as a second measurement of one patient. Fitted estimators have
    a method of this name.

    Parameters
    ----------
    model : Model
        From `load_model`, or an estimator's `model_`.
    X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
        Of shape (n_samples, n_columns), or a frame of the raw columns of the fit. A `Dataset` brings its own
        y, and so may a raw frame.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
    sample_weight : array-like of shape (n_samples,), optional
        Multiplicities: a row of weight 3 counts as three rows.

    Raises
    ------
    InputError
        For rows that cannot be used or do not fit the model.

    Notes
    -----
    One light pass, of n predictions. Errors are kept to 2⁻¹⁰, rounded up, mostly in far less than a megabyte.
    """
    if not isinstance(model, Model):
        raise InputTypeError(f"expected a Model, as load_model returns, got {model!r}")
    return calibrated(model, rows_for(model, X, y, sample_weight))


def out_of_fold(model: Model, dataset: Dataset, folds: FoldModels) -> Model:
    """Return the model with intervals from the rows of its fit, each scored by the model without its fold."""
    return _with_intervals(model, errors_of(model, dataset, folds, n_sketched=model.n_outputs), OUT_OF_FOLD)


def calibrated(model: Model, dataset: Dataset) -> Model:
    """Return the model with intervals from rows that its fit did not see; all calibrations lead here.

    Raises InputError for rows that do not fit the model.
    """
    if model.kind == "KernelPCA":
        raise InputError("principal components have no predictions, and so no intervals")
    model.check_intervals_belong("predict_set" if model.is_classifier else "predict_interval")
    check_columns(model, dataset)
    check_target(model, dataset)
    fitted = model.report.get("source"), model.report.get("n_samples")
    if dataset.places and fitted == (dataset.source, dataset.n_rows):
        warn(
            f"{dataset.source} is where the rows of the fit came from; intervals from rows that the fit saw "
            f"are too narrow, and carry no guarantee",
            DataWarning,
        )
    return _with_intervals(model, errors_of(model, dataset, n_sketched=model.n_outputs), CALIBRATED)


def _with_intervals(model: Model, errors: Errors, source: str) -> Model:
    """Return the model with the intervals of errors; warn of rows that bear on them oddly."""
    if errors.n_outside:
        warn(f"{errors.n_outside:,} rows are outside the bounds of the model and are left out", DataWarning)
    if errors.n_unseen:
        warn(
            f"{errors.n_unseen:,} of {errors.n_rows:,} rows have labels that the model never saw, and which "
            f"no prediction set holds",
            DataWarning,
        )
    counts = errors.n_rows, errors.n_outside, errors.n_unseen
    return replace(model, intervals=Intervals(errors.misfits(), source, *counts))
