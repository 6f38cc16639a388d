"""`distrff quickstart`: a kernel machine on made-up rows, beside the best score that is possible."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import distrff as drf
from distrff.cli.command import AS_JSON, Result, command, flag
from distrff.cli.data import workers_of
from distrff.utils.random import stream

if TYPE_CHECKING:
    from distrff.io.dataset import Dataset

KIND = "quickstart"  # what the root of the folder says of itself


@command()
@click.option("--n-rows", type=click.IntRange(min=100), default=1_000_000, help="Rows to be fitted.")
@click.option("--n-columns", type=click.IntRange(min=1), default=20, help="Columns of each row.")
@click.option("--n-components", type=int, default=2048, help="Random features.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("distrff-quickstart"),
    help="Where data, model and report are put.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one a core, at most 8]")
@click.option("--memory-limit", help="Of each worker, such as 4GB.  [default: an equal share of the memory]")
@click.option("--random-state", type=click.IntRange(min=0), default=0, help="Seed of rows and features.")
@flag("--overwrite", "Replace what an earlier quickstart left in --dir.")
@click.pass_context
def quickstart(ctx: click.Context, folder: Path, overwrite: bool, **options: Any) -> Result:
    """Fit a kernel machine to made-up rows and see how good it is.

    Writes rows whose true function and noise are known, fits kernel ridge to them on a
    local cluster, and scores it on held-out rows beside the true function, which nothing
    can beat, and beside linear ridge. Data, model and a report page stay in --dir; an
    interrupted run leaves nothing.
    """
    from distrff.engine.cluster import memory_limit_bytes
    from distrff.io.storage import Location, check_writable, replacing

    place = Location.of(folder)
    # An empty folder is nobody's result.
    may_replace = overwrite or (folder.is_dir() and not any(folder.iterdir()))
    check_writable(place, overwrite=may_replace, kinds=(KIND,))
    features = drf.FourierFeatures(drf.Gaussian("auto"), options["n_components"])
    features.check_parameters()
    options["workers"] = options["workers"] or local_workers()
    # Raises here for a size that is none, before rows are written.
    memory_limit_bytes(options["memory_limit"], options["workers"])
    say = Clock(ctx.meta[AS_JSON])
    with replacing(place, overwrite=may_replace, kinds=(KIND,)) as fresh:
        result = demonstrate(features, options, Path(fresh.url), folder, say)
    result["seconds"] = say.seconds
    say("Done")
    lines = ["", f"{'on held-out rows':24}{'RMSE':>8}{'R²':>8}"]
    for name, rmse, r2, above in _score_rows(result["scores"]):
        lines.append(f"{name.replace('_', ' '):24}{rmse:>8}{r2:>8}   {above}".rstrip())
    lines += ["", *(f"{key:8}{result[key]}" for key in FILES)]
    return Result(result, lines)


class Clock:
    """Prints what is being done after how many seconds; with `aside` on standard error, beside the result."""

    def __init__(self, aside: bool) -> None:
        self._aside = aside
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, text: str) -> None:
        first, *rest = text.splitlines()
        lines = [f"{self.seconds:5.0f} s  {first}", *(f"{'':9}{line}" for line in rest)]
        click.echo("\n".join(lines), err=self._aside)


def _score_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Name, RMSE, R² and how far the RMSE is above the best possible one."""
    best, rows = scores["best_possible"]["rmse"], []
    for name, score in scores.items():
        above = "" if name == "best_possible" else f"{score['rmse'] / best - 1:+.1%}"
        rows.append([name, f"{score['rmse']:.4f}", f"{score['r2']:.4f}", above])
    return rows


# Steps of the quickstart: rows, plan, fit, scores, model, report.

FILES = {"train": "train.zarr", "test": "test.zarr", "model": "model.zarr", "report": "report.html"}
_COPIED = (
    "n_samples", "n_columns", "n_components", "length_scale", "alpha", "cv_score", "n_sweeps", "status",
    "sweep_seconds", "planned_peak_bytes", "measured_peak_bytes", "workers"
)  # fmt: skip

_MAX_WORKERS = 8  # a million rows are sixteen segments, two each
_WORKER_BYTES = 2.5e9  # with all folds in a task, and room for other sizes than the defaults
_MAX_HELD_OUT = 100_000


def local_workers() -> int:
    """Number of workers that the cores and the memory of this machine suffice for."""
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    # Dask's own counts, which know the limits of a container.
    return max(1, min(CPU_COUNT, _MAX_WORKERS, int(MEMORY_LIMIT / _WORKER_BYTES)))


def demonstrate(
    features: Any, options: dict[str, Any], folder: Path, shown: Path, say: Clock
) -> dict[str, Any]:
    """Fill the empty `folder` with data, model and report, and return the result.

    `shown` is where the folder will be in the end; texts name it.
    """
    import zarr

    from distrff.io.storage import PAGE, Location, write_file

    n_rows, n_columns, seed = options["n_rows"], options["n_columns"], options["random_state"]
    n_held_out = min(_MAX_HELD_OUT, max(10_000, n_rows // 10))
    truth = KnownTruth(n_columns, seed=seed)
    ridge = partial(drf.KernelRidge, alpha="cv", scale="standard", random_state=seed)
    # The root says whose the folder is: --overwrite replaces no other.
    zarr.create_group(folder, zarr_format=3, attributes={"distrff": {"kind": "quickstart"}})
    say(f"Writing {n_rows:,} rows of {n_columns} columns, and {n_held_out:,} to be held out")
    write_known_rows(folder / FILES["train"], truth, "train", n_rows)
    best = write_known_rows(folder / FILES["test"], truth, "test", n_held_out)
    train, test = (
        # Reports name the folder that stays, not the one that is moved into its place.
        replace(drf.open_dataset(folder / FILES[name]), source=str(shown / FILES[name]))
        for name in ("train", "test")
    )
    say(f"Starting {options['workers']} worker(s)")
    with workers_of({"scheduler": "local", **options}):
        model = ridge(features)
        say("Planning kernel ridge")
        say(f"The plan is\n{model.plan(train)}")
        say("Fitting kernel ridge: the kernel's length scale, then alpha by cross-validation")
        r = model.fit(train).report_
        say(f"Fitted in {r['seconds']:.1f} s: length scale {r['length_scale']:.3g}, alpha {r['alpha']:.3g}")
        say("Fitting linear ridge, for comparison")
        linear = ridge(drf.LinearFeatures()).fit(train)
        say("Scoring both on the held-out rows")
        scores = _scores(model, linear, test, best)
    model.save(str(folder / FILES["model"]))
    page = _page(n_held_out, truth, model, scores)
    write_file(page, Location.of(folder / FILES["report"]), kinds=(PAGE,))
    return {
        **{key: r[key] for key in _COPIED},
        "n_held_out": n_held_out,
        "noise": truth.noise,
        "scores": scores,
        "fit_seconds": r["seconds"],
        "predicted_seconds": r["plan"]["seconds"],
        **{key: str(shown / name) for key, name in FILES.items()},
    }


def _scores(model: drf.KernelRidge, linear: drf.KernelRidge, test: Dataset, best: float) -> dict[str, Any]:
    """RMSE and R² of the true function, which has the RMSE `best`, and of both models."""
    found = {
        name: drf.evaluate(one.model_, test)
        for name, one in (("kernel_ridge", model), ("linear_ridge", linear))
    }
    # R² of the truth by the variance that those of the models are measured by.
    variance = found["kernel_ridge"]["constant_rmse"] ** 2
    return {
        "best_possible": {"rmse": best, "r2": 1.0 - best**2 / variance},
        **{name: {key: score[key] for key in ("rmse", "r2")} for name, score in found.items()},
    }


def _page(n_held_out: int, truth: KnownTruth, model: drf.KernelRidge, scores: dict[str, Any]) -> str:
    names = {
        "best_possible": "best possible: the true function",
        "kernel_ridge": f"kernel ridge, {model.report_['n_components']:,} features",
        "linear_ridge": "linear ridge",
    }
    rows = [[names[name], *numbers] for name, *numbers in _score_rows(scores)]
    facts = [
        ["data", "made up: a random smooth function of four hidden factors, plus noise"],
        ["standard deviation", f"of the function 1, of the noise {truth.noise:g}"],
        ["held-out rows", f"{n_held_out:,}"],
    ]
    return model.report_.to_html(
        title="distrff quickstart",
        facts=facts,
        scores={"columns": ["", "RMSE", "R²", "RMSE above best"], "rows": rows},
    )


# Made-up rows of a known function with known noise, so that the best possible score is known as well.

# Four factors behind the columns and phases of this variance: a straight line explains about a
# fifth of such a function's variance, and two thousand random features more than 99 % of it.
_N_FACTORS = 4
_PHASE_VARIANCE = 3.0
_N_COSINES = 128

_MAX_BLOCK_ROWS = 2**15
_BLOCK_BYTES = 2**24
_STRIP_ROWS = 2**12  # of phases: they stay in a core's cache


class KnownBlock(NamedTuple):
    """Consecutive rows: X (r, d) float32, the true function's values f (r,), and y = f + noise (r,)."""

    start: int
    X: np.ndarray
    f: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class KnownTruth:
    """A random function of a Gaussian kernel, seen through noise.

    x is n_columns mixtures of four hidden factors, x = Bᵀg with g ~ N(0, I) and B's columns
    of length 1, so each column is N(0, 1) and, as in most tables, they are far from
    independent. The function is f(x) ∝ Σ_j cos(ω_j·x + b_j) + c over 128 frequencies
    ω_j ~ N(0, ℓ⁻²I), the spectral measure of `Gaussian(ℓ)`, with ℓ² = n_columns/3; it is
    shifted and scaled to mean 0 and deviation 1 on rows of its own. Then
    y = f(x) + N(0, noise²), and the least possible expected squared error is noise².
    """

    n_columns: int
    noise: float = 0.3
    seed: int = 0

    @property
    def length_scale(self) -> float:
        """The width ℓ of the kernel that the function is drawn from."""
        return float(np.sqrt(self.n_columns / _PHASE_VARIANCE))

    @property
    def block_rows(self) -> int:
        """Rows that are drawn together, from one stream: a power of two, at most 16 MiB of float64."""
        fitting = _BLOCK_BYTES // (8 * self.n_columns)
        return min(_MAX_BLOCK_ROWS, 1 << max(0, fitting.bit_length() - 1))

    def blocks(self, name: str, n_rows: int) -> Iterator[KnownBlock]:
        """Yield the first `n_rows` rows of the sequence called `name`, independent of others."""
        for index, start in enumerate(range(0, n_rows, self.block_rows)):
            # A block has a stream of its own and is drawn in full, so that a row does not depend on `n_rows`.
            X = self._inputs(stream(self.seed, "rows", name, index), self.block_rows)
            f = self.function(X)
            noise = stream(self.seed, "noise", name, index).standard_normal(self.block_rows)
            y = f + self.noise * noise
            size = min(self.block_rows, n_rows - start)
            yield KnownBlock(start, X[:size], f[:size], y[:size])

    def function(self, X: np.ndarray) -> np.ndarray:
        """F, float64 of shape (n,), of rows X of shape (n, n_columns)."""
        shift, scale = self._mean_and_deviation
        return (self._sum_of_cosines(X) - shift) / scale

    def _inputs(self, rng: np.random.Generator, n_rows: int) -> np.ndarray:
        factors = rng.standard_normal((n_rows, len(self._mixture)))
        return (factors @ self._mixture).astype(np.float32)

    @cached_property
    def _mixture(self) -> np.ndarray:
        n_factors = min(_N_FACTORS, self.n_columns)
        B = stream(self.seed, "mixture").standard_normal((n_factors, self.n_columns))
        # Columns of length 1, so that each column of X has variance 1.
        return B / np.linalg.norm(B, axis=0)

    @cached_property
    def _waves(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies of shape (n_columns, 128) and phases of shape (128,)."""
        W = drf.Gaussian(self.length_scale).frequencies(
            _N_COSINES, self.n_columns, partial(stream, self.seed, "true frequencies")
        )
        return W, stream(self.seed, "true phases").uniform(0.0, 2 * np.pi, _N_COSINES)

    @cached_property
    def _mean_and_deviation(self) -> tuple[float, float]:
        # Rows of their own stream: the function must not depend on how many rows are asked for.
        values = self._sum_of_cosines(self._inputs(stream(self.seed, "reference rows"), self.block_rows))
        return float(values.mean()), float(values.std())

    def _sum_of_cosines(self, X: np.ndarray) -> np.ndarray:
        W, phases = self._waves
        values = np.empty(len(X))
        for start in range(0, len(X), _STRIP_ROWS):
            strip = slice(start, start + _STRIP_ROWS)
            # f is a function of X as it is stored, in float32, or a model could not reach it.
            values[strip] = np.cos(X[strip].astype(np.float64) @ W + phases).sum(axis=1)
        return values


# Rows of a known truth as a Zarr dataset, written chunk by chunk.


def write_known_rows(folder: Path, truth: KnownTruth, name: str, n_rows: int) -> float:
    """Write a Zarr group with X (float32), y and the true f (both float64); return the RMSE of f."""
    import zarr

    description = {"rows": name, "noise": truth.noise, "seed": truth.seed, "length_scale": truth.length_scale}
    group = zarr.create_group(folder, zarr_format=3, attributes={"known_truth": description})
    # A block is a chunk, so that memory does not grow with the rows.
    chunk = min(n_rows, truth.block_rows)
    kinds: dict[str, tuple[tuple[int, ...], Any]] = {
        "X": ((truth.n_columns,), np.float32),
        "f": ((), np.float64),
        "y": ((), np.float64),
    }
    # Random digits do not compress.
    arrays = {
        key: group.create_array(
            key, shape=(n_rows, *columns), chunks=(chunk, *columns), dtype=dtype, compressors=None
        )
        for key, (columns, dtype) in kinds.items()
    }
    squares = 0.0
    for block in truth.blocks(name, n_rows):
        rows = slice(block.start, block.start + len(block.X))
        for key, array in arrays.items():
            array[rows] = getattr(block, key)
        # The noise as drawn: on so many rows its RMSE differs a little from `noise`.
        squares += float(np.square(block.y - block.f).sum())
    return float(np.sqrt(squares / n_rows))
