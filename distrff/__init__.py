"""Kernel machines on chunked data that does not fit in one machine.

Rows stay where they are; a Dask cluster passes over them; random features z(x) with ⟨z(x), z(x')⟩ ≈ k(x, x')
turn the kernel into a primal model f(x) = ⟨w, z(x)⟩ + b.

* Rows: `open_dataset`, `convert`, or NumPy, pandas, dask and scipy sparse arrays as they are.
* Kernels: `Gaussian`, `Laplacian`, `Cauchy`, `Exponential`, `Matern`, `Polynomial`, their sums and products.
* Maps: `AutoFeatures`, which chooses among `FourierFeatures`, `NystroemFeatures` and `RandomBinningFeatures`;
  `ConcatenatedFeatures`, `TransformerFeatures`, `LinearFeatures`; how far one is from its kernel:
  `kernel_error`, `features_needed`, and the module `bounds`.
* Models: `KernelRidge`, `KernelRidgeClassifier`, `KernelSVC`, `KernelLikelihoodClassifier`, `KernelPCA`,
  scikit-learn's estimators all (`EXPECTED_FAILED_CHECKS`); stored ones: `load_model`, `write_predictions`.
* How good a model is: `evaluate`, `cross_val_predict`; how sure: `calibrate`.
* What matters to a model: `permutation_importance`, `partial_dependence`.
* The small matrix itself, to be joined and kept: `gram`, `GramStatistics`; how a model varies, from that
  alone: `gradient_outer_product`.

A fit's `plan` says what it will cost, and refuses what cannot fit; its `report_` says what it found. Work
runs on the ambient `distributed.Client`, which `connect` makes for a `with` block, or without one by dask's
configured scheduler.

The public names are loaded when first used, so that `import distrff` costs nothing and
loads neither NumPy nor Dask. Type checkers read them in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The public names, by the module that has them.
_NAMES = {
    "diagnostics.bounds": "bounds features_needed",
    "diagnostics.evaluate": "Evaluation calibrate evaluate",
    "diagnostics.dependence": "partial_dependence",
    "diagnostics.importance": "permutation_importance",
    "diagnostics.kernel_error": "kernel_error",
    "diagnostics.plots": "plot_alpha_path plot_confusion plot_decision_surface plot_importance "
    "plot_kernel_error plot_learning_curve plot_partial_dependence plot_precision_recall "
    "plot_predicted_against_actual plot_relevance plot_reliability plot_residuals plot_roc",
    "engine.cluster": "connect",
    "engine.progress": "SweepProgress",
    "estimators.base": "EXPECTED_FAILED_CHECKS",
    "estimators.gram": "KernelPCA fit_features gradient_outer_product gram",
    "estimators.held_out": "EarlyStopping cross_val_predict",
    "estimators.ridge": "KernelRidge KernelRidgeClassifier",
    "estimators.svm": "KernelLikelihoodClassifier KernelRegressor KernelSVC KernelSVR",
    "features.search.candidates": "AutoFeatures",
    "features.binning": "RandomBinningFeatures",
    "features.compose": "ConcatenatedFeatures LinearFeatures",
    "features.equispaced": "EquispacedFourierFeatures",
    "features.fourier": "FourierFeatures",
    "features.nystroem": "NystroemFeatures",
    "features.transformer": "TransformerFeatures",
    "io.convert.convert": "convert",
    "io.open": "open_dataset",
    "kernels.base": "Polynomial",
    "kernels.stationary": "Cauchy Exponential Gaussian Laplacian Matern",
    "metrics": "metrics",
    "preprocessing.folds": "ContiguousFolds HashFolds",
    "preprocessing.splits": "BlockFolds ForwardFolds GroupFolds",
    "model.persistence": "load_model",
    "model.raster": "predict_raster",
    "model.write": "write_predictions",
    "fitting.equispaced": "ToeplitzStatistics",
    "fitting.sums": "GramStatistics",
}
_MODULES = {name: f"distrff.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("distrff")
    elif name in _MODULES:
        module = import_module(_MODULES[name])
        value = getattr(module, name, module)  # `bounds` and `metrics` are the modules themselves
    else:
        raise AttributeError(f"module 'distrff' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
