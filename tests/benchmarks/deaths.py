"""Workers that die or hang in the middle of a pass: what is summed again, and the time lost beside it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import dask
import numpy as np
from distributed import Client

from distrff.engine.cluster import connect
from distrff.estimators.ridge import KernelRidge
from distrff.estimators.svm import KernelSVC
from distrff.features.fourier import FourierFeatures
from distrff.io.dataset import Dataset, RowBlock, Rows, Span
from distrff.io.open import open_dataset
from distrff.kernels.stationary import Gaussian
from tests.benchmarks.labelled_rows import made
from tests.benchmarks.measuring import N_WORKERS, import_everything, seconds_of, write_rows

_N_ROWS, _N_COLUMNS, _N_COMPONENTS = 400_000, 50, 1024
_PENALTY = 1e-4
_N_DEATHS = 5
_SHORT_TTL = "5s"  # the shortest that the scheduler keeps
_PASSES = {"Gram": (2, 2), "light sweeps": (3, 6)}  # the first and last number of those that are struck


@dataclass(frozen=True)
class Note:
    """That a process began or ended to read a segment; seconds of a clock that all processes share."""

    seconds: float
    pid: int
    event: str
    segment: tuple[int, int, int]  # number of the pass, start, stop


@dataclass(frozen=True)
class Noted(Rows):
    """Rows that leave notes in a file of the process that reads them."""

    number: int  # of the pass
    rows: Rows
    folder: Path

    def spans(self) -> Iterable[Iterator[Span]]:
        return self.rows.spans()

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        self._note("began")
        yield from self.rows.tiles(n_rows)
        self._note("ended")

    def _note(self, event: str) -> None:
        note = time.monotonic(), os.getpid(), event, (self.number, self.start, self.stop)
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(json.dumps(note) + "\n")


@dataclass
class Notebook:
    """The reader of a dataset whose rows are `Noted`; the client asks for row 0 once a pass."""

    reader: Any
    folder: Path
    n_passes: int = 0

    def rows(self, start: int, stop: int) -> Noted:
        """Return the rows [start, stop)."""
        self.n_passes += start == 0
        return Noted(start, stop, self.n_passes, self.reader.rows(start, stop), self.folder)

    def notes(self) -> list[Note]:
        """Return all notes so far, in their order; the last line of a file may be under way."""
        texts = [path.read_text() for path in self.folder.iterdir()]
        lines = [
            json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line[-1:] == "\n"
        ]
        return sorted((Note(*line[:3], tuple(line[3])) for line in lines), key=lambda note: note.seconds)


@dataclass(frozen=True)
class Reading:
    """A segment read by a process; `ended` is None if it stopped before."""

    pid: int
    segment: tuple[int, int, int]
    began: float
    ended: float | None


def readings(notes: list[Note]) -> list[Reading]:
    """Return what processes of one thread read, in the order of their beginnings."""
    of_process: dict[int, list[Note]] = defaultdict(list)
    for note in notes:
        of_process[note.pid].append(note)
    found = []
    for own in of_process.values():
        for note, after in zip_longest(own, own[1:]):
            if note.event == "began":
                ended = after.seconds if after and after.event == "ended" else None
                found.append(Reading(note.pid, note.segment, note.seconds, ended))
    return sorted(found, key=lambda reading: reading.began)


def figures(read: list[Reading], number: int, pid: int, at: float) -> dict[str, Any]:
    """Return what a process lost that was struck in a pass, and when tasks went on.

    Rows held are those of this pass alone; a sum of an earlier pass that it kept comes on top.
    """
    finished: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for r in read:
        if r.ended is not None:
            finished[r.segment].append(r.ended - r.began)
    held = {r.segment for r in read if r.pid == pid and r.segment[0] == number and r.ended and r.ended <= at}
    broken = sum(at - r.began for r in read if r.pid == pid and r.ended is None)
    known = {r.pid for r in read if r.began <= at}
    after = [r for r in read if r.began > at]
    return {
        "rows_summed_twice": sum((len(times) - 1) * (s[2] - s[1]) for s, times in finished.items()),
        "rows_held": sum(stop - start for _, start, stop in held),
        "next_task": min((r.began - at for r in after if r.pid in known), default=None),
        "replacement": min((r.began - at for r in after if r.pid not in known), default=None),
        "pause": max((b.began - a.began for a, b in pairwise(after)), default=None),
        "repeated": broken + sum(sum(times[1:]) for times in finished.values()),
    }


def struck(
    model: Any, dataset: Dataset, client: Client, number: int, share: float, blow: signal.Signals
) -> dict[str, Any]:
    """Fit while a worker is struck in the middle of a segment, after a share of the rows of a pass."""
    done: list[tuple[int, float]] = []
    with TemporaryDirectory() as folder:
        notebook = Notebook(dataset.reader, Path(folder))

        def strike() -> None:
            rows = 0
            while rows < share * dataset.n_rows:
                time.sleep(0.005)
                ended = [n.segment for n in notebook.notes() if n.event == "ended" and n.segment[0] == number]
                rows = sum(stop - start for _, start, stop in ended)
            done.append((victims[0], time.monotonic()))
            os.kill(victims[0], blow)

        victims = list(client.run(os.getpid).values())
        striking = threading.Thread(target=strike, daemon=True)
        striking.start()
        seconds = seconds_of(lambda: model.fit(replace(dataset, reader=notebook)))
        striking.join(60)
        found = figures(readings(notebook.notes()), number, *done[0])
    return {**found, "seconds": seconds}


@contextmanager
def _ridge(scale: float) -> Iterator[tuple[Any, Dataset]]:
    features = FourierFeatures(Gaussian(7.0), _N_COMPONENTS, random_state=0)
    with TemporaryDirectory() as folder:
        path = write_rows(Path(folder) / "rows.zarr", int(_N_ROWS * scale), _N_COLUMNS)
        yield KernelRidge(features, alpha=1.0, random_state=0), open_dataset(path)


@contextmanager
def _svc(scale: float) -> Iterator[tuple[Any, Dataset]]:
    with made(scale) as data:
        model = KernelSVC(data.features, data.C(_PENALTY), loss="squared_hinge", random_state=0)
        yield model, data.dataset


_FITS: dict[str, Callable[[float], AbstractContextManager[tuple[Any, Dataset]]]] = {
    "Gram": _ridge,
    "light sweeps": _svc,
}


def kills(scale: float) -> Iterator[dict[str, Any]]:
    """One of two workers is killed in a pass; `beyond` is the wall time lost beside half the work repeated.

    In it are half of the seconds until the replacement's first task, as one of two workers is missing, and
    the other half of what the remaining one repeats alone meanwhile.
    """
    yield from _strikes(scale, signal.SIGKILL, _N_DEATHS, "next_task <= 3 and beyond <= 3")


def hangs(scale: float) -> Iterator[dict[str, Any]]:
    """One of two workers is stopped in a pass; the scheduler gives up silent ones after five seconds."""
    with dask.config.set({"distributed.scheduler.worker-ttl": _SHORT_TTL}):
        yield from _strikes(
            scale, signal.SIGSTOP, 2, "pause <= 15: up to twice the ttl, and 4 s of the nanny"
        )


def _strikes(scale: float, blow: signal.Signals, n_times: int, asked: str) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for name, start in _FITS.items():
        with start(scale) as (model, dataset), connect(n_workers=N_WORKERS) as client:
            client.run(import_everything)
            expected = model.fit(dataset).coef_
            quiet = [seconds_of(lambda m=model, d=dataset: m.fit(d)) for _ in range(3)]
            found = []
            for _ in range(n_times):
                number = int(rng.integers(*_PASSES[name], endpoint=True))
                found.append(struck(model, dataset, client, number, rng.uniform(0.1, 0.9), blow))
                np.testing.assert_array_equal(model.coef_, expected)
                client.wait_for_workers(N_WORKERS)
                client.run(import_everything)
            yield {"fit": name, "asked": asked, "quiet_seconds": quiet, **_summary(found, median(quiet))}


def _summary(found: list[dict[str, Any]], quiet: float) -> dict[str, Any]:
    for one in found:
        one["beyond"] = one["seconds"] - quiet - one["repeated"] / N_WORKERS
    lists = {key: [one[key] for one in found if one[key] is not None] for key in found[0]}
    middle = {
        key: median(lists[key]) for key in ("next_task", "replacement", "pause", "beyond") if lists[key]
    }
    return middle | {"all": {key: [round(value, 2) for value in values] for key, values in lists.items()}}


BENCHMARKS = {f"deaths_{f.__name__}": f for f in (kills, hangs)}
