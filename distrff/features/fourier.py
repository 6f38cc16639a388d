"""Random Fourier features: cosines and sines at frequencies drawn from the kernel's measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from distrff.errors import InputError
from distrff.features.base import FeatureMap
from distrff.features.frequencies import SAMPLINGS, draw_frequencies
from distrff.features.length_scale import automatic_length_scale
from distrff.features.row_question import Ask
from distrff.features.specification import BlockMap, MapSpecification
from distrff.features.trigonometry import compile_loops, cosine, paired_cos_sin
from distrff.kernels import Gaussian, Kernel, kernel_from_dict
from distrff.random_streams import stream
from distrff.scratch import scratch

FORMS = ("cos_sin", "phase", "complex")

_STRIP_BYTES = 2**20  # of phases: they stay in a core's cache between the product and the cosine


@dataclass(frozen=True)
class FourierSpecification(MapSpecification):
    """Seed, sizes and kernel, from which the frequencies follow."""

    kind: ClassVar[str] = "fourier"

    kernel_json: str = ""
    n_components: int = 0
    form: str = "cos_sin"
    sampling: str = "iid"
    seed: int = 0

    @cached_property
    def kernel(self) -> Kernel:
        return kernel_from_dict(json.loads(self.kernel_json))

    @property
    def n_features(self) -> int:
        return self.n_components

    @property
    def n_frequencies(self) -> int:
        return self.n_components // 2 if self.form == "cos_sin" else self.n_components

    @property
    def at_zero(self) -> float:
        return self.kernel.at_zero

    @property
    def array_bytes(self) -> int:
        return 8 * self.n_frequencies * (self.n_columns + 1)

    @property
    def nested(self) -> bool:
        return True

    @property
    def rescaled_when_nested(self) -> bool:
        return True

    def derive_arrays(self) -> dict[str, np.ndarray]:
        W = draw_frequencies(
            self.kernel, self.n_frequencies, self.n_columns, sampling=self.sampling, seed=self.seed
        )
        if self.form != "phase":
            return {"frequencies": W}
        phases = stream(self.seed, "phases").uniform(0.0, 2 * np.pi, self.n_frequencies)
        return {"frequencies": W, "phases": phases}

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> FourierBlockMap:
        return FourierBlockMap(arrays["frequencies"], arrays.get("phases"), self.form, self.at_zero)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "n_columns": self.n_columns,
            "digest": self.digest,
            "kernel": json.loads(self.kernel_json),
            "n_components": self.n_components,
            "form": self.form,
            "sampling": self.sampling,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FourierSpecification:
        """Return the specification that `to_dict` wrote."""
        fields = {
            name: data[name] for name in ("n_columns", "digest", "n_components", "form", "sampling", "seed")
        }
        return cls(kernel_json=canonical_json(data["kernel"]), **fields)


def canonical_json(data: Any) -> str:
    """Return JSON text that is equal for equal data."""
    return json.dumps(data, sort_keys=True, allow_nan=False)


class FourierBlockMap(BlockMap):
    """Cosines of X W, strip by strip of rows."""

    def __init__(self, W: np.ndarray, phases: np.ndarray | None, form: str, at_zero: float) -> None:
        compile_loops()
        self.form = form
        self.n_features = 2 * W.shape[1] if form == "cos_sin" else W.shape[1]
        factor = 2.0 if form == "phase" else 1.0
        self._scale = float(np.sqrt(factor * at_zero / W.shape[1]))
        self._W = {np.dtype(np.float64): np.ascontiguousarray(W)}
        self._phases = None if phases is None else {np.dtype(np.float64): phases}

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        """Return W of shape (n_columns, n_frequencies) in the dtype asked for."""
        return _cast(self._W, np.dtype(dtype))

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = self._empty(len(X), X.dtype) if out is None else out
        W = self.frequencies(X.dtype)
        rows = max(16, _STRIP_BYTES // (W.shape[1] * X.itemsize))
        theta = scratch("phases", min(rows, len(X)), W.shape[1], X.dtype)
        for start in range(0, len(X), rows):
            strip = X[start : start + rows]
            phases = theta[: len(strip)]
            np.matmul(strip, W, out=phases)
            self._write(phases, Z[start : start + rows])
        return Z

    def _write(self, theta: np.ndarray, Z: np.ndarray) -> None:
        if self._phases is not None:
            theta += _cast(self._phases, theta.dtype)
            cosine(theta, Z, self._scale)
        else:  # e^{iθ} in memory is the adjacent pair cos θ, sin θ
            paired_cos_sin(theta, Z.view(theta.dtype) if self.form == "complex" else Z, self._scale)

    def _empty(self, n_rows: int, dtype: np.dtype) -> np.ndarray:
        return np.empty(
            (n_rows, self.n_features),
            np.result_type(dtype, np.complex64) if self.form == "complex" else dtype,
        )


def _cast(by_dtype: dict[np.dtype, np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return the float64 array of the dictionary in `dtype`, cast once and kept."""
    if dtype not in by_dtype:
        by_dtype[dtype] = by_dtype[np.dtype(np.float64)].astype(dtype)
    return by_dtype[dtype]


class FourierFeatures(FeatureMap):
    r"""Random Fourier features of a shift-invariant kernel.

    With frequencies ω₁ … ω_m drawn from the kernel's spectral measure (Bochner),
    E⟨z(x), z(x')⟩ = k(x − x') (Rahimi and Recht 2007, "Random features for large-scale
    kernel machines", section 3). Three forms:

    * ``"cos_sin"``: √(k(0)/m) · (cos ω₁x, sin ω₁x, cos ω₂x, …), D = 2m real columns;
    * ``"phase"``: √(2k(0)/m) · cos(ωx + b), b uniform on [0, 2π], D = m real columns;
    * ``"complex"``: √(k(0)/m) · e^{iωx}, m complex columns, with k ≈ z(x) z(x')ᴴ; for
      `transform` only.

    Parameters
    ----------
    kernel : Kernel, optional
        None is `Gaussian(1.0)`. A width "auto" is chosen in `fit`: with targets by the
        held-out error of a small ridge over a wide grid, without by the median distance.
    n_components : int, default=1024
        Columns D of Z; even for ``"cos_sin"``.
    form : {"cos_sin", "phase", "complex"}
    sampling : {"iid", "orthogonal"}
        How the frequencies are drawn; orthogonal ones need a rotation-invariant measure
        and have less error.
    random_state : int or None
        Seed of the frequencies; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    length_scale_search_ : dict or None
        How an automatic width was found: its rule and the widths tried with their errors.
    frequencies_ : ndarray of shape (n_columns, n_frequencies)
    specification_ : FourierSpecification
    seed_, n_features_in_ : int

    Notes
    -----
    `fit` costs the draw, O(dD) (orthogonal: O(d²D)); `transform` n·d·D multiply-adds and
    n·D cosines, 2m of them in pairs.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_components: int = 1024,
        *,
        form: str = "cos_sin",
        sampling: str = "iid",
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.form = form
        self.sampling = sampling
        self.random_state = random_state

    def check_parameters(self) -> None:
        """Raise InputError for parameters that no data could make right."""
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise InputError(f"kernel must be a distrff kernel or None, got {self.kernel!r}")
        if self.kernel is not None and not self.kernel.is_shift_invariant:
            raise InputError(
                f"{self.kernel!r} is not shift-invariant, so that it has no frequencies; use NystroemFeatures"
            )
        if self.form not in FORMS:
            raise InputError(f"form must be one of {', '.join(map(repr, FORMS))}, got {self.form!r}")
        if self.sampling not in SAMPLINGS:
            raise InputError(
                f"sampling must be one of {', '.join(map(repr, SAMPLINGS))}, got {self.sampling!r}"
            )
        D = self.n_components
        if not isinstance(D, (int, np.integer)) or isinstance(D, bool) or D < 1:
            raise InputError(f"n_components must be a positive integer, got {D!r}")
        if self.form == "cos_sin" and D % 2:
            neighbours = f"{D - 1} or {D + 1}" if D > 1 else f"{D + 1}"
            raise InputError(
                f"n_components must be even for form='cos_sin' (pairs of a cosine and a sine), got {D}; "
                f"use {neighbours}"
            )

    def n_features_for(self, n_columns: int) -> int:
        return int(self.n_components)

    def _specify(
        self, X: np.ndarray, y: Any, sample_weight: Any, seed: int, ask: Ask
    ) -> FourierSpecification:
        self.check_parameters()
        kernel = Gaussian() if self.kernel is None else self.kernel
        self.length_scale_search_ = None
        if kernel.is_auto:
            kernel, self.length_scale_search_ = automatic_length_scale(
                kernel, X, y, sample_weight, n_components=int(self.n_components), seed=seed
            )
        self.kernel_ = kernel
        return FourierSpecification(
            n_columns=X.shape[1],
            kernel_json=canonical_json(kernel.to_dict()),
            n_components=int(self.n_components),
            form=self.form,
            sampling=self.sampling,
            seed=seed,
        )

    @property
    def frequencies_(self) -> np.ndarray:
        block_map = self._block_map()
        assert isinstance(block_map, FourierBlockMap)
        return block_map.frequencies()

    def output_dtype(self, dtype: np.dtype) -> np.dtype:
        real = super().output_dtype(dtype)
        return np.result_type(real, np.complex64) if self.form == "complex" else real
