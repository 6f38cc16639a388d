"""Transformers of scikit-learn that a few arrays tell: from the fitted object to these, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

from distrff.errors import ModelFileError

STORABLE: dict[str, type] = {
    cls.__name__: cls
    for cls in (PCA, PolynomialCountSketch, PolynomialFeatures, SplineTransformer, StandardScaler)
}

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "PCA": ("components_", "mean_", "explained_variance_"),
    "PolynomialCountSketch": ("indexHash_", "bitHash_"),
    "PolynomialFeatures": (),  # follow from the parameters and the number of columns
    "SplineTransformer": (),  # its splines, below
    "StandardScaler": ("mean_", "scale_", "var_"),
}


def fitted_arrays(transformer: Any) -> dict[str, np.ndarray]:
    """Return the arrays that a fitted transformer of a storable class needs to transform rows."""
    names = _ATTRIBUTES[type(transformer).__name__]
    found = {name.strip("_"): getattr(transformer, name, None) for name in names}
    arrays = {name: np.asarray(value) for name, value in found.items() if value is not None}
    if isinstance(transformer, SplineTransformer):
        splines = transformer.bsplines_
        arrays["knots"] = np.stack([spline.t for spline in splines])
        arrays["coefficients"] = np.stack([spline.c for spline in splines])
    return arrays


def json_parameters(transformer: Any) -> dict[str, Any]:
    """Return the constructor's parameters as strict JSON data; what only a fit looks at is left out."""
    params = transformer.get_params(deep=False)
    for name in ("random_state", "knots", "n_knots"):
        params.pop(name, None)
    if isinstance(transformer, PCA):
        params = {"whiten": bool(params["whiten"])}
    return {name: _plain(value) for name, value in params.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def restored(
    name: str, parameters: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_columns: int, n_outputs: int
) -> Any:
    """Return the fitted transformer of that class, parameters and arrays.

    Raises
    ------
    ModelFileError
        If its parameters ask for other columns than `n_outputs`, perhaps more than memory holds.
    """
    transformer = _restored(name, parameters, arrays, n_columns)
    made = n_outputs
    if isinstance(transformer, PolynomialFeatures):
        made = transformer.n_output_features_
    elif isinstance(transformer, PolynomialCountSketch):
        made = transformer.n_components
        if transformer.degree != len(transformer.indexHash_):
            raise ModelFileError(f"its {name} of degree {transformer.degree} has other hashes than that")
    if made != n_outputs:
        raise ModelFileError(f"its {name} makes {made} features, but {n_outputs} are stored")
    return transformer


def _restored(
    name: str, parameters: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_columns: int
) -> Any:
    params = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
    transformer: Any = STORABLE[name](**params)
    if isinstance(transformer, PolynomialFeatures):
        return transformer.fit(np.zeros((1, n_columns)))
    transformer.n_features_in_ = n_columns
    for attribute in _ATTRIBUTES[name]:
        setattr(transformer, attribute, arrays.get(attribute.strip("_")))
    if isinstance(transformer, PCA):
        transformer.n_components_ = len(transformer.components_)
    if isinstance(transformer, SplineTransformer):
        _restore_splines(transformer, arrays["knots"], arrays["coefficients"])
    return transformer


def _restore_splines(transformer: SplineTransformer, knots: np.ndarray, coefficients: np.ndarray) -> None:
    outside = transformer.extrapolation in ("periodic", "continue")
    transformer.bsplines_ = [
        BSpline.construct_fast(t, c, transformer.degree, extrapolate=outside)
        for t, c in zip(knots, coefficients, strict=True)
    ]
    n_splines = coefficients.shape[2]
    transformer.n_features_out_ = len(knots) * (n_splines - (not transformer.include_bias))
