"""Rows that fit anywhere: one process without a cluster, against scikit-learn."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import numpy as np
from sklearn.datasets import make_classification
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

import distrff as drf
from tests.benchmarks.book.contestants import cores
from tests.benchmarks.book.environments import ROOT
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, ratio, spread
from tests.benchmarks.measuring import alternate, draw_rows, seconds_of

_COLUMNS, _WIDTH = 20, 4.0
_SIZES = (256, 1024)
_ALPHAS = np.logspace(-6, 3, 25)
_FOLDS = 5
_TEST_ROWS = 1000
_SCORE_BOUND = Bound(high=0.03)  # two standard errors of the difference of two error rates of .12


def _rows(n: int, n_columns: int = _COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    return draw_rows(0, n, n_columns, "float64")


def _map(n_components: int) -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(_WIDTH), n_components, random_state=0)


def _pairs(setting: Setting, ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int = 7) -> Result:
    ours(), theirs()
    return ratio(alternate(ours, theirs, repeats=setting.repeats(repeats)))


def _svc_by_cv(setting: Setting) -> Iterator[Result]:
    """Six C, five folds, the same kernel and the same cores on both sides; scores are of other rows.

    Nyström features are nearly the kernel itself here. As many Fourier features have a twentieth more of the
    rows wrong.
    """
    n = setting.rows(1280)
    X, y = make_classification(
        n + _TEST_ROWS, 216, n_informative=40, n_classes=10, class_sep=2.0, random_state=0
    )
    (X, X_test), (y, y_test) = np.split(X, [n]), np.split(y, [n])
    by_search = GridSearchCV(SVC(), {"C": np.logspace(-2, 3, 6)}, cv=_FOLDS, n_jobs=cores())
    width = float(np.sqrt(X.shape[1] * X.var() / 2))  # SVC's own gamma, 1/(d·variance), is 1/(2·width²)
    features = drf.NystroemFeatures(drf.Gaussian(width), min(n, setting.components(1024)), random_state=0)
    ours = drf.KernelSVC(features, C="cv", Cs=np.logspace(-2, 3, 6), cv=_FOLDS, scale="none", random_state=0)
    yield {"n_rows": n, **_pairs(setting, lambda: ours.fit(X, y), lambda: by_search.fit(X, y), 3)}
    score, reference = (float(model.score(X_test, y_test)) for model in (ours, by_search))
    yield {
        "title": "the same: share of 1,000 test rows that are wrong, less that of GridSearchCV(SVC)",
        "asked": _SCORE_BOUND,
        "unit": "%",
        "reached": reference - score,
        "score": score,
        "reference_score": reference,
    }


def _ridge_by_cv(setting: Setting) -> Iterator[Result]:
    X, y = _rows(setting.rows(1000))
    for n_components in map(setting.components, _SIZES):
        Z = _map(n_components).fit_transform(X)
        model = drf.KernelRidge(_map(n_components), "cv", alphas=_ALPHAS, scale="none", random_state=0)
        timed = _pairs(setting, lambda model=model: model.fit(X, y), lambda Z=Z: RidgeCV(_ALPHAS).fit(Z, y))
        yield {"case": f"D = {n_components}", **timed}


def _one_alpha(setting: Setting) -> Iterator[Result]:
    """A ratio far below 1 is due to BLAS's threads, which scikit-learn uses here and we do not.

    With 256 features its fit takes 12 ms with one thread. With two it takes about as long in some fits, and
    120 ms in others.
    """
    X, y = _rows(setting.rows(1000))
    for n_components in map(setting.components, _SIZES):
        model = drf.KernelRidge(_map(n_components), 1.0, scale="none", random_state=0)
        sampler = RBFSampler(gamma=0.5 / _WIDTH**2, n_components=n_components, random_state=0)
        theirs = make_pipeline(sampler, Ridge(1.0))
        timed = _pairs(
            setting, lambda model=model: model.fit(X, y), lambda theirs=theirs: theirs.fit(X, y), 15
        )
        yield {"case": f"D = {n_components}", **timed}


def _svc(setting: Setting) -> Iterator[Result]:
    X, y = _rows(setting.rows(1000))
    y = np.where(y > 0, 1, -1)
    for n_components in map(setting.components, _SIZES):
        Z = _map(n_components).fit_transform(X)
        model = drf.KernelSVC(_map(n_components), 1.0, scale="none", random_state=0)
        theirs = LinearSVC(C=1.0, loss="hinge", random_state=0)
        timed = _pairs(setting, lambda model=model: model.fit(X, y), lambda Z=Z, t=theirs: t.fit(Z, y))
        yield {"case": f"D = {n_components}", **timed}


def _default(setting: Setting) -> Iterator[Result]:
    X, y = _rows(setting.rows(1000), 10)
    drf.KernelRidge(random_state=0).fit(X, y)
    yield spread(
        [
            seconds_of(lambda seed=seed: drf.KernelRidge(random_state=seed).fit(X, y))
            for seed in range(setting.repeats(5))
        ]
    )


_MADE = "import numpy as np\nX = np.random.default_rng(0).standard_normal((1000, 20))\ny = np.sin(X[:, 0])\n"
_FIRST = {
    "distrff": "import distrff as drf\n"
    "drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(4.0), 256), 1.0, random_state=0).fit(X, y)\n",
    "scikit-learn": "from sklearn.kernel_approximation import RBFSampler\n"
    "from sklearn.linear_model import Ridge\nfrom sklearn.pipeline import make_pipeline\n"
    "make_pipeline(RBFSampler(gamma=0.03, n_components=256), Ridge(1.0)).fit(X, y)\n",
}


def _first_fit(setting: Setting) -> Iterator[Result]:
    """The seconds of a process that imports and fits, less those of scikit-learn's.

    The modules of both are compiled beforehand, as those of installed packages are. Where the environment
    forbids Python to store bytecode, each run would otherwise compile this checkout anew.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def seconds(name: str) -> float:
            command = (sys.executable, "-c", _MADE + _FIRST[name])
            return seconds_of(lambda: subprocess.run(command, env=environment, check=True, timeout=300))

        for name in _FIRST:
            seconds(name)  # compiles, and reads from the disk
        pairs = [(seconds("distrff"), seconds("scikit-learn")) for _ in range(setting.repeats(5))]
    yield {**spread([ours - theirs for ours, theirs in pairs]), "pairs": pairs}


def _path_with_folds(setting: Setting) -> Iterator[Result]:
    """Theirs searches on ready features; ours makes them as well."""
    X, y = _rows(setting.rows(100_000))
    X, y = X.astype(np.float32), y.astype(np.float32)
    features = _map(setting.components(1024))
    Z = features.fit_transform(X)
    folds = KFold(_FOLDS, shuffle=True, random_state=0)
    search = GridSearchCV(Ridge(), {"alpha": _ALPHAS}, cv=folds, scoring="neg_mean_squared_error")
    model = drf.KernelRidge(features, "cv", alphas=_ALPHAS, cv=_FOLDS, scale="none", random_state=0)
    model.fit(X, y)
    pairs = [
        (seconds_of(lambda: search.fit(Z, y)), seconds_of(lambda: model.fit(X, y)))
        for _ in range(setting.repeats(2))
    ]
    ours, theirs = np.median([b for _, b in pairs]), np.median([a for a, _ in pairs])
    found = {"seconds": float(ours), "reference_seconds": float(theirs)}
    yield {"n_rows": len(X), **spread([a / b for a, b in pairs]), **found}


def _here(run: Callable[[Setting], Iterator[Result]], setting: Setting) -> Iterator[Result]:
    """Run without a cluster, whatever Dask is configured to take."""
    with dask.config.set(scheduler="threads"):
        yield from run(setting)


def _line(name: str, title: str, run: Any, minutes: float, asked: Bound, unit: str = "×") -> Line:
    return Line(name, title, partial(_here, run), minutes, asked, unit)


LINES = (
    _line(
        "svc_cv", "KernelSVC(C='cv'), 1,280 × 216, ten classes: time of GridSearchCV(SVC)",
        _svc_by_cv, 2, Bound(high=2),
    ),
    _line(
        "ridge_cv", "KernelRidge(alpha='cv'), 1,000 rows: time of RidgeCV on ready features",
        _ridge_by_cv, 0.5, Bound(high=1.2),
    ),
    _line(
        "one_alpha", "KernelRidge(alpha=1), 1,000 rows: time of RBFSampler + Ridge",
        _one_alpha, 0.3, Bound(high=1.1),
    ),
    _line(
        "svc", "KernelSVC(C=1), 1,000 rows: time of LinearSVC on ready features",
        _svc, 0.5, Bound(high=2),
    ),
    _line("default", "KernelRidge(), 1,000 × 10", _default, 0.5, Bound(high=1), "s"),
    _line(
        "first_fit", "first fit of a process, imports included: more than scikit-learn's",
        _first_fit, 1, Bound(high=2), "s",
    ),
    _line(
        "path", "25 penalties and 5 folds, 100,000 rows, D = 1024: times as fast as GridSearchCV(Ridge)",
        _path_with_folds, 7, Bound(low=50),
    ),
)  # fmt: skip
