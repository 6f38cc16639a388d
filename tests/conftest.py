"""What every test may use: a fresh seed, clusters, certificates, and the choice of slow tests."""

import gc
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import scipy.linalg  # noqa: F401 - with a BLAS of its own, which is limited below
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

import distrff
from tests.support.commands import wait_until

# No test is timed: how long its examples take depends on what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# One thread of BLAS, as tasks and Dask's workers have it. Where more processes test than there are cores, two
# threads of a product of small matrices wait for each other, busily: a solve of 20 µs took 7 ms.
threadpool_limits(1, user_api="blas")

# Worker processes inherit this path and find functions of the tests by it; what is installed comes first.
sys.path.append(str(Path(__file__).parents[1]))

# What servers of Dask do while nothing happens, every 20 ms some of it: .06 of a core for a cluster of two
# workers, now .01, for as long as the suite runs. Workers inherit it from the client.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "1 minute",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    # On a loaded machine a killed worker takes longer to start again than a LocalCluster waits for it (15 s).
    "distributed.deploy.lost-worker-timeout": "10 minutes",
}
dask.config.set(_QUIET)

_SEED_VARIABLE = "DISTRFF_TEST_SEED"
_SEED = int(os.environ.setdefault(_SEED_VARIABLE, str(secrets.randbits(32))))  # one for all test processes


def pytest_configure(config: pytest.Config) -> None:
    """Let tests be interrupted; refuse to test the folder where the installed package is meant."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    where = Path(distrff.__file__).resolve()
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    if os.environ.get("DISTRFF_REQUIRE_INSTALLED") == "1" and not any(map(where.is_relative_to, installed)):
        raise pytest.UsageError(
            f"the tests would import {where}, which is not the installed package; run `pytest`, not "
            f"`python -m pytest`, without PYTHONPATH, after `pip install .`"
        )


def pytest_report_header(config: pytest.Config) -> str:
    more = (
        "" if "slow" in config.getoption("markexpr") else "; without slow tests, which `pytest -m slow` runs"
    )
    return f"distrff: {Path(distrff.__file__).parent}{more}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how a failure that depends on the seed is repeated."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"the same random numbers again: {_SEED_VARIABLE}={_SEED} pytest ...")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among the 600,000 objects that thousands of tests are, now or later.

    They live to the end; going through them again and again took half of the time of their collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> Any:
    """Make one test of a slow function in a plain run, to be left out: names of its cases take a second."""
    if "slow" in collector.config.getoption("markexpr") or not name.startswith("test"):
        return None
    if all(mark.name != "slow" for mark in getattr(obj, "pytestmark", ())):
        return None
    return pytest.Function.from_parent(collector, name=name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out of a plain run."""
    if "slow" in config.getoption("markexpr"):
        return
    config.hook.pytest_deselected(items=[item for item in items if "slow" in item.keywords])
    items[:] = [item for item in items if "slow" not in item.keywords]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Numbers that differ from run to run and from test to test; a failed run says how to repeat them."""
    return np.random.default_rng([_SEED, *request.node.nodeid.encode()])


@pytest.fixture(scope="session")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LocalCluster]:
    """`local_cluster(n_workers)`: a cluster of one-threaded workers, for whoever asks to close.

    With `processes=False` they are threads of this process, which start in .05 s in place of some seconds.
    """

    def start(n_workers: int, *, processes: bool = True) -> LocalCluster:
        return LocalCluster(
            n_workers=n_workers,
            processes=processes,
            threads_per_worker=1,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            local_directory=str(tmp_path_factory.mktemp("cluster")),
            silence_logs=logging.CRITICAL,
        )

    return start


@pytest.fixture(scope="session")
def cluster(local_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """Two worker processes of one thread, for the whole session."""
    with local_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the session's cluster, the default one during the test."""
    with Client(cluster) as client:
        yield client


class DaskProcesses:
    """Starts schedulers and workers as people do by hand: a process each, ended with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen] = []

    def scheduler(self, protocol: str = "tcp", *, prelude: str = "", **configuration: str) -> Path:
        """Return the file of a scheduler that listens; `prelude` is Python that it runs first."""
        file = self._folder / f"scheduler-{len(self._running)}.json"
        options = ["--host", f"{protocol}://127.0.0.1:0", "--dashboard-address", "127.0.0.1:0"]
        self._start("dask_scheduler", prelude, [*options, "--scheduler-file", str(file)], configuration)
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        return file

    def worker(self, scheduler: Path, *, prelude: str) -> None:
        """Start a worker, without a nanny, whose child would not run the prelude."""
        words = ["--nworkers", "1", "--scheduler-file", str(scheduler), "--no-nanny"]
        self._start("dask_worker", prelude, words, {})

    def _start(self, command: str, prelude: str, words: list[str], configuration: dict[str, str]) -> None:
        program = (
            f"{prelude}\n"
            "import runpy, sys\n"
            "if __name__ == '__main__':\n"
            f"    runpy.run_module('distributed.cli.{command}', run_name='__main__')\n"
        )
        script = self._folder / f"{command}-{len(self._running)}.py"
        script.write_text(program)
        names = {key: "DASK_" + key.upper().replace(".", "__").replace("-", "_") for key in configuration}
        environment = {names[key]: value for key, value in configuration.items()}
        how = {"cwd": self._folder, "env": os.environ | environment, "stderr": subprocess.DEVNULL}
        self._running.append(subprocess.Popen([sys.executable, script, *words], **how))

    def end(self) -> None:
        """Kill all of them: a scheduler that is asked to end waits for its clients."""
        while self._running:
            process = self._running.pop()
            process.kill()
            process.wait(10)


@pytest.fixture
def dask_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    processes = DaskProcesses(tmp_path_factory.mktemp("processes"))
    yield processes
    processes.end()


@pytest.fixture(scope="session")
def tls_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """`tls_of(name)`: Dask's configuration for a self-signed certificate, one for each name."""
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs the openssl program")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]

    def make(name: str) -> dict[str, str]:
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        if not cert.exists():
            files = ["-keyout", str(key), "-out", str(cert)]
            subprocess.run([*command, *files], check=True, capture_output=True)
        found = {"distributed.comm.tls.ca-file": str(cert)}
        for role in ("scheduler", "worker", "client"):
            found[f"distributed.comm.tls.{role}.cert"] = str(cert)
            found[f"distributed.comm.tls.{role}.key"] = str(key)
        return found

    return make


@pytest.fixture
def in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def frame(rng):
    """Columns of every kind, with missing values in some."""
    n = 90
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "k": rng.integers(-9, 9, n).astype("i2"),
            "flag": rng.random(n) < 0.5,
            "c": rng.choice(["u", "v", "w"], n),
            "g": pd.Categorical(rng.choice(["x", "y"], n)),
            "t": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**9, n), unit="s"),
            "ni": pd.array(rng.integers(0, 5, n), dtype="Int32"),
            "empty": np.full(n, np.nan),
            "y": rng.choice(["no", "yes"], n),
            "w": rng.integers(1, 4, n).astype("f8"),
        }
    )
    for name, share in [("a", 0.1), ("c", 0.1), ("t", 0.05), ("ni", 0.1), ("y", 0.05)]:
        frame.loc[rng.random(n) < share, name] = None
    # At least one row is complete, one of each lacks a value.
    for row, name in enumerate(["a", "c", "t", "ni", "y"]):
        frame.loc[row, name] = None
    frame.loc[10, ["a", "c", "t", "ni", "y"]] = [0.5, "u", pd.Timestamp("2021-02-03"), 3, "yes"]
    frame.loc[11, ["a", "c", "t", "ni", "y"]] = [0.5, "v", pd.Timestamp("2021-02-03"), 3, "no"]
    return frame
