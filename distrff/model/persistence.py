"""Storing a frozen model: every array that prediction needs, and how the model was fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from distrff.errors import DistrffError, ModelFileError
from distrff.features.fitted import Trait, map_from_dict, named_to_send, sent_arrays
from distrff.io.storage import contents_of, read_group, refuse_others, write_group
from distrff.model.intervals import INTERVAL_ARRAYS, Intervals
from distrff.model.model import Model
from distrff.preprocessing.coding import coding_from_parts, coding_parts
from distrff.preprocessing.table import TableSteps, names_fit, steps_fit
from distrff.solvers.posterior import posterior_arrays, posterior_of
from distrff.utils.text import in_one_line, public_name
from distrff.utils.validation import is_number

_SPREAD = ("spread_coef", "spread_intercept")


def save_model(
    model: Model, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
) -> None:
    """Write the model as a Zarr group that NumPy alone can read, including the map's arrays.

    Raises InputError if something exists at `url` and `overwrite` is not given, or for a map that cannot be
    stored.
    """
    model.specification.check_storable()
    arrays, metadata = coding_parts(model.scaling, model.targets)
    # Also arrays that follow from the seed are stored: another processor or NumPy may draw others.
    derived = model.specification.checked_arrays() if model.arrays is None else model.arrays
    arrays |= named_to_send(derived)
    arrays |= {"coef": model.coef, "intercept": model.intercept} | posterior_arrays(model.posterior)
    if model.spread is not None:
        arrays |= dict(zip(_SPREAD, model.spread, strict=True))
    interval_metadata = None
    if model.intervals is not None:
        # Scores in standard deviations are of no use without these.
        kept = (
            model.intervals if model.posterior is not None else replace(model.intervals, scaled=(), floors=())
        )
        interval_arrays, interval_metadata = kept.to_parts()
        arrays |= interval_arrays
    metadata |= {
        "model": model.kind,
        "specification": model.specification.to_dict(),
        "dtype": model.dtype,
        "y_is_1d": model.y_is_1d,
        "likelihood": None if model.likelihood is None else dict(model.likelihood),
        "loss": None if model.loss is None else dict(model.loss),
        "column_names": None if model.column_names is None else list(model.column_names),
        "report": model.report,
        "steps": None if model.steps is None else model.steps.to_dict(),
        "intervals": interval_metadata,
    }
    write_group(url, arrays, metadata, kind="model", overwrite=overwrite, storage_options=storage_options)


def load_model(url: str, *, storage_options: dict[str, Any] | None = None) -> Model:
    """Model stored at `url`; it predicts on NumPy arrays without a cluster.

    Raises
    ------
    ModelFileError
        If it is missing, incomplete, altered, of a newer format, or not a model.
    """
    return model_of(url, *read_group(url, kind="model", storage_options=storage_options))


def model_of(url: str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Model:
    """Model of a group that was read from `url`; raises ModelFileError if it cannot predict."""
    with contents_of(url, "model"):
        model = _model_of(arrays, metadata)
    wrong = what_is_wrong(model)
    if wrong is not None:
        raise ModelFileError(f"{public_name(url)} cannot predict ({wrong}); save the model again")
    return model


def _model_of(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Model:
    scaling, targets = coding_from_parts(arrays, metadata)
    names = metadata["column_names"]
    specification = map_from_dict(metadata["specification"])
    of_map = sent_arrays(arrays)
    steps = metadata.get("steps")  # models of earlier versions have none
    known = {*coding_parts(scaling, targets)[0], "coef", "intercept", *_SPREAD}
    intervals = metadata.get("intervals")  # likewise
    known |= set() if intervals is None else {*INTERVAL_ARRAYS}
    # An array that nothing reads is a sign of a newer format, or of a forged file.
    refuse_others(arrays, known, prefixes=("map_", "posterior_"))
    if Trait.NO_ARRAYS not in specification.traits and not of_map:  # derived ones may be of any size
        raise ModelFileError("it lacks the arrays of its map; save the model again")
    if of_map:
        # A process keeps one map per digest, but the digest in the file may belong to other arrays: the file
        # may be forged, or an earlier version may have computed digests otherwise.
        specification = specification.digested(of_map)
    return Model(
        kind=metadata["model"],
        specification=specification,
        scaling=scaling,
        targets=targets,
        coef=arrays["coef"],
        intercept=arrays["intercept"],
        dtype=metadata["dtype"],
        y_is_1d=metadata["y_is_1d"],
        column_names=None if names is None else tuple(names),
        likelihood=metadata.get("likelihood"),
        loss=metadata.get("loss"),
        spread=(arrays["spread_coef"], arrays["spread_intercept"]) if "spread_coef" in arrays else None,
        posterior=posterior_of(arrays),
        arrays=of_map,
        report=metadata["report"],
        steps=None if steps is None else TableSteps.from_dict(steps),
        intervals=None if intervals is None else Intervals.from_parts(arrays, intervals),
    )


# Whether the parts of a stored model fit together, checked before they are used.
#
# Checksums find damage, but not a malicious file or one from a faulty program. These checks bound the arrays
# that a prediction makes by the stored ones; then one row is predicted.


def what_is_wrong(model: Model) -> str | None:
    """The reason why the model cannot predict, in a few words; None if it can."""
    try:
        # In this order: each check may rely on those before it, as that of sizes on the kinds of values.
        wrong = next((message for message, holds in _CHECKS.items() if not holds(model)), None)
        if wrong is None:
            _predict_a_row(model)
        return wrong
    except DistrffError as error:
        return in_one_line(error)
    # A forged value may raise anything: types, shapes, sizes, names, recursion.
    except Exception as error:
        return f"{type(error).__name__}: {in_one_line(error)}"


def _predict_a_row(model: Model) -> None:
    # A row that is sound for this model: of bounds their middle, else the mean, which is scaled to zero.
    shift = model.scaling.shift
    X = model.specification.example if shift is None or model.scaling.warp else shift[None, :]
    # Numbers of a forged file may overflow; shapes and exceptions are what counts here.
    with np.errstate(all="ignore"):
        F = model.decision(X)
        if F.shape != (1, model.n_outputs):
            raise ValueError(f"it decides in shape {F.shape}")
        model.transform(X)
        if model.kind != "KernelPCA":
            model.predict(X)
        if model.likelihood is not None:
            model.predict_proba(X)
        if model.posterior is not None:
            model.std(X)
    assert model.digest and model._repr_html_()  # these use more attributes than predictions do


def _has_its_noise(model: Model) -> bool:
    if model.likelihood is None:
        return True
    from distrff.solvers.losses import NOISES  # which ridge does without

    noise, sigma = model.likelihood["noise"], model.likelihood["sigma"]
    return isinstance(noise, str) and noise in NOISES and is_number(sigma) and 0 < sigma < np.inf


def _has_its_loss(model: Model) -> bool:
    if model.loss is None:
        return True
    from distrff.solvers.losses import LOSSES  # as above

    tau = model.quantiles
    several = len(tau) <= 1 or len(tau) == model.n_outputs
    are_shares = all(is_number(one) and 0 < one < 1 for one in tau) and list(tau) == sorted(tau)
    is_quantile = model.loss["loss"] == "quantile"
    return (
        model.loss["loss"] in LOSSES
        and is_quantile == bool(tau)
        and model.targets.kind == "numeric"
        and several
        and are_shares
    )


COLUMN_CHECKS: dict[str, Callable[[Any], bool]] = {
    "its scaling does not fit its columns": lambda m: m.scaling.fits(m.specification.n_columns),
    "its column names do not fit its columns": lambda m: names_fit(m.column_names, m.specification.n_columns),
    "its steps do not make its columns": lambda m: steps_fit(m.steps, m.specification.n_columns),
}
"""Conditions on a model, and on sums of rows, whose number of columns is sound."""

_CHECKS: dict[str, Callable[[Model], bool]] = {
    "its kind is no name": lambda m: isinstance(m.kind, str),
    "its dtype is neither float32 nor float64": lambda m: m.dtype in ("float32", "float64"),
    "y_is_1d is neither true nor false": lambda m: isinstance(m.y_is_1d, bool),
    "its report is no JSON object": lambda m: isinstance(m.report, dict),
    "its deviations do not fit its targets": lambda m: (
        m.posterior is None or m.posterior.noise.shape == (m.n_outputs,)
    ),
    "its coefficients are no matrix of finite float64": lambda m: (
        m.coef.ndim == 2 and m.coef.dtype == np.float64 and bool(np.isfinite(m.coef).all())
    ),
    "its intercept is not one finite number per output": lambda m: (
        m.intercept.shape == (m.n_outputs,) and bool(np.isfinite(m.intercept).all())
    ),
    "its number of columns is not a positive integer, or too large for what is stored": lambda m: (
        m.specification.has_columns_within(sum(A.size for A in (m.coef, *(m.arrays or {}).values())))
    ),
    "its map does not have as many features as there are coefficients": lambda m: (
        is_number(m.specification.n_features) and m.specification.n_features == len(m.coef)
    ),
    **COLUMN_CHECKS,
    "its targets do not fit its outputs": lambda m: m.targets.fits(m.n_outputs),
    "its likelihood has no known noise or no positive sigma": _has_its_noise,
    "its model of spreads does not fit its coefficients": lambda m: (
        m.spread is None
        or (
            (m.spread[0].shape, m.spread[1].shape) == (m.coef.shape, m.intercept.shape)
            and all(A.dtype == np.float64 and bool(np.isfinite(A).all()) for A in m.spread)
        )
    ),
    "its loss is none that is known, or does not fit its outputs": _has_its_loss,
    "its intervals do not fit its outputs": lambda m: (
        m.intervals is None or (m.kind != "KernelPCA" and m.intervals.fits(m.n_scores))
    ),
}
