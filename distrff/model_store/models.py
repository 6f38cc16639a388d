"""A frozen machine as a stored group: every array that prediction needs, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distrff.columns.coding import coding_from_parts, coding_parts
from distrff.columns.table_steps import TableSteps
from distrff.errors import ModelFileError
from distrff.features.registry import specification_from_dict
from distrff.model import Model
from distrff.model_store.groups import read_group, write_group
from distrff.model_store.model_checks import short, what_is_wrong
from distrff.public_names import public_name
from distrff.solvers.cholesky import PosteriorFactor


def save_model(
    model: Model, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
) -> None:
    """Write the machine as a Zarr group, the map's arrays included, so that NumPy alone can read it.

    Raises
    ------
    InputError
        If something is there already and `overwrite` is not given, or for a map that cannot be stored.
    """
    model.specification.check_storable()
    arrays, metadata = coding_parts(model.scaling, model.targets)
    derived = model.specification.checked_arrays() if model.arrays is None else model.arrays
    arrays |= {f"map_{name}": array for name, array in derived.items()}
    arrays |= {"coef": model.coef, "intercept": model.intercept}
    if model.posterior is not None:
        arrays |= posterior_arrays(model.posterior)
    metadata |= {
        "model": model.kind,
        "specification": model.specification.to_dict(),
        "dtype": model.dtype,
        "y_is_1d": model.y_is_1d,
        "likelihood": None if model.likelihood is None else dict(model.likelihood),
        "column_names": None if model.column_names is None else list(model.column_names),
        "report": model.report,
        "steps": None if model.steps is None else model.steps.to_dict(),
    }
    write_group(url, arrays, metadata, kind="model", overwrite=overwrite, storage_options=storage_options)


def load_model(url: str, *, storage_options: dict[str, Any] | None = None) -> Model:
    """Return the machine stored at `url`; it predicts on NumPy arrays without a cluster.

    Raises
    ------
    ModelFileError
        If it is incomplete, altered, of a newer format, or no model.
    """
    return model_of(url, *read_group(url, kind="model", storage_options=storage_options))


def model_of(url: str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Model:
    """Return the machine of a group that was read from `url`, after a look whether it can predict.

    Raises
    ------
    ModelFileError
        If it cannot.
    """
    try:
        model = _model_of(arrays, metadata)
    except ModelFileError as error:
        raise ModelFileError(f"{public_name(url)}: {short(error)}") from error
    except KeyError as error:
        raise ModelFileError(f"{public_name(url)} lacks {error}; save the model again") from error
    # Whatever a value of another type breaks.
    except Exception as error:
        detail = f"{type(error).__name__}: {short(error)}"
        raise ModelFileError(f"{public_name(url)} is no model ({detail}); save it again") from error
    wrong = what_is_wrong(model)
    if wrong is not None:
        raise ModelFileError(f"{public_name(url)} cannot predict ({wrong}); save the model again")
    return model


def _model_of(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Model:
    scaling, targets = coding_from_parts(arrays, metadata)
    names = metadata["column_names"]
    specification = specification_from_dict(metadata["specification"])
    of_map = {name.removeprefix("map_"): A for name, A in arrays.items() if name.startswith("map_")}
    if of_map:
        # A process keeps one map for each digest. That of the file may be of other arrays: of a forged file,
        # or by the rule of an earlier version.
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
        posterior=posterior_of(arrays),
        arrays=of_map,
        report=metadata["report"],
        steps=_stored_steps(metadata),
    )


def _stored_steps(metadata: Mapping[str, Any]) -> TableSteps | None:
    steps = metadata.get("steps")  # models of earlier versions have none
    return None if steps is None else TableSteps.from_dict(steps)


def posterior_arrays(posterior: PosteriorFactor) -> dict[str, np.ndarray]:
    """Return the arrays from which `posterior_of` makes it again."""
    return {
        "posterior_factor": posterior.L,
        "posterior_z_mean": posterior.z_mean,
        "posterior_noise": posterior.noise,
        "posterior_scalars": np.asarray([posterior.intercept_variance, posterior.effective_dimension]),
    }


def posterior_of(arrays: Mapping[str, np.ndarray]) -> PosteriorFactor | None:
    """Return the posterior among such arrays, None where there is none."""
    if "posterior_factor" not in arrays:
        return None
    return PosteriorFactor(
        L=arrays["posterior_factor"],
        z_mean=arrays["posterior_z_mean"],
        noise=arrays["posterior_noise"],
        intercept_variance=float(arrays["posterior_scalars"][0]),
        effective_dimension=float(arrays["posterior_scalars"][1]),
    )
