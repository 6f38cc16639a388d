"""The map that chooses itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError
from distrff.features.search import candidates
from distrff.utils.random import stream


def smooth_rows(n: int = 400, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which the first two columns matter."""
    rng = stream(seed, "rows")
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + 0.1 * rng.standard_normal(n)


def steps_of_one_column(n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a function that jumps along the columns, which bins show best."""
    rng = stream(seed, "rows")
    X = rng.uniform(size=(n, 2))
    return X, np.floor(12 * X[:, 0]) % 2 + np.floor(5 * X[:, 1]) % 2 + 0.05 * rng.standard_normal(n)


def test_it_finds_the_columns_that_matter() -> None:
    X, y = smooth_rows(d=12)
    found = drf.AutoFeatures(128, random_state=0).fit(X, y)
    best = found.candidates_[0]
    one_width = min(c["squared_error"] for c in found.candidates_ if c["candidate"].endswith("one width"))
    assert best["squared_error"] < one_width / 2
    assert found.transform(X).shape == (len(X), found.specification_.n_features)
    model = drf.KernelRidge(drf.AutoFeatures(128), random_state=0).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.9  # one width for 12 columns of 300 rows has about .7


@pytest.mark.slow
def test_it_takes_bins_where_the_function_jumps() -> None:
    X, y = steps_of_one_column()
    found = drf.AutoFeatures(256, random_state=0).fit(X, y)
    assert isinstance(found.map_, drf.RandomBinningFeatures), found.candidates_[:3]
    without = drf.AutoFeatures(256, maps=("fourier", "nystroem"), random_state=0).fit(X, y)
    assert not isinstance(without.map_, drf.RandomBinningFeatures)


@pytest.mark.parametrize("with_groups", [False, True])
def test_columns_with_heavy_tails_are_bent(with_groups: bool) -> None:
    """The error is near that on the logarithms themselves, whatever rows are held out."""
    H, y = smooth_rows(800, d=6)
    X = np.exp(2 * H)
    groups = np.arange(600) % 40 if with_groups else None
    found = drf.KernelRidge(random_state=0).fit(X[:600], y[:600], groups=groups)
    search = found.report_["scale_search"]
    assert search["scale"] in ("log", "quantile")
    assert search["errors"][search["scale"]] < 0.9 * search["errors"]["standard"]
    assert any(line.strip().startswith("all columns by") for line in repr(found.report_).splitlines())
    plain = drf.KernelRidge(random_state=0, scale="standard").fit(X[:600], y[:600], groups=groups)
    assert "scale_search" not in plain.report_ or plain.report_["scale_search"] is None
    assert 1 - found.score(X[600:], y[600:]) < 0.7 * (1 - plain.score(X[600:], y[600:]))


def test_columns_that_may_be_coordinates_are_not_bent() -> None:
    X, y = smooth_rows(1100, d=2)  # of fewer rows no equispaced features are tried
    assert drf.KernelRidge(random_state=0).fit(np.exp(2 * X), y).report_["scale_search"] is None


def test_the_report_says_why_this_size() -> None:
    X, y = smooth_rows(4000, d=5)
    report = drf.KernelRidge(random_state=0).fit(X, y).report_
    search = report["size_search"]
    assert report["n_components"] == search["n_components"] <= search["most"]
    assert [size for size, _ in search["curve"]] == [128, 256, 512]
    assert "times the flops" in repr(report) and "times the flops" in report.to_html()


def test_sums_of_kernels_are_models_like_any_other(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_a_sum(errors: Any, cost: Any, **rest: Any) -> Any:
        return min(errors, key=lambda one: (not one.parts, errors[one].criterion))

    monkeypatch.setattr(candidates, "_PROMISING", -1.0)  # any average is judged
    monkeypatch.setattr(candidates, "choose", choose_a_sum)
    X, y = smooth_rows(500)
    found = drf.KernelRidge(random_state=3).fit(X[:400], y[:400])
    chosen = found.features_.candidates_[0]
    assert chosen["chosen"] and chosen["candidate"].count(" + ") == 2
    assert chosen["error"] < 0.1  # that of a constant is 1
    weights = [float(part.split(" × ")[0]) for part in chosen["candidate"].split(" + ")]
    assert sum(weights) == pytest.approx(1, abs=0.02)  # they are shown with two digits
    mean, std = found.predict(X[400:], return_std=True)
    assert np.isfinite(std).all() and (std > 0).all()
    assert found.score(X[400:], y[400:]) > 0.9
    found.save(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(drf.load_model(str(tmp_path / "m.zarr")).predict(X[400:]), mean)


def test_a_number_of_features_is_kept(rng: np.random.Generator) -> None:
    X, y = smooth_rows(700, d=4)
    found = drf.KernelRidge(drf.AutoFeatures(48, maps=("fourier", "nystroem"))).fit(X, y)
    assert found.report_["n_components"] == 48 and found.report_["size_search"] is None
    small = drf.KernelRidge(drf.AutoFeatures(max_components=100, maps=("nystroem",))).fit(X, y)
    assert small.report_["n_components"] <= 100
    with pytest.raises(InputError, match="n_components must be"):
        drf.AutoFeatures("many").fit(X, y)
    for name in ("effort", "min_gain"):
        with pytest.raises(InputError, match=name):
            drf.AutoFeatures(**{name: -1.0}).fit(X, y)


def test_the_choice_depends_on_the_seed_alone() -> None:
    X, y = smooth_rows()

    def table(found: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in found.candidates_]

    first, again = (drf.AutoFeatures(64, random_state=3).fit(X, y) for _ in range(2))
    assert table(first) == table(again)
    assert first.specification_ == again.specification_
    other = drf.AutoFeatures(64, random_state=4).fit(X, y)
    assert other.specification_ != first.specification_


def test_classes_are_judged_by_accuracy() -> None:
    X, y = smooth_rows()
    labels = np.where(y > 0.5, "a", "b")
    found = drf.AutoFeatures(64, random_state=0).fit(X, labels)
    assert {row["criterion"] for row in found.candidates_} == {"share of wrong classes"}
    assert found.candidates_[0]["error"] < 0.2
    model = drf.KernelSVC(drf.AutoFeatures(64), random_state=0).fit(X, labels)
    assert model.report_["candidates"][0]["criterion"] == "share of wrong classes"


@pytest.mark.parametrize(
    "estimator",
    [
        drf.KernelRidge(drf.AutoFeatures(32), alpha="gcv"),
        drf.KernelRidge(drf.AutoFeatures(32), solver="gram"),
        # As many features separate any rows: 32 did not for one seed in 120.
        drf.KernelSVC(drf.AutoFeatures(256), C=np.inf),
    ],
)
def test_candidates_that_cannot_give_what_is_asked_are_left_out(estimator: Any) -> None:
    rng = stream(0, "rows")
    X = rng.uniform(size=(200, 2))
    y: Any = np.floor(4 * X[:, 0]) % 2
    X[:, 0] += y  # separable, for the hard margin
    if isinstance(estimator, drf.KernelSVC):
        y = y.astype(int)
    estimator.fit(X, y)
    assert not [c for c in estimator.report_["candidates"] if c["candidate"].startswith("binning")]


def test_sparse_rows_stay_sparse() -> None:
    rng = stream(0, "rows")
    X = rng.standard_normal((300, 10)) * (rng.random((300, 10)) < 0.3)
    y = X[:, 0] - X[:, 1] * X[:, 2]
    model = drf.KernelRidge(drf.AutoFeatures(64), random_state=0).fit(csr_matrix(X), y)
    assert {row["candidate"].split(",")[0] for row in model.report_["candidates"]} == {"fourier"}
    dense = model.predict(X)
    np.testing.assert_allclose(model.predict(csr_matrix(X)), dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 39])
def test_few_rows_have_an_automatic_width(n: int) -> None:
    X, _ = smooth_rows(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = drf.AutoFeatures(16, random_state=0).fit(X if n > 1 else np.vstack([X, X + 1]), None)
    assert found.candidates_ == []
    assert isinstance(found.map_, drf.FourierFeatures)


@pytest.mark.parametrize("y", ["constant", "noise"])
def test_targets_without_a_signal_are_fitted(y: str) -> None:
    X, _ = smooth_rows(120)
    target = np.ones(120) if y == "constant" else stream(1, "noise").standard_normal(120)
    found = drf.AutoFeatures(32, random_state=0).fit(X, target)
    assert np.isfinite(
        found.transform(X).data if hasattr(found.transform(X), "indptr") else found.transform(X)
    ).all()


def test_constant_columns_and_repeated_rows_are_taken() -> None:
    X, y = smooth_rows(60, 3)
    X[:, 2] = 7.0
    X, y = np.vstack([X, X]), np.append(y, y)
    found = drf.AutoFeatures(32, random_state=0).fit(X, y)
    assert found.candidates_[0]["squared_error"] < 0.5


def test_weights_of_zero_and_very_unequal_ones_are_taken() -> None:
    X, y = smooth_rows()
    s = stream(2, "weights").uniform(size=len(X)) ** 4
    s[::3] = 0.0
    y[::3] = 1e6  # rows without weight
    found = drf.AutoFeatures(64, random_state=0).fit(X, y, s)
    assert found.candidates_[0]["squared_error"] < 0.3


@pytest.mark.parametrize("parameters", [{"maps": ()}, {"maps": ("fourier", "spline")}, {"n_components": 0}])
def test_wrong_parameters_are_refused(parameters: dict[str, Any]) -> None:
    X, y = smooth_rows(50)
    with pytest.raises(InputError, match=next(iter(parameters))):
        drf.AutoFeatures(**parameters).fit(X, y)


def test_it_is_no_part_of_a_concatenation() -> None:
    X, y = smooth_rows(50)
    with pytest.raises(InputError, match="maps\\[1\\] is AutoFeatures"):
        drf.ConcatenatedFeatures([drf.FourierFeatures(), drf.AutoFeatures()]).fit(X, y)


def test_binning_alone_has_no_gram() -> None:
    X, y = smooth_rows(50)
    with pytest.raises(InputError, match="Gram"):
        drf.KernelRidge(drf.AutoFeatures(maps=("binning",)), alpha="gcv").fit(X, y)


# What the search is made of.


@pytest.mark.parametrize("estimator", [drf.KernelRidge(alpha=1e5), drf.KernelSVC(C=1e-5)])
def test_candidates_have_the_penalty_that_the_model_will_have(estimator: Any) -> None:
    """A penalty that leaves nearly nothing of any model leaves nothing of the candidates."""
    X, y = smooth_rows(300)
    y = y if isinstance(estimator, drf.KernelRidge) else (y > 0).astype(int)
    model = estimator.set_params(features=drf.AutoFeatures(32), random_state=0).fit(X, y)
    assert min(row["squared_error"] for row in model.report_["candidates"]) > 0.9
    free = drf.KernelRidge(drf.AutoFeatures(32), random_state=0).fit(X, y)
    assert min(row["squared_error"] for row in free.report_["candidates"]) < 0.5


@pytest.mark.parametrize(
    ("estimator", "penalty"),
    [
        (drf.KernelSVC(loss="squared_hinge"), 1 / 2),
        (drf.KernelSVC(), 2.0),
        (drf.KernelLikelihoodClassifier(C=1.0), 2 / np.tanh(1 / 2)),
        (drf.KernelLikelihoodClassifier(C=1.0, noise="laplace", sigma=3.0), 9 * 2.582),
        (drf.KernelLikelihoodClassifier(C=1.0, noise="probit", sigma=3.0), 9 * 1.616),
    ],
)
def test_the_penalty_of_candidates_follows_from_the_loss(estimator: Any, penalty: float) -> None:
    """1/(C·κ), where κ is half the fall of the slope from one margin to the other."""
    assert estimator._problem().ridge_penalty == pytest.approx(penalty, rel=1e-3)
    assert clone(estimator).set_params(C=8.0)._problem().ridge_penalty == pytest.approx(penalty / 8, rel=1e-3)
    assert clone(estimator).set_params(C="cv")._problem().ridge_penalty is None


def test_class_weights_count_in_the_penalty_of_candidates() -> None:
    """Weights of w for all classes are a C that is w times as large."""
    X, y = smooth_rows(300)
    found = [
        drf.KernelSVC(drf.AutoFeatures(32), C, class_weight=weights, random_state=0).fit(X, y > 0).report_
        for C, weights in ((0.1, {False: 8.0, True: 8.0}), (0.8, None), (0.1, None))
    ]
    weighted, larger, smaller = (
        {row["candidate"]: row["squared_error"] for row in report["candidates"]} for report in found
    )
    assert weighted == pytest.approx(larger) and weighted != pytest.approx(smaller)


def test_the_default_finds_a_rare_class() -> None:
    """Squares that pull harder than the hinge led these seeds to a width with which C = 1 finds no row."""
    X = np.random.default_rng(0).normal(size=(4000, 4))
    y = (X[:, 0] > 2.3).astype(int)
    model = drf.KernelSVC(random_state=0).fit(X, y)
    assert (model.predict(X) != y).mean() < y.mean() / 2


# What a first user may bring.


@pytest.mark.parametrize("seed", range(3))
def test_one_row_of_a_class_is_fitted(seed: int) -> None:
    X, _ = smooth_rows(60, 3, seed)
    y = np.zeros(60, int)
    y[seed] = 1
    model = drf.KernelSVC(drf.AutoFeatures(32), random_state=seed).fit(X, y)
    assert model.score(X, y) >= 59 / 60


@pytest.mark.filterwarnings("ignore:y is constant")
def test_rows_that_say_nothing_are_fitted() -> None:
    X, y = smooth_rows(100)
    one = drf.KernelRidge(alpha=1.0).fit(X[:1], y[:1])
    np.testing.assert_allclose(one.predict(X[:1]), y[:1])
    empty = csr_matrix((100, 60))  # without a stored entry
    np.testing.assert_allclose(drf.KernelRidge(random_state=0).fit(empty, y).predict(empty[:2]), y.mean())


def test_columns_whose_squares_underflow_are_as_good_as_others() -> None:
    X, y = smooth_rows(100)
    tiny, usual = (drf.KernelRidge(drf.AutoFeatures(32), random_state=0).fit(c * X, y) for c in (1e-200, 1.0))
    assert tiny.score(1e-200 * X, y) == pytest.approx(usual.score(X, y), abs=0.01)


def test_equal_rows_have_a_constant_model() -> None:
    y = np.arange(60.0)
    model = drf.KernelRidge(drf.AutoFeatures(16), random_state=0).fit(np.ones((60, 3)), y)
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), 29.5)
    weights = [1.0, 0.0, 0.0]
    drf.AutoFeatures(16).fit(np.arange(9.0).reshape(3, 3), sample_weight=weights)


@pytest.mark.parametrize("row", [0, 7, 599])
def test_one_row_that_differs_ends_no_search(row: int) -> None:
    """The rows of a first small model are all equal, and have no width to begin with.

    Nor may those have one by which the default map finds its own; then that is what the error says.
    """
    X = np.zeros((600, 3))
    X[row] = 1
    y = np.sin(np.arange(600.0))
    model = drf.KernelRidge(drf.AutoFeatures(64), random_state=0)
    try:
        model.fit(X, y)
    except InputError as error:
        assert "found no two different rows in its sample" in str(error)
    else:
        assert np.isfinite(model.predict(X)).all()


def test_a_rare_column_ends_no_search() -> None:
    X = np.zeros((300, 3))
    X[7, 0] = 1.0
    y = X[:, 0] + 0.1 * stream(0, "noise").standard_normal(300)
    drf.KernelRidge(drf.AutoFeatures(16), random_state=0).fit(X, y)


def test_many_classes_are_judged_by_squared_error() -> None:
    X, _ = smooth_rows(400)
    y = np.arange(400) % 40
    found = drf.AutoFeatures(16, random_state=0).fit(X, y.astype(str))
    assert {row["criterion"] for row in found.candidates_} == {"squared error"}


def test_a_penalty_that_leaves_some_candidates_no_model_leaves_others() -> None:
    X, y = smooth_rows(600)
    model = drf.KernelRidge(alpha=1e-8, random_state=0).fit(X.astype(np.float32), y)
    assert np.isfinite(model.predict(X)).all()


def test_a_plan_has_room_for_most_features_and_the_seconds_of_a_likely_number(monkeypatch) -> None:
    X, y = smooth_rows(3000)
    model, timed = drf.KernelRidge(random_state=0), []

    def seconds(fit: Any, plan: Any) -> float:
        timed.append((plan.size.n_features, plan.size.search_flops > 0))
        return 100.0

    monkeypatch.setattr("distrff.fitting.timing.predicted_seconds", seconds)
    planned = model.plan(X, y)
    most, n = planned.size.n_features, model.fit(X, y).model_.specification.n_features
    assert most == 4096 and planned.seconds == 100
    # The fit counts once more, without the search that is over.
    (likely, has_search), counted = timed
    assert 1024 < likely < most and has_search and counted == (n, False)
    assert 100 < model.plan_.seconds < 100 + model.report_["seconds"]
    assert drf.KernelRidge(random_state=0).fit(X, y).plan_.seconds is None and len(timed) == 2


def test_a_search_among_bins_alone_is_planned_by_them() -> None:
    X, y = smooth_rows(300)
    model = drf.KernelRidge(drf.AutoFeatures(maps=("binning",)), random_state=0)
    planned = model.plan(X, y)
    assert planned.size.sparse_entries > 0 and planned.size.search_flops > 0 and planned.seconds >= 0
    assert model.fit(X, y).plan_.seconds > 0


def test_the_plan_of_wide_sparse_rows_counts_no_search() -> None:
    X = csr_matrix((3, 50_000))
    X[0, 0] = 1.0
    wide = drf.KernelRidge(drf.AutoFeatures(32)).plan(
        csr_matrix(np.tile(X.toarray(), (20, 1))), np.arange(60.0)
    )
    assert wide.size.search_bytes == 0


def test_a_gram_takes_the_map_that_was_chosen() -> None:
    X, y = smooth_rows(200)
    chosen = drf.AutoFeatures(32, maps=("fourier",), random_state=0)
    model = drf.KernelRidge(chosen, random_state=0).fit(X, y)
    gram = drf.gram(X, model.features_, y)
    assert gram.specification == model.model_.specification
    assert drf.gradient_outer_product(model, gram).shape == (4, 4)


# Equispaced features, for ridge on few columns.


def waves_on(d: int, n: int = 1200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a smooth function of all columns."""
    rng = stream(seed, "rows")
    X = rng.uniform(size=(n, d))
    return X, np.sin(8 * X).sum(axis=1) + 0.1 * rng.standard_normal(n)


def kinds_judged(model: Any) -> set[str]:
    return {row["candidate"].split(",")[0] for row in model.report_["candidates"]}


@pytest.mark.slow
def test_equispaced_features_are_judged_for_ridge_on_few_columns() -> None:
    X, y = waves_on(2)
    model = drf.KernelRidge(drf.AutoFeatures(256), random_state=0).fit(X, y)
    assert {"nystroem", "equispaced"} <= kinds_judged(model)
    mine = [row for row in model.report_["candidates"] if row["candidate"].startswith("equispaced")]
    # Noise has a share of .01 of the variance, and the function is known all the better.
    assert min(row["squared_error"] for row in mine) < 0.05
    # Of a smooth function no map is better than the kernel itself.
    assert isinstance(model.features_.map_, drf.EquispacedFourierFeatures)
    Xt, yt = waves_on(2, 300, seed=1)
    assert model.score(Xt, yt) > 0.95


@pytest.mark.parametrize(
    ("d", "n", "estimator"),
    [
        (4, 1200, drf.KernelRidge()),
        (2, 900, drf.KernelRidge()),
        (2, 1200, drf.KernelSVC()),
        (2, 1200, drf.KernelRidge(alpha="gcv")),
    ],
    ids=["four columns", "few rows", "a margin", "a Gram"],
)
def test_equispaced_features_are_not_judged_where_they_are_not_for(d: int, n: int, estimator: Any) -> None:
    X, y = waves_on(d, n)
    y = y if isinstance(estimator, drf.KernelRidge) else (y > 0).astype(int)
    model = estimator.set_params(features=drf.AutoFeatures(32), random_state=0).fit(X, y)
    assert model.report_["candidates"]
    assert "equispaced" not in kinds_judged(model)


@pytest.mark.parametrize("d", [1, 2])
def test_equispaced_features_may_be_all_there_is_to_choose_from(d: int) -> None:
    """Also for few rows, which then have no better map."""
    X, y = waves_on(d, 400)
    model = drf.KernelRidge(drf.AutoFeatures(maps=("equispaced",)), random_state=0).fit(X, y)
    assert isinstance(model.features_.map_, drf.EquispacedFourierFeatures)
    assert model.features_.kernel_ == model.features_.map_.kernel_
    assert not model.features_.kernel_.is_auto
    Xt, yt = waves_on(d, 200, seed=1)
    assert model.score(Xt, yt) > 0.9  # of noise of a hundredth of the variance


@pytest.mark.parametrize("has_gap", [False, True])
def test_a_map_with_gaps_is_judged_in_such_gaps_and_taken_by_equispaced_features(
    has_gap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrff.fitting.problem._MIN_ROWS_OF_MAP", 1000)
    X, y = waves_on(2, 1200)
    if has_gap:
        is_kept = np.hypot(*(X - 0.5).T) > 0.22
        X, y = X[is_kept], y[is_kept]
    features = drf.AutoFeatures(64, maps=("fourier", "equispaced"))
    model = drf.KernelRidge(features, random_state=0).fit(X, y)
    assert ("shape of the gaps" in str(model.report_["folds"])) == has_gap
    assert isinstance(model.features_.map_, drf.EquispacedFourierFeatures) or not has_gap


def test_equispaced_features_that_are_asked_for_are_taken_for_many_targets() -> None:
    X, y = waves_on(1, 400)
    estimator = drf.KernelRidge(drf.AutoFeatures(maps=("equispaced",)), random_state=0)
    model = estimator.fit(X, np.outer(y, np.arange(1.0, 10.0)))
    assert isinstance(model.features_.map_, drf.EquispacedFourierFeatures)


def test_bounds_that_were_chosen_leave_room_for_rows_to_come() -> None:
    """A quarter of the range of few rows, on both sides."""
    X, y = waves_on(2, 400)
    model = drf.KernelRidge(drf.AutoFeatures(maps=("equispaced",)), random_state=0).fit(X, y)
    low, high = X.min(axis=0), X.max(axis=0)
    ends = np.stack([low - 0.24 * (high - low), high + 0.24 * (high - low)])
    assert np.isfinite(model.predict(ends)).all()
    bounds = np.array(model.features_.map_.lattice_.bounds).T
    np.testing.assert_allclose(bounds, [low - (high - low) / 4, high + (high - low) / 4])


@pytest.mark.parametrize(
    ("d", "estimator"), [(4, drf.KernelRidge()), (2, drf.KernelSVC()), (2, drf.KernelRidge(alpha="gcv"))]
)
def test_equispaced_features_alone_are_refused_where_they_are_not_for(d: int, estimator: Any) -> None:
    X, y = waves_on(d, 200)
    estimator.set_params(features=drf.AutoFeatures(maps=("equispaced",)))
    with pytest.raises(InputError, match=r"equispaced|dense"):
        estimator.fit(X, y if isinstance(estimator, drf.KernelRidge) else (y > 0).astype(int))
