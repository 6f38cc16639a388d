"""How many sweeps are expected, and what a fit tells after each."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from distrff.engine.progress import Observer, expected_sweeps
from distrff.errors import FitStopped

# Gaps of KernelSVC with the squared hinge on rows of MNIST, by sweep.
MNIST = [
    0.99, 0.95, 0.94, 0.90, 0.86, 0.73, 0.60, 0.48, 0.28, 0.20, 0.11, 0.072, 0.054, 0.036, 0.024, 0.016,
    0.0096, 0.0078, 0.0051, 0.0038, 0.0034, 0.0032, 0.0023, 0.0014, 0.00087,
]  # fmt: skip


@pytest.mark.parametrize("share", [0.3, 0.7, 0.85, 0.95])
def test_a_steady_fall_is_foreseen(share):
    odds = 10 * share ** np.arange(1, 1000)
    gaps = odds / (1 + odds)
    n_needed = 1 + int(np.argmax(gaps <= 1e-3))
    for n in range(-(-n_needed // 3), n_needed):
        assert abs(expected_sweeps(gaps[:n], 1e-3) - max(n_needed, n + 1)) <= 1
    assert expected_sweeps(gaps[:n_needed], 1e-3) == n_needed
    for n in range(len(MNIST) // 2, len(MNIST)):  # within a third from the middle on
        assert expected_sweeps(MNIST[:n], 1e-3) == pytest.approx(len(MNIST), rel=1 / 3)


def test_more_sweeps_are_always_expected_above_the_tolerance_and_never_many_times_more(rng):
    for n in range(1, 60):
        errors = np.exp(rng.normal(size=n).cumsum())
        assert n < expected_sweeps(errors, errors.min() / 2) <= max(10, n + 1, 3 * n)
    assert expected_sweeps([], 1e-3) == expected_sweeps([math.inf, math.nan, 1.0], 1e-3) == 10
    assert expected_sweeps([1.0] * 40, 1e-3) == 60  # no trend
    assert expected_sweeps([0.0], 1e-3) == 1


def told_of(errors, *, tol=1e-3, seconds=12.0, **options):
    """Progress that callbacks hear of a solver with these errors."""
    told, sweeps = [], [("column statistics", 1.0), ("Gram", 2.0)]
    observer = Observer([told.append])
    observer.begin_solver(100, **options)
    for number, error in enumerate(errors, 1):
        sweeps.append(("margins", seconds))
        observer.light_sweep(sweeps, number, "duality gap", error, tol)
    return told


def test_each_pass_is_told_once_in_order():
    told = told_of([0.5, 0.1])
    assert [(p.label, p.sweep, p.error) for p in told] == [
        ("column statistics", 1, None), ("Gram", 2, None), ("margins", 1, 0.5), ("margins", 2, 0.1)
    ]  # fmt: skip
    assert told[-1].seconds_a_sweep == 12.0
    assert told[-1].seconds_left == 12.0 * (told[-1].n_expected - 2)


def test_the_line_says_it_all():
    statistics, gram, *_, last = told_of([0.5, 0.2, 0.1, 0.06, 0.05, 0.04, 0.03])
    assert (str(statistics), str(gram)) == ("column statistics, pass 1 · 1 s", "Gram, pass 2 · 2 s")
    line = str(last)
    assert line.startswith(f"sweep 7 of about {last.n_expected} · gap 0.03 → 0.001 · 12 s a sweep · about ")
    assert line.endswith(" min left")
    assert "→" not in str(told_of([0.5], tol=None)[-1])
    assert " · gap" not in str(told_of([math.inf])[-1])
    ended = told_of([0.1, 1e-4], stage="C = 0.1, 2 of 6")[-1]
    assert str(ended) == "C = 0.1, 2 of 6 · sweep 2 of about 2 · gap 0.0001 → 0.001 · 12 s a sweep"


def test_a_search_counts_the_sweeps_of_all_its_solvers():
    told, sweeps = [], []
    observer = Observer([told.append])
    for n_after in (2, 1, 0):
        observer.begin_solver(100, n_after=n_after)
        for number, error in enumerate((0.5, 0.1, 1e-4), 1):
            sweeps.append(("margins", 1.0))
            observer.light_sweep(sweeps, number, "duality gap", error, 1e-3)
    assert [p.sweep for p in told] == list(range(1, 10))
    assert [told[i].n_expected for i in (2, 5, 8)] == [9, 9, 9]


def test_passes_between_are_sweeps_without_news_and_another_measure_begins_another_trend():
    told, sweeps = [], [("margins", 1.0)] * 6
    observer = Observer([told.append])
    observer.begin_solver(100)
    observer.light_sweep(sweeps[:3], 3, "relative gradient", 1e-9, 1e-12)
    observer.light_sweep(sweeps, 6, "duality gap", 0.9, 1e-3)
    assert [p.sweep for p in told if p.error is not None] == [3, 6]
    assert told[-1].n_expected == 10


@pytest.mark.parametrize("answer", [1, "yes", None, False, np.False_, True, np.True_])
def test_only_true_ends_a_fit_at_the_next_error(answer):
    told = []
    observer = Observer([lambda progress: told.append(progress) or answer])
    observer.begin_solver(4)
    observer.passes([("Gram", 1.0)])
    ends = pytest.raises(FitStopped) if isinstance(answer, bool | np.bool_) and answer else nullcontext()
    with ends:
        observer.light_sweep([("Gram", 1.0), ("margins", 1.0)], 1, "duality gap", 0.9, 1e-3)
    assert told[-1].n_expected == 4  # no more than are allowed
    assert told[0].model is None  # before the map is known
