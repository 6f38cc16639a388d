"""Fits whose folds go by groups, places and times: of any storage, in parts, and in scikit-learn."""

import pickle
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    TimeSeriesSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import distrff as drf
from distrff.errors import DataWarning, InputError
from distrff.estimators.base import open_rows, with_raw_columns
from distrff.preprocessing.folds import ContiguousFolds, HashFolds
from distrff.preprocessing.splits import BlockFolds, ForwardFolds, GroupFolds
from tests.support.fits import fourier, refusal

pytestmark = pytest.mark.usefixtures("in_this_thread")

N = 400


def model(cv: Any = "auto", **options: Any) -> drf.KernelRidge:
    return drf.KernelRidge(fourier(16), cv=cv, **{"scale": "none", "random_state": 0} | options)


@pytest.mark.parametrize(
    ("make", "column"),
    [
        (HashFolds, None),
        (GroupFolds, "groups"),
        (partial(BlockFolds, ["a"]), None),
        (partial(BlockFolds, ["a", "b"], like=[[0.0, 0.0]]), None),
    ],
)
def test_a_seed_may_be_an_integer_of_numpy(rng: np.random.Generator, make: Any, column: str | None) -> None:
    frame = table(rng)
    given = {"X": frame[["a", "b"]], "y": frame["y"], "groups": column and frame["shop"]}
    ours, theirs = (judged(model(make(seed=seed)).fit(**given)) for seed in (7, np.int64(7)))
    assert ours == theirs


def test_a_fold_without_rows_to_fit_is_skipped_whatever_the_weights(rng: np.random.Generator) -> None:
    """Sums of weights that are equal differ by roundings, and the rest is no row."""
    X = rng.permutation(np.concatenate([rng.uniform(k + 0.02, k + 0.98, 100) for k in range(3)]))[:, None]
    folds = BlockFolds([0], 1.0, 3, 0.99, seed=3)
    with pytest.warns(DataWarning, match="no row is left to fit its model to"):
        fitted = model(folds).fit(X, X[:, 0], sample_weight=rng.uniform(0.1, 1, len(X)))
    assert np.isfinite(fitted.cv_results_["fold_scores"]).all()


def table(rng: np.random.Generator) -> pd.DataFrame:
    """Two numbers, a shop of text, a day, and the target."""
    frame = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", "b"])
    frame["shop"] = [f"shop {k}" for k in rng.integers(0, 15, N)]
    frame["day"] = np.datetime64("2026-01-01") + np.arange(N) // 2
    return frame.assign(y=np.sin(frame["a"]) + 0.1 * rng.normal(size=N))


def judged(fitted: Any) -> tuple[str, bytes]:
    return fitted.report_["folds"]["held_out"], fitted.cv_results_["fold_scores"].tobytes()


BY_COLUMNS = [
    GroupFolds("shop"),
    ForwardFolds("day", gap="7d", window="90 days"),
    BlockFolds(["a", "b"], 0.7, buffer=0.1),
    BlockFolds(["b", "day"]),
]


@pytest.mark.filterwarnings("ignore:70 of 400 rows are held out by no fold")
@pytest.mark.parametrize("folds", BY_COLUMNS, ids=str)
def test_columns_of_folds_may_be_anywhere(rng: np.random.Generator, folds: Any, tmp_path: Path) -> None:
    """In a file of Parquet, beside a dask array, and in frames that encode the columns or leave them out."""
    frame = table(rng)
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path, row_group_size=77)
    options = {"target": "y", "columns": ["a", "b"]}
    dataset = drf.open_dataset(path, extra=["shop", "day"], **options)
    expected = model(folds).fit(dataset)
    again = model(folds).fit(drf.open_dataset(path, extra=["day", "shop"], **options))
    assert judged(again) == judged(expected)
    whole, lazy = frame.drop(columns="y"), dd.from_pandas(frame, npartitions=3)
    encoded = model(folds).fit(whole, frame["y"])
    of_lazy = model(folds).fit(lazy[list(whole)], lazy["y"])
    growing = model(folds).partial_fit(whole, frame["y"])
    told = [{**one.report_["folds"]} for one in (encoded, expected, of_lazy)]
    for one in told:  # the day is a feature of frames alone, and so only they may be a map of their cells
        one["rule"] = {name: value for name, value in one["rule"].items() if name != "go_by_places"}
    assert told[0] == told[1] == told[2]
    for other in (of_lazy, growing):
        np.testing.assert_allclose(
            other.cv_results_["fold_scores"], encoded.cv_results_["fold_scores"], rtol=1e-6
        )
    assert drf.gram(whole, fourier(16), frame["y"], cv=folds).n_folds == folds.n_folds
    by_encoded = drf.cross_val_predict(model(folds), whole, frame["y"])
    by_dataset = drf.cross_val_predict(model(folds), dataset).compute()
    np.testing.assert_array_equal(np.isnan(by_encoded), np.isnan(by_dataset))


@pytest.mark.parametrize(
    "kind",
    [
        "M8[ns]",
        "datetime64[s, Europe/Berlin]",
        "timestamp[us][pyarrow]",
        "date32[pyarrow]",
        "period[D]",
        object,
    ],
)
def test_times_of_a_frame_may_be_of_any_type(rng: np.random.Generator, kind: Any) -> None:
    frame = table(rng)
    X, day = frame[["a", "b"]], frame["day"]
    day = (
        day.dt.date.astype(kind)
        if kind is object
        else day.dt.tz_localize("Europe/Berlin")
        if "Berlin" in str(kind)
        else day.astype(kind)
    )
    X, folds = X.assign(day=day), ForwardFolds("day", gap="7D")
    assert model(folds).fit(X, frame["y"]).report_["folds"]["n_never_held_out"] == 70
    dataset = with_raw_columns(open_rows(X, groups=frame["shop"]), X, folds)
    assert (dataset.groups, dataset.id_dtypes["day"].kind) == ("groups", "M")


def test_groups_may_come_with_rows_of_any_storage(rng: np.random.Generator, tmp_path: Path) -> None:
    """Named in a file, in a column of a frame, and in arrays and frames of other chunks."""
    frame, path = table(rng), tmp_path / "rows.parquet"
    frame.to_parquet(path, row_group_size=77)
    X, y, groups = frame[["a", "b"]], frame["y"], frame["shop"]
    expected = model().fit(X, y, groups=groups)
    found = drf.cross_val_predict(model(), X, y, groups=groups)
    dataset = drf.open_dataset(path, target="y", columns=["a", "b"], groups="shop")
    assert judged(model().fit(dataset))[1] == judged(expected)[1]
    np.testing.assert_allclose(drf.cross_val_predict(model(), dataset), found, rtol=1e-9, atol=1e-12)
    lazy = [dd.from_pandas(A, npartitions=k) for k, A in ((3, X), (5, y), (4, groups))]
    chunks = [da.from_array(A.to_numpy(), chunks=k) for k, A in ((90, X), (33, y))]
    codes = groups.astype("category")
    for rows in (lazy, [*chunks, groups.to_numpy(object)], [X, y, codes], [X, y, lazy[2]]):
        assert judged(model().fit(*rows[:2], groups=rows[2]))[1] == judged(expected)[1]
        by_rows = drf.cross_val_predict(model(), *rows[:2], groups=rows[2])
        np.testing.assert_allclose(by_rows, found, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="a Dataset carries its own"):
        model().fit(dataset, groups=groups)


# Which folds a fit has.


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
@pytest.mark.parametrize(
    ("cv", "words", "n_folds"),
    [
        ("auto", "whole groups (15 of them)", 5),
        (3, "whole groups (15 of them)", 3),
        (GroupFolds(n_folds=None), "whole groups (15 of them)", 15),
        (ForwardFolds(n_folds=4, gap=2), "spans of the rows' order, each held out of a model", 4),
        (BlockFolds([0, 1], 1.0), "1 × 1 cells of ", 5),
        (GroupKFold(4), "the rows that GroupKFold holds out", 4),
        (PredefinedSplit(np.arange(N) % 3 - 1), "the rows that PredefinedSplit holds out", 2),
        ([(np.arange(300), np.arange(300, N))], "the rows that a list of splits holds out", 1),
    ],
)
def test_rows_of_groups_have_these_folds(rng: np.random.Generator, cv: Any, words: str, n_folds: int) -> None:
    X, y = rng.normal(size=(N, 2)), rng.normal(size=N)
    fitted = model(cv).fit(X, y, groups=rng.permutation(np.arange(N) % 15))
    assert words in fitted.report_["folds"]["held_out"]
    assert fitted.report_["folds"]["n_folds"] == n_folds == fitted.cv_results_["fold_scores"].shape[1]
    has_no_effect = any("the groups of the rows have no effect" in note for note in fitted.report_["notes"])
    assert has_no_effect == isinstance(cv, ForwardFolds | BlockFolds)


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cv": HashFolds()}, "the folds hold out rows at random; use cv=GroupFolds()"),
        ({"cv": ContiguousFolds()}, "the folds hold out runs of consecutive rows; use cv=GroupFolds()"),
        ({"fold_by": "contiguous"}, "the folds hold out runs of consecutive rows; use cv=GroupFolds()"),
        ({"alpha": "gcv"}, "alpha='gcv' leaves out one row at a time; use alpha='cv'"),
        ({"cv": GroupFolds(), "fold_by": "contiguous"}, "fold_by='contiguous' goes with a number of folds"),
        ({"cv": 1}, "cv must be an integer of at least 2"),
        ({"cv": 2.0}, "cv must be an integer of at least 2"),
        ({"cv": True}, "cv must be an integer of at least 2"),
        ({"cv": "forward"}, "or a splitter of scikit-learn, got 'forward'"),
        ({"cv": GroupFolds(seed=-1)}, "seed must be an integer of at least 0"),
        ({"cv": []}, "cv=a list of splits cannot split these rows: it yields no rows to judge"),
        ({"cv": [([0, 1], [1, 2])]}, "it judges rows that it is fitted to"),
        ({"cv": [([0, 1], [N])]}, "cannot split these rows: index 400 is out of bounds"),
        ({"cv": KFold(500)}, "cv=KFold cannot split these rows"),
        ({"cv": BlockFolds([0], 1e-300)}, "size=1e-300 is too small"),
        ({"cv": BlockFolds([0], 0.1, buffer=4.0)}, "no row is left to fit its model to; give smaller cells"),
        ({"cv": ForwardFolds(0, gap=99)}, "give a smaller gap, a larger window or fewer folds"),
        ({"cv": BlockFolds([0], 0.1, buffer=100.0)}, "buffer=100 reaches 2e+03 cells from each row"),
        ({"cv": BlockFolds([0, 1], buffer=1e300)}, "give a smaller buffer, larger cells or fewer columns"),
    ],
)
def test_folds_that_do_not_go_with_these_rows_are_refused(
    rng: np.random.Generator, options: Any, words: str
) -> None:
    X, y = rng.normal(size=(N, 2)), rng.normal(size=N)
    assert words in refusal(lambda: model(**options).fit(X, y, groups=np.arange(N) % 15))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.zeros(N), "all rows are of one group"),
        (np.arange(N) % 4, "there are 4 groups, and each of 5 folds needs one"),
        (np.full(N, np.nan), "400 rows have no group"),
        (np.arange(N - 1), "groups has 399 rows but X has 400"),
        ([[1, 2]] * N, "groups has 2 columns"),
        ("shop", "got 'shop', and a value of each row is needed"),
        (iter([3]), "groups cannot be used, which is read as y is: got <list_iterator"),
    ],
)
def test_groups_that_are_none_are_refused(rng: np.random.Generator, groups: Any, words: str) -> None:
    X, y = rng.normal(size=(N, 2)), rng.normal(size=N)
    assert words in refusal(lambda: model().fit(X, y, groups=groups))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cv": GroupFolds("group")}, "the folds go by 'group', which the model has as a feature, too"),
        ({"cv": ForwardFolds(-1)}, "the folds go by -1, which the model has as a feature, too"),
        ({"cv": ForwardFolds("a")}, "the groups of the rows have no effect: the folds hold out spans of a"),
        ({}, "a linear model not judged by these folds"),
        ({"alpha": 1.0}, "or fit with alpha='cv', which judges it on whole groups (15 of them)"),
    ],
)
def test_the_report_says_what_folds_do_not_do(rng: np.random.Generator, options: Any, words: str) -> None:
    """The rows of a group are alike, so that a look at neighbours would ask for the groups that are given."""
    group = np.arange(N) * 15 // N
    X = pd.DataFrame({"a": group + 0.01 * rng.normal(size=N), "group": group})
    report = model(**options).fit(X, rng.normal(size=15)[group], groups=group).report_
    assert words in repr(report) and not report["quality"]["exchangeability"]
    assert ("too: new rows" in repr(report)) == ("cv" in options)
    with pytest.warns(DataWarning, match="the groups are a feature, too: column 'group'"):
        model(**options).fit(X, rng.normal(size=N), groups=X["group"])
    assert ("not judged by these folds" in report._repr_html_()) == ("alpha" not in options)


def test_the_order_of_a_shuffled_frame_is_not_taken_for_time(rng: np.random.Generator) -> None:
    frame = dd.from_pandas(table(rng), npartitions=3).shuffle("a")
    dataset = drf.open_dataset(frame, target="y", columns=["a", "b"])
    for folds in (ForwardFolds(), TimeSeriesSplit(3)):
        for rows in ((dataset,), (frame[["a", "b"]], frame["y"]), (frame[["a", "shop"]], frame["y"])):
            message = refusal(lambda folds=folds, rows=rows: model(folds).fit(*rows))
            assert "shuffled or sorted dask frame may have any; name what orders them" in message
    frame = frame.persist()
    assert model(folds).fit(frame[["a", "b"]], frame["y"]).report_["folds"]["n_never_held_out"] == 100


# Folds without a model, and rows that no fold holds out.


def test_folds_without_a_model_are_skipped_and_their_rows_counted(rng: np.random.Generator) -> None:
    """A class of one group alone, and groups without weight: means are over the folds that stay."""
    X, groups = rng.normal(size=(N, 2)), np.arange(N) % 10
    y = np.where(groups == 3, "rare", np.where(X[:, 0] > 0, "more", "less"))
    s = np.where(groups >= 8, 0.0, 1.0)
    options: Any = {"cv": GroupFolds(n_folds=None), "scale": "none", "random_state": 0}
    estimator = drf.KernelRidgeClassifier(fourier(16), **options)
    with pytest.warns(DataWarning, match=r"(?=.*lack the class 'rare')(?=.*of positive weight out)"):
        fitted = estimator.fit(X, y, s, groups=groups)
    assert fitted.report_["folds"]["n_folds"] == 7 == fitted.cv_results_["fold_scores"].shape[1]
    assert fitted.report_["folds"]["n_never_held_out"] == N // 10  # of positive weight
    with pytest.warns(DataWarning, match="skipped among|40 of 400 rows are held out by no fold"):
        F = drf.cross_val_predict(estimator, X, y, s, groups=groups, method="decision_function")
    is_judged = ~np.isin(groups, [3, 8, 9])
    np.testing.assert_array_equal(np.isfinite(F), np.repeat(is_judged[:, None], 3, axis=1))
    svc = drf.KernelSVC(fourier(16), "cv", Cs=[0.1, 1.0], **options)
    with pytest.warns(DataWarning, match="lack the class 'rare'"):
        assert svc.fit(X, y, groups=groups).cv_results_["fold_scores"].shape[1] == 9


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("features", [fourier(16), drf.EquispacedFourierFeatures(drf.Gaussian(1.0))], ids=str)
def test_sums_tell_that_a_fold_lacks_a_class(rng: np.random.Generator, features: Any, n_classes: int) -> None:
    """A class that no row has, as rows of it may still come, is lacked by none."""
    X, groups = rng.uniform(size=(N, 2)), np.arange(N) % 10
    y, cv = np.where(groups == 3, "rare", np.where(X[:, 0] > 0.5, "more", "less")), GroupFolds(n_folds=10)
    y[(y == "less") & (n_classes == 2)] = "more"
    sums = drf.gram(X, features, y, groups=groups, cv=cv, scale="none", random_state=0)
    with pytest.warns(DataWarning, match="fold .* of 10: the rows of its model lack the class 'rare'"):
        found = drf.KernelRidgeClassifier(alpha="cv").fit_gram(sums)
    assert found.report_["folds"]["n_folds"] == 9
    model = drf.KernelRidgeClassifier(fourier(16), cv=cv, random_state=0)
    with pytest.warns(DataWarning, match="fold .* of 10: the rows of its model lack the class 'rare'"):
        model.partial_fit(X, y, groups=groups, classes=["less", "more", "rare"])
    assert model.report_["folds"]["n_folds"] == 9


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_sums_of_which_the_first_fold_has_no_model(rng: np.random.Generator, alpha: str) -> None:
    """Later rows have all folds of the first ones, and none before the first fold."""
    X, y = rng.uniform(size=(N, 2)), rng.normal(size=N)
    first = drf.gram(X, fourier(), y, cv=ForwardFolds(0), random_state=0)
    # Of 400 rows some are in between, but for a chance of e⁻²⁰.
    later = np.quantile(X[:, 0], 1 / 6) + 0.05 < X[:, 0]
    sums = drf.gram(X[later], y=y[later], like=first)
    if alpha == "cv":
        with pytest.warns(DataWarning, match="fold 1 of 5: no row is left to fit its model to"):
            found = drf.KernelRidge(alpha="cv").fit_gram(sums)
        assert found.report_["folds"]["n_folds"] == 4
    else:
        criterion = drf.KernelRidge(alpha="gcv").fit_gram(sums).report_["criterion"]
        assert criterion == "generalised cross-validation"
        criterion = drf.KernelRidge(alpha="gcv").fit_gram(first).report_["criterion"]
        assert criterion == "mean squared error over one held-out fold of 5"


@pytest.mark.parametrize(
    ("solver", "features"),
    [
        ("gram", fourier(16)),
        ("cg", drf.RandomBinningFeatures(drf.Laplacian(1.0), 12)),
        ("toeplitz", drf.EquispacedFourierFeatures(drf.Gaussian(1.0))),
    ],
)
def test_quality_of_numbers_is_of_the_rows_that_folds_hold_out(
    rng: np.random.Generator, solver: str, features: Any
) -> None:
    """Rows of other sizes, which no fold holds out, or without weight do not count, as in `evaluate`."""
    X, y, s = rng.uniform(-1, 1, (N, 2)), rng.normal(size=N), rng.choice([0.0, 1.0, 2.0], N)
    y[:80] *= 100
    fitted = model(ForwardFolds()).set_params(features=features)
    quality, found = fitted.fit(X, y, s).report_["quality"], drf.evaluate(fitted)
    assert fitted.report_["solver"] == solver
    assert fitted.report_["folds"]["n_never_held_out"] == np.count_nonzero(s[: N - 5 * (N // 6)])
    assert quality["constant_rmse"] == pytest.approx(found["constant_rmse"], rel=1e-9)
    assert 1 - quality["r2"] == pytest.approx(1 - found["r2"], rel=0.05)


def test_a_fold_each_of_many_groups_takes_memory_of_their_squares_alone(rng: np.random.Generator) -> None:
    """300 folds of 300 sums: a matrix of their coefficients for each fold would be 27 MB."""
    X, estimator = rng.normal(size=(1200, 2)), model(GroupFolds(n_folds=None))
    estimator.fit(X, X[:, 0], groups=np.arange(1200) % 10)  # loads what fits take
    tracemalloc.start()
    fitted = estimator.fit(X, X[:, 0], groups=np.arange(1200) % 300)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted.report_["folds"]["n_folds"] == 300
    assert peak < 20e6


# Sums in parts and in files.


@pytest.mark.parametrize("is_equispaced", [False, True])
def test_sums_skip_folds_without_a_model_as_fits_do(rng: np.random.Generator, is_equispaced: bool) -> None:
    X, cv = np.c_[rng.normal(size=N), np.arange(N) / 10.0], ForwardFolds(1, 5, gap=9)
    y, features = np.sin(X[:, 0]), fourier(16)
    y[:100] *= 100  # held out by none
    if is_equispaced:
        features = drf.EquispacedFourierFeatures(drf.Gaussian(2.0))
    fits: list[Any] = []
    for make in (
        lambda: drf.KernelRidge(features, cv=cv, alphas=[0.1, 1.0], scale="none", random_state=0).fit(X, y),
        lambda: drf.KernelRidge(alphas=[0.1, 1.0]).fit_gram(
            drf.gram(X, features, y, cv=cv, scale="none", random_state=0)
        ),
        lambda: drf.KernelRidge(features, cv=cv, alphas=[0.1, 1.0], scale="none", random_state=0).partial_fit(
            X, y
        ),
    ):
        with pytest.warns(DataWarning, match="fold 1 of 5: no row is left to fit its model to"):
            fits.append(make())
    for name in ("r2", "constant_rmse"):
        assert fits[2].report_["quality"][name] == pytest.approx(fits[0].report_["quality"][name], rel=1e-5)
    for found in fits[1:]:
        assert found.report_["folds"]["n_folds"] == 4
        np.testing.assert_allclose(
            found.cv_results_["fold_scores"], fits[0].cv_results_["fold_scores"], rtol=1e-5
        )


@pytest.mark.parametrize(
    "folds", [GroupFolds(), ForwardFolds(0, 3, gap=0.1), BlockFolds([0, 1], buffer=0.1)], ids=str
)
def test_sums_of_several_calls_have_the_folds_of_the_first(
    rng: np.random.Generator, folds: Any, tmp_path: Path
) -> None:
    """By `partial_fit`, by Grams that are added, and by those that come back from files."""
    X, y, groups = rng.uniform(-1, 1, (N, 2)), rng.normal(size=N), np.arange(N) % 12
    first, second = slice(0, 250), slice(250, N)

    def parts(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return A[first], A[second]

    growing, grams = model(folds), []
    for X_, y_, groups_ in zip(*map(parts, (X, y, groups)), strict=True):
        given = {"groups": groups_} if isinstance(folds, GroupFolds) else {}
        growing.partial_fit(X_, y_, **given)
        options = {"like": grams[0]} if grams else {"features": fourier(16), "cv": folds, "scale": "none"}
        grams.append(drf.gram(X_, y=y_, random_state=0, **options, **given))
    total = grams[0] + grams[1]
    total.save(str(tmp_path / "gram.zarr"))
    back = drf.GramStatistics.load(str(tmp_path / "gram.zarr"))
    expected = growing.cv_results_["fold_scores"]
    for gram in (total, back):
        found = model().fit_gram(gram).cv_results_["fold_scores"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    pickled = pickle.loads(pickle.dumps(growing)).partial_fit(
        X[:50], y[:50], **{k: v[:50] for k, v in given.items()}
    )
    assert pickled.report_["n_samples"] == N + 50

    # Another dealing, other folds, and sums of unknown folds.
    given = {"groups": groups} if isinstance(folds, GroupFolds) else {}
    for cv, seed in ((folds, 1), (4, 0)):
        if seed and isinstance(folds, ForwardFolds):
            continue  # drawn by no seed
        other = drf.gram(X, fourier(16), y, cv=cv, scale="none", random_state=seed, **given)
        with pytest.raises(InputError, match=r"hold out other rows.*make the second one like"):
            total + other
    unknown = replace(total, folds=None)
    assert (unknown + total).n_sums == total.n_sums
    assert (total - grams[1]).n_folds == 1


# scikit-learn.


@pytest.mark.parametrize(
    "cv",
    [GroupFolds(), BlockFolds([0, 1], like=[[0.0, 1.0]]), ForwardFolds("t", gap="7d"), KFold(3)],
    ids=str,
)
def test_folds_are_parameters(cv: Any) -> None:
    estimator = model(cv)
    assert repr(cv).split("(")[0] in repr(estimator)
    for copy in (clone(estimator), pickle.loads(pickle.dumps(estimator))):
        assert repr(copy.get_params()["cv"]) == repr(cv)
    assert estimator.set_params(cv=3).cv == 3


def test_groups_are_routed_as_metadata(rng: np.random.Generator) -> None:
    X, y, groups = rng.normal(size=(N, 2)), rng.normal(size=N), np.arange(N) % 12
    estimator = model()
    with sklearn.config_context(enable_metadata_routing=True):
        estimator.set_fit_request(groups=True)
        scores = cross_val_score(estimator, X, y, cv=GroupKFold(3), params={"groups": groups})
        for score, (fitted, held_out) in zip(scores, GroupKFold(3).split(X, y, groups), strict=True):
            one = clone(estimator).fit(X[fitted], y[fitted], groups=groups[fitted])
            assert one.score(X[held_out], y[held_out]) == pytest.approx(score, rel=1e-9)
        pipe = make_pipeline(StandardScaler(), estimator).fit(X, y, groups=groups)
        assert "12 of them" in pipe[-1].report_["folds"]["held_out"]
        search = GridSearchCV(estimator, {"cv": [3, GroupFolds(n_folds=2)]}, cv=GroupKFold(3))
        search.fit(X, y, groups=groups)
        assert search.best_estimator_.report_["folds"]["n_folds"] in (2, 3)
