"""The table of `deploy/README.md`: its lines start clusters, on which a model is fitted."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from dask.utils import parse_bytes
from distributed import Client
from distributed.cli import dask_ssh

import distrff as drf
from distrff.cli import main
from tests.deploy.pods import end, free_ports, write_distrff, write_program
from tests.support import commands
from tests.support.commands import wait_until

README = Path(__file__).parents[2] / "deploy" / "README.md"
DASK = f"#!{sys.executable}\nfrom dask.__main__ import main\nif __name__ == '__main__':\n    main()\n"


def lines_of(cluster: str) -> list[str]:
    """The lines that start a cluster, from its row of the table."""
    rows = [row.split(" | ") for row in README.read_text().splitlines() if row.startswith("| ")]
    cells = next(row for row in rows if cluster in row[0])
    lines = re.findall(r"`([^`]+)`", cells[2])
    assert len(lines) == 3
    return lines


def expected(folder: Path) -> np.ndarray:
    group = zarr.open_group(folder / "rows.zarr", mode="r")
    return ridge().fit(group["X"][:], group["y"][:]).coef_


def ridge() -> drf.KernelRidge:
    return drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 16), 1.0, scale="standard", random_state=0)


FIT = "--n-components 16 --length-scale 1 --alpha 1 --random-state 0 --json"


@pytest.fixture
def folder(tmp_path, rng) -> Path:
    """A folder with rows, and with the programs `dask` and `distrff` of this environment."""
    group, X = zarr.open_group(tmp_path / "rows.zarr", mode="w"), rng.standard_normal((500, 3))
    group.create_array("X", data=X)
    group.create_array("y", data=np.sin(X[:, 0]))
    write_distrff(tmp_path / "bin")
    write_program(tmp_path / "bin" / "dask", DASK)
    return tmp_path


@pytest.fixture
def environment(folder) -> dict[str, str]:
    here = str(Path(drf.__file__).parents[1])  # scripts do not have the folder that they are started in
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning", "DASK_DISTRIBUTED__DASHBOARD__LINK": ""}
    paths = {"PYTHONPATH": path, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return os.environ | quiet | paths


@pytest.fixture
def background(folder, environment) -> Iterator[Callable[[str], subprocess.Popen]]:
    """`background(line)`: start a line that runs until the end of the test."""
    running: list[subprocess.Popen] = []

    def start(line: str) -> subprocess.Popen:
        how = {"cwd": folder, "env": environment, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen(shlex.split(line), **how))
        return running[-1]

    yield start
    for process in running:
        end(process)


@pytest.fixture
def fitted(folder, environment) -> Callable[[str], tuple[dict[str, Any], np.ndarray]]:
    """`fitted(line)`: what a line of a fit prints, run to its end, and the coefficients that it stores."""

    def run(line: str) -> tuple[dict[str, Any], np.ndarray]:
        done = commands.run(*shlex.split(f"{line} {FIT}"), cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), drf.load_model(str(folder / "model.zarr")).coef.ravel()

    return run


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_this_computer(folder):
    """Its lines are Python, for a script or a notebook."""
    names: dict[str, Any] = {}
    lines = lines_of("this machine")
    assert "threads_per_worker=1" in lines[1]
    quiet = "threads_per_worker=1, n_workers=1, dashboard_address=None"
    quiet += ", scheduler_kwargs={'dashboard_address': '127.0.0.1:0'}"
    exec("\n".join([lines[0], lines[1].replace("threads_per_worker=1", quiet), lines[2]]), names)
    with names["cluster"], names["client"]:
        fitted = ridge().fit(drf.open_dataset(str(folder / "rows.zarr")))
    assert fitted.report_["workers"] == 1
    np.testing.assert_array_equal(fitted.coef_, expected(folder))


@pytest.mark.slow
def test_by_hand_and_within_its_memory(folder, background, fitted, monkeypatch):
    """A worker with a limit that a plan does not fit into refuses in one line; a smaller fit runs there."""
    (port,) = map(int, free_ports(1))
    scheduler, worker, fit = (
        line.replace("scheduler-host", "127.0.0.1").replace("8786", str(port)) for line in lines_of("by hand")
    )
    background(f"{scheduler} --no-dashboard --dashboard-address 127.0.0.1:0")
    wait_until(lambda: listens(port), 60)
    background(worker.replace("--nworkers 4", "--nworkers 1") + " --no-dashboard --memory-limit 1GB")
    with Client(f"tcp://127.0.0.1:{port}") as client:  # a fit waits ten seconds for the first worker
        client.wait_for_workers(1, timeout=120)
    monkeypatch.chdir(folder)
    _, *words = shlex.split(f"{fit} {FIT} --n-components 16384 --alpha cv")
    refused = CliRunner().invoke(main, words, prog_name="distrff")
    assert (refused.exit_code, refused.stdout) == (4, ""), refused.stderr
    refusal = r"the plan needs .* a worker .*limit of 1 GB .* smallest changes that fit: a memory limit"
    assert re.search(refusal, refused.stderr.splitlines()[-1])
    report, coef = fitted(fit)
    assert report["workers"] == 1
    np.testing.assert_array_equal(coef, expected(folder).ravel())


@pytest.mark.slow
def test_a_scheduler_file(folder, background, fitted):
    scheduler, worker, fit = lines_of("scheduler file")
    background(f"{scheduler} --host 127.0.0.1 --port 0 --no-dashboard --dashboard-address 127.0.0.1:0")
    file = folder / "cluster.json"
    wait_until(lambda: file.exists() and file.read_text().endswith("}"), 60)
    background(worker.replace("--nworkers 4", "--nworkers 1") + " --no-dashboard")
    assert fitted(fit)[0]["status"] == "CONVERGED"


def test_dask_ssh_takes_the_words_of_its_line():
    """Nothing is started: that needs a server of SSH."""
    requirement, start, fit = (shlex.split(line) for line in lines_of("dask ssh"))
    assert requirement == ["pip", "install", "paramiko"]
    context = dask_ssh.main.make_context("dask ssh", start[2:])
    assert context.params.items() >= {"nthreads": 1, "n_workers": 4}.items()
    assert context.params["hostnames"] == ("scheduler-host", "worker-host")
    assert fit[-2:] == ["--scheduler", f"tcp://{start[-2]}:{context.params['scheduler_port']}"]


SBATCH = """#!/bin/sh
# What submits a job: it keeps the script, as Slurm does, and begins at once, on this machine.
for script in "$@"; do :; done
job="$(dirname "$0")/../job.sh"
cp "$script" "$job"
sh "$job" > /dev/null 2>&1 &
echo "Submitted batch job $!"
"""


@pytest.fixture
def batch_system(folder, environment, monkeypatch) -> Path:
    """A stand-in for Slurm's programs, which runs a job's script where it is submitted."""
    write_program(folder / "bin" / "sbatch", SBATCH)
    write_program(folder / "bin" / "scancel", '#!/bin/sh\nkill "$@" 2> /dev/null || true\n')
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(folder)
    return folder / "job.sh"


@pytest.fixture
def slurm_cluster(batch_system) -> Iterator[Any]:
    """What the lines make, without its jobs."""
    handler = signal.getsignal(signal.SIGINT)
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    signal.signal(signal.SIGINT, handler)  # which its import changes
    names: dict[str, Any] = {}
    lines = lines_of("Slurm")
    asked = 'walltime="01:00:00"'
    here = f'{asked}, scheduler_options={{"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}}'
    assert asked in lines[1]
    exec("\n".join([lines[0], lines[1].replace(asked, here)]), names)
    with names["cluster"] as cluster:
        yield cluster


def test_slurm_is_asked_for_what_the_lines_say(slurm_cluster):
    script = slurm_cluster.job_script()
    asked = dict(re.findall(r"^#SBATCH (?:--)?(-?[\w-]+)[ =](\S+)$", script, re.MULTILINE))
    assert (asked["cpus-per-task"], asked["-t"]) == ("4", "01:00:00")
    command = shlex.split(script.splitlines()[-1])
    assert command[:3] == [sys.executable, "-m", "distributed.cli.dask_worker"]
    options = dict(pairwise(command))
    assert (options["--nthreads"], options["--nworkers"]) == ("1", "4")
    assert 4 * parse_bytes(options["--memory-limit"]) <= parse_bytes(asked["mem"] + "iB") * 1.001


@pytest.mark.slow
def test_a_job_of_slurm_runs_a_fit(folder, batch_system, slurm_cluster):
    slurm_cluster.scale(jobs=1)
    with Client(slurm_cluster) as client:
        client.wait_for_workers(4, timeout=60)
        assert "#SBATCH --cpus-per-task=4" in batch_system.read_text()
        fitted = ridge().fit(drf.open_dataset(str(folder / "rows.zarr")))
    assert fitted.report_["workers"] == 4
    np.testing.assert_array_equal(fitted.coef_, expected(folder))
