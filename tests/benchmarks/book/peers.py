"""Tables: our default beside boosted trees and another kernel machine, by error and by seconds of the fit.

Each contestant has two cores, and an environment of its own. Trees are at most 3000, and fewer where 50 more
fit a held-out fifth of the rows no better. Errors are RMSE, or the share of wrong classes.
"""

import dataclasses
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.book.contestants import ON_TABLES
from tests.benchmarks.book.datasets import TABLES, NamedSet, tables_of_user
from tests.benchmarks.book.environments import default_cache, prepared
from tests.benchmarks.book.lines import Bound, Line, Result, Setting
from tests.benchmarks.book.races import run_contestant

OURS, WITH_PROBABILITIES = "distrff_model", "distrff_likelihood"
PEERS = {name: one.title for name, one in ON_TABLES.items() if one.environment != "here"}
SAME = 1.01  # ratios of errors within it are equal
_ASKED = {"catboost": (Bound(high=0.70), Bound(high=1.8), Bound(high=0.2))}
_N_CORES, _MOST_SECONDS = 2, 1800.0
_LEAST_RMSE = 1e-6  # of the test targets' deviation
_ENVIRONMENTS = tuple({one.environment: None for one in ON_TABLES.values() if one.environment != "here"})


@contextmanager
def _few_cores() -> Iterator[None]:
    """Programs started meanwhile have two cores, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:_N_CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _fits(named: NamedSet, setting: Setting) -> Iterator[Result]:
    """Yield the seconds of each contestant's fit and its errors, or why there are none."""
    try:
        rows = named.rows(setting.scale)
    except (OSError, ValueError) as why:
        yield {"case": named.name, "set": named.name, "skipped": str(why)}
        return
    deviation = float(np.std(rows.y_test))
    about: Result = {
        "set": named.name,
        "task": named.task,
        "n_rows": len(rows.X),
        "n_columns": rows.X.shape[1],
        "least_error": 0.5 / len(rows.X_test) if rows.is_classes else _LEAST_RMSE * deviation,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **dataclasses.asdict(rows))
        for name, contestant in ON_TABLES.items():
            if contestant.only_classes and not rows.is_classes:
                continue
            with _few_cores():
                found = run_contestant(name, path, setting, _MOST_SECONDS)
            if "seconds" in found:
                found["reached"] = found.pop("seconds")
                found["error"] *= 1.0 if rows.is_classes else deviation
            yield {"case": f"{named.name}, {contestant.title}", "peer": name, "unit": "s", **about, **found}


def on_tables(scale: float) -> Iterator[Result]:
    """Yield seconds and errors on the named tables and those of the user, then what they say together."""
    sets = (*TABLES, *tables_of_user())
    setting = Setting(scale, places=prepared(_ENVIRONMENTS, default_cache()))
    results = []
    for named in sets:
        for found in _fits(named, setting):
            results.append(found)
            yield found
    yield from summary(results, setting)


class Ratio(NamedTuple):
    """Our numbers on a set over those of a peer; of the log loss that of our model with probabilities."""

    set: str
    task: str
    error: float
    seconds: float
    log_loss: float | None


def ratios(results: Sequence[Result]) -> dict[str, list[Ratio]]:
    """Return for each peer the ratios on the sets that it and we have fitted.

    An error of 0 would make means of ratios 0 or infinite: it says little more than that the true one is
    small. So a share of wrong classes is at least that of half a test row, 1/(2n), and an RMSE a millionth of
    the test targets' deviation.
    """
    by_set: dict[str, dict[str, Result]] = defaultdict(dict)
    for one in results:
        if "peer" in one and "reached" in one:
            by_set[one["set"]][one["peer"]] = one
    found: dict[str, list[Ratio]] = defaultdict(list)
    for name, fits in by_set.items():
        for peer in PEERS:
            if OURS in fits and peer in fits:
                ours, theirs = fits[OURS], fits[peer]
                errors = [max(one["error"], one["least_error"]) for one in (ours, theirs)]
                losses = [fits.get(one, {}).get("log_loss") for one in (WITH_PROBABILITIES, peer)]
                log_loss = losses[0] / losses[1] if all(losses) else None
                seconds = ours["reached"] / theirs["reached"]
                found[peer].append(Ratio(name, ours["task"], errors[0] / errors[1], seconds, log_loss))
    return dict(found)


def summary(results: Sequence[Result], setting: Setting) -> list[Result]:
    """Return the means and counts of each peer that was met; judged only where no named table is missing."""
    found = []
    for peer, of_sets in ratios(results).items():
        wins = sum(one.error < 1 / SAME for one in of_sets)
        losses = sum(one.error > SAME for one in of_sets)
        counts = {"wins": wins, "equal": len(of_sets) - wins - losses, "losses": losses}
        case = f"sets: {wins} better, {counts['equal']} within 1 %, {losses} worse"
        log_losses = [one.log_loss for one in of_sets if one.log_loss is not None]
        title, asked = PEERS[peer], _ASKED.get(peer, (None, None, None))
        numbers = [
            (f"our error over {title}'s", case, _mean([one.error for one in of_sets]), asked[0], "×"),
            (f"our seconds over {title}'s", "", _mean([one.seconds for one in of_sets]), asked[1], "×"),
            (
                f"sets on which our error is over 1 % above {title}'s",
                "",
                losses / len(of_sets),
                asked[2],
                "%",
            ),
        ]
        if log_losses:
            of_classes = f"sets of classes: {len(log_losses)}"
            numbers.append((f"our log loss over {title}'s", of_classes, _mean(log_losses), None, "×"))
        for what, of, reached, bound, unit in numbers:
            words = f"{what}: geometric mean" if unit == "×" else what
            one = {"title": words, "case": of, "reached": reached, "asked": bound, "unit": unit}
            judged = SUMMARY.judged(setting, {**one, "peer": peer, **counts})
            if "holds" in judged and not {named.name for named in TABLES} <= {one.set for one in of_sets}:
                judged["holds"] = None
            found.append(judged)
    return found


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# Minutes of all contestants; of other tables 3.
_MINUTES = {"covtype": 60, "letter": 20, "kin40k": 10, "nycflights": 20, "kddcup99": 15, "a9a": 10}
LINES = tuple(
    Line(
        f"peers_{named.name}",
        f"our default and those who fit tables on {named.name}: seconds of the fit",
        partial(_fits, named),
        _MINUTES.get(named.name, 3),
        unit="s",
        environments=_ENVIRONMENTS,
    )
    for named in TABLES
)
SUMMARY = Line("peers", "our default and those who fit tables", lambda setting: iter(()), 0)
