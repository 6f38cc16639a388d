"""Kernel machines on chunked data that does not fit in one machine.

Rows stay where they are; a Dask cluster passes over them; random features z(x) with ⟨z(x), z(x')⟩ ≈ k(x, x')
turn the kernel into a primal machine f(x) = ⟨w, z(x)⟩ + b.

* Rows: `open_dataset`, `convert`, or NumPy, pandas, dask and scipy sparse arrays as they are.
* Kernels: `Gaussian`, `Laplacian`, `Cauchy`, `Exponential`, `Matern`, `Polynomial`, their sums and products.
* Maps: `FourierFeatures`, `NystroemFeatures`, `RandomBinningFeatures`, `ConcatenatedFeatures`,
  `TransformerFeatures`, `LinearFeatures`; how far one is from its kernel: `kernel_error`, `features_needed`.
* Machines: `KernelRidge`, `KernelRidgeClassifier`, `KernelSVC`, `KernelLikelihoodClassifier`, `KernelPCA`,
  scikit-learn's estimators all; stored ones: `load_model`, `write_predictions`.
* The small matrix itself, to be joined and kept: `gram`, `GramStatistics`.

A fit's `plan` says what it will cost, and refuses what cannot fit; its `report_` says what it found. Work
runs on the ambient `distributed.Client`, or without one by dask's configured scheduler.

The public names are loaded when first used, so that `import distrff` costs nothing and
loads neither NumPy nor Dask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distrff import metrics
    from distrff.diagnostics.bounds import features_needed
    from distrff.diagnostics.kernel_error import kernel_error
    from distrff.diagnostics.plots import (
        plot_alpha_path,
        plot_decision_surface,
        plot_kernel_error,
        plot_learning_curve,
        plot_relevance,
    )
    from distrff.estimators.gram import fit_features, gram
    from distrff.estimators.pca import KernelPCA
    from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
    from distrff.estimators.svm import KernelLikelihoodClassifier, KernelSVC
    from distrff.features.binning import RandomBinningFeatures
    from distrff.features.compose import ConcatenatedFeatures, LinearFeatures
    from distrff.features.fourier import FourierFeatures
    from distrff.features.nystroem import NystroemFeatures
    from distrff.features.transformer import TransformerFeatures
    from distrff.io.convert.convert import convert
    from distrff.io.open import open_dataset
    from distrff.kernels.polynomial import Polynomial
    from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern
    from distrff.model.persistence import load_model
    from distrff.model.write import write_predictions
    from distrff.reductions.gram import GramStatistics

    __version__: str

__all__ = [
    "Cauchy",
    "ConcatenatedFeatures",
    "Exponential",
    "FourierFeatures",
    "Gaussian",
    "GramStatistics",
    "KernelLikelihoodClassifier",
    "KernelPCA",
    "KernelRidge",
    "KernelRidgeClassifier",
    "KernelSVC",
    "Laplacian",
    "LinearFeatures",
    "Matern",
    "NystroemFeatures",
    "Polynomial",
    "RandomBinningFeatures",
    "TransformerFeatures",
    "convert",
    "features_needed",
    "fit_features",
    "gram",
    "kernel_error",
    "load_model",
    "metrics",
    "open_dataset",
    "plot_alpha_path",
    "plot_decision_surface",
    "plot_kernel_error",
    "plot_learning_curve",
    "plot_relevance",
    "write_predictions",
]

_MODULES = {
    "Cauchy": "distrff.kernels.stationary",
    "ConcatenatedFeatures": "distrff.features.compose",
    "Exponential": "distrff.kernels.stationary",
    "FourierFeatures": "distrff.features.fourier",
    "Gaussian": "distrff.kernels.stationary",
    "GramStatistics": "distrff.reductions.gram",
    "KernelLikelihoodClassifier": "distrff.estimators.svm",
    "KernelPCA": "distrff.estimators.pca",
    "KernelRidge": "distrff.estimators.ridge",
    "KernelRidgeClassifier": "distrff.estimators.ridge",
    "KernelSVC": "distrff.estimators.svm",
    "Laplacian": "distrff.kernels.stationary",
    "LinearFeatures": "distrff.features.compose",
    "Matern": "distrff.kernels.stationary",
    "NystroemFeatures": "distrff.features.nystroem",
    "Polynomial": "distrff.kernels.polynomial",
    "RandomBinningFeatures": "distrff.features.binning",
    "TransformerFeatures": "distrff.features.transformer",
    "convert": "distrff.io.convert.convert",
    "features_needed": "distrff.diagnostics.bounds",
    "fit_features": "distrff.estimators.gram",
    "gram": "distrff.estimators.gram",
    "kernel_error": "distrff.diagnostics.kernel_error",
    "load_model": "distrff.model.persistence",
    "metrics": "distrff",
    "open_dataset": "distrff.io.open",
    "plot_alpha_path": "distrff.diagnostics.plots",
    "plot_decision_surface": "distrff.diagnostics.plots",
    "plot_kernel_error": "distrff.diagnostics.plots",
    "plot_learning_curve": "distrff.diagnostics.plots",
    "plot_relevance": "distrff.diagnostics.plots",
    "write_predictions": "distrff.model.write",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("distrff")
    elif _MODULES.get(name) == "distrff":
        value = import_module(f"distrff.{name}")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'distrff' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
