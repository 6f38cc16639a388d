"""Random Fourier features: cosines and sines at frequencies drawn from the kernel's measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from scipy.sparse import issparse
from scipy.stats import qmc

from distrff.errors import DataWarning, InputError, ModelFileError, warn
from distrff.features.base import KernelFeatureMap, Sample
from distrff.features.fitted import (
    Arrays,
    FittedMap,
    KernelMap,
    MapCost,
    MapOutline,
    ProjectedMap,
    Trait,
    canonical_json,
    cost_of_parts,
    having_prefix,
    prefixed,
    product_cost,
)
from distrff.features.trigonometry import compile_loops, cosine, paired_cos_sin
from distrff.kernels.base import LEARNED, Kernel
from distrff.utils.jit import ByDtype, scratch
from distrff.utils.random import PathStreams, stream, streams_under
from distrff.utils.validation import check_count, one_of

# How the frequencies of a kernel's measure are drawn: independently, orthogonal in blocks, or evenly.

SAMPLINGS = ("iid", "orthogonal", "qmc")

_SOBOL_BITS = 52  # numbers k/2⁵² + 2⁻⁵³ are exact in float64, and none is 0 or 1


def draw_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str, seed: int
) -> np.ndarray:
    """Frequencies of the kernel's spectral measure, (n_columns, n_frequencies), float64.

    The leading m columns are the draw for `n_frequencies=m`. With "orthogonal", within each block of
    `n_columns` frequencies the directions are the rows of a Haar-distributed orthogonal matrix and the radii
    are independent draws of the measure's own radius: every single frequency has the exact distribution (Yu
    et al. 2016, "Orthogonal random features", section 3). With "qmc", scrambled Sobol points go through the
    quantiles of the measure. They fill the cube more evenly than independent points, and every single
    frequency again has the exact distribution (Avron et al. 2016, "Quasi-Monte Carlo feature maps for
    shift-invariant kernels", section 3). In both, each component of a sum has a fixed share. Raises
    InputError for "orthogonal" if the measure is not rotation invariant, and for "qmc" if it takes more
    coordinates than Sobol sequences have.
    """
    if sampling == "iid":
        # Names of streams are part of every stored model: under another name its seed gives another map.
        return kernel.frequencies(n_frequencies, n_columns, streams_under(seed, "frequencies"))
    one_of("sampling", sampling, SAMPLINGS)
    draw = _quasi_random_frequencies
    if sampling == "orthogonal":
        require_spherical(kernel, sampling)
        draw = _orthogonal_frequencies
    components = kernel.components()
    # Fixed shares in place of a draw: how many frequencies a component has then adds no variance.
    order = component_order([share for share, _ in components], n_frequencies)
    W = np.empty((n_columns, n_frequencies))
    for index, (_, component) in enumerate(components):
        # Interleaved and not side by side: any leading frequencies then have the components in their shares.
        members = np.flatnonzero(order == index)
        W[:, members] = draw(component, len(members), n_columns, streams_under(seed, sampling, index))
    return W


def component_order(shares: Sequence[float], n: int) -> np.ndarray:
    """The component of each of n frequencies, in proportion to the shares on every prefix.

    The t-th frequency goes to the component that is furthest behind, by the largest share·t − count, so the
    first frequencies do not depend on n. None of c components is ever ahead of its share by more than
    1 − 1/c: before each choice the amounts by which they are behind add to 1, so the largest is at least 1/c.
    The others together are then ahead by at most (c − 1)(1 − 1/c), which bounds how far one can be behind.
    """
    behind = np.zeros(len(shares))
    order = np.empty(n, dtype=np.intp)
    for t in range(n):
        behind += shares
        order[t] = behind.argmax()
        behind[order[t]] -= 1.0
    return order


def require_spherical(kernel: Kernel, sampling: str) -> None:
    """Raise InputError unless the kernel's measure is rotation invariant."""
    if not kernel.is_spherical:
        raise InputError(
            f"sampling={sampling!r} needs a measure that is rotation invariant after dividing by the "
            f"length scales, which {kernel!r} does not have; use sampling='iid', or a Gaussian, "
            f"Exponential or Matern kernel"
        )


def _orthogonal_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> np.ndarray:
    n_blocks = -(-n_frequencies // n_columns)
    # A stream for each block: the leading blocks do not depend on how many follow.
    directions = [_haar_orthogonal(n_columns, rng_of("directions", b)) for b in range(n_blocks)]
    if not directions:
        return np.empty((n_columns, 0))
    radii = kernel.radii(n_frequencies, n_columns, rng_of)
    W = np.concatenate(directions, axis=1)[:, :n_frequencies] * radii
    # Rotation invariance, and so orthogonality, holds in columns divided by their widths.
    return W / kernel.widths(n_columns)[:, None]


def _quasi_random_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> np.ndarray:
    n_coordinates = kernel.n_uniforms(n_columns)
    if n_coordinates > qmc.Sobol.MAXDIM:
        raise InputError(
            f"sampling='qmc' takes {n_coordinates} coordinates for {n_columns} columns, but Sobol sequences "
            f"have at most {qmc.Sobol.MAXDIM}; use sampling='orthogonal', 'sorf' or 'iid'"
        )
    sobol = qmc.Sobol(n_coordinates, scramble=True, bits=_SOBOL_BITS, seed=rng_of("scramble"))
    # Sobol points are balanced at powers of two only; leading points do not depend on how many are drawn.
    U = sobol.random_base2((max(n_frequencies, 1) - 1).bit_length())[:n_frequencies]
    return kernel.quantile_frequencies(U + 0.5 ** (_SOBOL_BITS + 1), n_columns)


def _haar_orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """A Haar-distributed orthogonal matrix (Mezzadri 2007: QR with R's diagonal made positive)."""
    Q, R = np.linalg.qr(rng.standard_normal((size, size)))
    return Q * np.sign(np.diag(R))


# How the phases X W are computed: by a matrix product, or by a structured one.


class Projection(Protocol):
    """The map from rows to phases; W of shape (n_columns, n_frequencies) need not exist as a matrix."""

    n_frequencies: int

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        """W of shape (n_columns, n_frequencies) in this dtype."""

    def project(self, X: Any, theta: np.ndarray) -> None:
        """Write X W into `theta`, which has contiguous rows; X is a matrix of its dtype, perhaps CSR."""

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        """A bound of each frequency's |ωᵀx| over all x with |x_j| ≤ magnitude_j."""


class DenseProduct:
    """The matrix product with W itself."""

    def __init__(self, W: np.ndarray) -> None:
        self.n_frequencies = W.shape[1]
        self._W = ByDtype(W)

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        return self._W[dtype]

    def project(self, X: Any, theta: np.ndarray, first: int = 0) -> None:
        """Write the phases of the frequencies from `first` on that `theta` has columns for."""
        W = self._W[X.dtype][:, first : first + theta.shape[1]]
        if issparse(X):
            # SciPy's sparse product cannot write to a given array.
            theta[...] = X @ W
        else:
            np.matmul(X, W, out=theta)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        # |ωᵀx| ≤ Σ|ω_j|·|x_j|, which x_j = ±magnitude_j attain.
        return magnitude @ np.abs(self.frequencies())


FORMS = ("cos_sin", "phase", "complex")

_STRIP_BYTES = 2**20  # of phases: they stay in a core's cache between the product and the cosine
# Frequencies of one product in float32: with 50 columns BLAS then reaches 94 GF/s, and 73 with 1024 at once.
# Features take a tenth less time, a fifth with 10 columns. In float64 they take as long, and longer with 784.
_STRIP_COLUMNS = 512
_STRIP_ROWS = 16  # strips are multiples of them: structured products take tiles of so many rows

STRUCTURED_SAMPLINGS = ("sorf", "fastfood", "countsketch")
SPARSE_SAMPLINGS = (*SAMPLINGS, "countsketch")
"""The samplings that compute phases from CSR rows without making them dense."""
SAMPLING_CHOICES = (*SAMPLINGS, *STRUCTURED_SAMPLINGS, "auto")

# Measured on one thread in float32 with 64 to 4096 frequencies, the dense product took 0.5 to 0.7 times as
# long as SORF's phases at 16 columns, 1.4 to 1.7 times at 33, 0.9 to 2.4 at 65, 1.3 to 10 at 128 and 129, and
# more beyond. Below 128 columns the product is a small part of the features' cost, and SORF has a bias.
MIN_STRUCTURED_COLUMNS = 128


def resolved_sampling(sampling: str, kernel: Kernel, n_frequencies: int, n_columns: int) -> str:
    """The sampling that "auto" chooses; any other is returned unchanged.

    "sorf" from 128 columns on if there are at least half as many frequencies as columns after padding,
    else "orthogonal"; "iid" where the measure is not rotation invariant.
    """
    if sampling != "auto":
        return sampling
    if not kernel.is_spherical:
        return "iid"
    padded_size = 1 << (n_columns - 1).bit_length()  # of the transform
    wide = n_columns >= MIN_STRUCTURED_COLUMNS and 2 * n_frequencies >= padded_size
    return "sorf" if wide else "orthogonal"


class _Phases(NamedTuple):
    """Frequencies and offsets, from which a ready map makes phases."""

    projection: Projection
    offsets: ByDtype | None  # b of the form "phase"


@dataclass(frozen=True)
class FourierMap(KernelMap):
    """Cosines of the phases X W; seed, sizes and kernel, from which W follows; `sampling` is never "auto"."""

    kind: ClassVar[str] = "fourier"

    n_components: int = 0
    form: str = "cos_sin"
    sampling: str = "iid"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS or self.sampling not in (*SAMPLINGS, *STRUCTURED_SAMPLINGS):
            raise ModelFileError(f"a stored map has the form {self.form!r} and sampling {self.sampling!r}")

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.NESTED, Trait.RESCALED})

    @property
    def n_features(self) -> int:
        return self.n_components

    @property
    def n_frequencies(self) -> int:
        return _frequencies(self.n_components, self.form)

    @property
    def cost(self) -> MapCost:
        """The cost of the projection; the phases b of the form "phase" are too few to count."""
        if self.sampling in SAMPLINGS:
            dense = product_cost(self.n_columns)
            cost = replace(dense, feature_numbers=2 * dense.feature_numbers)  # as drawn and as used
        else:
            # Loaded when first needed: most fits have dense draws, and never read that file.
            from distrff.features.structured import structured_cost

            counts = [m for _, _, m in self._components()[0] if m]
            cost = cost_of_parts((structured_cost(self.sampling, m, self.n_columns), m) for m in counts)
        # Costs of a projection are for each frequency, which makes one feature, or a pair.
        share = self.n_frequencies / self.n_components
        return replace(
            cost,
            product_flops=share * cost.product_flops,
            feature_flops=share * cost.feature_flops,
            feature_numbers=share * cost.feature_numbers,
        )

    @property
    def takes_sparse_rows(self) -> bool:
        return self.sampling in SPARSE_SAMPLINGS

    def derive(self) -> dict[str, np.ndarray]:
        kernel, m, n_columns, sampling = self.kernel, self.n_frequencies, self.n_columns, self.sampling
        arrays = {}
        if sampling in SAMPLINGS:
            arrays["frequencies"] = draw_frequencies(kernel, m, n_columns, sampling=sampling, seed=self.seed)
        else:
            from distrff.features.structured import DRAWS

            require_spherical(kernel, sampling)
            for index, (prefix, component, n) in enumerate(self._components()[0]):
                component.widths(n_columns)  # refuses columns that they do not fit
                drawn = DRAWS[sampling](component, n, n_columns, streams_under(self.seed, sampling, index))
                arrays |= prefixed(prefix, drawn)
        if self.form == "phase":
            arrays["phases"] = stream(self.seed, "phases").uniform(0.0, 2 * np.pi, m)
        return arrays

    def _components(self) -> tuple[list[tuple[str, Kernel, int]], np.ndarray]:
        """Prefix of its arrays' names, component and number of frequencies, for each component of the kernel;
        and the index of each frequency's component."""
        components = self.kernel.components()
        order = component_order([share for share, _ in components], self.n_frequencies)
        counts = np.bincount(order, minlength=len(components)).tolist()
        # Stored models of one component have names without a prefix.
        prefixes = [""] if len(components) == 1 else [f"{i}_" for i in range(len(components))]
        kernels = [component for _, component in components]
        return list(zip(prefixes, kernels, counts, strict=True)), order

    def prepare(self, arrays: Arrays) -> _Phases:
        compile_loops()
        projection = self._projection(arrays)
        if projection.n_frequencies * (2 if self.form == "cos_sin" else 1) != self.n_components:
            raise InputError("the frequencies of a Fourier map do not fit its size; fit the model again")
        offsets = arrays.get("phases")
        return _Phases(projection, None if offsets is None else ByDtype(offsets))

    def _projection(self, arrays: Arrays) -> Projection:
        if self.sampling in SAMPLINGS:
            return DenseProduct(arrays["frequencies"])
        from distrff.features.structured import PROJECTIONS, Interleaved

        components, order = self._components()
        parts: list[Projection] = [
            PROJECTIONS[self.sampling](having_prefix(prefix, arrays), component.widths(self.n_columns))
            for prefix, component, _ in components
        ]
        return parts[0] if len(parts) == 1 else Interleaved(parts, order)

    @property
    def frequencies(self) -> np.ndarray:
        """W of a ready map, of shape (n_columns, n_frequencies), float64."""
        projection: Projection = self.prepared.projection
        return projection.frequencies()

    def n_phases_beyond(self, limit: float, magnitude: np.ndarray) -> int:
        projection: Projection = self.prepared.projection
        return int((projection.largest_phases(magnitude) > limit).sum())

    def apply(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        # Strip by strip of rows; a dense product also by strips of frequencies.
        projection: Projection = self.prepared.projection
        n, m = X.shape[0], self.n_frequencies
        dtype = np.result_type(X.dtype, np.complex64) if self.form == "complex" else X.dtype
        Z = np.empty((n, self.n_features), dtype) if out is None else out
        # Structured products make all frequencies of a strip at once.
        product = projection if isinstance(projection, DenseProduct) else None
        columns = min(m, _STRIP_COLUMNS) if product and X.dtype == np.float32 and not issparse(X) else m
        rows = max(_STRIP_ROWS, _STRIP_BYTES // (columns * X.dtype.itemsize) // _STRIP_ROWS * _STRIP_ROWS)
        for start in range(0, n, rows):
            strip = X[start : start + rows]
            for first in range(0, m, columns):
                # One buffer a thread: fresh memory for each strip would be paged in again and again.
                theta = scratch("phases", strip.shape[0], min(columns, m - first), X.dtype)
                if product:
                    product.project(strip, theta, first)
                else:
                    projection.project(strip, theta)
                self._write(theta, Z[start : start + rows], first)
        return Z

    def _write(self, theta: np.ndarray, Z: np.ndarray, first: int) -> None:
        """Write the features of the frequencies from `first` on to their columns of Z."""
        width = self.n_features // self.n_frequencies  # columns a frequency
        Z = Z[:, width * first : width * (first + theta.shape[1])]
        # E cos²(ωx + b) is a half over b, where a cosine and a sine have cos² + sin² = 1: hence the 2.
        scale = float(np.sqrt((2.0 if self.form == "phase" else 1.0) * self.at_zero / self.n_frequencies))
        offsets: ByDtype | None = self.prepared.offsets
        if offsets is not None:
            # In place: phases are scratch, and nobody reads them again.
            theta += offsets[theta.dtype][first : first + theta.shape[1]]
            cosine(theta, Z, scale)
        else:  # e^{iθ} in memory is the adjacent pair cos θ, sin θ
            paired_cos_sin(theta, Z.view(theta.dtype) if self.form == "complex" else Z, scale)


def _frequencies(n_components: int, form: str) -> int:
    return n_components // 2 if form == "cos_sin" else n_components


def _frequencies_of(ready: Any) -> np.ndarray:
    if isinstance(ready, ProjectedMap):
        P, inner = ready.prepared
        # ωᵀ(Px) = (Pᵀω)ᵀx.
        return np.asarray(P.T @ _frequencies_of(inner))
    return np.asarray(ready.frequencies)


def cosine_frequencies(fitted: FittedMap) -> np.ndarray:
    """The frequencies of a map of pairs of cosines and sines, (n_columns, n_frequencies).

    Raises InputError for any other map.
    """
    inner = getattr(fitted, "inner", fitted)
    if not isinstance(inner, FourierMap) or inner.form != "cos_sin":
        raise InputError(
            "gradients follow from the Gram of cosines and sines alone, and this map is "
            f"{inner.kind}; use FourierFeatures with form='cos_sin'"
        )
    return _frequencies_of(fitted.build())


class FourierFeatures(KernelFeatureMap):
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
        None is `Gaussian("auto")`. A width "auto" is chosen in `fit`: with targets by the
        held-out error of a small ridge over a wide grid, without by the median distance.
        Widths "ard", one for each column, maximise a marginal likelihood and need targets, as does a metric
        "learned".
    n_components : int, default=1024
        Columns D of Z. ``"cos_sin"`` has an even number: an odd one gives a warning and one column less,
        or 2 in place of 1.
    form : {"cos_sin", "phase", "complex"}
    sampling : {"iid", "orthogonal", "qmc", "sorf", "fastfood", "countsketch", "auto"}
        How the frequencies are drawn. All but ``"iid"`` and ``"qmc"`` need a rotation invariant measure
        (Gaussian, Exponential, Matern).

        * ``"iid"``: independently.
        * ``"orthogonal"``: orthogonal in blocks of n_columns; smaller error.
        * ``"qmc"``: scrambled Sobol points; smaller error in few dimensions.
        * ``"sorf"``: products of signs and Hadamard matrices, nearly orthogonal; O(D log d) a row,
          from 16 columns on. A small bias, which falls with the number of columns.
        * ``"fastfood"``: Hadamard products around a permutation; O(D log d) a row for any number of
          columns, and a larger error than ``"iid"``.
        * ``"countsketch"``: for very wide sparse rows: the columns are first hashed into 2048 buckets,
          O(nonzeros + 2048·D) a row. `distrff.features.structured.gaussian_sketch_error` bounds its bias.
        * ``"auto"``: ``"sorf"`` where it is faster than ``"orthogonal"``, by a rule in the numbers of
          columns and frequencies (`distrff.features.fourier`); ``"iid"`` for other measures.
    random_state : int or None
        Seed of the frequencies; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number, and the metric a matrix or None.
    length_scale_search_ : dict or None
        How undecided widths, or the metric, were found: the rule, and its numbers.
    sampling_ : str
        How they were drawn, which differs from `sampling` for ``"auto"``.
    frequencies_ : ndarray of shape (n_columns, n_frequencies)
        W itself; for a structured draw or a metric it is computed at each access.
    specification_ : FourierMap or ProjectedMap
    seed_, n_features_in_ : int

    Notes
    -----
    Rows may be scipy sparse matrices for ``"iid"``, ``"orthogonal"``, ``"qmc"`` and ``"countsketch"`` and all
    widths but "ard"; they stay sparse, and n·d is then the number of their entries. With a metric P of r
    rows, all samplings take them; with one that is to be learned, none does.
    `fit` costs the draw, O(dD) (orthogonal: O(d²D); sorf and fastfood: O(D)). `transform` costs n·d
    multiply-adds for each frequency, or the cost of the structured draw above, and n·D cosines and sines.
    With a metric of r rows, rows are first projected by n·d·r multiply-adds, and d is r from there on.
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
        super().check_parameters()
        if not self.chosen_kernel.is_shift_invariant:
            raise InputError(
                f"{self.kernel!r} is not shift-invariant and has no frequencies; use NystroemFeatures"
            )
        one_of("form", self.form, FORMS)
        one_of("sampling", self.sampling, SAMPLING_CHOICES)
        check_count("n_components", self.n_components)

    @property
    def _whole_components(self) -> int:
        """Columns of Z, of whole pairs of a cosine and a sine."""
        D = int(self.n_components)
        return max(2, D - D % 2) if self.form == "cos_sin" else D

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        self.set_params(n_components=self._whole_components)  # a trial warns of nothing
        return super()._prepare_trial(n_columns, most_components)

    def _small_ridge(self, rows: Any, kernel: Kernel) -> Any:
        from distrff.features.structured import SKETCH_COLUMNS, sketched_rows

        # Frequencies of a million columns would take gigabytes.
        is_sketch = self.sampling == "countsketch" and rows.X.shape[1] > SKETCH_COLUMNS
        rows = replace(rows, X=sketched_rows(rows.X, rows.seed)) if is_sketch else rows
        return super()._small_ridge(rows, kernel)

    def _outline(self, kernel: Kernel, n_columns: int, n_rows: int) -> MapOutline:
        unseeded = self._unseeded(kernel, n_columns)
        return MapOutline(unseeded.n_features, unseeded.cost)

    def _frozen(self, kernel: Kernel, sample: Sample) -> FourierMap:
        unseeded = self._unseeded(kernel, sample.X.shape[1])
        if unseeded.n_features != self.n_components:
            warn(
                f"n_components={self.n_components} is odd, but form='cos_sin' has pairs of a cosine and a "
                f"sine; the map has {unseeded.n_features} features",
                DataWarning,
            )
        self.sampling_ = unseeded.sampling
        return replace(unseeded, seed=sample.seed)

    def _unseeded(self, kernel: Kernel, n_columns: int) -> FourierMap:
        D = self._whole_components
        return FourierMap(
            n_columns=n_columns,
            kernel_json=canonical_json(kernel.to_dict()),
            n_components=D,
            form=self.form,
            sampling=resolved_sampling(self.sampling, kernel, _frequencies(D, self.form), n_columns),
        )

    @property
    def takes_sparse_rows(self) -> bool:
        kernel = self.kernel
        # Widths by "ard" and a metric are learned from few rows, which are dense.
        needs_dense = isinstance(kernel, Kernel) and (kernel.is_ard or kernel.metric == LEARNED)
        return super().takes_sparse_rows or (self.sampling in SPARSE_SAMPLINGS and not needs_dense)

    @property
    def frequencies_(self) -> np.ndarray:
        return _frequencies_of(self._ready())

    def output_dtype(self, dtype: np.dtype) -> np.dtype:
        real = super().output_dtype(dtype)
        return np.result_type(real, np.complex64) if self.form == "complex" else real
