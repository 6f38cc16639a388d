"""Feature maps, fits and comparisons that the tests of several rooms share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.optimize import minimize

import distrff as drf
from distrff.errors import InputError
from distrff.solvers.losses import MARGINS, NOISES

LOSSES = MARGINS | NOISES


def fourier(n_components: int = 64, length_scale: Any = 2.0, **options: Any) -> drf.FourierFeatures:
    """Fourier features of a Gaussian kernel, with a seed of their own unless the options say otherwise."""
    kernel = drf.Gaussian(length_scale)
    return drf.FourierFeatures(kernel, n_components, **({"random_state": 0} | options))


def ridge(alpha: Any = 1.0, **options: Any) -> drf.KernelRidge:
    """Kernel ridge regression on 64 Fourier features."""
    return drf.KernelRidge(fourier(), alpha, **({"scale": "none"} | options))


def ridge_classifier(alpha: Any = 1.0, **options: Any) -> drf.KernelRidgeClassifier:
    """A ridge classifier on 64 Fourier features."""
    return drf.KernelRidgeClassifier(fourier(), alpha, **({"scale": "none"} | options))


def small_ridge(alpha: Any = 1.0, **options: Any) -> drf.KernelRidge:
    """Kernel ridge regression on 32 Fourier features, whose seed is the estimator's."""
    features = fourier(32, random_state=None)
    return drf.KernelRidge(features, alpha, **({"random_state": 0, "scale": "none"} | options))


def margin_classifier(name: str, features: Any, C: Any = 1.0, **options: Any) -> Any:
    """The classifier of a margin loss or of a likelihood's noise."""
    options = {"random_state": 0, "scale": "none"} | options
    if name in MARGINS:
        return drf.KernelSVC(features, C, **({"loss": name} | options))
    return drf.KernelLikelihoodClassifier(features, C, **({"noise": name} | options))


def classes_of(y: np.ndarray, n_classes: int = 2) -> np.ndarray:
    """Numbers of classes of equal size that follow a target."""
    return np.searchsorted(np.quantile(y, np.linspace(0, 1, n_classes + 1)[1:-1]), y)


def in_process(estimator: Any, *data: Any) -> Any:
    """Return the estimator, fitted in this thread."""
    with dask.config.set(scheduler="synchronous"):
        return estimator.fit(*data)


def stored(fitted: Any, folder: Path, **options: Any) -> Any:
    """Return the frozen model that comes back from its file."""
    fitted.save(str(folder / "model.zarr"), overwrite=True, **options)
    return drf.load_model(str(folder / "model.zarr"))


def refusal(function: Callable[..., Any], *arguments: Any, error: type[Exception] = InputError) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(error) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def blocks_of(X: np.ndarray, function: Callable[..., Any], *arguments: Any, rows: int = 2000) -> da.Array:
    """X as a dask array whose blocks pass through `function(block, *arguments)` where they are read."""
    lazy = da.from_array(X, chunks=(rows, *X.shape[1:]))
    return lazy.map_blocks(function, *arguments, dtype=X.dtype, meta=np.empty((0,) * X.ndim, X.dtype))


def never(*args: Any, **options: Any) -> None:
    """Stand in for what runs a task, where none may run."""
    raise AssertionError("a task ran")


def interrupt_after(monkeypatch: Any, kind: type, names: tuple[str, ...], n_calls: int) -> None:
    """Raise KeyboardInterrupt in the call of one of these methods that follows so many calls."""
    calls: list[str] = []

    def interrupted(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        def counted(*args: Any) -> Any:
            calls.append(name)
            if len(calls) > n_calls:
                raise KeyboardInterrupt
            return method(*args)

        return counted

    for name in names:
        monkeypatch.setattr(kind, name, interrupted(name))


def within_patience(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returns; one that waits for ever fails its test instead of stopping all of them."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *arguments).result(600.0)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def objective_of(fitted: Any, name: str, X: np.ndarray, y: Any, s: Any, output: int = 0) -> float:
    """The objective of one output of a fitted classifier, recomputed from its own features."""
    w, b = fitted.coef_[output], fitted.intercept_[output]
    loss = LOSSES[name](*([fitted.sigma] if name in NOISES else []))
    return objective(loss, fitted.C_, w, fitted.features_.transform(X) @ w + b, y, s)


def objective(loss: Any, C: float, coef: Any, f: Any, y: Any, s: Any) -> float:
    """C·Σ s·ℓ(f, y) + ½‖w‖²."""
    return C * (s * loss.value(f, y)).sum() + 0.5 * np.vdot(coef, coef)


def smallest_objective(loss: Any, C: float, Z: np.ndarray, y: Any, s: Any, **options: Any) -> Any:
    """What a general solver finds for a smooth loss: coefficients with the intercept last, and the value."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        f = Z @ x[:-1] + x[-1]
        slopes = C * s * loss.derivative(f, y)
        return objective(loss, C, x[:-1], f, y, s), np.append(slopes @ Z + x[:-1], slopes.sum())

    return minimize(value, np.zeros(Z.shape[1] + 1), jac=True, method="BFGS", options=options)
