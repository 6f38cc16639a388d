"""Transformers of scikit-learn as maps."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import joblib
import numpy as np
from scipy.interpolate import BSpline
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from distrff.errors import InputError, ModelFileError
from distrff.features.base import FeatureMap, Sample
from distrff.features.fitted import Arrays, MapFromRows, MapOutline, Trait, canonical_json

_TRIAL_ROWS = 512


@dataclass(frozen=True)
class TransformerMap(MapFromRows):
    """z(x) = transformer.transform(x), as dense floats.

    It holds the arrays of a fitted transformer of class `name` if the class is storable, else the object
    itself, which is sent with every task; its `fingerprint` stands for its contents.
    """

    kind: ClassVar[str] = "transformer"

    name: str = ""
    parameters_json: str = "{}"
    n_outputs: int = 0
    fingerprint: str = ""
    has_arrays: bool = False
    transformer: Any = field(default=None, compare=False, repr=False)

    @property
    def traits(self) -> frozenset[Trait]:
        # An object travels whole inside the map, and so do parameters that need no arrays.
        return super().traits | (frozenset() if self.has_arrays else {Trait.NO_ARRAYS})

    @property
    def n_features(self) -> int:
        return self.n_outputs

    @property
    def arrays_at_hand(self) -> bool:
        return self.has_arrays and self.arrays is not None

    def derive(self) -> dict[str, np.ndarray]:
        return super().derive() if self.has_arrays else {}

    def check_storable(self) -> None:
        if self.fingerprint:
            raise InputError(
                f"a {self.name} cannot be stored without pickle; those that can are "
                f"{', '.join(STORABLE)}: use one of these, or keep the fitted model in memory"
            )

    def prepare(self, arrays: Arrays) -> Any:
        if self.transformer is not None:
            return self.transformer
        parameters = json.loads(self.parameters_json)
        return restored(self.name, parameters, arrays, self.n_columns, self.n_outputs)

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        if len(X):
            # float64, in which it was fitted: a row of float32 may by rounding lie just outside of the knots.
            Z[...] = dense_output(self.prepared, X.astype(np.float64, copy=False))
        return Z


def dense_output(transformer: Any, X: np.ndarray) -> np.ndarray:
    """The transformed rows as a dense matrix; raises InputError if they are not a matrix of numbers."""
    Z = transformer.transform(X)
    # Some transformers write sparse matrices, as splines with sparse_output=True do.
    if hasattr(Z, "toarray"):
        Z = Z.toarray()
    Z = np.asarray(Z)
    if Z.ndim != 2 or len(Z) != len(X) or Z.dtype.kind not in "biuf":
        raise InputError(
            f"{type(transformer).__name__}.transform gave an array of shape {Z.shape} and dtype {Z.dtype} "
            f"for {len(X)} rows; a map needs a matrix of numbers with a row for each"
        )
    return Z


class TransformerFeatures(FeatureMap):
    """Any scikit-learn transformer as a map: z(x) = transformer.transform(x).

    Parameters
    ----------
    transformer : scikit-learn transformer
        If it is not fitted, a clone is fitted to the rows of positive weight given to `fit` (a sample of a
        large dataset), with their weights if it takes weights. If it is fitted, or in a `FrozenEstimator`,
        it is used unchanged, also by clones of this map.
    random_state : int or None
        Seed of a transformer, and of steps of a pipeline, whose own `random_state` is None.

    Attributes
    ----------
    transformer_ : scikit-learn transformer
        Fitted.
    specification_ : TransformerMap
    seed_, n_features_in_ : int

    Notes
    -----
    Models and Grams can be stored with these transformers, as arrays: PCA, PolynomialCountSketch,
    PolynomialFeatures, SplineTransformer and StandardScaler. No file ever holds a pickle.
    """

    def __init__(self, transformer: Any, *, random_state: int | None = None) -> None:
        self.transformer = transformer
        self.random_state = random_state

    def __sklearn_clone__(self) -> Self:
        transformer = self.transformer
        # A grid search clones its estimators: a fitted transformer must survive, where `clone` would empty
        # it.
        kept = transformer if _is_fitted(transformer) else clone(transformer, safe=False)
        return type(self)(kept, random_state=self.random_state)

    def check_parameters(self) -> None:
        if isinstance(self.transformer, type) or not all(
            hasattr(self.transformer, method) for method in ("fit", "transform")
        ):
            raise InputError(
                f"transformer must be a scikit-learn transformer with fit and transform, "
                f"got {self.transformer!r}"
            )

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        fitted = self if hasattr(self, "specification_") else self.trial(n_columns)
        return MapOutline(fitted.specification_.n_features, fitted.specification_.cost)

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        # Sizes of the transformer may depend on its other parameters: all stay.
        return max(_TRIAL_ROWS, 2 * n_columns)

    def freeze(self, sample: Sample) -> TransformerMap:
        fitted = self._fitted(sample)
        # Not every transformer says how many columns it makes; one row shows it.
        n_outputs = dense_output(fitted, sample.X[:1]).shape[1]
        self.transformer_ = fitted
        bare = fitted.estimator if isinstance(fitted, FrozenEstimator) else fitted
        name = type(bare).__name__
        shape: dict[str, Any] = {"n_columns": sample.X.shape[1], "name": name, "n_outputs": n_outputs}
        # By the class itself: a subclass of the same name may transform in another way.
        if STORABLE.get(name) is not type(bare):
            # Nothing but pickle would store it; by its digest other processes know equal ones.
            return TransformerMap(**shape, fingerprint=_fingerprint(bare), transformer=bare)
        arrays = fitted_arrays(bare)
        return TransformerMap(
            **shape,
            parameters_json=canonical_json(json_parameters(bare)),
            has_arrays=bool(arrays),
            arrays=arrays,
        )

    def _fitted(self, sample: Sample) -> Any:
        if _is_fitted(self.transformer):
            return self.transformer
        # A clone: what the user gave is a parameter, and stays as it is.
        transformer = clone(self.transformer)
        unseeded = [
            name for name, value in transformer.get_params().items() if _is_seed(name) and value is None
        ]
        # scikit-learn takes seeds of 32 bits.
        transformer.set_params(**dict.fromkeys(unseeded, sample.seed % 2**32))
        X, Y = sample.X, None if sample.y is None else np.asarray(sample.y)
        # Several of scikit-learn's fits warn of a y that is a matrix of one column.
        if Y is not None and Y.ndim == 2 and Y.shape[1] == 1:
            Y = Y[:, 0]
        weights = {}
        if sample.sample_weight is not None:
            # A transformer that takes no weights must not see rows of weight 0 at all.
            rows = np.flatnonzero(sample.sample_weight > 0)
            X, Y = X[rows], None if Y is None else Y[rows]
            if has_fit_parameter(transformer, "sample_weight"):
                weights["sample_weight"] = sample.sample_weight[rows]
        return transformer.fit(X, Y, **weights)


def _is_seed(name: str) -> bool:
    return name.rpartition("__")[2] == "random_state"  # its own, or that of a step


def _fingerprint(transformer: Any) -> str:
    """A digest of what a transformer holds, the same in each process; a random one if it has none."""
    try:
        return str(joblib.hash(transformer))
    except Exception:  # whatever pickling a stranger's class or function raises
        return secrets.token_hex(16)


def _is_fitted(transformer: Any) -> bool:
    if isinstance(transformer, FrozenEstimator):
        return True
    try:
        check_is_fitted(transformer)
    except (NotFittedError, TypeError):
        return False
    return True


# The storable transformers of scikit-learn: from the fitted object to a few arrays, and back.

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    PCA: ("components_", "mean_", "explained_variance_"),
    PolynomialCountSketch: ("indexHash_", "bitHash_"),
    PolynomialFeatures: (),  # follow from the parameters and the number of columns
    SplineTransformer: (),  # its splines, below
    StandardScaler: ("mean_", "scale_", "var_"),
}

STORABLE = {cls.__name__: cls for cls in _ATTRIBUTES}


def fitted_arrays(transformer: Any) -> dict[str, np.ndarray]:
    """The arrays that a fitted transformer of a storable class needs to transform rows."""
    # Without underscores: these are names in stored models.
    found = {name.strip("_"): getattr(transformer, name, None) for name in _ATTRIBUTES[type(transformer)]}
    arrays = {name: np.asarray(value) for name, value in found.items() if value is not None}
    if isinstance(transformer, SplineTransformer):
        splines = transformer.bsplines_
        arrays["knots"] = np.stack([spline.t for spline in splines])
        arrays["coefficients"] = np.stack([spline.c for spline in splines])
    return arrays


def json_parameters(transformer: Any) -> dict[str, Any]:
    """The constructor's parameters as strict JSON data, without those that only `fit` uses."""
    params = transformer.get_params(deep=False)
    for name in ("random_state", "knots", "n_knots"):
        params.pop(name, None)
    if isinstance(transformer, PCA):
        # Of PCA, only this enters `transform`; how components were found does not.
        params = {"whiten": bool(params["whiten"])}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def restored(
    name: str, parameters: Mapping[str, Any], arrays: Mapping[str, np.ndarray], n_columns: int, n_outputs: int
) -> Any:
    """The fitted transformer from its class name, parameters and arrays.

    Raises ModelFileError if the parameters do not give `n_outputs` columns: a damaged file could ask for more
    than fit in memory.
    """
    params = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
    transformer: Any = STORABLE[name](**params)
    made = n_outputs
    if isinstance(transformer, PolynomialFeatures):
        # The powers of its columns follow from their number alone.
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
        # As SplineTransformer itself makes its splines; other kinds it extrapolates by rules of its own.
        outside = transformer.extrapolation in ("periodic", "continue")
        transformer.bsplines_ = [
            BSpline.construct_fast(t, c, transformer.degree, extrapolate=outside)
            for t, c in zip(arrays["knots"], arrays["coefficients"], strict=True)
        ]
        n_splines = arrays["coefficients"].shape[2] - (not transformer.include_bias)
        transformer.n_features_out_ = len(arrays["knots"]) * n_splines
    if isinstance(transformer, PolynomialCountSketch):
        made = transformer._n_features_out = transformer.n_components
        # Its transform adds up by these numbers as indices, and would read and write anywhere.
        index, sign = transformer.indexHash_, transformer.bitHash_
        shape = transformer.degree, n_columns + (transformer.coef0 != 0)
        if not index.shape == sign.shape == shape or index.dtype.kind != "i" or sign.dtype.kind not in "if":
            raise ModelFileError(f"its {name} has hashes whose shapes or types do not fit")
    if made != n_outputs:
        raise ModelFileError(f"its {name} makes {made} features, but {n_outputs} are stored")
    return transformer
