"""Every map by every solver on rows of every storage and layout.

`refuses` of the solvers says which pairs must fail, and with which words. Of the others each fit is its
reference within an estimate of its error, has the same bits however the rows are stored, cut and laid out in
memory, and its stored model predicts the same bits. A new map or solver is one more entry of a table.

BLAS takes other paths for other layouts, of one row and of many, and has more of them for small matrices on
processors with AVX-512.
"""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.decomposition import PCA

import distrff as drf
from distrff.errors import InputError
from distrff.fitting.fit import candidates, solver
from distrff.fitting.problem import Problem, check_sparse_rows, map_parameters, margin_problem, ridge_problem
from distrff.solvers.losses import MARGINS, NOISES
from tests.support.fits import LOSSES, objective

pytestmark = pytest.mark.usefixtures("in_this_thread")

N, D = 99, 32  # fewer rows than are looked at for dependence, which no model here depends on
N_COLUMNS = 17  # no multiple of what vectors hold
WHOLE = [1]  # columns of integers

# What is fitted

WIDE = drf.Gaussian(9.0)
METRIC = 0.5 * np.eye(2, 17) + 0.75 * np.eye(2, 17, 5)  # short numbers: projections are exact
fourier = partial(drf.FourierFeatures, WIDE, D, random_state=0)
nystroem = partial(drf.NystroemFeatures, n_components=D, random_state=0)
binning = partial(drf.RandomBinningFeatures, drf.Laplacian(40.0), 10, random_state=0)
equispaced = partial(drf.EquispacedFourierFeatures, WIDE, bounds={j: (-25, 25) for j in range(2)})
IN_SPACE = ("equispaced", "written out")  # maps of few columns, here two
SAMPLINGS = ("orthogonal", "qmc", "sorf", "fastfood", "countsketch")
MAPS: dict[str, Callable[[], Any]] = {
    "linear": drf.LinearFeatures,
    "pairs": fourier,
    "phases": partial(fourier, form="phase"),
    **{name: partial(fourier, sampling=name) for name in SAMPLINGS},
    "more than rows": partial(drf.FourierFeatures, drf.Gaussian(3.0), 4 * N, random_state=0),
    "metric": partial(drf.FourierFeatures, drf.Matern(3.0, metric=METRIC), D, random_state=0),
    "landmarks": partial(nystroem, WIDE),
    "polynomial": partial(nystroem, drf.Polynomial(2), landmarks="leverage"),
    "landmarks in a metric": partial(nystroem, drf.Gaussian(3.0, metric=METRIC)),
    "bins": binning,
    "hashed bins": partial(binning, n_bins=512),
    "concatenated": lambda: drf.ConcatenatedFeatures([fourier(), drf.LinearFeatures()], weights=[2.0, 0.3]),
    "with a basis": lambda: drf.ConcatenatedFeatures([nystroem(WIDE), fourier()]),
    "transformer": lambda: drf.TransformerFeatures(PCA(11)),
    "equispaced": equispaced,
    "written out": partial(equispaced, n_components=125),
    "automatic width": partial(drf.FourierFeatures, drf.Gaussian("auto"), D, random_state=0),
    "a width a column": partial(drf.FourierFeatures, drf.Gaussian("ard"), D, random_state=0),
}

shared: dict[str, Any] = {"random_state": 0, "scale": "none"}
ridge = partial(drf.KernelRidge, **{"alpha": 1.0} | shared)
classifier = partial(drf.KernelRidgeClassifier, **{"alpha": 1.0} | shared)
svc = partial(drf.KernelSVC, **{"tol": 0.01} | shared)
likelihood = partial(drf.KernelLikelihoodClassifier, **{"tol": 0.01} | shared)
regressor = partial(drf.KernelRegressor, **{"tol": 0.01} | shared)
TARGETS: dict[str, Callable[[np.ndarray], Any]] = {
    "one": lambda Y: Y[:, 0],
    "many": lambda Y: Y,
    "counts": lambda Y: np.floor(3 * np.exp(Y[:, 0])),
    "amounts": lambda Y: np.exp(Y[:, :2]),
    "two classes": lambda Y: Y[:, 0] > 0,
    "three classes": lambda Y: np.array(["a", "b", "c"])[Y[:, :3].argmax(axis=1)],
    "labels": lambda Y: (Y[:, :2] > 0).astype(int),
    "none": lambda Y: None,
}
FITS: dict[str, tuple[Callable[..., Any], str]] = {
    "ridge": (ridge, "one"),
    "scaled": (partial(ridge, scale="standard"), "many"),
    "float32": (partial(ridge, dtype="float32"), "many"),
    "gram": (partial(ridge, solver="gram", fit_intercept=False), "many"),
    "cg": (partial(ridge, solver="cg", tol=1e-8), "many"),
    "sgd": (partial(ridge, solver="sgd", max_sweeps=41), "one"),
    "alpha by folds": (partial(ridge, alpha="cv", scale="standard", cv=3), "many"),
    "alpha by one fold": (partial(ridge, alpha="gcv"), "one"),
    "cg by folds": (partial(ridge, alpha="cv", solver="cg", alphas=[0.1, 1.0], cv=3), "one"),
    "sgd by folds": (partial(ridge, alpha="cv", solver="sgd"), "one"),
    "alphas by sgd": (partial(ridge, alpha=[1.0, 2.0], solver="sgd"), "many"),
    "an alpha a target": (partial(ridge, alpha=[1.0, 10.0, 100.0]), "many"),
    "two classes": (classifier, "two classes"),
    "three classes": (partial(classifier, class_weight="balanced"), "three classes"),
    "labels": (classifier, "labels"),
    "hinge": (svc, "three classes"),
    "smoothed": (partial(svc, solver="smoothed"), "two classes"),
    "squared hinge": (partial(svc, loss="squared_hinge"), "two classes"),
    "no slope": (partial(svc, solver="lbfgs"), "two classes"),
    "no squares": (partial(svc, solver="gram"), "two classes"),
    "margins by sgd": (partial(svc, solver="sgd", max_sweeps=41), "three classes"),
    "C by sgd": (partial(svc, C="cv", solver="sgd"), "two classes"),
    "hard by sgd": (partial(svc, C=np.inf, solver="sgd"), "two classes"),
    "C by folds": (partial(svc, C="cv", Cs=[0.1, 1.0], cv=2), "two classes"),
    "hard": (partial(svc, C=np.inf), "two classes"),
    "logistic": (likelihood, "two classes"),
    "probit": (partial(likelihood, noise="probit"), "two classes"),
    "softmax": (partial(likelihood, multi_class="softmax"), "three classes"),
    "softmax by sgd": (partial(likelihood, multi_class="softmax", solver="sgd"), "three classes"),
    "quantiles": (partial(regressor, quantile=[0.2, 0.8]), "one"),
    "quantiles by sgd": (partial(regressor, quantile=[0.2, 0.8], solver="sgd", max_sweeps=41), "one"),
    "huber": (partial(regressor, loss="huber", fit_intercept=False), "many"),
    "tube": (partial(drf.KernelSVR, **{"tol": 0.01} | shared), "one"),
    "squared tube": (partial(regressor, loss="squared_epsilon_insensitive"), "many"),
    "counts": (partial(regressor, loss="poisson"), "counts"),
    "amounts": (partial(regressor, loss="gamma"), "amounts"),
    "counts by sgd": (partial(regressor, loss="poisson", solver="sgd", max_sweeps=41), "counts"),
    "no loss": (partial(regressor, solver="gram"), "one"),
    "components": (partial(drf.KernelPCA, n_components=3, random_state=0, scale="none"), "none"),
}
BY_EVERY_MAP = ("scaled", "cg", "hinge")
# Each map by fits of every kind of statistics, and each fit by maps of every kind of features; by landmarks,
# which are dense as pairs are, in the nightly run.
PAIRS = sorted(
    {(name, features) for name in BY_EVERY_MAP for features in MAPS}
    | {(name, features) for name in FITS for features in ("pairs", "landmarks", "bins", "equispaced")}
    ^ {("hard", "pairs"), ("hard", "landmarks"), ("hard", "more than rows")}  # few do not separate these rows
)


FITTED = pytest.mark.parametrize(
    ("name", "features"),
    [
        pytest.param(
            *pair, marks=pytest.mark.slow if pair[1] == "landmarks" and pair[0] not in BY_EVERY_MAP else ()
        )
        for pair in PAIRS
    ],
    ids=str,
)


# A third of the storages for each pair, in turn: pairs of one solver, and of one map, meet all of them. The
# nightly run has the rest.
STORED = pytest.mark.parametrize(
    "rest", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "rest"]
)


def in_turn(table: dict[str, Any], pair: tuple[str, str], rest: bool) -> dict[str, Any]:
    first = PAIRS.index(pair)
    return {name: value for k, (name, value) in enumerate(table.items()) if ((first + k) % 3 > 0) == rest}


# What the refusals of some pairs say.
REFUSED = {
    ("no slope", "pairs"): "solver='lbfgs' needs a loss with a continuous slope, which loss='hinge' is not; "
    "use solver='smoothed' or 'auto'",
    ("no loss", "pairs"): "needs a squared loss, whose optimum follows from the Gram alone, which "
    "loss='quantile' is not; use solver='smoothed' or 'auto'",
    ("no squares", "pairs"): "solver='gram' needs a squared loss, whose optimum follows from the Gram alone",
    ("sgd by folds", "pairs"): "solver='sgd' solves for a given alpha and needs a number, got alpha='cv'",
    ("sgd by folds", "bins"): "choose alpha by solver='cg'",
    ("alphas by sgd", "pairs"): "solver='sgd' needs one alpha for all targets, got several; use solver='cg'",
    (
        "C by sgd",
        "pairs",
    ): "solver='sgd' needs a finite number for C, got C='cv'; give one, or use solver='auto'",
    (
        "hard by sgd",
        "pairs",
    ): "solver='sgd' needs a finite number for C, got C=inf; give one, or use solver='auto'",
    ("cg by folds", "pairs"): "solver='cg' solves for a given alpha and needs a number, got alpha='cv'",
    ("softmax by sgd", "pairs"): "needs one loss a class, and multi_class='softmax' has one for all",
    ("alpha by one fold", "bins"): "FourierFeatures or NystroemFeatures",
    ("gram", "bins"): "needs a Gram",
    ("hard", "bins"): "needs dense features, and those of random binning are sparse; use a finite C",
    ("components", "bins"): "use FourierFeatures or NystroemFeatures",
}


def refusal_of(estimator: Any) -> str | None:
    """The first refusal where each candidate has one."""
    problem: Problem
    if isinstance(estimator, drf.KernelSVC):
        problem = margin_problem(estimator, MARGINS[estimator.loss](), hard_margin=True)
    elif isinstance(estimator, drf.KernelLikelihoodClassifier):
        problem = margin_problem(estimator, NOISES[estimator.noise](1.0))
    elif isinstance(estimator, drf.KernelRegressor | drf.KernelSVR):
        problem = margin_problem(estimator, estimator._loss())
    elif isinstance(estimator, drf.KernelPCA):
        parameters = map_parameters(estimator)
        problem = Problem(**parameters, n_components=estimator.n_components)
    else:
        problem = ridge_problem(estimator)
    found = [solver(name).refuses(problem) for name in candidates(problem)]
    return found[0] if all(found) else None


# Where the rows are


def with_gaps(A: np.ndarray) -> np.ndarray:
    """A as a view of every second row and column of a larger array."""
    view = np.empty([2 * size for size in A.shape], A.dtype)[(slice(None, None, 2),) * A.ndim]
    view[...] = A
    return view


def backwards(A: np.ndarray) -> np.ndarray:
    return np.flip(np.flip(A).copy())


def unaligned(A: np.ndarray) -> np.ndarray:
    view = np.empty(A.nbytes + 1, np.uint8)[1:].view(A.dtype).reshape(A.shape)
    view[...] = A
    return view


def read_only(A: np.ndarray) -> np.ndarray:
    A = A.copy()
    A.flags.writeable = False
    return A


def frame_of(A: np.ndarray) -> pd.DataFrame:
    """Rows of a larger frame, of blocks of two types."""
    frame = pd.DataFrame(A).astype(dict.fromkeys(WHOLE, np.int32))
    return pd.concat([frame, frame]).assign(last=0.0).iloc[: len(A), : A.shape[1]]


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "by columns": np.asfortranarray,
    "gaps": with_gaps,
    "backwards": backwards,
    "unaligned": unaligned,
    "read-only": read_only,
    "frame": frame_of,
    "one block": lambda A: da.from_array(np.asfortranarray(A), chunks=(len(A), 2)[: A.ndim]),
}


def beside(lie: Callable[[np.ndarray], Any], y: Any) -> Any:
    """Targets or weights beside rows that lie somewhere."""
    if y is None:
        return None
    return y if y.dtype.kind == "U" else (with_gaps if lie in (frame_of, LAYOUTS["one block"]) else lie)(y)


def laid_out(lie: Callable[[np.ndarray], Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda X, y, s, folder: (lie(X), beside(lie, y), beside(lie, s))


def in_blocks(X: Any, y: Any, s: np.ndarray, folder: Any) -> tuple[Any, ...]:
    return (
        da.from_array(X, chunks=(41, 2)),
        None if y is None else da.from_array(y, chunks=(70, -1)[: y.ndim]),
        da.from_array(s, chunks=60),
    )


def in_zarr(X: Any, y: Any, s: np.ndarray, folder: Any) -> tuple[Any]:
    group = zarr.open_group(str(folder / "rows.zarr"), mode="w")
    group.create_array("X", data=X, chunks=(47, 2))
    group.create_array("s", data=s, chunks=(31,))
    if y is not None:
        y = y.astype(np.dtypes.StringDType()) if y.dtype.kind == "U" else y
        group.create_array("y", data=y, chunks=(70, 1)[: y.ndim])
    target = {} if y is None else {"target": "y"}
    return (drf.open_dataset(str(folder / "rows.zarr"), sample_weight="s", **target),)


def in_parquet(X: Any, y: Any, s: np.ndarray, folder: Any) -> tuple[Any]:
    columns = {} if y is None else {f"y{j}": column for j, column in enumerate(y.reshape(len(X), -1).T)}
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(s=s, **columns)
    frame.to_parquet(folder / "rows.parquet", row_group_size=40)
    target = {} if y is None else {"target": "y0" if y.ndim == 1 else list(columns)}
    return (drf.open_dataset(str(folder / "rows.parquet"), sample_weight="s", **target),)


STORAGES: dict[str, Callable[..., tuple[Any, ...]]] = {
    **{name: laid_out(lie) for name, lie in LAYOUTS.items()},
    "blocks": in_blocks,
    "zarr": in_zarr,
    "parquet": in_parquet,
}


def sparse_blocks(X: Any) -> da.Array:
    """Dask chunks in CSR."""
    meta = sparse.csr_matrix((0, 0), dtype=X.dtype)
    parts = [X[a:b] for a, b in ((0, 37), (37, 71), (71, X.shape[0]))]
    return da.concatenate(
        [da.from_delayed(dask.delayed(part), shape=part.shape, dtype=X.dtype, meta=meta) for part in parts]
    )


def unsorted(X: Any) -> Any:
    """The entries of each row from the last column to the first."""
    X = X.copy()
    for start, stop in zip(X.indptr, X.indptr[1:], strict=False):
        for entries in (X.indices, X.data):
            entries[start:stop] = entries[start:stop][::-1].copy()
    X.has_sorted_indices = False
    return X


SPARSE: dict[str, Callable[[Any], Any]] = {
    "matrix": lambda X: X,
    "array": sparse.csr_array,
    "columns": sparse.csc_matrix,
    "entries": sparse.coo_array,
    "unsorted": unsorted,
    "blocks": sparse_blocks,
}


@pytest.fixture
def rows(rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of which a third of the entries is zero; three targets; weights."""
    shape = N, N_COLUMNS
    X = np.clip(3 * rng.standard_normal(shape), -20, 20) * (rng.random(shape) < 2 / 3)
    X = np.round(X * 2**20) / 2**20  # whose projections by the metric are exact
    X[:, WHOLE] = np.rint(X[:, WHOLE])
    return X, np.cos(X[:, :3] / 4) + X[:, [1, 2, 0]] / 9 - 0.5, rng.uniform(0.5, 2.0, N)


# What each fit must be


def answers(estimator: Any, X: Any) -> dict[str, Any]:
    """Everything that a fitted model, or a frozen one, makes of rows."""
    made = {}
    for method in ("predict", "decision_function", "decision", "predict_proba", "transform"):
        has_it = method != "predict" or getattr(estimator, "kind", "") != "KernelPCA"
        has_it &= method != "predict_proba" or getattr(estimator, "likelihood", True) is not None
        if hasattr(estimator, method) and has_it:
            Z = getattr(estimator, method)(X)
            made[method] = Z.toarray() if sparse.issparse(Z) else Z
    if has_std(estimator):
        made["std"] = estimator.predict(X, return_std=True)[1]
    elif getattr(estimator, "posterior", None) is not None:
        made["std"] = estimator.std(X)
    return made


def has_std(estimator: Any) -> bool:
    """Whether the fit left a Gram, or sums of equispaced features, of all targets."""
    report = getattr(estimator, "report_", {})
    by_sums = report.get("solver") in ("gram", "toeplitz")
    return type(estimator) is drf.KernelRidge and by_sums and np.ndim(estimator.alpha_) == 0


def assert_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for method, A in found.items():
        np.testing.assert_array_equal(np.asarray(A), np.asarray(expected[method]), err_msg=method)


def assert_same_model(found: Any, expected: Any, where: str) -> None:
    for name in ("coef", "intercept"):
        mine, its = (getattr(one.model_, name) for one in (found, expected))
        np.testing.assert_array_equal(mine, its, err_msg=where)


def assert_solves(fitted: Any, X: np.ndarray, y: Any, s: np.ndarray) -> None:
    """A ridge model is the solution on its own features, up to its solver's tolerance; a margin model has the
    objective that it reports, no worse than that of all constants, and a bound below it."""
    report, model = fitted.report_, fitted.model_
    if isinstance(fitted, drf.KernelPCA):
        T = fitted.transform(X)
        np.testing.assert_allclose((T * s[:, None]).T @ T, np.diag(fitted.eigenvalues_), atol=1e-6 * s.sum())
        return
    Z = model.transform(X)
    Z = Z.toarray() if sparse.issparse(Z) else Z.astype(float)
    s = s if model.targets.row_weights(y, s) is None else model.targets.row_weights(y, s)
    if isinstance(fitted, drf.KernelRidge | drf.KernelRidgeClassifier):
        Y = model.targets.encode(y) if is_classifier(fitted) else np.reshape(y, (N, -1))
        exact = ridge_decision(Z, Y, s, fitted.alpha_, fit_intercept=fitted.fit_intercept)
        error = np.linalg.norm(model.decision(X).reshape(exact.shape) - exact) / np.linalg.norm(exact)
        # Passes end at a residual of 1e-3, which the smallest of κ = Σs/alpha = 200 directions enlarge.
        assert error <= {"sgd": 0.1, "cg": 0.02, "toeplitz": 0.02}.get(
            report["solver"], 1e-5 if model.dtype == "float32" else 1e-7
        )
        return
    assert report["status"] == "CONVERGED" or report["solver"] == "sgd"
    if report["loss"] == "softmax":
        assert report["relative_gradient"] <= fitted.tol
        return
    shift, scale, k = model.targets.shift, model.targets.scale, model.n_outputs
    W = model.coef / scale
    F, Y = Z @ W + (model.intercept - shift * fitted.fit_intercept) / scale, model.targets.encode(y)
    if np.inf == fitted.C:
        assert (Y * F).min() >= 1 - 1e-6
        return
    if is_classifier(fitted):
        losses = [LOSSES[getattr(fitted, "loss", None) or fitted.noise]()] * k
    else:
        losses = [fitted._loss().of_outputs([j]) for j in range(k)]
    own = [objective(losses[j], fitted.C_, W[:, j], F[:, j], Y[:, j], s) for j in range(k)]
    assert min(abs(report["primal"] / value - 1) for value in own) < 1e-5  # of the worst class
    assert report["dual"] <= report["primal"]


def ridge_decision(Z: Any, Y: Any, s: np.ndarray, alpha: Any, *, fit_intercept: bool) -> np.ndarray:
    """Predictions by the dual of the normal equations, which has a row for each row of Z."""
    z_mean, y_mean = (s @ Z / s.sum(), s @ Y / s.sum()) if fit_intercept else (0.0, np.zeros(Y.shape[1]))
    root = np.sqrt(s)[:, None]
    A, B = root * (Z - z_mean), root * (Y - y_mean)
    found = []
    for a, b in zip(np.broadcast_to(alpha, Y.shape[1]), B.T, strict=True):
        found.append((Z - z_mean) @ (A.T @ np.linalg.solve(A @ A.T + a * np.eye(N), b)))
    return np.stack(found, axis=1) + y_mean


@STORED
@FITTED
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits(rows, tmp_path, name, features, rest):
    X, Y, s = rows
    X = X[:, :2] if features in IN_SPACE else X
    make, targets = FITS[name]
    y, estimator = TARGETS[targets](Y), lambda: make(MAPS[features]())
    refused = refusal_of(estimator())
    if refused is not None:
        with pytest.raises(InputError) as caught:
            estimator().fit(X, y, s)
        assert str(caught.value) == refused
        assert REFUSED.get((name, features), "") in refused
        return
    assert (name, features) not in REFUSED
    fitted = estimator().fit(X, y, s)
    assert_solves(fitted, X, y, s)
    for storage, store in in_turn(STORAGES, (name, features), rest).items():
        assert_same_model(estimator().fit(*store(X, y, s, tmp_path)), fitted, storage)

    expected, of_one = answers(fitted, X), answers(fitted, X[:1])
    for lie in in_turn(LAYOUTS, (name, features), rest).values():
        same = lie(X)
        assert_same_bits(answers(fitted, same), expected)
        if not isinstance(same, da.Array):
            assert_same_bits(answers(fitted, same[:1]), of_one)
    lazy = answers(fitted, da.from_array(X, chunks=(41, 2)))
    for method, A in lazy.items():  # products of fewer rows at a time differ in their last bits
        assert isinstance(A, da.Array) and A.chunks[0] == (41, 41, 17)
        assert (A.shape, A.dtype) == (expected[method].shape, expected[method].dtype)
        if A.dtype.kind == "f":
            atol = (1e-4 if "float32" in name else 1e-9) * np.abs(expected[method]).max()
            np.testing.assert_allclose(A.compute(), expected[method], rtol=1e-6, atol=atol)
        else:
            np.testing.assert_array_equal(A.compute(), expected[method])

    place = str(tmp_path / "model.zarr")
    fitted.save(place, **({"include_std": True} if "std" in expected else {}))
    stored = drf.load_model(place)
    assert stored.digest == fitted.model_.digest
    for some in (X, X[:1]):
        assert_same_bits(answers(stored, some), answers(fitted.model_, some))
    again = pickle.loads(pickle.dumps(fitted))
    assert_same_bits(answers(again, X), expected)


@STORED
@FITTED
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sparse_rows(rows, name, features, rest):
    """Models of the same rows written out, but for what sums in another order round; else a refusal."""
    X, Y, s = rows
    X = X[:, :2] if features in IN_SPACE else X
    make, targets = FITS[name]
    y, estimator = TARGETS[targets](Y), lambda: make(MAPS[features]())
    ordered = sparse.csr_matrix(X)
    if refusal_of(estimator()) is not None:
        return
    try:
        check_sparse_rows(True, estimator().features, estimator().scale)
    except InputError as refusal:
        for data in (ordered, sparse_blocks(ordered)):
            with pytest.raises(InputError) as caught:
                estimator().fit(data, y, s)
            assert str(caught.value) == str(refusal)
        assert "widths other than 'ard'" in str(refusal) or "use scale='auto'" in str(refusal)
        return
    fitted, dense = (estimator().fit(rows, y, s) for rows in (ordered, X))
    assert_solves(fitted, X, y, s)
    if fitted.report_.get("primal") is not None:  # margin models end within a hundredth of the optimum
        assert fitted.report_["primal"] == pytest.approx(dense.report_["primal"], rel=0.05)
    else:
        F, expected = fitted.model_.decision(ordered), dense.model_.decision(X)
        np.testing.assert_allclose(F, expected, rtol=0, atol=0.05 * np.abs(expected).max())
    for storage, lie in in_turn(SPARSE, (name, features), rest).items():
        assert_same_model(estimator().fit(lie(ordered), y, s), fitted, storage)
    expected = answers(fitted, ordered)
    assert_same_bits(answers(fitted, unsorted(ordered)), expected)
    for method, A in answers(fitted, sparse_blocks(ordered)).items():
        assert isinstance(A, da.Array)
        if expected[method].dtype.kind == "f":
            np.testing.assert_allclose(
                A.compute(), expected[method], rtol=1e-6, atol=1e-5 * np.abs(expected[method]).max()
            )
