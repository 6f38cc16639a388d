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
    from distrff.diagnostics.decision_surface import plot_decision_surface
    from distrff.diagnostics.kernel_error import kernel_error
    from distrff.diagnostics.plots import (
        plot_alpha_path,
        plot_kernel_error,
        plot_learning_curve,
        plot_relevance,
    )
    from distrff.estimators.gram import fit_features, gram
    from distrff.estimators.kernel_pca import KernelPCA
    from distrff.estimators.likelihood_classifier import KernelLikelihoodClassifier
    from distrff.estimators.ridge import KernelRidge
    from distrff.estimators.ridge_classifier import KernelRidgeClassifier
    from distrff.estimators.svc import KernelSVC
    from distrff.estimators.write_predictions import write_predictions
    from distrff.features.binning import RandomBinningFeatures
    from distrff.features.concatenated import ConcatenatedFeatures
    from distrff.features.fourier import FourierFeatures
    from distrff.features.linear import LinearFeatures
    from distrff.features.nystroem import NystroemFeatures
    from distrff.features.transformer import TransformerFeatures
    from distrff.ingest.convert import convert
    from distrff.ingest.open_table import open_dataset
    from distrff.kernels import Cauchy, Exponential, Gaussian, Laplacian, Matern, Polynomial
    from distrff.model_store.models import load_model
    from distrff.sweeps.gram_statistics import GramStatistics

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
    "Cauchy": "distrff.kernels",
    "ConcatenatedFeatures": "distrff.features.concatenated",
    "Exponential": "distrff.kernels",
    "FourierFeatures": "distrff.features.fourier",
    "Gaussian": "distrff.kernels",
    "GramStatistics": "distrff.sweeps.gram_statistics",
    "KernelLikelihoodClassifier": "distrff.estimators.likelihood_classifier",
    "KernelPCA": "distrff.estimators.kernel_pca",
    "KernelRidge": "distrff.estimators.ridge",
    "KernelRidgeClassifier": "distrff.estimators.ridge_classifier",
    "KernelSVC": "distrff.estimators.svc",
    "Laplacian": "distrff.kernels",
    "LinearFeatures": "distrff.features.linear",
    "Matern": "distrff.kernels",
    "NystroemFeatures": "distrff.features.nystroem",
    "Polynomial": "distrff.kernels",
    "RandomBinningFeatures": "distrff.features.binning",
    "TransformerFeatures": "distrff.features.transformer",
    "convert": "distrff.ingest.convert",
    "features_needed": "distrff.diagnostics.bounds",
    "fit_features": "distrff.estimators.gram",
    "gram": "distrff.estimators.gram",
    "kernel_error": "distrff.diagnostics.kernel_error",
    "load_model": "distrff.model_store.models",
    "metrics": "distrff",
    "open_dataset": "distrff.ingest.open_table",
    "plot_alpha_path": "distrff.diagnostics.plots",
    "plot_decision_surface": "distrff.diagnostics.decision_surface",
    "plot_kernel_error": "distrff.diagnostics.plots",
    "plot_learning_curve": "distrff.diagnostics.plots",
    "plot_relevance": "distrff.diagnostics.plots",
    "write_predictions": "distrff.estimators.write_predictions",
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
