"""Folds that are no partition: each choice and error is that of explicit rows to fit and rows to judge."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    RepeatedKFold,
    TimeSeriesSplit,
)

import distrff as drf
from distrff.errors import DataWarning, InputError
from distrff.fitting.fit import _split_by_folds, begin, prepare
from distrff.preprocessing.folds import ContiguousFolds, Folds, HashFolds, Keys, Memberships, SomeFolds
from distrff.preprocessing.splits import BlockFolds, ForwardFolds, GroupFolds

Splits = list[tuple[np.ndarray, np.ndarray]]  # rows to fit and rows to judge
N, ALPHAS = 240, np.array([0.1, 1.0, 10.0])


def pairs(n_rows: int, *parts: tuple[np.ndarray, int]) -> Memberships:
    """The memberships of parts: positions of rows, and the sum that these enter."""
    rows = np.concatenate([rows for rows, _ in parts])
    numbers = np.concatenate([np.full(len(rows), number) for rows, number in parts])
    order = np.argsort(rows, kind="stable")
    return Memberships(n_rows, numbers[order], rows[order])


@dataclass(frozen=True)
class Buffered(Folds):
    """Runs of rows; those within 7 rows of a run are left out of its model: a second sum a fold."""

    n_folds: int = 4
    words = "known rows"

    @property
    def n_sums(self) -> int:
        return 2 * self.n_folds

    @property
    def total(self) -> np.ndarray:
        return np.repeat(np.array([1, 0], np.int8), self.n_folds)

    @property
    def train(self) -> np.ndarray:
        return self.total - self.test - np.eye(self.n_folds, self.n_sums, self.n_folds, dtype=np.int8)

    def sums(self, keys: Keys) -> Memberships:
        numbers, length = keys.numbers, N // self.n_folds
        run, parts = numbers // length, []
        for fold in range(self.n_folds):
            distance = np.maximum(fold * length - numbers, numbers - ((fold + 1) * length - 1))
            parts += [(np.flatnonzero(run == fold), fold)]
            parts += [(np.flatnonzero((distance > 0) & (distance <= 7)), self.n_folds + fold)]
        return pairs(len(numbers), *parts)


ROWS, RUN = np.arange(N), np.arange(N) // 48
WITHIN = [np.isin(ROWS % 5, remainders) for remainders in ((0, 1), (1, 2, 3), (3, 4))]
FOLDS: dict[str, tuple[Any, Splits]] = {
    "buffered": (
        Buffered(),
        [(ROWS[(k - 7 > ROWS) | (k + 67 <= ROWS)], ROWS[k : k + 60]) for k in range(0, N, 60)],
    ),
    "spans": (
        ForwardFolds(None, 4, 5, 60),
        list(TimeSeriesSplit(4, gap=5, max_train_size=60).split(np.empty((N, 1)))),
    ),
    # Each row is held out by one or two folds; some rows by none, and fitted to always; and runs, each judged
    # by a model that saw neither it nor its neighbours.
    "overlapping": (None, [(ROWS[~mask], ROWS[mask]) for mask in WITHIN]),
    "partial": (None, [(ROWS[k != ROWS % 5], ROWS[k == ROWS % 5]) for k in range(2)]),
    "apart": (None, [(ROWS[abs(RUN - k) > 1], ROWS[k == RUN]) for k in range(5)]),
}
any_folds = pytest.mark.parametrize(
    ("folds", "splits"), [(folds or splits, splits) for folds, splits in FOLDS.values()], ids=list(FOLDS)
)
EQUISPACED = drf.EquispacedFourierFeatures(drf.Gaussian(0.7), 200)


def numbers(rng: np.random.Generator, n_columns: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, two targets and weights, a few of them 0."""
    X = rng.uniform(-1, 1, (N, n_columns))
    Y = np.sin(3 * X @ rng.normal(size=(n_columns, 2))) + 0.1 * rng.normal(size=(N, 2)) + 2.0
    return X, Y, rng.uniform(0.5, 2.0, N) * (rng.random(N) < 0.95)


def errors_of(
    Z: np.ndarray, Y: np.ndarray, s: np.ndarray, splits: Splits, alphas: np.ndarray, **options: Any
) -> Any:
    """Weighted sums of squares over the judged rows, mean over targets, (n_alphas, n_folds), and weights."""
    errors = np.empty((len(alphas), len(splits)))
    for (i, alpha), (j, (fitted, judged)) in product(enumerate(alphas), enumerate(splits)):
        model = Ridge(alpha=alpha, solver="cholesky", **options).fit(Z[fitted], Y[fitted], s[fitted])
        errors[i, j] = (s[judged] @ np.square(model.predict(Z[judged]) - Y[judged])).mean()
    return errors, np.array([s[judged].sum() for _, judged in splits])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_features", [40, 256])  # fewer than the rows, and more
@any_folds
def test_ridge_is_that_of_explicit_rows(
    rng: np.random.Generator, folds: Any, splits: Splits, n_features: int, fit_intercept: bool
) -> None:
    X, Y, s = numbers(rng)
    features = drf.FourierFeatures(drf.Gaussian(0.7), n_features, random_state=0)
    model = drf.KernelRidge(
        features, alphas=ALPHAS, cv=folds, fit_intercept=fit_intercept, scale="none", random_state=0
    ).fit(X, Y, s)
    errors, weights = errors_of(
        model.features_.transform(X), Y, s, splits, ALPHAS, fit_intercept=fit_intercept
    )
    results = model.cv_results_
    np.testing.assert_allclose(results["fold_scores"], errors / weights, rtol=1e-8)
    np.testing.assert_allclose(results["mean_score"], errors.sum(axis=1) / weights.sum(), rtol=1e-8)


# Sizes that all differ, so that there is one way to deal the largest first.
GROUPS = np.repeat(np.arange(15), np.arange(15) * 2 + 2)
PARTS = np.arange(N) % 7 - 1  # −1 for rows that are held out by no fold


@pytest.mark.parametrize("n_features", [40, 256])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (GroupKFold(4), GroupFolds(n_folds=4)),
        (LeaveOneGroupOut(), GroupFolds(n_folds=None)),
        (TimeSeriesSplit(4, gap=5, max_train_size=60), ForwardFolds(None, 4, 5, 60)),
        (TimeSeriesSplit(7), ForwardFolds(None, 7)),
        (KFold(6), ContiguousFolds(6)),
        (PredefinedSplit(PARTS), None),
        (RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), None),
    ],
    ids=lambda folds: type(folds).__name__,
)
def test_errors_are_those_of_a_grid_search(
    rng: np.random.Generator, theirs: Any, ours: Any, n_features: int
) -> None:
    """Fold by fold and alpha by alpha: with the splitter itself, and with the folds of ours that it means."""
    X, Y, _ = numbers(rng)
    groups = None
    if "Group" in type(theirs).__name__:
        groups = rng.permutation(GROUPS)
    model = drf.KernelRidge(
        drf.FourierFeatures(drf.Gaussian(0.7), n_features, random_state=0),
        alphas=ALPHAS,
        scale="none",
        random_state=0,
    )
    search = GridSearchCV(
        Ridge(solver="cholesky"), {"alpha": ALPHAS}, cv=theirs, scoring="neg_mean_squared_error"
    )
    n_folds = theirs.get_n_splits(X, Y, groups)
    for cv in (theirs, ours):
        if cv is None:
            continue
        found = model.set_params(cv=cv).fit(X, Y, groups=groups)
        search.fit(found.features_.transform(X), Y, groups=groups)
        errors = -np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(n_folds)], axis=1)
        scores = found.cv_results_["fold_scores"]
        if isinstance(cv, GroupFolds):  # numbered otherwise
            errors, scores = (A[:, np.argsort(A[0])] for A in (errors, scores))
        np.testing.assert_allclose(scores, errors, rtol=1e-8)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (GroupKFold(4), GroupFolds(n_folds=4)),
        (TimeSeriesSplit(4, gap=5), ForwardFolds(None, 4, 5)),
        (KFold(6), ContiguousFolds(6)),
    ],
    ids=lambda folds: type(folds).__name__,
)
def test_lazy_rows_have_the_folds_that_a_splitter_means(
    rng: np.random.Generator, theirs: Any, ours: Any
) -> None:
    X, Y, _ = numbers(rng)
    groups = rng.permutation(GROUPS) if isinstance(ours, GroupFolds) else None
    features = drf.FourierFeatures(drf.Gaussian(0.7), 16, random_state=0)
    model = drf.KernelRidge(features, cv=ours, scale="none", random_state=0)
    expected = model.fit(X, Y, groups=groups).cv_results_["fold_scores"]
    lazy = [None if A is None else da.from_array(A, chunks=71) for A in (X, Y, groups)]
    found = model.set_params(cv=theirs).fit(lazy[0], lazy[1], groups=lazy[2])
    np.testing.assert_array_equal(found.cv_results_["fold_scores"], expected)
    with pytest.raises(InputError, match=r"PredefinedSplit splits rows in memory alone.*use GroupFolds\(by="):
        model.set_params(cv=PredefinedSplit(PARTS)).fit(*lazy[:2])


def judgements(model: Any, X: np.ndarray, y: np.ndarray, splits: Splits) -> tuple[np.ndarray, np.ndarray]:
    """Each fold's predictions of the rows that it judges, (n_folds, N), NaN elsewhere; and judges a row."""
    Z, F = model.features_.transform(X), np.full((len(splits), N), np.nan)
    for fold, (fitted, judged) in enumerate(splits):
        own = Ridge(alpha=model.alpha_, solver="cholesky").fit(Z[fitted], y[fitted])
        F[fold, judged] = own.predict(Z[judged])
    return F, np.isfinite(F).sum(axis=0)


@any_folds
def test_rows_are_judged_by_the_models_that_did_not_see_them(
    rng: np.random.Generator, folds: Any, splits: Splits
) -> None:
    """A row that m folds hold out counts 1/m each; one that none does has no value, and counts nowhere."""
    X, Y, _ = numbers(rng)
    y = Y[:, 0]
    features = drf.FourierFeatures(drf.Gaussian(0.7), 40, random_state=0)
    model = drf.KernelRidge(features, alphas=ALPHAS, cv=folds, scale="none", random_state=0).fit(X, y)
    F, n_judges = judgements(model, X, y, splits)
    n_judged, expected = int((n_judges > 0).sum()), np.full(N, np.nan)
    expected[n_judges > 0] = np.nanmean(F[:, n_judges > 0], axis=0)
    if n_judged < N:
        with pytest.warns(DataWarning, match=f"{N - n_judged} of {N} rows are held out by no fold"):
            found = drf.cross_val_predict(model, X, y)
    else:
        found = drf.cross_val_predict(model, X, y)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)

    misses, shares = np.abs(F - y), np.where(np.isfinite(F), 1 / np.maximum(1, n_judges), 0.0)
    report = drf.evaluate(model)
    assert report["rows"] == "out of fold" and report["n_samples"] == n_judged
    assert report["rmse"] == pytest.approx(np.sqrt(np.nansum(shares * misses**2) / n_judged), rel=1e-7)

    # The report's numbers, of the criterion, count each judgement.
    quality, of_judgements = model.report_["quality"], np.broadcast_to(y, F.shape)[np.isfinite(F)]
    assert quality["constant_rmse"] == pytest.approx(of_judgements.std())
    assert quality["r2"] == pytest.approx(1 - np.nanmean(misses**2) / of_judgements.var())
    assert ("held out by several folds" in str(model.report_["notes"])) == bool((n_judges > 1).any())

    V, counted = relative_variances(model, X, splits), np.isfinite(F)
    # The likeliest floor, of errors of Laplace's law whose scale is the best multiple of u.
    losses = {}
    for a in (1, 0.1, 0.01, 0.001):
        U = np.sqrt(a + V[counted])
        losses[a] = np.log(np.average(misses[counted] / U, weights=shares[counted]))
        losses[a] += np.average(np.log(U), weights=shares[counted])
    floor = min(losses, key=lambda a: losses[a])
    for method, scores in (("constant", misses), ("deviation", misses / np.sqrt(floor + V))):
        model.predict_interval(X[:1], coverage=0.8, method=method)
        order = np.argsort(scores, axis=None)  # NaN last
        reached = np.cumsum(shares.ravel()[order]) >= np.ceil((n_judged + 1) * 0.8) - 1e-9
        radius = scores.ravel()[order][np.argmax(reached)]
        found_radius = model.model_.intervals.radius(0.8, method)[0]
        assert radius * (1 - 1e-7) <= found_radius <= radius * (1 + 2**-9)
    assert model.model_.intervals.floors == (floor,)


def relative_variances(model: Any, X: np.ndarray, splits: Splits) -> np.ndarray:
    """z̃ᵀ(Z̃ᵀZ̃ + alpha·I)⁻¹z̃ + 1/n of the rows that each fold judges, as `judgements` has them."""
    Z, V = model.features_.transform(X).astype(float), np.full((len(splits), N), np.nan)
    for fold, (fitted, judged) in enumerate(splits):
        own, new = (Z[rows] - Z[fitted].mean(axis=0) for rows in (fitted, judged))
        M = own.T @ own + model.alpha_ * np.eye(Z.shape[1])
        V[fold, judged] = 1 / len(fitted) + np.einsum("ij,ji->i", new, np.linalg.solve(M, new.T))
    return V


def test_labels_of_rows_that_no_fold_holds_out_are_refused(rng: np.random.Generator) -> None:
    X, Y, _ = numbers(rng)
    model = drf.KernelRidgeClassifier(
        drf.FourierFeatures(drf.Gaussian(0.7), 16, random_state=0), cv=FOLDS["partial"][1], random_state=0
    )
    with (
        pytest.warns(DataWarning, match="144 of 240 rows"),
        pytest.raises(InputError, match="labels have no NaN"),
    ):
        drf.cross_val_predict(model, X, Y[:, 0] > 2)
    with pytest.warns(DataWarning, match="144 of 240 rows"):
        found = drf.cross_val_predict(model, X, Y[:, 0] > 2, method="decision_function")
    assert np.isnan(found).sum() == 144


@any_folds
def test_conjugate_gradients(rng: np.random.Generator, folds: Any, splits: Splits) -> None:
    """Models solve the equations of the rows that they are fitted to, as far as the search does: to 1e-2."""
    X, Y, s = numbers(rng)
    features = drf.RandomBinningFeatures(drf.Laplacian(1.0), 12, random_state=0)
    model = drf.KernelRidge(features, alphas=ALPHAS, cv=folds, scale="none", random_state=0).fit(X, Y, s)
    models, Z = model._out_of_fold_models(), model.features_.transform(X).toarray()
    assert models is not None
    place = int(np.searchsorted(model.cv_results_["alphas"], model.alpha_))
    for fold, (fitted, judged) in enumerate(splits):
        coef, intercept, own = models.coef[fold], models.intercept[fold], s[fitted, None]
        centred = [A[fitted] - np.average(A[fitted], axis=0, weights=s[fitted]) for A in (Z, Y)]
        B = centred[0].T @ (own * centred[1])
        residual = B - centred[0].T @ (own * (centred[0] @ coef)) - model.alpha_ * coef
        assert (np.linalg.norm(residual, axis=0) <= 0.0101 * np.linalg.norm(B, axis=0)).all()
        error = (s[judged] @ np.square(Z[judged] @ coef + intercept - Y[judged])).mean() / s[judged].sum()
        assert error == pytest.approx(model.cv_results_["fold_scores"][place, fold], rel=1e-8)


@any_folds
def test_equispaced_features(rng: np.random.Generator, folds: Any, splits: Splits) -> None:
    X, Y, s = numbers(rng, 1)
    s = np.maximum(s, 0.5)  # bounds are those of rows with weight
    features = drf.EquispacedFourierFeatures(drf.Matern(0.5, nu=1.5), 100)
    model = drf.KernelRidge(features, alphas=10 * ALPHAS, cv=folds, random_state=0).fit(X, Y, s)
    results, models = model.cv_results_, model._out_of_fold_models()
    errors, weights = errors_of(model.features_.transform(X), Y, s, splits, results["alphas"])
    # Objectives of the search are within a thousandth.
    np.testing.assert_allclose(results["fold_scores"], errors / weights, rtol=0.05)
    assert models is not None
    place = int(np.searchsorted(results["alphas"], model.alpha_))
    for fold, (_, judged) in enumerate(splits):
        F = model.features_.transform(X[judged]) @ models.coef[fold] + models.intercept[fold]
        error = (s[judged] @ np.square(F - Y[judged])).mean()
        assert error == pytest.approx(errors[place, fold], rel=0.05)


@pytest.mark.parametrize("kind", [drf.KernelLikelihoodClassifier, drf.KernelSVC])
@any_folds
def test_margins(rng: np.random.Generator, folds: Any, splits: Splits, kind: Any) -> None:
    """Models are optima of the rows that they are fitted to, as far as the search solves them: to 1e-2."""
    X, Y, s = numbers(rng)
    y = np.where(Y[:, 0] + 0.3 * rng.normal(size=N) > 2, 1.0, -1.0)
    features = drf.FourierFeatures(drf.Gaussian(0.7), 16, random_state=0)
    model = kind(features, C="cv", Cs=[0.5], cv=folds, scale="none", random_state=0).fit(X, y, s)
    models, Z = model._out_of_fold_models(), model.features_.transform(X)
    assert models is not None

    def losses(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        margins = y[rows] * (Z[rows] @ x[:-1] + x[-1])
        return s[rows] * (np.maximum(0, 1 - margins) if kind is drf.KernelSVC else np.logaddexp(0, -margins))

    for fold, (fitted, judged) in enumerate(splits):
        x = np.append(models.coef[fold, :, 0], models.intercept[fold, 0])
        assert model.cv_results_["fold_scores"][0, fold] == pytest.approx(
            losses(x, judged).sum() / s[judged].sum(), rel=1e-8
        )

        def objective(x: np.ndarray, fitted: np.ndarray = fitted) -> float:
            return 0.5 * float(x[:-1] @ x[:-1]) + 0.5 * float(losses(x, fitted).sum())

        best = minimize(objective, x, method="L-BFGS-B").fun
        assert objective(x) <= best * (1 + 1.5e-2)


def test_rows_of_several_calls_need_folds_that_follow_from_a_row_alone(rng: np.random.Generator) -> None:
    X, Y, _ = numbers(rng)
    model = drf.KernelRidge(
        drf.FourierFeatures(drf.Gaussian(0.7), 16, random_state=0), cv=ForwardFolds(n_folds=3)
    )
    with pytest.raises(InputError, match=r"cv=ForwardFolds\(.*\) needs the number of all rows"):
        model.partial_fit(X, Y)


@pytest.mark.filterwarnings("ignore:skipped among folds")
@pytest.mark.parametrize(
    "cv",
    [
        GroupFolds(n_folds=4),
        GroupFolds(n_folds=None),
        ForwardFolds(0, gap=0.1),
        ForwardFolds(None, 8),
        ForwardFolds(None, 2, window=20),
        BlockFolds([0, 1], 0.5, buffer=0.2),
        BlockFolds([0, 1], 0.25, like=[[0.1, 0.1], [-0.1, 0.3]]),
    ],
    ids=str,
)
def test_samples_of_searches_are_split_as_the_folds(rng: np.random.Generator, cv: Any) -> None:
    """No model of a search is fitted to rows that it may not see, where a group has no weight, either."""
    X, Y, _ = numbers(rng)
    X[:, 0] += 0.3 * np.sign(X[:, 0])  # a gap
    groups = rng.permutation(np.arange(N) % 15)
    features = drf.FourierFeatures(drf.Gaussian("auto"), 16)
    model = drf.KernelRidge(features, cv=cv, scale="none", random_state=0)
    with dask.config.set(scheduler="synchronous"):
        rows = model._rows_and_problem(X, Y, np.where(groups == 3, 0.0, 1.0), groups)
        fit = prepare(begin(*rows))
    sample, folds = fit.statistics.sample(), fit.problem.held_out
    split = _split_by_folds(folds, sample)
    assert split is not None
    held_out, fitted, units, go_by_places = split
    assert go_by_places == isinstance(folds, BlockFolds)
    assert not (held_out & fitted).any()
    assert 0 < held_out.mean() <= 0.6 and fitted.any()
    if isinstance(cv, GroupFolds):
        assert isinstance(folds, SomeFolds) == (cv.n_folds is None)
        assert not set(groups[held_out]) & set(groups[fitted])
        assert len(set(zip(units, groups, strict=True))) == 15
    elif isinstance(cv, ForwardFolds):
        order = np.arange(N) if cv.by is None else X[:, 0]
        assert order[fitted].max() < order[held_out].min() - cv.gap
    elif cv.like is None:
        apart = np.linalg.norm(X[held_out][:, None] - X[fitted], axis=2)
        assert apart.min() > cv.buffer
    else:
        _, is_judged = folds.masks(sample.keys, range(folds.n_folds))
        assert (held_out <= is_judged.any(axis=1)).all()
    assert _split_by_folds(HashFolds(5, 0), sample) is None


def test_folds_that_were_given_stay_with_a_checkpoint(rng: np.random.Generator, tmp_path: Path) -> None:
    X, Y, _ = numbers(rng)
    features = drf.FourierFeatures(drf.Gaussian(0.7), 40)
    model = drf.KernelRidge(features, alphas=ALPHAS, cv=HashFolds(3, 42), random_state=0)
    quiet, kept = model.fit(X, Y[:, 0]).cv_results_, model.fit(X, Y[:, 0], checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(kept.cv_results_["fold_scores"], quiet["fold_scores"])


@pytest.mark.parametrize("features", [drf.FourierFeatures(drf.Gaussian(0.7), 40), EQUISPACED], ids=str)
def test_a_fold_that_is_fitted_to_no_rows_is_refused(rng: np.random.Generator, features: Any) -> None:
    X, Y, _ = numbers(rng)
    with pytest.raises(InputError, match="fold 1, 2 of 2: no row is left to fit its model to"):
        splits = [(ROWS[:0], ROWS[:120]), (ROWS[:0], ROWS[120:])]
        drf.KernelRidge(features, cv=splits, scale="none", random_state=0).fit(X, Y[:, 0])


def test_rows_of_later_calls_are_counted_from_the_first(rng: np.random.Generator) -> None:
    """Of folds whose first row is not row 0."""
    folds, rows = HashFolds(3, 42, first_row=100), np.arange(50)
    np.testing.assert_array_equal(folds.after(7).sums(Keys(rows)).numbers, folds.sums(Keys(rows + 7)).numbers)
