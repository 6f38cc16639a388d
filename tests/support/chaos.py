"""Fits in processes of their own, which are killed, stopped and starved at seeded moments.

A scheduler, two workers, a client and a server of the rows run as real processes, forked from one that has
imported everything, so that a new one is there in a tenth of a second. Nothing in them knows of the test:
there are SIGKILL, SIGTERM, SIGSTOP, and a server that is slow or fails.
"""

import asyncio
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr

import distrff as drf

CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "distrff.estimators.ridge",
    "distrff.estimators.svm",
    "distrff.io.open",
    "distributed",
    __name__,
]
_PATIENCE = 240.0  # seconds for a run, with everything that is started anew


class Problem(NamedTuple):
    """An estimator, and the rows and the target that it is fitted to."""

    estimator: Callable[[], Any]
    n_rows: int
    target: str


def _fourier(n_components: int) -> drf.FourierFeatures:
    return drf.FourierFeatures(drf.Gaussian(2.0), n_components)


def _ridge() -> Any:
    return drf.KernelRidge(_fourier(512), random_state=0)


def _hinge() -> Any:
    return drf.KernelSVC(_fourier(256), loss="hinge", random_state=0)


def _likelihood() -> Any:
    return drf.KernelLikelihoodClassifier(_fourier(192), 1.0, random_state=0)


def _binning() -> Any:
    return drf.KernelRidge(drf.RandomBinningFeatures(drf.Laplacian(4.0), 16), alpha=1e-2, random_state=0)


def _sgd() -> Any:
    return drf.KernelRidge(_fourier(256), alpha=1e-2, solver="sgd", tol=1e-2, random_state=0)


PROBLEMS = {
    "ridge": Problem(_ridge, 400_000, "y"),
    "hinge": Problem(_hinge, 60_000, "sign"),
    "likelihood": Problem(_likelihood, 60_000, "class"),
    "binning": Problem(_binning, 200_000, "y"),
    "sgd": Problem(_sgd, 200_000, "y"),
}


def write_rows(folder: Path) -> None:
    """Write one group of rows for each number of rows."""
    rng = np.random.default_rng(0)
    for n in {problem.n_rows for problem in PROBLEMS.values()}:
        X = rng.normal(size=(n, 6))
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
        group = zarr.open_group(folder / f"{n}.zarr", mode="w")
        for name, A in {"X": X, "y": y, "sign": np.sign(y), "class": np.digitize(y, [-0.7, 0.7])}.items():
            group.create_array(name, data=A, chunks=(8192, *A.shape[1:]))


# The processes.


def _be_quiet() -> None:
    """What happens to these processes is meant to; their logs would bury what a run says."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _scheduler(address_file: str) -> None:
    from distributed import Scheduler

    _be_quiet()

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            _write(address_file, scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


def _worker(address: str) -> None:
    from distributed import Worker

    _be_quiet()

    async def run() -> None:
        async with Worker(address, nthreads=1, dashboard=False, death_timeout=20) as worker:
            await worker.finished()

    with suppress(Exception):  # of a scheduler that was killed meanwhile
        asyncio.run(run())


def _client(address: str, url: str, name: str, out: str, checkpoint: str | None, every: float) -> None:
    from distributed import Client

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _be_quiet()
    problem = PROBLEMS[name]
    with Client(address, timeout=20) as client:
        if checkpoint is None:  # nothing disturbs this one, but the workers may not be there yet
            client.wait_for_workers(2, timeout=_PATIENCE)
        dataset = drf.open_dataset(url, target=problem.target)
        kept = {} if checkpoint is None else {"checkpoint": checkpoint, "checkpoint_every": every}
        fitted = problem.estimator().fit(dataset, **kept)
        digest = hashlib.sha256(fitted.model_.coef.tobytes() + fitted.model_.intercept.tobytes())
        _write(out, digest.hexdigest())
        os._exit(0)  # a scheduler that is killed now is nobody's concern


def _write(path: str, text: str) -> None:
    Path(path + ".new").write_text(text)
    Path(path + ".new").replace(path)


class _Flaky(SimpleHTTPRequestHandler):
    """Serves files; one request in ten fails, and one in ten takes a while."""

    rng = np.random.default_rng()

    def do_GET(self) -> None:
        lot = self.rng.random()
        if lot < 0.1:
            self.send_error(503)
            return
        if lot < 0.2:
            time.sleep(0.2)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a reader that was killed
            super().handle()


def _server(folder: str, address_file: str, seed: int) -> None:
    _Flaky.rng = np.random.default_rng(seed)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Flaky, directory=folder)) as server:
        _write(address_file, f"http://127.0.0.1:{server.server_port}")
        server.serve_forever()


# A run: what is started, what happens to it, and what must come out.


class Arena:
    """The processes of runs; whatever is dead is started again by `revive`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._n = 0
        self.scheduler: Any = None
        self.workers: list[Any] = []
        self.address = ""

    def begin(self, target: Callable[..., None], *args: Any) -> Any:
        process = CONTEXT.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    def begin_with_address(self, target: Callable[..., None], *args: Any) -> tuple[Any, str]:
        self._n += 1
        file = self.folder / f"address-{self._n}"
        process = (
            self.begin(target, *args[:1], str(file), *args[1:]) if args else self.begin(target, str(file))
        )
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline, f"{target.__name__} did not start"
            time.sleep(0.02)
        return process, file.read_text()

    def revive(self) -> None:
        if self.scheduler is None or not self.scheduler.is_alive():
            self.kill(*self.workers)
            self.scheduler, self.address = self.begin_with_address(_scheduler)
        self.workers = [worker for worker in self.workers if worker.is_alive()]
        while len(self.workers) < 2:
            self.workers.append(self.begin(_worker, self.address))

    @staticmethod
    def kill(*processes: Any) -> None:
        for process in processes:
            if process is not None:
                process.kill()
                process.join()

    def close(self) -> None:
        self.kill(*self.workers, self.scheduler)


@contextmanager
def arena(folder: Path) -> Iterator[Arena]:
    """Yield the processes, with their rows written."""
    CONTEXT.set_forkserver_preload(_PRELOADED)
    write_rows(folder)
    found = Arena(folder)
    try:
        found.revive()
        yield found
    finally:
        found.close()


DEATHS = (
    "a worker", "a worker", "all workers", "the scheduler", "the client", "the client",
    "the client by SIGTERM", "everything", "a worker stands still", "the client stands still",
)  # fmt: skip


def quiet_run(arena: Arena, name: str) -> tuple[str, float]:
    """Return the digest of the fit that nothing disturbs, and its seconds once everything is compiled."""
    out, seconds = arena.folder / f"quiet-{name}", 0.0
    url = str(arena.folder / f"{PROBLEMS[name].n_rows}.zarr")
    for _ in range(2):
        began = time.monotonic()
        client = arena.begin(_client, arena.address, url, name, str(out), None, 0.0)
        client.join(_PATIENCE)
        assert client.exitcode == 0, f"the quiet fit of {name} ended with {client.exitcode}"
        seconds = time.monotonic() - began
    return out.read_text(), seconds


def chaos_run(arena: Arena, name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Return the digest of a fit through deaths at seeded moments, and what happened to it.

    `seconds` are those of the quiet fit.
    """
    rng = np.random.default_rng(seed)
    out, checkpoint = arena.folder / f"digest-{seed}", arena.folder / f"checkpoint-{seed}"
    every, n_deaths = float(rng.choice([0.0, 0.2, 1.0])), int(rng.integers(1, 5))
    url, server = str(arena.folder / f"{PROBLEMS[name].n_rows}.zarr"), None
    if flaky := bool(rng.random() < 0.3):
        server, base = arena.begin_with_address(_server, str(arena.folder), seed)
        url = f"{base}/{PROBLEMS[name].n_rows}.zarr"
    begin = lambda: arena.begin(_client, arena.address, url, name, str(out), str(checkpoint), every)  # noqa: E731
    arena.revive()
    began, client, n_clients, happened = time.monotonic(), begin(), 1, []
    try:
        while not out.exists():
            assert time.monotonic() - began < _PATIENCE, f"seed {seed}, {name}: not done after {happened}"
            if len(happened) < n_deaths:
                client.join(rng.uniform(0.05, 0.8) * seconds)
                if client.is_alive():
                    death = str(rng.choice(DEATHS))
                    happened.append(death)
                    _strike(arena, death, client, rng)
            else:
                client.join(0.5)
            arena.revive()
            if not client.is_alive() and not out.exists():
                assert n_clients < 30, (
                    f"seed {seed}, {name}: the client ended with {client.exitcode} each time"
                )
                client, n_clients = begin(), n_clients + 1
    finally:
        arena.kill(client, server)
    return {
        "digest": out.read_text(),
        "deaths": happened,
        "clients": n_clients,
        "flaky": flaky,
        "seconds": time.monotonic() - began,
    }


def _strike(arena: Arena, death: str, client: Any, rng: np.random.Generator) -> None:
    victim = arena.workers[int(rng.integers(2))]
    if death.endswith("stands still"):
        pid = client.pid if "client" in death else victim.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(rng.uniform(0.5, 3.0))
            os.kill(pid, signal.SIGCONT)
        return
    if death == "a worker":
        arena.kill(victim)
    if death in ("all workers", "everything"):
        arena.kill(*arena.workers)
    if death in ("the scheduler", "everything"):
        arena.kill(arena.scheduler)
    if death in ("the client", "everything"):
        arena.kill(client)
    if death == "the client by SIGTERM":
        client.terminate()
        client.join(30)
    time.sleep(rng.uniform(0.0, 0.5))  # until somebody notices
