"""The map that chooses itself."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix
from sklearn.base import clone

import distrff as drf
from distrff.errors import InputError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.search import candidates as auto
from distrff.features.search.candidates import (
    MAPS,
    METRIC,
    ONE_WIDTH,
    OWN_UNITS,
    ROUGH_WIDTHS,
    RULES,
    SMOOTH_WIDTHS,
    USUAL_WIDTH,
    Candidate,
    Found,
    Scope,
    Search,
    followers,
    leads,
    own_units,
)
from distrff.features.search.metric import LearnedMetric
from distrff.features.search.ridge import (
    HERE,
    HERE_OR_SHORTER,
    FourierTrialModel,
    Judged,
    Judgement,
    NystroemTrialModel,
    Trial,
    carried_on,
    steps_ahead,
)
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern
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


def test_the_budget_of_few_rows_is_seconds_and_of_many_a_share_of_the_fit() -> None:
    few, more, many = (Scope(MAPS, 4096, n, 10) for n in (10_000, 100_000, 10**9))
    assert few.budget < more.budget
    assert many.budget == pytest.approx(many.fit_flops / 3)


def test_stages_grow_up_to_the_whole_trial() -> None:
    X, y = smooth_rows(2000)
    trial = Trial.of(Sample(X, y, None, 0, RowsInMemory(X, None)), "rows", 10_000)
    for n_rows in (2000, 10**6):
        stages = Scope(MAPS, 1024, n_rows, 4).stages(trial)
        assert [stage.thinning for stage in stages] == sorted((s.thinning for s in stages), reverse=True)
        assert stages[-1].thinning == 1
        assert [stage.n_features for stage in stages] == sorted(stage.n_features for stage in stages)


def test_errors_are_carried_on_to_the_size_of_the_model() -> None:
    assert steps_ahead(4.0, 2.0) == pytest.approx(1.0)
    assert steps_ahead(0.5, 0.5) == 0.0
    assert carried_on(1.0, 0.7, 2.0) == pytest.approx(0.7**3)
    assert carried_on(1.0, 1.2, 2.0) == 1.2  # what rises is not carried on
    assert carried_on(1.0, 0.1, 1.0) == pytest.approx(0.05)  # at most halved
    assert carried_on(np.inf, 0.7, 2.0) == 0.7  # no model is no error that fell


def test_a_target_that_is_constant_stays_so(rng) -> None:
    """Its mean is off by rounding, which is not to become a deviation of one."""
    X, y = smooth_rows(400)
    Y = np.column_stack([y, np.full(400, 0.1)])
    trial = Trial.of(Sample(X, Y, rng.exponential(size=400), 0, RowsInMemory(X, None)), "rows", 400)
    assert trial.Y[:, 0].std() > 0.5
    assert abs(trial.Y[:, 1]).max() < 1e-13


def test_equal_rows_have_no_metric() -> None:
    X = np.ones((400, 2))
    trial = Trial.of(Sample(X, smooth_rows(400)[1], None, 0, RowsInMemory(X, None)), "rows", 400)
    assert auto._metric_of(trial, Gaussian(), 16, 0) is None
    assert auto._metric_helps(trial, Gaussian(), 16, 0, np.ones(2)) == (False, 0.0)


def test_candidates_are_maps_times_kernels_times_rules() -> None:
    first = leads(MAPS, [ONE_WIDTH, "learned metric", "diagonal of the metric"])
    found = [*first, *(other for lead in first for other in followers(lead))]
    assert len(found) == len(set(found)) == 2 * (4 + 4) + 3


def one_search(n_components: int = 64, n_rows: int = 1000) -> Search:
    """A search on 1000 rows of `n_rows` in which nothing was judged yet."""
    X, y = smooth_rows(1000)
    rows, scope = RowsInMemory(X, None), Scope(MAPS, n_components, n_rows, 4)
    return Search(scope, Trial.of(Sample(X, y, None, 0, rows), "rows", 10_000), 0, rows)


def judgement(losses: np.ndarray) -> Judgement:
    return Judgement(float(losses.mean()), None, np.full(len(losses), 1 / len(losses)), losses)


@pytest.mark.parametrize(
    ("excess", "noise", "simple_wins"), [(0.02, 1.0, True), (0.02, 0.3, False), (0.005, 0.0, True)]
)
def test_one_width_is_taken_where_it_is_as_good_as_the_best(excess, noise, simple_wins) -> None:
    """As good is a difference below its standard error, here of 1000 rows, or of a hundredth."""
    rng = stream(0, "losses")
    losses = 1 + rng.uniform(size=1000)
    losses /= losses.mean()
    difference = noise * rng.standard_normal(1000)
    difference += excess - difference.mean()
    search = one_search()
    best, simple = (Candidate("fourier", Gaussian(), rule) for rule in (RULES[-1], ONE_WIDTH))
    for one, of_rows in ((best, losses), (simple, losses + difference)):
        search.histories[one] = [Found(1.0, judgement(of_rows), 0.0, 0.0)] * len(search.stages)
    assert search.ranked() == [best, simple]
    assert search.choices() == ([simple, best] if simple_wins else [best, simple])


@pytest.mark.parametrize(("excess", "widths_win"), [(0.005, True), (0.014, True), (0.2, False)])
def test_bins_with_widths_to_be_shrunk_are_taken_unless_others_are_clearly_better(excess, widths_win) -> None:
    """Nor is a cheaper map taken in their place, which would not be shrunk."""
    search = one_search(1024, 20_000)
    losses = 1 + 0.3 * stream(0, "losses").standard_normal(500)
    metric, widths = (Candidate("binning", Laplacian(), rule) for rule in ("learned metric", ROUGH_WIDTHS))
    cheaper = Candidate("fourier", Gaussian(), ROUGH_WIDTHS)
    noise = 0.2 * stream(0, "noise").standard_normal(500)
    noise -= noise.mean()
    for one, of_rows in (
        (metric, losses),
        (widths, losses + excess + noise),
        (cheaper, losses + excess + 0.001 - noise),
    ):
        search.histories[one] = [Found(4.0, judgement(of_rows), 0.0, 0.0)] * len(search.stages)
    assert search.ranked() == [metric, widths, cheaper]
    assert search.choices()[0] == (widths if widths_win else metric)


@pytest.mark.parametrize(("excess", "noise", "usual_wins"), [(0.05, 1.0, True), (0.1, 0.3, False)])
def test_few_rows_have_the_median_width_unless_another_is_clearly_better(excess, noise, usual_wins) -> None:
    """Clearly is by two standard errors of the difference, here of 1000 rows."""
    difference = noise * stream(0, "losses").standard_normal(1000)
    difference += excess - difference.mean()
    search = one_search(1024)
    best, usual = Candidate("nystroem", Gaussian(), METRIC), Candidate("nystroem", Gaussian(), USUAL_WIDTH)
    for one, of_rows in ((best, np.ones(1000)), (usual, 1 + difference)):
        search.histories[one] = [Found(w, judgement(of_rows), 0.0, 0.0) for w in (4.0, 3.0)]
    assert search.ranked() == [best, usual]
    assert search.choices()[0] == (usual if usual_wins else best)
    assert search.width(usual) == 3.0  # nothing is carried on


@pytest.mark.parametrize(("n_components", "is_judged"), [(1024, True), (256, False)])
def test_the_median_width_is_judged_where_landmarks_may_be_at_all_rows(n_components, is_judged) -> None:
    X, y = smooth_rows(600)
    features = drf.KernelRidge(drf.AutoFeatures(n_components), random_state=0).fit(X, y).features_
    usual = [row for row in features.candidates_ if USUAL_WIDTH in row["candidate"]]
    assert len(usual) == is_judged
    # Two of four columns matter, and a metric shows it.
    assert USUAL_WIDTH not in features.candidates_[0]["candidate"]


def test_noise_leaves_few_rows_the_median_width() -> None:
    rng = stream(3, "rows")
    X, y = rng.standard_normal((200, 6)), rng.standard_normal(200)
    found = drf.KernelRidge(random_state=0).fit(X, y).features_.map_
    distances = np.linalg.norm(X[:, None] - X, axis=2)[np.triu_indices(200, 1)] / X.std()
    assert found.kernel.length_scale == pytest.approx(np.median(distances), rel=0.2)


def test_one_width_is_judged_in_the_last_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far behind it is in the first ones, where a metric of all rows is ahead."""
    search = one_search(1024, 100_000)
    search.coordinates[METRIC] = np.eye(4)

    def judge_all(kept: list[Candidate], stage: Any) -> None:
        for one in kept:
            losses = np.full(300, 1.0 if one.has_one_width else 0.1)
            search.histories.setdefault(one, []).append(Found(1.0, judgement(losses), 1e9, 0.0))

    monkeypatch.setattr(search, "_judge", judge_all)
    monkeypatch.setattr(search, "_find_coordinates", lambda: None)
    search.run()
    stages = {
        one.has_one_width: len(history) for one, history in search.histories.items() if len(history) == 3
    }
    assert stages == {True: 3, False: 3}


@pytest.mark.parametrize("suits", [True, False])
def test_the_likelihood_of_many_rows_is_sought_where_that_of_few_helps(suits, monkeypatch) -> None:
    """It takes longer than all the rest of the search."""
    sizes = []

    def widths(trial: Trial, kernel: Any, n_rows: int, *_: Any) -> np.ndarray:
        sizes.append(n_rows)
        seen, unseen = np.array([1.0, 1.0, 1e6, 1e6]), np.array([1e6, 1e6, 1.0, 1.0])
        return seen if suits else unseen

    monkeypatch.setattr(auto, "_QUICK_WIDTHS", widths)
    search = one_search(1024, 100_000)
    search._find_coordinates()
    # Of few rows, of many, and of many for a rough kernel.
    assert sizes == ([500, 2000, 2000] if suits else [500])
    assert (ROUGH_WIDTHS in search.coordinates) == suits


@pytest.mark.parametrize(
    ("loss", "wrong", "helps"),
    [(0.9, 0.01, True), (0.995, 0.01, False), (0.9, 0.02, False), (1.1, 0.01, False)],
)
def test_widths_of_few_rows_help_by_the_loss_where_no_row_of_a_rare_class_is_found(
    loss, wrong, helps, monkeypatch
) -> None:
    search = one_search(1024, 100_000)
    one_width, widths = (Judgement(a, b, np.ones(1), np.ones(1)) for a, b in ((1.0, 0.01), (loss, wrong)))
    monkeypatch.setattr(search, "_judgements_of", lambda *_: [one_width, widths])
    assert search._widths_help(np.ones(4)) == helps


@pytest.mark.parametrize(("has_units", "n_rows"), [(True, 100_000), (True, 1000), (False, 100_000)])
@pytest.mark.parametrize("with_widths", [True, False])
@pytest.mark.parametrize("gains", [True, False])
def test_a_metric_must_gain_on_units_that_suit_many_rows(
    gains, with_widths, has_units, n_rows, monkeypatch
) -> None:
    asked, learned = [], []

    def gains_of(trial: Trial, kernel: Any, n_features: int, seed: int, scales: np.ndarray) -> Any:
        asked.append(scales)
        return gains, 7.0

    def learn(trial: Trial, kernel: Any, n_features: int, seed: int, start: Any = None) -> LearnedMetric:
        learned.append(start)
        return LearnedMetric(np.eye(4), 1.0, judgement(np.ones(9)), [{"squared_error": 0.95}], 5.0)

    monkeypatch.setattr(auto, "metric_gains", gains_of)
    monkeypatch.setattr(auto, "learn_metric", learn)
    monkeypatch.setattr(auto, "_QUICK_WIDTHS", lambda *_: np.full(4, 2.0))
    monkeypatch.setattr(auto, "_widths_flops", lambda *_: 0.0)
    search, units = one_search(1024, n_rows), np.arange(1.0, 5.0)
    monkeypatch.setattr(search, "_likelihood_rows", lambda d: 500 if with_widths else 0)
    if has_units:
        search.coordinates[OWN_UNITS] = units
    search._find_coordinates()
    is_asked = has_units and n_rows > 10_000
    assert [scales.tolist() for scales in asked] == [units.tolist()] * is_asked
    # It found nothing, so with widths it is learned once more, from these on.
    starts = [units.tolist() if is_asked else None, [2.0] * 4][: 1 + with_widths]
    starts = starts if gains or not is_asked else []
    assert [start if start is None else start.tolist() for start in learned] == starts
    assert search.flops == 7.0 * is_asked + 5.0 * len(starts)
    assert (METRIC in search.coordinates) == bool(starts)
    # The widths are the likelihood's, or the metric's diagonal.
    assert (SMOOTH_WIDTHS in search.coordinates) == (with_widths or bool(starts))


def test_a_kernel_that_another_one_clearly_beats_goes_no_further() -> None:
    """With the same kind of map and rule. Other kinds go on, and kernels that may be worse by chance."""
    search = one_search(1024, 100_000)
    best, worse, noisy = (
        Candidate("fourier", one, ONE_WIDTH) for one in (Gaussian(), Exponential(), Matern())
    )
    other = Candidate("nystroem", Exponential(), ONE_WIDTH)
    few = np.where(np.arange(100) < 1, 100.0, 1.0)  # all of the excess is in one row
    for one, losses in (
        (best, np.ones(100)),
        (worse, np.full(100, 1.6)),
        (noisy, few),
        (other, np.full(100, 3.0)),
    ):
        search.histories[one] = [Found(1.0, judgement(losses), 1e9, 0.0)]
    assert search._survivors([best, worse, noisy, other], 10, 2) == [best, noisy, other]


def test_a_width_falls_on_as_it_did() -> None:
    """At most by a half in each of the stages that the model is ahead, here one and something."""
    search = one_search(1024, 20_000)
    one = Candidate("fourier", Gaussian(), ONE_WIDTH)
    for before, last, least in ((4.0, 3.0, 1.5), (4.0, 1.0, 0.25), (4.0, 4.0, 4.0), (4.0, 5.0, 5.0)):
        search.histories[one] = [Found(w, judgement(np.ones(9)), 0.0, 0.0) for w in (4.0, before, last)]
        assert least <= search.width(one) <= last
        assert (search.width(one) < last) == (last < before)


def test_a_valley_of_shorter_widths_is_found() -> None:
    """The error falls around the width of the stage before, and far below it once more rows resolve that."""

    def judge(width: float) -> Judgement:
        octaves = np.log2(width)
        return judgement(np.full(9, min(0.5 + abs(octaves), 0.1 + abs(octaves + 2.5) / 2)))

    model: Any = SimpleNamespace(judge=judge)
    assert Judged(model, 1.0).search(HERE)[1].squared_error == pytest.approx(0.5)
    width, found = Judged(model, 1.0).search(HERE_OR_SHORTER)
    assert found.squared_error == pytest.approx(0.1)
    assert width == pytest.approx(2.0**-2.5)
    small, large = (one_search(1024, n_rows).stages[0].grid for n_rows in (1000, 20_000))
    assert (small, large) == (HERE, HERE_OR_SHORTER)


def test_errors_are_compared_row_by_row() -> None:
    losses = stream(0, "losses").uniform(size=500)
    one, other = judgement(losses), judgement(losses + 0.01)
    assert other.spread_from(one) == pytest.approx(0.0, abs=1e-12)
    assert one.spread == pytest.approx(losses.std() / np.sqrt(500))


@pytest.mark.slow
def test_one_width_is_one_of_the_own_units_where_small_columns_are_noise() -> None:
    """Columns of small deviation hold nothing here; once divided by it they hide the others."""
    rng = stream(0, "rows")
    X = rng.standard_normal((600, 40)) * np.where(np.arange(40) < 4, 1.0, 0.05)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + X[:, 3]

    def one_widths(scale: str, X: np.ndarray) -> set[str]:
        model = drf.KernelRidge(drf.AutoFeatures(64), scale=scale, random_state=0).fit(X, y)
        names = (row["candidate"].split(", ", 2)[2] for row in model.report_["candidates"])
        return {name for name in names if name.startswith("one width")}

    assert one_widths("standard", X) == {"one width, in the columns' own units"}
    assert one_widths("none", X) == {"one width"}  # these are their own
    inverse = np.where(np.arange(40) < 4, 1e-3, 1e3)
    assert one_widths("standard", X * inverse) == {"one width"}


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
        (drf.KernelLikelihoodClassifier(), 2 / np.tanh(1 / 2)),
        (drf.KernelLikelihoodClassifier(noise="laplace", sigma=3.0), 9 * 2.582),
        (drf.KernelLikelihoodClassifier(noise="probit", sigma=3.0), 9 * 1.616),
    ],
)
def test_the_penalty_of_candidates_follows_from_the_loss(estimator: Any, penalty: float) -> None:
    """1/(C·κ), where κ is half the fall of the slope from one margin to the other."""
    assert estimator._options().penalty == pytest.approx(penalty, rel=1e-3)
    assert clone(estimator).set_params(C=8.0)._options().penalty == pytest.approx(penalty / 8, rel=1e-3)
    assert clone(estimator).set_params(C="cv")._options().penalty is None


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


def test_own_units_undo_a_division() -> None:
    assert own_units(None) is None
    assert own_units(np.full(3, 7.0)) is None
    scale = np.array([1.0, 10.0, 0.1])
    found = own_units(scale)
    assert found is not None
    np.testing.assert_allclose(found * scale, (found * scale)[0])


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
    assert {"fourier", "nystroem", "equispaced"} <= kinds_judged(model)
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


@pytest.mark.parametrize("model", [FourierTrialModel, NystroemTrialModel])
@pytest.mark.parametrize("n_features", [16, 128])  # fewer and more than the 40 rows that are fitted
def test_small_models_are_ridge_on_their_features(rng, model, n_features):
    n, n_held_out = 60, 20
    X, Y = rng.standard_normal((n, 3)), rng.standard_normal((n, 2))
    s = rng.uniform(0.5, 1.5, n)
    penalty = 1e-3
    trial = Trial(X, Y, s, n_held_out, np.zeros(2), np.ones(2), False, penalty)
    small = model(trial, drf.Gaussian(1.0), n_features, 0)
    found = small.solution(1.0)
    Z = small.features(1.0).astype(np.float64)
    fitted, s_fitted = slice(n_held_out, None), s[n_held_out:]
    weight = s_fitted.sum()
    z_mean, y_mean = s_fitted @ Z[fitted] / weight, s_fitted @ Y[fitted] / weight
    C, R = Z[fitted] - z_mean, Y[fitted] - y_mean
    G = C.T @ (s_fitted[:, None] * C) + penalty * weight * np.eye(Z.shape[1])
    coef = np.linalg.solve(G, C.T @ (s_fitted[:, None] * R))
    # The products are float32: off by about n·u of ‖z‖² ≤ 1 for each unit of weight, 1/penalty times over.
    tolerance = n * 2.0**-24 / penalty
    assert np.linalg.norm(found.coef - coef) <= tolerance * np.linalg.norm(coef)
    assert_allclose(found.values, y_mean + (Z[:n_held_out] - z_mean) @ coef, atol=tolerance * np.abs(Y).max())
    raw = Z[fitted].T @ (s_fitted[:, None] * Z[fitted])
    assert_allclose(found.A, raw, atol=n * 2.0**-24 * weight)
    assert found.weight == pytest.approx(weight)


def test_penalties_are_sought_in_one_reduction_as_by_factors(rng):
    n, n_held_out = 300, 100
    X = rng.standard_normal((n, 2))
    Y = np.sin(X[:, :1]) + 0.3 * rng.standard_normal((n, 1))
    trial = Trial(X, Y, np.ones(n), n_held_out, np.zeros(1), np.ones(1), False)
    best = FourierTrialModel(trial, drf.Gaussian(1.0), 64, 0).judge(1.0).squared_error
    # A free penalty is in units of Σs‖z‖², which is the weight for these features.
    penalties = 1e-4 * 10.0 ** (np.arange(-6, 11) / 2)
    given = [replace(trial, penalty=penalty) for penalty in penalties]
    models = [FourierTrialModel(one, drf.Gaussian(1.0), 64, 0) for one in given]
    errors = np.array([model.judge(1.0).squared_error for model in models])
    tolerances = n * 2.0**-24 / penalties
    # So few rows can have two minima: 2 of 400 seeds had. The search goes downhill from 1e-4 into one.
    at = int(np.argmin(np.abs(errors - best)))
    assert best == pytest.approx(errors[at], rel=tolerances[at])
    assert best <= errors[6] * (1 + tolerances[6])
    for beside in (at - 1, at + 1):
        assert best <= errors[beside] * (1 + tolerances[at] + tolerances[beside])


def test_few_rows_are_judged_by_models_of_their_size():
    def features(n_rows, n_training):
        return Scope(("fourier",), 1024, n_rows, 4).judged_features(n_training)

    assert features(500, 333) == 1024  # the products of 333 rows
    assert features(1000, 667) == 384
    assert features(3000, 2000) == int(512 * (3 / 4) ** 0.5)
    assert features(10_000, 5333) == 512
    assert features(20_000, 12_000) == 1024
