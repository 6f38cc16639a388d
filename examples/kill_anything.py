"""A fit survives the death of whatever takes part in it, with the same bits.

    python examples/kill_anything.py [--n-rows 900000]

Starts a scheduler, two workers and `distrff fit` as processes of their own. First nothing disturbs them.
Then the same fit is made with a checkpoint, while one after another is killed: a worker, the command itself,
all workers, the scheduler, and everything at once. What is dead is started again, the command as it was typed
first. At the end the coefficients of both models are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr

import distrff as drf

STARTED = time.monotonic()
DEATHS = ("a worker", "the command", "all workers", "the scheduler", "the command, by SIGTERM", "everything")
DISTRFF = str(Path(sys.executable).with_name("distrff"))


def say(text: str) -> None:
    print(f"{time.monotonic() - STARTED:7.1f} s  {text}", flush=True)


def write_rows(path: Path, n_rows: int) -> None:
    """Write rows whose target is a smooth function of a few columns, with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 10)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n_rows)
    group = zarr.open_group(path, mode="w")
    group.create_array("X", data=X, chunks=(20_000, 10))
    group.create_array("y", data=y, chunks=(20_000,))


class Cluster:
    """A scheduler and two workers, which are started by the command line of Dask."""

    def __init__(self, folder: Path) -> None:
        self.file, self._log = folder / "scheduler.json", (folder / "cluster.log").open("w")
        self.scheduler: subprocess.Popen | None = None
        self.workers: list[subprocess.Popen] = []

    def start(self) -> None:
        """Start whatever does not run."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            say("a scheduler is started")
            self.file.unlink(missing_ok=True)
            self.kill(self.workers)  # those of a scheduler that is gone would look for it for a while
            self.scheduler = self._run("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
            while not self.file.exists():
                time.sleep(0.1)
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        if missing := 2 - len(self.workers):
            say(f"{missing} worker(s) are started")
        while len(self.workers) < 2:
            self.workers.append(self._run("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"))

    def _run(self, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "dask", *words, "--scheduler-file", str(self.file)]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    @staticmethod
    def kill(processes: list[subprocess.Popen]) -> None:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        self.kill([p for p in (*self.workers, self.scheduler) if p is not None and p.poll() is None])
        self._log.close()


class Fit:
    """`distrff fit`, with the same words each time it is started."""

    def __init__(self, folder: Path, out: str, *more: str) -> None:
        words = [str(folder / "rows.zarr"), "--features", "fourier", "--length-scale", "2", "--n-components",
                 "1024", "--random-state", "0", "--scheduler", str(folder / "scheduler.json"),
                 "--out", str(folder / out), *more]  # fmt: skip
        self._command = [DISTRFF, "fit", *words]
        self.process: subprocess.Popen | None = None

    def start(self) -> subprocess.Popen:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        return self.process

    def last_line(self) -> str:
        assert self.process is not None and self.process.stderr is not None
        return (self.process.stderr.read().strip().splitlines() or [""])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n-rows", type=int, default=900_000)
    n_rows = parser.parse_args().n_rows
    folder = Path(tempfile.mkdtemp(prefix="kill-anything-"))
    cluster = Cluster(folder)
    try:
        say(f"{n_rows:,} rows are written")
        write_rows(folder / "rows.zarr", n_rows)
        cluster.start()
        say("first a fit that nothing disturbs")
        began = time.monotonic()
        quiet = Fit(folder, "quiet.zarr")
        if quiet.start().wait():
            say(f"it failed: {quiet.last_line()}")
            return 1
        seconds = time.monotonic() - began
        say(f"done in {seconds:.1f} s; now the same fit, while what takes part in it is killed")
        disturb(cluster, folder)
        models = [drf.load_model(str(folder / name)) for name in ("quiet.zarr", "disturbed.zarr")]
        same = models[0].coef.tobytes() == models[1].coef.tobytes()
        say(f"{models[0].coef.size:,} coefficients: {'the same bits' if same else 'OTHER BITS'}")
        return 0 if same else 1
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def disturb(cluster: Cluster, folder: Path) -> None:
    """Run the fit to its end, through one death after another: each after some more segments are stored."""
    checkpoint = folder / "checkpoint"
    fit = Fit(folder, "disturbed.zarr", "--checkpoint", str(checkpoint), "--checkpoint-every", "1")
    deaths = list(DEATHS)
    running, seen = fit.start(), 0
    while (ended := running.poll()) is None or ended != 0:
        if ended is not None:
            how = f"killed by signal {-ended}" if ended < 0 else f"exit code {ended}: {fit.last_line()}"
            say(f"the command has ended, {how}")
            cluster.start()
            say("the same command is started again")
            running, seen = fit.start(), how_far(checkpoint)[0]
        done, told = how_far(checkpoint)
        if deaths and done > seen:
            seen, death = done, deaths.pop(0)
            say(f"{told}; killed: {death}")
            kill(death, cluster, running)
            if running.poll() is None:
                cluster.start()
        time.sleep(0.2)
    say("the fit is done" if not deaths else f"the fit was done before anybody killed {', '.join(deaths)}")


def kill(death: str, cluster: Cluster, command: subprocess.Popen) -> None:
    assert cluster.scheduler is not None
    if death in ("a worker", "all workers"):
        cluster.kill(cluster.workers[:1] if death == "a worker" else cluster.workers)
    if death in ("the scheduler", "everything"):
        cluster.kill([cluster.scheduler])
    if death == "everything":
        cluster.kill(cluster.workers)
    if death in ("the command", "everything"):
        cluster.kill([command])
    if death == "the command, by SIGTERM":
        os.kill(command.pid, signal.SIGTERM)
        command.wait()


def how_far(checkpoint: Path) -> tuple[int, str]:
    """Return how many segments the last write to the checkpoint had, and a sentence on them.

    `distrff inspect` says the same and more.
    """
    try:
        progress = json.loads((checkpoint / "progress.json").read_text())
        done, of_all = progress["n_segments_done"], progress["n_segments"]
    except (OSError, KeyError):
        return 0, "no segment is stored"
    return done, f"{progress['label']}: {done} of {of_all} segments are stored"


if __name__ == "__main__":
    sys.exit(main())
