"""Runs lines one after the other, each in a process of its own, and stores what each yields at once."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits

from tests.benchmarks.book import (
    against_baseline,
    known,
    limits,
    maps,
    peers,
    races,
    scaling,
    small_data,
    sweeps,
)
from tests.benchmarks.book.environments import ROOT, Place
from tests.benchmarks.book.lines import Line, Result, Setting
from tests.benchmarks.book.processes import Ended, results_of

LINES: tuple[Line, ...] = (
    *sweeps.LINES,
    *against_baseline.LINES,
    *small_data.LINES,
    *known.LINES,
    *scaling.LINES,
    *limits.LINES,
    *races.LINES,
    *peers.LINES,
    *maps.LINES,
)
_RATE = 100e9  # flops a second of one core, in float32, on which the minutes of lines are stated
_RATE_SECONDS = 1.0
_STARTING_MINUTES = 0.2
_LEAST_SHARE = 0.1  # of the minutes: what does not shrink with the rows
_LEAST_LIMIT_MINUTES = 20.0
_LIMIT_TIMES = 3.0
_INSTALL_MINUTES = 2.0
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "dask", "distributed", "zarr", "pyarrow", "dask-ml")


def machine_factor() -> float:
    """Return how many times slower a core of this machine is than the one of the stated minutes."""
    A = np.ones((1024, 1024), np.float32)
    with threadpool_limits(1):
        A @ A
        n, started = 0, time.perf_counter()
        while (took := time.perf_counter() - started) < _RATE_SECONDS:
            A @ A
            n += 1
    return _RATE / (n * 2.0 * 1024**3 / took)


def minutes_of(line: Line, scale: float, factor: float) -> float:
    """Return the minutes that a line will take."""
    return _STARTING_MINUTES + factor * line.minutes * max(scale, _LEAST_SHARE)


def estimate(lines: Sequence[Line], scale: float, factor: float, n_environments: int = 0) -> float:
    """Return the minutes that a run will take, those of making environments among them."""
    return _INSTALL_MINUTES * n_environments + sum(minutes_of(line, scale, factor) for line in lines)


def header(scale: float) -> Result:
    """Return on what, when and with which versions a run is made."""
    versions = {"Python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "scale": scale,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "processor": _processor(),
            "blas": _blas(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9),
            "system": platform.system(),
        },
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _blas() -> str:
    """Return NumPy's BLAS and for which processor its kernels are: two of one name may differ in them."""
    found = (pool for pool in threadpool_info() if "numpy" in pool["filepath"] and pool["user_api"] == "blas")
    return ", ".join(f"{pool['internal_api']} {pool.get('architecture', '')}".strip() for pool in found)


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(ROOT), "rev-parse", "HEAD"), capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


class Results:
    """The lines of a file: a header, then what was found, and which lines are done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Result = {}
        self.found: list[Result] = []
        self.done: dict[str, float] = {}

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return what a file has; what a run left of a line that was not done is dropped.

        A half written line, which a killed run leaves, is passed over. Raises ValueError for a file without
        results.
        """
        results, stored = cls(path), []
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                stored.append(json.loads(line))
        if not stored or "scale" not in stored[0]:
            raise ValueError(f"{path} has no results of a run")
        results.header = stored[0]
        results.done = {entry["done"]: entry["seconds"] for entry in stored[1:] if "done" in entry}
        results.found = [entry for entry in stored[1:] if entry.get("line") in results.done]
        return results

    def begin(self, header: Result) -> None:
        """Write the header, and what is already known."""
        self.header = self.header or header
        entries = [self.header]
        for name, seconds in self.done.items():
            entries += [found for found in self.found if found["line"] == name]
            entries.append({"done": name, "seconds": seconds})
        self.path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))

    def add(self, found: Result) -> None:
        """Keep and write a result."""
        self.found.append(found)
        self._append(found)

    def finish(self, name: str, seconds: float) -> None:
        """Note that a line is done."""
        self.done[name] = seconds
        self._append({"done": name, "seconds": seconds})

    def _append(self, entry: Result) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def run(
    lines: Sequence[Line],
    setting: Setting,
    results: Results,
    *,
    factor: float = 1.0,
    in_this_process: bool = False,
) -> None:
    """Run the lines that are not done; what fails is a line with the reason, and is not done."""
    for line in lines:
        if line.name in results.done:
            continue
        limit = 60 * max(_LEAST_LIMIT_MINUTES, _LIMIT_TIMES * minutes_of(line, setting.scale, factor))
        started = time.monotonic()
        try:
            found = line.run(setting) if in_this_process else _elsewhere(line, setting, limit)
            for result in found:
                results.add(line.judged(setting, result) if in_this_process else result)
        except Ended as why:
            results.add(line.judged(setting, {"skipped": str(why)}))
        except Exception as error:  # of a line in this process: the others go on
            results.add(line.judged(setting, {"skipped": f"{type(error).__name__}: {error}"}))
        else:
            results.finish(line.name, time.monotonic() - started)


def _elsewhere(line: Line, setting: Setting, seconds: float) -> Iterator[Result]:
    words = json.dumps(dataclasses.asdict(setting))
    command = (sys.executable, "-m", "tests.benchmarks.book.running", line.name, words)
    yield from results_of(command, seconds, os.pathsep.join([str(ROOT), *_python_path()]))


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def main() -> int:
    """Run one line, and print each result as it comes."""
    warnings.simplefilter("ignore")
    name, words = sys.argv[1:]
    values: dict[str, Any] = json.loads(words)
    places = {key: Place(**place) for key, place in values.pop("places").items()}
    setting = Setting(**values, places=places)
    (line,) = [line for line in LINES if line.name == name]
    commit = _commit()  # what goes on with --resume may be of another one than the header
    for found in line.run(setting):
        print(json.dumps({**line.judged(setting, found), "commit": commit}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
