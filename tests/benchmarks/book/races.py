"""Twelve named sets: our default beside each CPU neighbour, by error and by seconds."""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.book import contestants
from tests.benchmarks.book.contestants import CONTESTANTS, EVERYBODY
from tests.benchmarks.book.datasets import SETS, NamedSet
from tests.benchmarks.book.environments import ROOT
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, spread
from tests.benchmarks.book.processes import Ended, TookTooLong, result_and_peak

PREFIX = "set_"
OURS = "distrff"
_ROUNDS = 2
_LONG_SECONDS = 5.0  # of our fit: one round is enough where the spread is small beside it
_OUR_MOST_SECONDS = 1200.0
_LEAST_LIMIT = 30.0
_STARTING_SECONDS = 120.0  # of imports, workers and the warm-up, which are no part of what is timed


def _race(named: NamedSet, setting: Setting) -> Iterator[Result]:
    try:
        rows = named.rows(setting.scale)
    except FileNotFoundError as missing:
        yield {"case": named.name, "skipped": str(missing)}
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **dataclasses.asdict(rows))
        ours = run_contestant(OURS, path, setting, _OUR_MOST_SECONDS)
        if "skipped" in ours:
            yield {"case": f"{named.name}, {CONTESTANTS[OURS].title}", **ours}
            return
        limit = max(_LEAST_LIMIT, ours["seconds"])  # who takes longer is not faster
        rounds = 1 if ours["seconds"] > _LONG_SECONDS else setting.repeats(_ROUNDS)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
        found[OURS].append(ours)
        for i in range(rounds):
            for name, runs in found.items():
                is_out = any("skipped" in run for run in runs)
                if not is_out and not (name == OURS and i == 0):
                    most = limit if name != OURS else _OUR_MOST_SECONDS
                    runs.append(run_contestant(name, path, setting, most))
    results = [_of_contestant(named, name, runs) for name, runs in found.items()]
    for result in results:
        result["n_rows"], result["task"] = len(rows.X), named.task
    yield from results
    yield _verdict(named, results)


def run_contestant(name: str, path: Path, setting: Setting, seconds: float) -> dict[str, Any]:
    """What a contestant prints of its seconds and error, or the reason why it was skipped."""
    place = setting.place(EVERYBODY[name].environment)
    if place.python is None:
        return {"skipped": place.reason}
    is_here = EVERYBODY[name].environment == "here"
    command = (place.python, "-P", str(Path(contestants.__file__)), name, str(path))
    try:
        found = result_and_peak(
            command, seconds, str(ROOT) if is_here else None, starting_seconds=_STARTING_SECONDS
        )
    except Ended as why:
        return {"skipped": str(why), "is_slower": isinstance(why, TookTooLong)}
    return found if "seconds" in found or "skipped" in found else {"skipped": "printed no result"}


def _of_contestant(named: NamedSet, name: str, runs: Sequence[dict[str, Any]]) -> Result:
    shared: Result = {
        "case": f"{named.name}, {CONTESTANTS[name].title}",
        "set": named.name,
        "contestant": name,
        "asked": None,
        "unit": "s",
    }
    for run in runs:
        if "skipped" in run:
            return shared | run
    return shared | {
        **spread([run["seconds"] for run in runs]),
        "error": median(run["error"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
    }


def _verdict(named: NamedSet, results: Sequence[Result]) -> Result:
    """Return how many neighbours are both faster and more accurate, and which.

    Those who were ended by the limit of their time are compared: they are slower.
    """
    n_slower = sum(result.get("is_slower", False) for result in results)
    finished = {result["contestant"]: result for result in results if "skipped" not in result}
    compared = len(finished) - (OURS in finished) + n_slower
    case = f"{named.name}: neighbours both faster and more accurate, of {compared} compared"
    shared = {"case": case, "set": named.name}
    if OURS not in finished or not compared:
        return shared | {"skipped": "nobody to compare with"}
    ours = finished.pop(OURS)
    better = [
        CONTESTANTS[name].title
        for name, other in finished.items()
        if other["reached"] < ours["reached"] and other["error"] < ours["error"]
    ]
    return shared | {"reached": len(better), "better": better, "compared": compared}


def sets_that_hold(results: Sequence[Result]) -> Result | None:
    """Return in how many sets nobody is both faster and more accurate; None where no set was run."""
    verdicts = [found for found in results if "better" in found]
    if not verdicts:
        return None
    losing = {found["set"]: found["better"] for found in verdicts if found["better"]}
    met = {
        found["contestant"]
        for found in results
        if "contestant" in found and ("skipped" not in found or found.get("is_slower"))
    }
    absent = [one.title for name, one in CONTESTANTS.items() if name not in met]
    words = [f"not {name}: {', '.join(better)}" for name, better in losing.items()]
    return {
        "case": "; ".join(words + [f"not compared: {', '.join(absent)}"] * bool(absent)),
        "reached": len(verdicts) - len(losing),
        "n_sets": len(verdicts),
        "losing": losing,
        "absent": absent,
    }


# Minutes of all contestants and rounds.
_MINUTES = {
    **{"a9a": 2, "covtype": 15, "kddcup99": 2.5, "mnist": 4, "digits": 3, "breast_cancer": 2},
    **{"cpu_act": 5, "kin40k": 4, "nycflights": 3, "terrain": 8, "diabetes": 4, "friedman1": 5},
}
LINES = tuple(
    Line(
        f"{PREFIX}{named.name}",
        f"our default and its neighbours on {named.name}",
        partial(_race, named),
        _MINUTES[named.name],
        Bound(high=0),
        "",
        environments=tuple({c.environment: None for c in CONTESTANTS.values() if c.environment != "here"}),
    )
    for named in SETS
)
SUMMARY = Line(
    "twelve_sets",
    "sets of twelve on which no CPU neighbour is both faster and more accurate",
    lambda setting: iter(()),
    0,
    Bound(low=10),
    "",
)
