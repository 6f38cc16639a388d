"""The numbers of the models of classes and of losses of numbers: sweeps to a certified gap, SGD, rivals."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
from dask_ml.linear_model import LogisticRegression as DaskLogisticRegression
from distributed import Client
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, mean_pinball_loss
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from distrff import FourierFeatures, Gaussian, KernelRegressor, KernelRidge, open_dataset
from distrff.cli.plan import arithmetic_rates
from distrff.engine.reduction import light_segmentation_of_features, margin_tile_rows
from distrff.engine.run import Run
from distrff.estimators.svm import KernelLikelihoodClassifier, KernelSVC
from distrff.fitting.light import MarginReduction
from distrff.preprocessing.coding import ClassTargets, Scaling
from distrff.solvers.losses import Hinge, Logistic
from tests.benchmarks.labelled_rows import (
    KINDS,
    N_COLUMNS,
    N_COMPONENTS,
    PENALTIES,
    Labelled,
    by_sgd_above,
    covtype,
    made,
)
from tests.benchmarks.measuring import N_WORKERS, alternate, seconds_of, workers

_MOST_SWEEPS = {"logistic": 12, "probit": 15, "laplace": 25, "hinge": 60}
_RIVALS_PENALTIES = (1e-3, 1e-5, 1e-6)
_RATE_SECONDS = 1.0


def sweeps(scale: float) -> Iterator[dict[str, Any]]:
    """Light sweeps after the Gram until the duality gap is certified to be below 1e-3."""
    for data in _datasets(scale, made, covtype):
        for (loss, usual), penalty in product(_MOST_SWEEPS.items(), PENALTIES):
            model = KINDS[loss](data.features, data.C(penalty), random_state=0)
            most = 110 if loss == "hinge" and penalty < 1e-5 else usual
            yield {"data": data.name, "loss": loss, "penalty": penalty} | _sweeps(model, data, most)


def sgd_epochs(scale: float) -> Iterator[dict[str, Any]]:
    """Epochs of SGD until it stops, of ten at most, and how far above the certified optimum."""
    for data in _datasets(scale, made, covtype):
        for (loss, kind), penalty in product(KINDS.items(), PENALTIES):
            C = data.C(penalty)
            sgd = kind(data.features, C, random_state=0, solver="sgd")
            report = sgd.fit(data.dataset).report_
            if report["sweep_labels"].count("epoch") > 10:  # an epoch and its evaluation are two sweeps
                report = sgd.set_params(max_sweeps=20).fit(data.dataset).report_
            exact = kind(data.features, C, random_state=0).fit(data.dataset).report_
            yield {
                **{"data": data.name, "loss": loss, "penalty": penalty},
                **by_sgd_above(report, exact["dual"]),
                "sweeps": report["n_sweeps"],
            }


def light_sweep(scale: float) -> Iterator[dict[str, Any]]:
    """A light sweep against its limit, flops as fast as BLAS and cosines; ten outputs against one.

    First on one core without a cluster, then on the workers.
    """
    with made(scale) as data:
        with dask.config.set(scheduler="synchronous"), threadpool_limits(1):
            yield _share_of_the_limit(data, "one core", [arithmetic_rates(_RATE_SECONDS)])
        with workers() as client:
            yield _share_of_the_limit(
                data, "two workers", list(client.run(arithmetic_rates, _RATE_SECONDS).values())
            )
            _light(data, 10)
            ten = alternate(lambda: _light(data, 10), lambda: _light(data, 1), repeats=7)
        yield {"asked": "ten outputs <= 3 times one", **ten}


def _share_of_the_limit(data: Labelled, where: str, rates: list[dict[str, Any]]) -> dict[str, Any]:
    # The seconds of its flops and cosines alone, at the rates of each worker.
    n_rows = data.dataset.n_rows
    flops = n_rows * (N_COLUMNS * N_COMPONENTS + 6.0 * N_COMPONENTS)  # a frequency is a pair of features
    blas, cosines = (min(rate[name]["float32"] for rate in rates) for name in ("flops", "cosines"))
    limit = (flops / blas + n_rows * N_COMPONENTS / cosines) / len(rates)
    _light(data, 1)
    seconds = float(np.median([seconds_of(lambda: _light(data, 1)) for _ in range(7)]))
    return {
        "asked": f"share of the limit >= 0.6, {where}",
        "share": limit / seconds,
        "seconds": seconds,
        "limit": {"seconds": limit, "blas_flops": blas, "cosines_per_second": cosines},
    }


def against_logistic_regression(scale: float) -> Iterator[dict[str, Any]]:
    """A whole fit from Zarr against scikit-learn's on features ready in memory, at equal objective."""
    with made(scale) as data, workers():
        yield from _races(data, KernelLikelihoodClassifier, Logistic(), partial(LogisticRegression, tol=0.0))


def against_linear_svc(scale: float) -> Iterator[dict[str, Any]]:
    """The same for the hinge without an intercept, against liblinear's coordinate descent."""
    rival = partial(LinearSVC, loss="hinge", tol=1e-12, fit_intercept=False, random_state=0)
    with made(scale) as data, workers():
        yield from _races(data, partial(KernelSVC, fit_intercept=False), Hinge(), rival)


def against_dask_ml(scale: float) -> Iterator[dict[str, Any]]:
    """The same against dask-ml's logistic regression by L-BFGS, on ready features in the workers."""
    rival = partial(DaskLogisticRegression, solver="lbfgs", tol=0.0)
    with made(scale) as data, workers() as client:
        yield from _races(data, KernelLikelihoodClassifier, Logistic(), rival, client)


def _datasets(scale: float, *sources: Callable[..., Any]) -> Iterator[Labelled]:
    for source in sources:
        with source(scale) as data, workers():
            if data is not None:
                yield data


def _sweeps(model: Any, data: Labelled, most: int) -> dict[str, Any]:
    report = model.fit(data.dataset).report_
    labels = report["sweep_labels"]
    light = [s for s, label in zip(report["sweep_seconds"], labels, strict=True) if label == "margins"]
    after = labels[labels.index("Gram") + 1 :]
    return {
        "asked": f"gap <= 1e-3 and sweeps <= {most}",
        "gap": report["duality_gap"],
        "sweeps": len(after),
        "hessians": after.count("Hessian"),
        "seconds": report["seconds"],
        "light_sweep_seconds": float(np.median(light)),
    }


def _races(
    data: Labelled,
    kind: Callable[..., Any],
    loss: Any,
    rival: Callable[..., Any],
    client: Client | None = None,
) -> Iterator[dict[str, Any]]:
    """Race our fits against a rival's on ready features, in the workers where a client is given."""
    X, y = np.asarray(data.dataset.X), np.asarray(data.dataset.y).astype(np.float64)
    Z = data.features.fit(X).transform(X)
    rows: Any = Z, y
    if client is not None:
        chunks = -(-len(Z) // (2 * N_WORKERS))
        lazy = da.from_array(Z, chunks=(chunks, -1)), da.from_array((y > 0).astype(np.float64), chunks=chunks)
        rows = client.persist(lazy)
    for penalty in _RIVALS_PENALTIES if client is None else _RIVALS_PENALTIES[1:]:
        C = data.C(penalty)

        def ours(C: float = C) -> dict[str, Any]:
            return kind(data.features, C, random_state=0).fit(data.dataset).report_

        def fit(iterations: int, C: float = C) -> Any:
            theirs = rival(C=C, max_iter=iterations)
            theirs.fit(*rows)
            return theirs

        def objective(theirs: Any, C: float = C) -> float:
            w, b = np.ravel(theirs.coef_), float(np.ravel(theirs.intercept_)[0])
            return C * float(loss.value(Z @ w + b, y).sum()) + 0.5 * float(w @ w)

        found = _race(ours, fit, objective)
        asked = f"speedup >= {2 if client is None else 5} for penalties below 1e-4"
        yield {"penalty": penalty, "asked": asked, **found}


def _race(
    ours: Callable[[], dict[str, Any]], fit: Callable[[int], Any], objective: Callable[[Any], float]
) -> dict[str, Any]:
    """Time our fit and the rival in turn, at its fewest iterations, of 8, 16, 32 …, of an objective as good.

    A rival that takes ten times as long, or 4096 iterations, is stopped where it is, and timed once.
    """
    report, iterations = ours(), 4
    while True:
        iterations *= 2
        started = time.perf_counter()
        theirs = fit(iterations)
        seconds = time.perf_counter() - started
        reached = objective(theirs)
        is_as_good = reached <= report["primal"] * (1 + 1e-6)
        if is_as_good or iterations >= 4096 or seconds > 10 * report["seconds"]:
            break
    times = {"ratio": seconds / report["seconds"], "seconds": seconds, "reference_seconds": report["seconds"]}
    if is_as_good:
        times = alternate(lambda: fit(iterations), ours)
    return {
        "speedup": times["ratio"],
        "seconds": times["reference_seconds"],
        "gap": report["duality_gap"],
        "rival_seconds": times["seconds"],
        "rival_iterations": iterations,
        "rival_objective": reached / report["primal"],
    }


def _light(data: Labelled, k: int) -> None:
    specification = data.features.fit(np.zeros((1, N_COLUMNS), np.float32)).specification_
    rng = np.random.default_rng(0)
    reduction = MarginReduction(
        specification=specification,
        scaling=Scaling(),
        targets=ClassTargets(np.array([-1, 1])),
        dtype="float32",
        tile_rows=margin_tile_rows(N_COMPONENTS, np.dtype(np.float32)),
        loss=Logistic(),
        outputs=(0,) * k,
        folds=None,
        held_out=(None,) * k,
    )
    sent = {"coef": rng.standard_normal((N_COMPONENTS, k)), "intercept": np.zeros(k), "epsilon": np.zeros(k)}
    run = Run()
    cuts = light_segmentation_of_features(data.dataset.n_rows, N_COMPONENTS, reduction.tile_rows)
    run.gather([run.reduce("margins", data.dataset, reduction, cuts, sent)])


RACES = (against_logistic_regression, against_linear_svc, against_dask_ml)


def regression_sweeps(scale: float) -> Iterator[dict[str, Any]]:
    """The same of losses of numbers, of which three quantiles share their sweeps."""
    rng, n = np.random.default_rng(0), int(100_000 * scale)
    X, f = _made_numbers(rng, n)
    noise = (0.1 + 0.3 * np.abs(X[:, 0])) * rng.standard_normal(n)
    counts, amounts = rng.poisson(np.exp(f)), rng.gamma(2.0, np.exp(f) / 2)
    features = FourierFeatures(Gaussian(3.0), N_COMPONENTS, random_state=0)
    for (loss, options), penalty in product(_REGRESSIONS.items(), PENALTIES[:3]):
        y = {"poisson": counts, "gamma": amounts}.get(loss, f + noise)
        model = KernelRegressor(features, 1 / (n * penalty), loss=loss, dtype="float32", random_state=0)
        report = model.set_params(**options).fit(X, y).report_
        most = 60 if loss in ("quantile", "epsilon_insensitive") else 40
        yield {
            **{"asked": f"gap <= 1e-3 and sweeps <= {most}", "loss": loss, "penalty": penalty},
            **{"gap": report["duality_gap"], "sweeps": len(report["history"]["sweep"])},
            **{"hessians": report["sweep_labels"].count("Hessian"), "seconds": report["seconds"]},
        }


_REGRESSIONS: dict[str, dict[str, Any]] = {
    "quantile": {"quantile": [0.05, 0.5, 0.95]},
    **{
        name: {}
        for name in ("epsilon_insensitive", "squared_epsilon_insensitive", "huber", "poisson", "gamma")
    },
}


def _made_numbers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, 10)).astype(np.float32)
    W = rng.standard_normal((10, 3))
    return X, np.sin(0.7 * X @ W[:, 0]) + 0.5 * np.cos(X @ W[:, 1]) + 0.3 * np.sin(X @ W[:, 2])


def quantiles_of_flights(scale: float) -> Iterator[dict[str, Any]]:
    """Pinball losses of late flights by the default map, beside boosted trees, and the calibrated band."""
    folder = os.environ.get("DISTRFF_DATA")
    if folder is None:
        return
    frame = pd.read_parquet(Path(folder) / "nycflights.parquet").drop(columns="tailnum")
    frame = frame[frame["arr_delay"].notna()].sample(frac=scale, random_state=0).reset_index(drop=True)
    part = np.random.default_rng(0).choice(3, len(frame), p=[0.6, 0.15, 0.25])
    taus, y = [0.05, 0.5, 0.95], frame.pop("arr_delay").to_numpy(np.float64)
    X = _opened(frame, y, part == 0)
    started = time.perf_counter()
    model = KernelRegressor(quantile=taus, random_state=0).fit(X)
    seconds = time.perf_counter() - started
    found = model.predict(frame[part == 2])
    trees = frame.astype({name: "category" for name in ("carrier", "origin", "dest")})
    for j, tau in enumerate(taus):
        rival = HistGradientBoostingRegressor(
            loss="quantile", quantile=tau, categorical_features="from_dtype"
        )
        theirs = rival.fit(trees[part == 0], y[part == 0]).predict(trees[part == 2])
        ours, its = (mean_pinball_loss(y[part == 2], f, alpha=tau) for f in (found[:, j], theirs))
        yield {"asked": "ratio <= 1.03", "quantile": tau, "ratio": ours / its, "ours": ours, "theirs": its}
    model.calibrate(frame[part == 1], y[part == 1])
    low, high = model.predict_interval(frame[part == 2], 0.9)
    inside = float(np.mean((low <= y[part == 2]) & (y[part == 2] <= high)))
    yield {"asked": "coverage .89 to .91", "coverage": inside, "seconds": seconds}


def _opened(frame: pd.DataFrame, y: np.ndarray, rows: np.ndarray) -> Any:
    table = frame[rows].assign(arr_delay=y[rows]).reset_index(drop=True)
    return open_dataset(table, target="arr_delay", one_hot=True, missing="mean")


def counts_with_exposures(scale: float) -> Iterator[dict[str, Any]]:
    """D² of made insurance claims by the default map beside that of the true mean; and scikit-learn."""
    rng, n = np.random.default_rng(0), int(500_000 * scale)
    X = np.column_stack([rng.uniform(-1, 1, (n, 3)), rng.standard_normal((n, 2)), rng.integers(0, 2, (n, 2))])
    X = X.astype(np.float32)
    age, power, car, density, bonus, region, fuel = X.T
    f = 1.2 * age**2 + 0.3 * np.sin(3 * power) + 0.4 * density + 0.3 * bonus * (1 + age)
    rate = 0.1 * np.exp(f - 0.3 * car * region + 0.2 * fuel - 0.5)
    exposure = rng.uniform(0.05, 1, n)
    y, is_test = rng.poisson(rate * exposure), np.arange(n) % 5 == 0
    fitted = KernelRegressor(loss="poisson", C="cv", random_state=0)
    fitted.fit(X[~is_test], y[~is_test], exposure=exposure[~is_test])
    rates, e = y[is_test] / exposure[is_test], exposure[is_test]
    found = fitted.predict(X[is_test]), rate[is_test]
    ours, true = (d2_tweedie_score(rates, mu, sample_weight=e, power=1) for mu in found)
    yield {
        "asked": "D² within .002 of the true mean's",
        "d2": ours,
        "of_the_truth": true,
        "short": true - ours,
    }
    some, features = slice(int(50_000 * scale)), FourierFeatures(Gaussian(3.0), 512, random_state=0)
    alone = KernelRegressor(features, 0.1, loss="poisson", tol=1e-6, random_state=0, dtype="float64")
    alone.fit(X[some], y[some], exposure=exposure[some])
    Z, s = alone.model_.transform(X[some]), exposure[some]
    rival = PoissonRegressor(alpha=1 / (0.1 * s.sum()), solver="newton-cholesky", tol=1e-8)
    theirs = rival.fit(Z, y[some] / s, s).predict(Z)
    ratio = np.abs(np.log(alone.predict(X[some]) / theirs)).max()
    yield {"asked": "as scikit-learn on the same features", "largest_log_ratio": float(ratio)}


def widths_that_follow_x(scale: float) -> Iterator[dict[str, Any]]:
    """Intervals of noise (.1 + |x|)·ε: coverage in tenths of x, interval score beside that of the truth."""
    rng, n = np.random.default_rng(0), int(8_000 * scale)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-2, 2, (n, 1))
        return x, np.sin(2 * x[:, 0]) + (0.1 + np.abs(x[:, 0])) * rng.standard_normal(n)

    (X, y), (Xt, yt) = draw(n), draw(5 * n)
    features = FourierFeatures(Gaussian(0.5), 200, random_state=0)
    half = 1.6449 * (0.1 + np.abs(Xt[:, 0]))
    truth = _interval_score(yt, np.sin(2 * Xt[:, 0]) - half, np.sin(2 * Xt[:, 0]) + half)
    tenth = np.digitize(Xt[:, 0], np.quantile(Xt[:, 0], np.linspace(0.1, 0.9, 9)))
    models = {"residual": KernelRidge(features, random_state=0)}
    models["quantile"] = KernelRegressor(features, quantile=[0.05, 0.95], C="cv", random_state=0)
    for method, model in models.items():
        low, high = model.fit(X, y).predict_interval(Xt, 0.9, method)
        inside = [float(np.mean(((low <= yt) & (yt <= high))[tenth == k])) for k in range(10)]
        yield {
            "asked": "coverage .87 to .93 in every tenth, score <= 1.05 of the true one's",
            **{"method": method, "least": min(inside), "most": max(inside)},
            "score": _interval_score(yt, low, high) / truth,
        }


def penalties_of_targets(scale: float) -> Iterator[dict[str, Any]]:
    """The best of 25 alphas for each of 10,000 targets by five folds, in memory beside the rows."""
    rng, n, k = np.random.default_rng(0), int(100_000 * scale), int(10_000 * scale)
    X, W = rng.standard_normal((n, 10), np.float32), rng.standard_normal((10, 64), np.float32)
    Y = np.sin(X @ W / 2) @ rng.standard_normal((64, k), np.float32) / 8
    Y *= np.sqrt(np.geomspace(0.01, 10, k)).astype(np.float32)
    for start in range(0, n, 5000):  # noise of all rows at once would take as much memory again
        Y[start : start + 5000] += rng.standard_normal(Y[start : start + 5000].shape, np.float32)
    features = FourierFeatures(Gaussian(4.0), 1024, random_state=0)
    report = KernelRidge(features, alpha_per_target=True, cv=5, random_state=0).fit(X, Y).report_
    yield {
        "asked": "seconds <= 180, bytes <= 8e9",
        **{"seconds": report["seconds"], "bytes": report["measured_peak_bytes"]},
        "phases": {name: round(seconds, 1) for name, seconds in report["phases"]},
    }


def _interval_score(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    return float(np.mean(high - low + 20 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))))


REGRESSIONS = (
    regression_sweeps,
    quantiles_of_flights,
    counts_with_exposures,
    widths_that_follow_x,
    penalties_of_targets,
)
BENCHMARKS = {f.__name__: f for f in (sweeps, sgd_epochs, light_sweep, *RACES, *REGRESSIONS)}
