"""The command line in this process, on the session's cluster, and data for it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from distributed import LocalCluster

from distrff.cli import main
from tests.support import commands


class Done(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> list[str]:
        """The lines of standard error, but for those that tell how far a fit of more than ten seconds is."""
        return [line for line in self.stderr.splitlines() if " · " not in line]

    @property
    def json(self) -> dict[str, Any]:
        """Its standard output, which must be one strict JSON object."""
        assert self.code == 0, self
        return json.loads(self.stdout, parse_constant=pytest.fail)


class Distrff:
    """Runs commands; those that may have workers find them at `scheduler`, if it is given."""

    def __init__(self, scheduler: str | None = None) -> None:
        self._runner = CliRunner()
        self._scheduler = scheduler

    def __call__(self, *args: Any) -> Done:
        words = [str(arg) for arg in args]
        command = main.get_command(click.Context(main), words[0])
        with_workers = command is not None and any(param.name == "scheduler" for param in command.params)
        if self._scheduler and with_workers and not {"--scheduler", "--as-helm-values"} & set(words):
            words += ["--scheduler", self._scheduler]
        result = self._runner.invoke(main, words, prog_name="distrff")
        return Done(result.exit_code, result.stdout, result.stderr)

    def refused(self, *args: Any, code: int = 2) -> str:
        """Run a command that must be refused, and return its message."""
        done = self(*args)
        assert (done.code, done.stdout) == (code, ""), done
        return done.stderr


@pytest.fixture
def distrff(cluster: LocalCluster) -> Distrff:
    return Distrff(cluster.scheduler_address)


@pytest.fixture(scope="session")
def distrff_process() -> Callable[..., Done]:
    """Runs commands as users do, in a process of their own."""

    def run(*args: Any) -> Done:
        # What libraries deprecate among themselves is told to their developers, not to ours.
        environment = os.environ | {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
        done = commands.run(*commands.DISTRFF, *args, env=environment)
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def distrff_without_workers() -> Distrff:
    return Distrff("tcp://127.0.0.1:1")


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Surroundings in which S3 finds no credentials and asks nobody for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


class Rows(NamedTuple):
    """The same rows in memory, as a Zarr group with y, and as Parquet with y and a label."""

    X: np.ndarray
    y: np.ndarray
    label: np.ndarray
    zarr: Path
    parquet: Path


def _write_group(path: Path, **arrays: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=array, chunks=(max(150, len(array) // 4), *array.shape[1:]))
    return path


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Path]:
    """`stored(name, **arrays)`: a Zarr group of arrays."""
    return lambda name, **arrays: _write_group(tmp_path / name, **arrays)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("rows")
    X = rng.standard_normal((600, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    label = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "middle"))
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, label=label, flag=y > 0)
    frame.to_parquet(folder / "rows.parquet", index=False)
    return Rows(X, y, label, _write_group(folder / "rows.zarr", X=X, y=y), folder / "rows.parquet")


@pytest.fixture(scope="session")
def models(rows: Rows, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for numbers, from Zarr, and one for labels, from Parquet."""
    distrff, folder = Distrff(cluster.scheduler_address), tmp_path_factory.mktemp("models")
    common = ["--n-components", 32, "--random-state", 0, "--length-scale", 2]
    numbers = distrff("fit", rows.zarr, "--out", folder / "numbers.zarr", *common)
    labels = distrff(
        *("fit", rows.parquet, "--out", folder / "labels.zarr", "--model", "ridge-classifier"),
        *("--target", "label", "--columns", "a,b,c", *common),
    )
    assert numbers.code == labels.code == 0, (numbers, labels)
    return {"numbers": folder / "numbers.zarr", "labels": folder / "labels.zarr"}
