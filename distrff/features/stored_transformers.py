"""The storable transformers of scikit-learn: from the fitted object to a few arrays, and back.

Imported only for such a transformer: every worker imports all maps, and scikit-learn's decompositions would
take 14 MB and half a second of each worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

from distrff.errors import ModelFileError

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    PCA: ("components_", "mean_", "explained_variance_"),
    PolynomialCountSketch: ("indexHash_", "bitHash_"),
    PolynomialFeatures: (),  # follow from the parameters and the number of columns
    SplineTransformer: (),  # its splines, below
    StandardScaler: ("mean_", "scale_", "var_"),
}

STORABLE = {cls.__name__: cls for cls in _ATTRIBUTES}


def fitted_arrays(transformer: Any) -> dict[str, np.ndarray]:
    """Return the arrays that a fitted transformer of a storable class needs to transform rows."""
    found = {name.strip("_"): getattr(transformer, name, None) for name in _ATTRIBUTES[type(transformer)]}
    arrays = {name: np.asarray(value) for name, value in found.items() if value is not None}
    if isinstance(transformer, SplineTransformer):
        splines = transformer.bsplines_
        arrays["knots"] = np.stack([spline.t for spline in splines])
        arrays["coefficients"] = np.stack([spline.c for spline in splines])
    return arrays


def json_parameters(transformer: Any) -> dict[str, Any]:
    """Return the constructor's parameters as strict JSON data, without those that only `fit` uses."""
    params = transformer.get_params(deep=False)
    for name in ("random_state", "knots", "n_knots"):
        params.pop(name, None)
    if isinstance(transformer, PCA):
        params = {"whiten": bool(params["whiten"])}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def restored(
    name: str, parameters: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_columns: int, n_outputs: int
) -> Any:
    """Return the fitted transformer from its class name, parameters and arrays.

    Raises ModelFileError if the parameters do not give `n_outputs` columns: a damaged file could ask for more
    than fit in memory.
    """
    params = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
    transformer: Any = STORABLE[name](**params)
    made = n_outputs
    if isinstance(transformer, PolynomialFeatures):
        transformer.fit(np.zeros((1, n_columns)))
        made = transformer.n_output_features_
    else:
        transformer.n_features_in_ = n_columns
        for attribute in _ATTRIBUTES[type(transformer)]:
            setattr(transformer, attribute, arrays.get(attribute.strip("_")))
    if isinstance(transformer, PCA):
        transformer.n_components_ = len(transformer.components_)
    if isinstance(transformer, SplineTransformer):
        if not isinstance(transformer.include_bias, bool):  # as a number it would count columns
            raise ModelFileError(f"its {name} has an include_bias that is neither true nor false")
        outside = transformer.extrapolation in ("periodic", "continue")
        transformer.bsplines_ = [
            BSpline.construct_fast(t, c, transformer.degree, extrapolate=outside)
            for t, c in zip(arrays["knots"], arrays["coefficients"], strict=True)
        ]
        n_splines = arrays["coefficients"].shape[2] - (not transformer.include_bias)
        transformer.n_features_out_ = len(arrays["knots"]) * n_splines
    if isinstance(transformer, PolynomialCountSketch):
        made = transformer._n_features_out = transformer.n_components
        index, sign = transformer.indexHash_, transformer.bitHash_
        shape = transformer.degree, n_columns + (transformer.coef0 != 0)
        if not index.shape == sign.shape == shape or index.dtype.kind != "i" or sign.dtype.kind not in "if":
            raise ModelFileError(f"its {name} has hashes whose shapes or types do not fit")
    if made != n_outputs:
        raise ModelFileError(f"its {name} makes {made} features, but {n_outputs} are stored")
    return transformer
