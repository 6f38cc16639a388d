"""Those who fit the same rows, each in an environment of its own: `python contestants.py NAME ROWS`.

ROWS is an `.npz` with X, y, X_test, y_test and `task`, "numbers" or "classes" (0, 1, …). Two JSON lines are
printed: one when all is imported, started and compiled, and one with the seconds of fit and prediction after
it, or of the fit alone where the contestant returns a model, and the test error, which is the share of wrong
classes, or the root mean square over the deviation of the test targets. A model with probabilities of classes
has its log loss beside. Every contestant scales the columns itself, and chooses what its library chooses.

This file is run where only NumPy and the contestant's own library may be installed.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

WARM_ROWS, WARM_COMPONENTS, WARM_TREES = 300, 64, 10
TUNED_ROWS = 10_000  # by which xGPR chooses: its exact search takes a pass and a decomposition a step
MEMORY_GB = 4
PATIENCE = 50  # trees of which none fits the held-out rows better end the fit
LEAST_PROBABILITY = 1e-7  # what float32 tells from 0 beside 1; log losses of less would be of rounding


@dataclass(frozen=True)
class Rows:
    """Rows to be fitted and rows to be predicted."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    task: str
    n_components: int = 2048  # where random features are made by hand
    n_trees: int = 3000  # at most, of those that stop early

    @property
    def is_classes(self) -> bool:
        """Whether targets are classes."""
        return self.task == "classes"

    def standardised(self) -> tuple[np.ndarray, np.ndarray]:
        """Return X and X_test by the means and deviations of X."""
        mean, deviation = self.X.mean(axis=0), self.X.std(axis=0)
        deviation[deviation == 0] = 1
        return (self.X - mean) / deviation, (self.X_test - mean) / deviation

    def coded(self) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return targets of shape (n, k) around 0, and what makes predictions of such values."""
        if self.is_classes:
            labels = np.unique(self.y)
            Y = np.where(self.y[:, None] == labels, 1.0, -1.0)
            return Y, lambda F: labels[np.argmax(F, axis=1)]
        mean, deviation = self.y.mean(), self.y.std() or 1.0
        return ((self.y - mean) / deviation)[:, None], lambda F: np.ravel(F) * deviation + mean

    def error(self, found: np.ndarray) -> float:
        """Return the test error of predictions."""
        if self.is_classes:
            return float(np.mean(found != self.y_test))
        return float(np.sqrt(np.mean(np.square(found - self.y_test))) / np.std(self.y_test))

    def log_loss(self, P: np.ndarray, classes: np.ndarray) -> float:
        """Return the mean of −log p over the test rows; a class that was not fitted has p = 0."""
        P = np.maximum(P.astype(np.float64), LEAST_PROBABILITY)
        P /= P.sum(axis=1, keepdims=True)
        p = np.sum(P, axis=1, where=self.y_test[:, None] == classes)
        return float(-np.mean(np.log(np.maximum(p, LEAST_PROBABILITY))))

    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows to fit, and the random fifth by which to stop."""
        order = np.random.default_rng(0).permutation(len(self.X))
        held, fitted = np.split(order, [len(order) // 5])
        return fitted, held


def median_distance(X: np.ndarray) -> float:
    """Return the median distance of pairs of rows, the usual width of a Gaussian kernel."""
    some = np.random.default_rng(0).permutation(len(X))[:2000]
    half = len(some) // 2
    return float(np.median(np.linalg.norm(X[some[:half]] - X[some[half : 2 * half]], axis=1))) or 1.0


def distrff_model(rows: Rows) -> Any:
    """Fit our default."""
    import distrff as drf

    kind = drf.KernelRidgeClassifier if rows.is_classes else drf.KernelRidge
    return kind(random_state=0).fit(rows.X, rows.y)


def distrff(rows: Rows) -> np.ndarray:
    """Fit our default, and predict."""
    return np.asarray(distrff_model(rows).predict(rows.X_test))


def sklearn_exact(rows: Rows) -> np.ndarray:
    """Fit scikit-learn's exact support vector machine, as it comes."""
    from sklearn.svm import SVC, SVR

    X, X_test = rows.standardised()
    if rows.is_classes:
        return SVC().fit(X, rows.y).predict(X_test)
    Y, decoded = rows.coded()
    return decoded(SVR().fit(X, Y[:, 0]).predict(X_test))


def sklearn_features(rows: Rows) -> np.ndarray:
    """Fit scikit-learn's ridge of every penalty on its Nyström features of the median width."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline

    X, X_test = rows.standardised()
    gamma = 0.5 / median_distance(X) ** 2
    features = Nystroem(gamma=gamma, n_components=min(1024, len(X)), random_state=0)
    Y, decoded = rows.coded()
    return decoded(make_pipeline(features, RidgeCV(np.logspace(-6, 3, 10))).fit(X, Y).predict(X_test))


def sklearn_trees(rows: Rows) -> np.ndarray:
    """Fit scikit-learn's boosted trees, as they come."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if rows.is_classes else HistGradientBoostingRegressor
    return kind(random_state=0).fit(rows.X, rows.y).predict(rows.X_test)


def dask_array(rows: Rows) -> np.ndarray:
    """Fit ridge on random features as one would write it with dask.array."""
    import dask.array as da

    X, X_test = rows.standardised()
    Y, decoded = rows.coded()
    rng, n, D = np.random.default_rng(0), len(X), rows.n_components
    W = (rng.standard_normal((X.shape[1], D)) / median_distance(X)).astype(np.float32)
    b = rng.uniform(0, 2 * np.pi, D).astype(np.float32)

    def features(block: np.ndarray) -> np.ndarray:
        return np.sqrt(np.float32(2 / D)) * np.cos(block.astype(np.float32) @ W + b)

    chunks = _chunk_rows(n)
    lazy = da.from_array(X, chunks=(chunks, -1))
    Z = lazy.map_blocks(features, dtype=np.float32, chunks=(lazy.chunks[0], (D,)))
    T = da.from_array(Y, chunks=(chunks, -1))
    G, B, z = da.compute(Z.T @ Z, Z.T @ T, Z.sum(axis=0))
    G = G - np.outer(z, z) / n + 1e-6 * n * np.eye(D)
    coef = np.linalg.solve(G, B - np.outer(z, Y.mean(axis=0)))
    intercept = Y.mean(axis=0) - z @ coef / n
    return decoded(np.concatenate([features(part) @ coef for part in _parts(X_test)]) + intercept)


def dask_ml(rows: Rows) -> np.ndarray:
    """Fit dask-ml's linear models on our Fourier features; of several classes each against the rest."""
    import dask.array as da
    from dask_ml.linear_model import LinearRegression, LogisticRegression

    import distrff as drf

    X, X_test = (part.astype(np.float32) for part in rows.standardised())
    kernel = drf.Gaussian(median_distance(X))
    features = drf.FourierFeatures(kernel, rows.n_components, random_state=0).fit(X)
    Z = features.transform(da.from_array(X, chunks=(_chunk_rows(len(X)), -1))).persist()
    Y, decoded = rows.coded()

    def of_column(y: np.ndarray) -> np.ndarray:
        lazy = da.from_array(y, chunks=(Z.chunks[0],))
        kind = LogisticRegression if rows.is_classes else LinearRegression
        model = kind(solver="lbfgs").fit(Z, lazy)
        coef, intercept = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
        return np.concatenate([features.transform(part) @ coef + intercept for part in _parts(X_test)])

    targets = (Y > 0).astype(np.float64) if rows.is_classes else Y
    columns = targets.T if Y.shape[1] != 2 else targets.T[1:]
    found = [of_column(y) for y in columns]
    if rows.is_classes and len(found) == 1:
        found = [-found[0], *found]
    return decoded(np.stack(found, axis=1))


def xgboost_on_dask(rows: Rows) -> np.ndarray:
    """Fit XGBoost's Dask estimators, as they come."""
    import dask.array as da
    from xgboost.dask import DaskXGBClassifier, DaskXGBRegressor

    n = _chunk_rows(len(rows.X))
    kind = DaskXGBClassifier if rows.is_classes else DaskXGBRegressor
    model = kind(tree_method="hist", random_state=0)
    model.fit(da.from_array(rows.X, chunks=(n, -1)), da.from_array(rows.y, chunks=n))
    return np.asarray(model.predict(da.from_array(rows.X_test, chunks=(_chunk_rows(len(rows.X_test)), -1))))


def xgpr(rows: Rows) -> np.ndarray:
    """Fit xGPR with its own search; its classifier has none, and takes the median width."""
    import xGPR

    X, X_test = rows.standardised()
    settings = {"num_rffs": rows.n_components, "kernel_choice": "RBF", "device": "cpu", "verbose": False}
    if rows.is_classes:
        data = xGPR.build_classification_dataset(X, rows.y.astype(np.int64), chunk_size=2000)
        model = xGPR.xGPDiscriminant(**settings)
        model.set_hyperparams(np.array([-3.0, -np.log(median_distance(X))]), data)
        model.fit(data, mode="exact")
        return np.argmax(model.predict(X_test), axis=1)
    y = rows.y.astype(np.float64)
    some = np.random.default_rng(0).permutation(len(X))[:TUNED_ROWS]
    model = xGPR.xGPRegression(**settings, variance_rffs=16)
    # Its own `subsample` fails on rows of fixed length: `TypeError: 'NoneType' object is not subscriptable`.
    model.tune_hyperparams_crude(xGPR.build_regression_dataset(X[some], y[some], chunk_size=2000))
    model.fit(xGPR.build_regression_dataset(X, y, chunk_size=2000), mode="exact")
    return model.predict(X_test, get_var=False)


def falkon(rows: Rows) -> np.ndarray:
    """Fit Falkon on the CPU, with the median width and the small penalty that its examples take."""
    import torch
    from falkon import Falkon, FalkonOptions
    from falkon.kernels import GaussianKernel

    X, X_test = (torch.as_tensor(part.astype(np.float32)) for part in rows.standardised())
    Y, decoded = rows.coded()
    model = Falkon(
        kernel=GaussianKernel(sigma=median_distance(X.numpy())),
        penalty=1e-6,
        M=min(rows.n_components, len(X) // 2),
        options=FalkonOptions(use_cpu=True),
    )
    model.fit(X, torch.as_tensor(Y.astype(np.float32)))
    return decoded(model.predict(X_test).numpy())


def eigenpro(rows: Rows) -> np.ndarray:
    """Fit EigenPro on the CPU for ten epochs, with the median width."""
    import torch
    from eigenpro2.kernels import gaussian
    from eigenpro2.models import KernelModel

    X, X_test = (torch.as_tensor(part.astype(np.float32)) for part in rows.standardised())
    Y, decoded = rows.coded()
    width = median_distance(X.numpy())
    model = KernelModel(
        lambda a, b: gaussian(a, b, bandwidth=width), X, Y.shape[1], device=torch.device("cpu")
    )
    targets = torch.as_tensor(Y.astype(np.float32))
    model.fit(X, targets, X[:100], targets[:100], epochs=10, print_every=10, mem_gb=MEMORY_GB)
    return decoded(np.concatenate([model.forward(part).numpy() for part in _parts(X_test)]))


# Those who fit tables. Each returns its model, so that the fit alone is timed.


def distrff_likelihood(rows: Rows) -> Any:
    """Fit our default of the models that have probabilities."""
    import distrff as drf

    return drf.KernelLikelihoodClassifier(random_state=0).fit(rows.X, rows.y)


def catboost(rows: Rows) -> Any:
    """Fit CatBoost, its rate of learning by its own rule."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    fitted, held = rows.held_out()
    model = (CatBoostClassifier if rows.is_classes else CatBoostRegressor)(
        iterations=rows.n_trees,
        early_stopping_rounds=PATIENCE,
        thread_count=cores(),
        random_seed=0,
        verbose=False,
        allow_writing_files=False,
    )
    return model.fit(rows.X[fitted], rows.y[fitted], eval_set=(rows.X[held], rows.y[held]))


def lightgbm(rows: Rows) -> Any:
    """Fit LightGBM, else as it comes."""
    from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping

    fitted, held = rows.held_out()
    kind = LGBMClassifier if rows.is_classes else LGBMRegressor
    model = kind(n_estimators=rows.n_trees, n_jobs=cores(), random_state=0, verbose=-1)
    stopping = [early_stopping(PATIENCE, verbose=False)]
    eval_set = [(rows.X[held], rows.y[held])]
    return model.fit(rows.X[fitted], rows.y[fitted], eval_set=eval_set, callbacks=stopping)


def xgboost(rows: Rows) -> Any:
    """Fit XGBoost, else as it comes."""
    from xgboost import XGBClassifier, XGBRegressor

    fitted, held = rows.held_out()
    kind = XGBClassifier if rows.is_classes else XGBRegressor
    model = kind(n_estimators=rows.n_trees, early_stopping_rounds=PATIENCE, n_jobs=cores(), random_state=0)
    eval_set = [(rows.X[held], rows.y[held])]
    return model.fit(rows.X[fitted], rows.y[fitted], eval_set=eval_set, verbose=False)


class XRFM:
    """xRFM as it comes, a recursive feature machine, on standardised columns and targets.

    It chooses its step by the held-out rows. It takes integers as classes, and floats as numbers.
    """

    def __init__(self, rows: Rows) -> None:
        from xrfm import xRFM

        self._mean, self._deviation = rows.X.mean(axis=0), rows.X.std(axis=0)
        self._deviation[self._deviation == 0] = 1
        fitted, held = rows.held_out()
        Y, self._decoded = rows.coded()
        y = rows.y.astype(np.int64) if rows.is_classes else Y.astype(np.float32)
        self._model = xRFM(device="cpu", n_threads=cores(), random_state=0, verbose=False)
        X = self._scaled(rows.X)
        self._model.fit(X[fitted], y[fitted], X[held], y[held])

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return classes or numbers."""
        found = self._model.predict(self._scaled(X))
        return found if self._model.n_classes_ else self._decoded(found)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities of the classes 0, 1, …"""
        return self._model.predict_proba(self._scaled(X))

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return ((X - self._mean) / self._deviation).astype(np.float32)


# Those who make maps: rows are places of the plane and what is measured there.

MOST_EXACT_ROWS, MOST_TUNED_ROWS = 5000, 1500
CLOSEST = 64  # rows of the moving window


def distrff_on_map(rows: Rows) -> np.ndarray:
    """Fit our default for maps, within the bounds of the map."""
    import distrff as drf

    places = np.concatenate([rows.X, rows.X_test])
    bounds = list(zip(places.min(axis=0), places.max(axis=0), strict=True))
    features = drf.EquispacedFourierFeatures(bounds=bounds)
    model = drf.KernelRidge(features, random_state=0).fit(rows.X, rows.y)
    return np.asarray(model.predict(rows.X_test))


def sklearn_process(rows: Rows) -> np.ndarray:
    """Fit scikit-learn's exact Gaussian process to as many rows as it can take, its kernel by fewer."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    Y, decoded = rows.coded()
    some = _some(rows, MOST_EXACT_ROWS)
    few = some[:MOST_TUNED_ROWS]
    kernel = ConstantKernel() * Matern((1.0, 1.0), nu=0.5) + WhiteKernel()
    kernel = GaussianProcessRegressor(kernel, random_state=0).fit(rows.X[few], Y[few, 0]).kernel_
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(rows.X[some], Y[some, 0])
    return decoded(np.concatenate([model.predict(part) for part in _parts(rows.X_test)]))


def pykrige_window(rows: Rows) -> np.ndarray:
    """Krige in a moving window, the variogram by fewer rows: by all it takes their pairs to memory."""
    from pykrige.ok import OrdinaryKriging

    some = _some(rows, MOST_EXACT_ROWS)
    model = OrdinaryKriging(*rows.X[some].T, rows.y[some], variogram_model="exponential", exact_values=False)
    model.X_ADJUSTED, model.Y_ADJUSTED = np.ascontiguousarray(rows.X.T)
    model.Z = rows.y
    closest = min(CLOSEST, len(rows.X))
    found, _ = model.execute("points", *rows.X_test.T, backend="C", n_closest_points=closest)
    return np.asarray(found)


def gpytorch_process(rows: Rows) -> np.ndarray:
    """Fit GPyTorch's exact Gaussian process to all rows, by fifty steps of Adam as in its examples."""
    import gpytorch
    import torch

    _limit_memory()
    Y, decoded = rows.coded()
    X, X_test, y = (torch.as_tensor(A) for A in (rows.X, rows.X_test, Y[:, 0].copy()))

    class Process(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            kernel = gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=2)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(likelihood).double()
    likelihood.double()
    steps = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(50):
        steps.zero_grad()
        loss = -marginal(model(X), y)
        loss.backward()
        steps.step()
    model.eval()
    with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
        return decoded(np.concatenate([model(part).mean.numpy() for part in _parts(X_test)]))


def _some(rows: Rows, most: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(rows.X))[:most]


def _limit_memory() -> None:
    """Let what takes more than half of the memory fail, and not the machine."""
    import resource

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (total // 2, total // 2))


@dataclass(frozen=True)
class Contestant:
    """How a library fits rows and predicts others."""

    title: str
    solve: Callable[[Rows], Any]  # predictions, or a model that makes them
    environment: str  # the one that it is run in; "here" is that of the tests
    on_workers: bool = False
    only_classes: bool = False


CONTESTANTS = {
    "distrff": Contestant("distrff, default", distrff, "here"),
    "sklearn_exact": Contestant("scikit-learn, exact SVM", sklearn_exact, "here"),
    "sklearn_features": Contestant("scikit-learn, Nyström 1024 + RidgeCV", sklearn_features, "here"),
    "sklearn_trees": Contestant("scikit-learn, boosted trees", sklearn_trees, "here"),
    "dask_array": Contestant("dask.array by hand", dask_array, "here", on_workers=True),
    "dask_ml": Contestant("dask-ml on our features", dask_ml, "here", on_workers=True),
    "xgboost": Contestant("XGBoost on Dask", xgboost_on_dask, "xgboost", on_workers=True),
    "xgpr": Contestant("xGPR", xgpr, "xgpr"),
    "falkon": Contestant("Falkon", falkon, "falkon"),
    "eigenpro": Contestant("EigenPro", eigenpro, "eigenpro"),
}

ON_TABLES = {
    "distrff_model": Contestant("distrff, default", distrff_model, "here"),
    "distrff_likelihood": Contestant("distrff, likelihood", distrff_likelihood, "here", only_classes=True),
    "catboost": Contestant("CatBoost", catboost, "catboost"),
    "lightgbm": Contestant("LightGBM", lightgbm, "lightgbm"),
    "xgboost_trees": Contestant("XGBoost", xgboost, "xgboost"),
    "xrfm": Contestant("xRFM", XRFM, "xrfm"),
}

ON_MAPS = {
    "distrff_on_map": Contestant("distrff, default", distrff_on_map, "here"),
    "sklearn_process": Contestant("scikit-learn, exact process of 5,000 rows", sklearn_process, "here"),
    "pykrige": Contestant("PyKrige, window of 64", pykrige_window, "pykrige"),
    "gpytorch": Contestant("GPyTorch, exact process", gpytorch_process, "gpytorch"),
}
EVERYBODY = CONTESTANTS | ON_TABLES | ON_MAPS


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunk_rows(n_rows: int) -> int:
    return max(1, min(32_768, -(-n_rows // cores())))


def _parts(X: Any) -> list[Any]:
    return [X[start : start + 8192] for start in range(0, len(X), 8192)]


def measured(contestant: Contestant, rows: Rows) -> dict[str, float]:
    """Return the seconds and the error; all is imported and compiled before."""
    with ExitStack() as stack:
        if contestant.on_workers:
            from distributed import Client, LocalCluster

            folder = stack.enter_context(TemporaryDirectory())
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=cores(), threads_per_worker=1, dashboard_address=None, local_directory=folder
                )
            )
            stack.enter_context(Client(cluster))
        few = slice(WARM_ROWS)
        with suppress(Exception):  # few rows may lack a class: the fit of all of them says what is wrong
            parts = {name: getattr(rows, name)[few] for name in ("X", "y", "X_test", "y_test")}
            contestant.solve(replace(rows, **parts, n_components=WARM_COMPONENTS, n_trees=WARM_TREES))
        print(json.dumps({"ready": True}), flush=True)
        started = time.perf_counter()
        found = contestant.solve(rows)
        return {"seconds": time.perf_counter() - started, **_errors(found, rows)}


def _errors(found: Any, rows: Rows) -> dict[str, float]:
    """Return the error of predictions, or of a model, with its log loss where it has probabilities."""
    if isinstance(found, np.ndarray):
        return {"error": rows.error(found)}
    parts = _parts(rows.X_test)
    # Some libraries return a column of classes.
    errors = {"error": rows.error(np.concatenate([np.ravel(found.predict(part)) for part in parts]))}
    if rows.is_classes and hasattr(found, "predict_proba"):
        P = np.concatenate([found.predict_proba(part) for part in parts])
        errors["log_loss"] = rows.log_loss(P, getattr(found, "classes_", np.arange(P.shape[1])))
    return errors


def main() -> int:
    """Run one contestant, and print its lines."""
    name, path = sys.argv[1:]
    with np.load(path) as file:
        rows = Rows(**{key: file[key] for key in ("X", "y", "X_test", "y_test")}, task=str(file["task"]))
    try:
        result: dict[str, Any] = measured(EVERYBODY[name], rows)
    except Exception as error:  # whatever a library raises is the line of this contestant
        result = {"skipped": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
