"""What every test may use: a fresh seed, a cluster of two processes, and the choice of slow tests."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings

import distrff

# No test is timed: how long its examples take depends on what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Worker processes inherit this path and find functions of the tests by it; what is installed comes first.
sys.path.append(str(Path(__file__).parents[1]))

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


def pytest_report_header() -> str:
    return f"distrff: {Path(distrff.__file__).parent}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how a failure that depends on the seed is repeated."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"the same random numbers again: {_SEED_VARIABLE}={_SEED} pytest ...")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out of a plain run."""
    if "slow" in config.getoption("markexpr"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run by `pytest -m slow`"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Numbers that differ from run to run and from test to test; a failed run says how to repeat them."""
    return np.random.default_rng([_SEED, *request.node.nodeid.encode()])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two worker processes of one thread, for the whole session."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        local_directory=str(tmp_path_factory.mktemp("cluster")),
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the session's cluster, the default one during the test."""
    with Client(cluster) as client:
        yield client
