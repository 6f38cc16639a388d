"""How wrong will it be for a new person, in the gaps of a map, next month?

The same rows are fitted with rows held out at random, and with rows held out as new ones will come. Beside
the error that each fit reports stands the one that it reaches on new rows: people of a study of Parkinson's
disease whom the fit did not see, cells of a satellite image under clouds, the flights of a December. Give the
folder of `parkinsons.parquet`, `heaton_satellite.parquet` and `nycflights.parquet`, or name it by
DISTRFF_DATA; without a folder the tables are made up::

    python examples/which_rows.py
    python examples/which_rows.py FOLDER --parts 6 --out examples/figures  # pictures; each person is new once
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

import distrff as drf
from distrff.errors import DistrffError, InputError

N_PARTS = 6  # of the people, each of which is new once
COLOURS = ["0.9", "#4c78a8", "#e45756"]  # rows that a model does not see, is fitted to, is judged on
UNSEEN, FITTED, JUDGED = range(3)
COVERAGE = 0.9


class Fit(NamedTuple):
    """What a way to hold rows out reports, and what its model reaches on new rows."""

    way: str
    reported: float
    reached: float
    constant: float  # RMSE of the mean of the rows that were fitted, on new rows
    covered: float  # share of new rows within their intervals


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the questions, and return the exit code."""
    options = _parser().parse_args(arguments)
    matplotlib.rcParams["svg.hashsalt"] = "distrff"  # the same file each time
    try:
        for name in options.only:
            file, made, ask, draw = QUESTIONS[name]
            table = made() if options.source is None else _read(Path(options.source) / file)
            found = list(ask(table, options.parts))
            print(f"{name}: {'made-up rows' if options.source is None else file}")
            _tell(found)
            if options.out is not None:
                path = options.out / f"which-rows-{name}.svg"
                _figure(table, found, draw).savefig(path, metadata={"Date": None}, dpi=90)
                print(f"  written to {path}")
    except (DistrffError, OSError) as error:
        print("which_rows.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="which_rows.py", description="Reported errors beside reached ones.")
    folder = os.environ.get("DISTRFF_DATA")
    parser.add_argument("source", nargs="?", default=folder, help="folder of the files [DISTRFF_DATA]")
    parser.add_argument("--only", choices=list(QUESTIONS), nargs="+", default=list(QUESTIONS))
    parser.add_argument(
        "--parts",
        type=int,
        choices=range(1, N_PARTS + 1),
        default=1,
        metavar="N",
        help=f"how many of {N_PARTS} parts of the people are new in turn; one says little [1]",
    )
    parser.add_argument("--out", type=Path, help="folder to write pictures to")
    return parser


def _read(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise InputError(f"{file} does not exist; give the folder that holds it, or leave it out by --only")
    return pd.read_parquet(file)


def _tell(found: Sequence[Fit]) -> None:
    print(f"  {'held out':28} {'reported':>9} {'reached':>9} {'the mean':>9}  {COVERAGE:.0%} intervals cover")
    for fit in found:
        print(
            f"  {fit.way:28} {fit.reported:9.3f} {fit.reached:9.3f} {fit.constant:9.3f}  {fit.covered:.1%}",
            flush=True,
        )


# The three questions.


def people(table: pd.DataFrame, n_parts: int) -> Iterator[Fit]:
    """Yield fits to some people, judged on others; those of several parts are pooled."""
    person, y = table["subject"].to_numpy(), table["y"].to_numpy()
    X = table.drop(columns=["subject", "y"])
    parts = np.array_split(np.random.default_rng(0).permutation(np.unique(person)), N_PARTS)[:n_parts]
    for way in ("rows at random", "whole people"):
        errors = []
        for part in parts:
            new = np.isin(person, part)
            groups = person[~new] if way == "whole people" else None
            model = drf.KernelRidge(random_state=0).fit(X[~new], y[~new], groups=groups)
            errors.append(_errors(model, X[new], y[new], y[~new].mean()))
        yield _pooled(way, errors)


def places(table: pd.DataFrame, _: int) -> Iterator[Fit]:
    """Yield fits to a quarter of the cells that were seen, judged on those under clouds."""
    table, seen = table[table["true_temp"].notna()], ["lon", "lat"]
    old, new = table[table["train_temp"].notna()], table[table["train_temp"].isna()]
    old = old.sample(frac=0.25, random_state=0).sort_index()
    for way, cv in (
        ("rows at random", drf.HashFolds()),
        ("cells of 0.1°, buffer 0.05°", drf.BlockFolds(["lon", "lat"], size=0.1, buffer=0.05)),
        ("like the gaps", "auto"),
    ):
        features = drf.EquispacedFourierFeatures(drf.Matern("auto", nu=0.5), 50_000)
        model = drf.KernelRidge(features, cv=cv, random_state=0).fit(old[seen], old["train_temp"])
        yield _pooled(way, [_errors(model, new[seen], new["true_temp"], old["train_temp"].mean())])


def days(table: pd.DataFrame, _: int) -> Iterator[Fit]:
    """Yield fits to a tenth of the flights up to November, judged on a tenth of those of December."""
    day = pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_year
    table = table.assign(day=day).dropna(subset="arr_delay").sort_values("day", kind="stable")[::10]
    is_new = table["month"] == 12
    # What is known of a flight days before it.
    table = table[["day", "hour", "minute", "distance", "carrier", "origin", "dest", "arr_delay"]]
    old, new = table[~is_new], table[is_new]
    for way, cv in (
        ("rows at random", drf.HashFolds()),
        ("whole days", drf.GroupFolds("day")),
        ("what comes a week later", drf.ForwardFolds("day", gap=7)),
    ):
        rows = drf.open_dataset(old, target="arr_delay", one_hot=True)
        features = drf.FourierFeatures(drf.Gaussian("auto"), 1024)
        model = drf.KernelRidge(features, cv=cv, random_state=0).fit(rows)
        X = drf.open_dataset(new.drop(columns="arr_delay"), steps=model.model_.steps)
        yield _pooled(way, [_errors(model, X, new["arr_delay"], old["arr_delay"].mean())])


def _errors(model: drf.KernelRidge, X: Any, y: Any, mean: float) -> np.ndarray:
    """Squares of what was reported, of the errors and of those of the mean, and what is covered, by row."""
    y = np.asarray(y, dtype=float)
    lower, upper = model.predict_interval(X, coverage=COVERAGE)
    error, reported = np.asarray(model.predict(X)) - y, model.report_["quality"]["rmse"]
    covered = (np.asarray(lower) <= y) & (y <= np.asarray(upper))
    return np.stack([np.full(len(y), reported**2), error**2, (y - mean) ** 2, covered])


def _pooled(way: str, errors: Sequence[np.ndarray]) -> Fit:
    *squares, covered = np.concatenate(errors, axis=1).mean(axis=1)
    return Fit(way, *map(float, np.sqrt(squares)), float(covered))


# Tables of the same columns, where there are no files.


def made_people() -> pd.DataFrame:
    """Return visits of people, who are told apart by traits that say nothing of their level."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(42), 25)
    X = rng.normal(size=(42, 4))[person] + 0.1 * rng.normal(size=(len(person), 4))
    y = rng.normal(size=42)[person] + 0.3 * X[:, 0] + 0.1 * rng.normal(size=len(person))
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(4)]).assign(subject=person, y=y)


def made_places() -> pd.DataFrame:
    """Return cells of a sum of waves, with discs that were not seen."""
    rng = np.random.default_rng(0)
    lat, lon = (A.ravel() for A in np.meshgrid(np.arange(80) / 50, np.arange(120) / 50, indexing="ij"))
    K = rng.standard_normal((2, 100)) / 0.3 / np.sqrt(rng.gamma(0.5, 2, 100))  # as of a Matérn kernel, ν = ½
    waves = np.cos(np.stack([lon, lat], axis=1) @ K + rng.uniform(0, 2 * np.pi, 100))
    temperature = np.sqrt(2 / 100) * waves.sum(axis=1) + 0.1 * rng.normal(size=len(lon))
    discs = rng.uniform(0, (2.4, 1.6), (8, 2))
    is_hidden = (np.hypot(lon - discs[:, :1], lat - discs[:, 1:]) < 0.25).any(axis=0)
    table = pd.DataFrame({"lon": lon, "lat": lat, "true_temp": temperature})
    return table.assign(train_temp=np.where(is_hidden, np.nan, temperature))


def made_days() -> pd.DataFrame:
    """Return flights of a year, late together on bad days."""
    rng = np.random.default_rng(0)
    bad = np.zeros(365)
    for day in range(1, 365):
        bad[day] = 0.8 * bad[day - 1] + 9 * rng.normal()
    day = np.repeat(np.arange(365), 60)
    when, hour = pd.Timestamp("2013-01-01") + pd.to_timedelta(day, unit="D"), rng.integers(5, 23, len(day))
    table = pd.DataFrame({"year": when.year, "month": when.month, "day": when.day, "hour": hour})
    delay = bad[day] + hour + 15 * rng.normal(size=len(day))
    words = {name: rng.choice(list("ABC"), len(day)) for name in ("carrier", "origin", "dest")}
    return table.assign(minute=0, distance=rng.uniform(100, 2500, len(day)), arr_delay=delay, **words)


# Pictures: which rows a fold holds out, and the errors.


def draw_people(table: pd.DataFrame, at_random: Any, as_new: Any) -> None:
    """Draw rows of twelve people, one in five or some of the people held out."""
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((12, 30)) < 0.2, JUDGED, FITTED)
    people = np.where(np.isin(np.arange(12), [2, 7]), JUDGED, FITTED)[:, None] + np.zeros((1, 30))
    for ax, found, title in ((at_random, rows, "rows at random"), (as_new, people, "whole people")):
        ax.imshow(found, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, aspect="auto", interpolation="none")
        ax.set(title=title, xlabel="visits", ylabel="people", xticks=[], yticks=[])
        ax.set_yticks(np.arange(0.5, 12), minor=True)
        ax.grid(which="minor", axis="y", color="white", linewidth=2)
        ax.tick_params(which="both", length=0)


def draw_places(table: pd.DataFrame, at_random: Any, as_new: Any) -> None:
    """Draw the map, cells or a mirrored and shifted copy of its gaps held out."""
    rng = np.random.default_rng(0)
    train = table.pivot(index="lat", columns="lon", values="train_temp").to_numpy()
    is_seen = ~np.isnan(train)
    copy = np.roll(~is_seen[:, ::-1], (len(is_seen) // 3, is_seen.shape[1] // 4), axis=(0, 1))
    cells = rng.random(train.shape) < 0.2
    for ax, judged, title in ((at_random, cells, "rows at random"), (as_new, copy, "like the gaps")):
        found = np.where(is_seen, np.where(judged, JUDGED, FITTED), UNSEEN)
        ax.imshow(found, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, origin="lower", interpolation="none")
        ax.set(title=title, xlabel="longitude", ylabel="latitude", xticks=[], yticks=[])


def draw_days(table: pd.DataFrame, at_random: Any, as_new: Any) -> None:
    """Draw the days of the year by fold, single flights or spans held out of what was before."""
    rng = np.random.default_rng(0)
    day, fold = np.arange(334), np.arange(5)[:, None]
    start = 334 * (fold + 1) // 6
    forward = np.where((day >= start) & (day < start + 56), JUDGED, np.where(day < start - 7, FITTED, UNSEEN))
    rows = np.where(rng.integers(5, size=334) == fold, JUDGED, FITTED)
    titles = "rows at random", "what comes a week later"
    for ax, found, title in zip((at_random, as_new), (rows, forward), titles, strict=True):
        ax.imshow(found, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, aspect="auto", interpolation="none")
        ax.set(title=title, xlabel="day", ylabel="fold", yticks=range(5), yticklabels=range(1, 6))
        ax.set_yticks(np.arange(0.5, 4), minor=True)
        ax.grid(which="minor", axis="y", color="white", linewidth=3)
        ax.tick_params(which="minor", length=0)


def _figure(table: pd.DataFrame, found: Sequence[Fit], draw: Callable[..., None]) -> Figure:
    """Return the figure of its three pictures."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    at_random, as_new, errors = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    draw(table, at_random, as_new)
    for row, fit in enumerate(found):
        errors.plot([fit.reported, fit.reached], [row, row], color="0.6", zorder=1)
    rows = np.arange(len(found))
    errors.scatter([fit.reported for fit in found], rows, facecolor="white", edgecolor="k", label="reported")
    errors.scatter([fit.reached for fit in found], rows, color="k", label="reached on new rows")
    errors.axvline(found[0].constant, color="0.4", linestyle="--", linewidth=1, label="the mean")
    errors.set(yticks=rows, yticklabels=[fit.way for fit in found], xlabel="RMSE")
    errors.set(ylim=(len(found) - 0.5, -0.5))
    if max(fit.reached / fit.reported for fit in found) > 5:
        errors.set_xscale("log")
        errors.xaxis.set_minor_formatter(NullFormatter())
        errors.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        errors.xaxis.set_major_formatter("{x:g}")
    meanings = "left out of its model", "its model is fitted to these", "held out by a fold"
    of_rows = [Patch(color=c, label=text) for c, text in zip(COLOURS, meanings, strict=True)][::-1]
    of_errors, _ = errors.get_legend_handles_labels()
    figure.legend(handles=[*of_rows, *of_errors], fontsize=8, loc="outside upper center", ncols=6)
    return figure


QUESTIONS = {
    "people": ("parkinsons.parquet", made_people, people, draw_people),
    "places": ("heaton_satellite.parquet", made_places, places, draw_places),
    "days": ("nycflights.parquet", made_days, days, draw_days),
}

if __name__ == "__main__":
    sys.exit(main())
