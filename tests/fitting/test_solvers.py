"""Every map by every solver on rows of every storage; what a solver refuses decides what must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array

import distrff as drf
from distrff.errors import InputError
from distrff.fitting.fit import candidates, solver
from distrff.fitting.problem import Problem, margin_problem, ridge_problem
from distrff.solvers.losses import MARGINS, NOISES

N, D = 240, 24
KERNEL = drf.Gaussian(1.5)
MAPS: dict[str, Callable[[], Any]] = {
    "fourier": lambda: drf.FourierFeatures(KERNEL, D, random_state=0),
    "nystroem": lambda: drf.NystroemFeatures(KERNEL, D, random_state=0),
    "linear": drf.LinearFeatures,
    "concatenated": lambda: drf.ConcatenatedFeatures([drf.LinearFeatures(), MAPS["fourier"]()]),
    "bins": lambda: drf.RandomBinningFeatures(drf.Laplacian(3.0), 12, random_state=0),
    "equispaced": lambda: drf.EquispacedFourierFeatures(KERNEL, 14**2, bounds=[(-4, 4), (-4, 4)]),
    "undecided": lambda: drf.EquispacedFourierFeatures(KERNEL, bounds=[(-4, 4), (-4, 4)]),
}
RIDGES: dict[str, dict[str, Any]] = {
    f"{name} {alpha}": {"solver": name, "alpha": alpha}
    for name in ("auto", "gram", "cg", "sgd")
    for alpha in (0.5, "cv", "gcv")
}
MARGIN_SOLVERS = ("auto", "gram", "cg", "lbfgs", "smoothed", "sgd")
SHARED = {"random_state": 0, "scale": "none", "tol": 1e-3, "max_sweeps": 500}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = np.clip(rng.standard_normal((N, 2)), -3.9, 3.9)
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)


def refusals(problem: Problem) -> list[str | None]:
    return [solver(name).refuses(problem) for name in candidates(problem)]


def fits_or_refuses(estimator: Any, problem: Problem, X: Any, y: Any) -> Any:
    """The fitted model; None where each candidate refuses, which is what the fit must say as well."""
    found = refusals(problem)
    if not all(found):
        return estimator.fit(X, y)
    with pytest.raises(InputError) as refused:
        estimator.fit(X, y)
    assert str(refused.value) == found[0]
    return None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("how", RIDGES)
@pytest.mark.parametrize("name", MAPS)
def test_ridge(rows, name, how):
    """Solvers that take the problem agree with the Gram, or with the exact system where there is none."""
    X, y = rows
    model = drf.KernelRidge(MAPS[name](), **RIDGES[how], **SHARED)
    fitted = fits_or_refuses(model, ridge_problem(model), X, y)
    if fitted is None or RIDGES[how]["alpha"] != 0.5 or name == "undecided":
        return
    Z = fitted.features_.transform(X)
    Z = np.asarray(Z.todense()) if hasattr(Z, "todense") else Z
    A, b = Z - Z.mean(axis=0), y - y.mean()
    w = A.T @ np.linalg.solve(A @ A.T + 0.5 * np.eye(N), b)
    exact = y.mean() + A @ w
    error = np.linalg.norm(fitted.predict(X) - exact) / np.linalg.norm(exact)
    assert error < (0.1 if RIDGES[how]["solver"] == "sgd" else 0.02)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("how", MARGIN_SOLVERS)
@pytest.mark.parametrize(
    ("loss", "C"), [("hinge", 1.0), ("hinge", np.inf), ("squared_hinge", "cv"), ("logistic", 1.0)]
)
@pytest.mark.parametrize("name", ["fourier", "bins", "undecided"])
def test_margins(rows, name, loss, how, C):
    """A model that is taken is certified to `tol`, and tells the classes apart better than a constant."""
    X, _ = rows
    kind, words = (drf.KernelSVC, {"loss": loss}) if loss in MARGINS else (
        drf.KernelLikelihoodClassifier, {"noise": loss}
    )  # fmt: skip
    if np.inf == C and loss != "hinge":
        pytest.skip("the hard margin is that of the hinge")
    model = kind(MAPS[name](), C, solver=how, **words, **SHARED)
    made = MARGINS[loss]() if loss in MARGINS else NOISES[loss](1.0)
    labels = X[:, 0] > 0  # which some features separate, for the hard margin
    problem = margin_problem(model, made, hard_margin=True)
    try:
        fitted = fits_or_refuses(model, problem, X, labels)
    except InputError as error:
        assert "not separable" in str(error) and np.inf == C
        return
    if fitted is not None:
        assert fitted.score(X, labels) > 0.8
        if how != "sgd" and C != "cv":
            assert fitted.report_["duality_gap"] <= 1e-3 or fitted.report_["status"] != "CONVERGED"


STORAGES: dict[str, Callable[[np.ndarray, np.ndarray, Any], tuple[Any, ...]]] = {
    "array": lambda X, y, folder: (X, y),
    "blocks": lambda X, y, folder: (da.from_array(X, chunks=(70, 2)), da.from_array(y, chunks=70)),
    "sparse": lambda X, y, folder: (csr_array(X), y),
    "zarr": lambda X, y, folder: (_zarr(X, y, folder),),
}


def _zarr(X: np.ndarray, y: np.ndarray, folder: Any) -> Any:
    group = zarr.open_group(str(folder / "rows.zarr"), mode="w")
    group.create_array("X", data=X, chunks=(70, 2))
    group.create_array("y", data=y.astype(float), chunks=(70,))
    return drf.open_dataset(str(folder / "rows.zarr"), target="y")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("how", ["gram", "cg", "sgd", "svc"])
@pytest.mark.parametrize("name", ["fourier", "linear", "bins", "equispaced"])
def test_the_same_rows_in_any_storage_give_the_same_bits(rows, tmp_path, name, how, storage):
    X, y = rows
    y = (y > 0).astype(float) if how == "svc" else y
    model = (
        drf.KernelSVC(MAPS[name](), 1.0, **SHARED)
        if how == "svc"
        else drf.KernelRidge(MAPS[name](), 0.5, solver=how, **SHARED)
    )
    data = STORAGES[storage](X, y, tmp_path)
    takes_rows = storage != "sparse" or getattr(model.features, "takes_sparse_rows", False)
    if not takes_rows or all(refusals(_problem(model))):
        with pytest.raises((InputError, TypeError), match=r"sparse|random binning|solver="):
            model.fit(*data)
        return
    expected = model.fit(X, y).coef_.copy()
    found = model.fit(*data).coef_
    if storage == "sparse":  # products of sparse rows round otherwise
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)


def _problem(model: Any) -> Problem:
    if isinstance(model, drf.KernelSVC):
        return margin_problem(model, MARGINS[model.loss](), hard_margin=True)
    return ridge_problem(model)
