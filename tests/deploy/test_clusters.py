"""Clusters as processes of this machine: the rendered pods, and the lines of the table of `deploy`."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from dask.utils import parse_bytes
from distributed import Client
from distributed.cli import dask_ssh

import distrff as drf
from distrff.cli import main
from distrff.engine.cluster import connect
from distrff.engine.tasks import blas_threads
from distrff.errors import ClusterError
from tests.deploy import chart, pods
from tests.deploy.kubernetes import pods as pods_of
from tests.deploy.pods import Surroundings, write_distrff, write_program
from tests.support import commands
from tests.support.commands import wait_until

LOOPBACK = ("--host", "127.0.0.1")
SERVICES = (
    "dask-scheduler:8786", "distrff-fit-scheduler:8786", "distrff-scheduler.default.svc.cluster.local:8786"
)  # fmt: skip
SMALL = ("--n-components=32", "--length-scale=2")  # of options that are given twice the last one counts
N_ROWS = 500

Container = Mapping[str, Any]


def write_rows(store: Any) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((N_ROWS, 3))
    group = zarr.open_group(store, mode="w")
    for name, array in {"X": X, "y": np.sin(X[:, 0])}.items():
        group.create_array(name, data=array, chunks=(N_ROWS // 2, *array.shape[1:]))
    return X


# ---------------------------------------------------------------- what is rendered


def begin_cluster(
    begin: pods.Begin, around: Surroundings, scheduler: Container, worker: Container
) -> tuple[str, Surroundings]:
    """Start two pods; when both answer, return the address, and surroundings in which it is found."""
    port, dashboard = pods.free_ports(2)
    address = f"127.0.0.1:{port}"
    place = around.with_places({"8786": port, ":8787": f"127.0.0.1:{dashboard}"}, {"8787": dashboard})
    process = begin(scheduler, place, "scheduler", *LOOPBACK)
    around = around.with_places(dict.fromkeys(SERVICES, address), {"8787": dashboard})
    begin_worker(begin, around, worker, worker)
    for probe in ("livenessProbe", "readinessProbe"):
        pods.wait_for_probe(scheduler, probe, place, process)
    return address, around


def begin_worker(begin: pods.Begin, around: Surroundings, container: Container, probed: Container) -> None:
    """Start a worker's pod, and wait until it answers as another's probe asks."""
    (port,) = pods.free_ports(1)
    listens = f"127.0.0.1:{port}"
    place = around.with_places({"8790": listens, ":8790": listens}, {"8790": port})
    process = begin(container, place, f"worker-{port}", *LOOPBACK)
    pods.wait_for_probe(probed, "livenessProbe", place, process)


def output_of(container: Container, around: Surroundings, *more: str) -> str:
    done = pods.run(container, around, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_predicted(place: str, X: np.ndarray, options: dict[str, str] | None = None) -> None:
    frame = pd.read_parquet(f"{place}/predictions.parquet", storage_options=options)
    model = drf.load_model(f"{place}/model.zarr", storage_options=options)
    np.testing.assert_allclose(frame["prediction"], model.predict(X), rtol=1e-12)


@pytest.mark.slow
def test_the_jobs_in_the_clear_on_object_storage(tmp_path):
    pytest.importorskip("moto", reason="the extra `test` has it")
    pytest.importorskip("s3fs", reason="the extra `test` has it")
    import fsspec

    from examples.s3_roundtrip import s3_server

    with s3_server() as options, pods.processes() as begin:
        secret = {
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        fsspec.filesystem("s3", **options).mkdir("bucket")
        url = "s3://bucket/rows.zarr"
        X = write_rows(zarr.storage.FsspecStore.from_url(url, storage_options=dict(options)))
        around = Surroundings(tmp_path, {"distrff-storage": secret})
        ours, fit = pods_of(()), pods_of("fit")["job"]
        parts = (ours[name].container for name in ("dask-scheduler", "dask-worker"))
        _, around = begin_cluster(begin, around, *parts)
        output_of(fit.waiting, around)
        fitted = json.loads(output_of(fit.container, around, *SMALL))
        wanted = {"workers": 1, "n_components": 32, "out": "s3://bucket/model.zarr"}
        assert fitted.items() >= wanted.items()
        predicted = json.loads(output_of(pods_of("predict")["job"].container, around))
        assert predicted["n_samples"] == N_ROWS
        assert_predicted("s3://bucket", X, dict(options))


def test_a_pod_writes_to_its_volumes_and_nowhere_else(tmp_path):
    """What the other tests of this file rest on, when they start what is rendered."""
    if reason := pods.why_not_confined():
        pytest.skip(reason)
    script = "for d in /scratch /tmp $HOME . /usr $PREFIX; do touch $d/x 2> /dev/null && echo $d; done; true"
    worker = pods_of(())["dask-worker"].container
    worker["args"] = ["sh", "-c", script.replace("$PREFIX", sys.prefix)]
    around, volumes = Surroundings(tmp_path), tmp_path / "volumes"
    assert pods.run(worker, around).stdout.split() == [str(volumes / "scratch"), str(volumes / "tmp")]
    assert len(pods.run(worker | {"securityContext": {}}, around).stdout.split()) > 2


@pytest.mark.slow
def test_the_autoscaled_scheduler_answers_what_the_operator_asks(tmp_path):
    """How many workers it wants; and it retires one, by whose name the operator deletes a deployment."""
    around, parts = Surroundings(tmp_path), pods_of("autoscaled")
    scheduler, worker = parts["scheduler"].container, parts["worker"].container
    with pods.processes() as begin:
        address, place = begin_cluster(begin, around, scheduler, worker)
        api = f"http://127.0.0.1:{place.ports['8787']}/api/v1"
        with urllib.request.urlopen(f"{api}/adaptive_target", timeout=10) as answer:
            assert json.load(answer) == {"workers": 0}
        env = [v for v in worker["env"] if v["name"] != "DASK_WORKER_NAME"]
        other = worker | {"env": [*env, {"name": "DASK_WORKER_NAME", "value": "another"}]}
        begin_worker(begin, place, other, worker)
        asked = urllib.request.Request(f"{api}/retire_workers", json.dumps({"n": 1}).encode())
        with connect(f"tcp://{address}", timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                (retired,) = json.load(answer).values()
            (left,) = client.scheduler_info(-1)["workers"].values()
        assert {retired["name"], left["name"]} == {"another", "distrff-default-worker-0123456789"}


def certificates(folder: Path) -> dict[str, str]:
    """The secret that the README's commands make, with an authority of its own."""
    private = folder / "deploy" / "private"
    private.mkdir(parents=True)
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs the openssl program")
    for command in re.findall(r"^openssl .*$", (chart.HELM / "README.md").read_text(), re.MULTILINE):
        subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)
    return {name: (private / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}


@pytest.mark.slow
def test_the_jobs_over_tls(tmp_path, tls_of):
    """The operator's cluster and Job; of the chart, with all overlays, a worker of the group that may go.

    The operator's worker has the name by which it is taken away; of the cores the chart's has all for BLAS.
    """
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    X, secret = write_rows(bucket / "rows.zarr"), certificates(tmp_path / "tls")
    secrets = {"distrff-tls": secret, "distrff-jupyter": {"token": "any"}}
    around = Surroundings(tmp_path, secrets, {"s3://bucket": str(bucket)}, stores=(bucket,))
    operator, ours = pods_of("tls/dask-job"), pods_of(chart.OVERLAYS)
    with pods.processes() as begin:
        parts = (operator[name].container for name in ("scheduler", "worker"))
        address, around = begin_cluster(begin, around, *parts)
        output_of(operator["job"].waiting, around)
        assert json.loads(output_of(operator["job"].container, around, *SMALL))["workers"] == 1
        predicted = json.loads(output_of(pods_of("tls/predict")["job"].container, around))
        assert predicted["n_samples"] == N_ROWS
        assert_predicted(str(bucket), X)
        client = ["python", "-c", "from distributed import Client; print(Client().scheduler.address)"]
        notebook = ours["dask-jupyter"].container | {"args": client}
        assert output_of(notebook, around).strip() == f"tls://{address}"
        # The chart gives its further groups no probe, but what answers is the same.
        begin_worker(begin, around, ours["dask-worker-spot"].container, ours["dask-worker"].container)
        names = {"ca-file": "ca.crt", "client.cert": "tls.crt", "client.key": "tls.key"}
        settings = {f"distributed.comm.tls.{name}": secret[key] for name, key in names.items()}
        with dask.config.set(settings), connect(f"tls://{address}", timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            workers = client.scheduler_info(-1)["workers"]
            threads = {workers[its]["name"]: n for its, n in client.run(blas_threads).items()}
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        assert threads.pop("distrff-fit-default-worker-0123456789") == 1
        assert list(threads.values()) == [min(8, n_cores)]
        assert_strangers_are_told(address, tls_of("a stranger"))


def assert_strangers_are_told(address: str, of_another_authority: dict[str, str]) -> None:
    """Who has no certificate, or one of another authority, is not let in."""
    for scheme, settings, told in (
        ("tcp", {}, f"TLS is used on both sides or on neither .tls://{address} with TLS"),
        ("tls", of_another_authority, "did not sign the certificate of what listens there"),
    ):
        refused = pytest.raises(ClusterError, match=told)
        with dask.config.set(settings), refused, connect(f"{scheme}://{address}", timeout=1):
            pass


@pytest.mark.slow
def test_without_certificates_a_tls_scheduler_does_not_start(tmp_path):
    """It does not fall back to the clear."""
    port, dashboard = pods.free_ports(2)
    around = Surroundings(tmp_path, {}, {"8786": port, ":8787": f"127.0.0.1:{dashboard}"})
    done = pods.run(pods_of(chart.OVERLAYS)["dask-scheduler"].container, around, *LOOPBACK)
    assert done.returncode != 0
    assert "TLS" in done.stderr


# ---------------------------------------------------------------- the lines of the table


DASK = f"#!{sys.executable}\nfrom dask.__main__ import main\nif __name__ == '__main__':\n    main()\n"
FIT = "--n-components 16 --length-scale 1 --alpha 1 --random-state 0 --json"


def lines_of(cluster: str) -> list[str]:
    """The lines that start a cluster, from its row of the table."""
    rows = [row.split(" | ") for row in (chart.FILES / "README.md").read_text().splitlines()]
    (cells,) = [row for row in rows if row[0].startswith("| ") and cluster in row[0]]
    lines = re.findall(r"`([^`]+)`", cells[2])
    assert len(lines) == 3
    return lines


def ridge() -> drf.KernelRidge:
    return drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 16), 1.0, scale="standard", random_state=0)


def assert_fitted_on(n_workers: int, folder: Path) -> None:
    """A fit on the ambient client has the coefficients of one in this process."""
    fitted, group = (
        ridge().fit(drf.open_dataset(str(folder / "rows.zarr"))),
        zarr.open_group(folder / "rows.zarr"),
    )
    assert fitted.report_["workers"] == n_workers
    np.testing.assert_array_equal(fitted.coef_, ridge().fit(group["X"][:], group["y"][:]).coef_)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with rows, and with the programs `dask` and `distrff` of this environment."""
    write_rows(tmp_path / "rows.zarr")
    write_distrff(tmp_path / "bin")
    write_program(tmp_path / "bin" / "dask", DASK)
    return tmp_path


@pytest.fixture
def environment(folder) -> dict[str, str]:
    here = str(Path(drf.__file__).parents[1])  # scripts do not have the folder that they are started in
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning", "DASK_DISTRIBUTED__DASHBOARD__LINK": ""}
    return (
        os.environ | quiet | {"PYTHONPATH": path, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    )


@pytest.fixture
def background(folder, environment) -> Iterator[Callable[[str], None]]:
    """`background(line)`: start a line that runs until the end of the test."""
    running: list[subprocess.Popen] = []

    def start(line: str) -> None:
        how = {"cwd": folder, "env": environment, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen(shlex.split(line), **how))

    yield start
    for process in running:
        pods.end(process)


@pytest.fixture
def fitted(folder, environment) -> Callable[[str], dict[str, Any]]:
    """`fitted(line)`: what a line of a fit prints, run to its end."""

    def run(line: str) -> dict[str, Any]:
        done = commands.run(*shlex.split(f"{line} {FIT}"), cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


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
        assert_fitted_on(1, folder)


@pytest.mark.slow
def test_by_hand_and_within_its_memory(folder, background, fitted, monkeypatch):
    """A worker with a limit that a plan does not fit into refuses in one line; a smaller fit runs there."""
    (port,) = pods.free_ports(1)
    lines = (
        line.replace("scheduler-host", "127.0.0.1").replace("8786", port) for line in lines_of("by hand")
    )
    scheduler, worker, fit = lines
    background(f"{scheduler} --no-dashboard --dashboard-address 127.0.0.1:0")

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", int(port))) == 0

    wait_until(listens, 60)
    background(worker.replace("--nworkers 4", "--nworkers 1") + " --no-dashboard --memory-limit 1GB")
    with Client(f"tcp://127.0.0.1:{port}") as client:  # a fit waits ten seconds for the first worker
        client.wait_for_workers(1, timeout=120)
    monkeypatch.chdir(folder)
    _, *words = shlex.split(f"{fit} {FIT} --n-components 16384 --alpha cv")
    refused = CliRunner().invoke(main, words, prog_name="distrff")
    assert (refused.exit_code, refused.stdout) == (4, ""), refused.stderr
    refusal = r"the plan needs .* a worker .*limit of 1 GB .* smallest changes that fit: a memory limit"
    assert re.search(refusal, refused.stderr.splitlines()[-1])
    assert fitted(fit)["workers"] == 1


@pytest.mark.slow
def test_a_scheduler_file(folder, background, fitted):
    scheduler, worker, fit = lines_of("scheduler file")
    background(f"{scheduler} --host 127.0.0.1 --port 0 --no-dashboard --dashboard-address 127.0.0.1:0")
    file = folder / "cluster.json"
    wait_until(lambda: file.exists() and file.read_text().endswith("}"), 60)
    background(worker.replace("--nworkers 4", "--nworkers 1") + " --no-dashboard")
    assert fitted(fit)["status"] == "CONVERGED"


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
def slurm_cluster(folder, environment, monkeypatch) -> Iterator[Any]:
    """What the lines make, without jobs; stand-ins for Slurm's programs run scripts on this machine."""
    write_program(folder / "bin" / "sbatch", SBATCH)
    write_program(folder / "bin" / "scancel", '#!/bin/sh\nkill "$@" 2> /dev/null || true\n')
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(folder)
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
def test_a_job_of_slurm_runs_a_fit(folder, slurm_cluster):
    slurm_cluster.scale(jobs=1)
    with Client(slurm_cluster) as client:
        client.wait_for_workers(4, timeout=60)
        assert "#SBATCH --cpus-per-task=4" in (folder / "job.sh").read_text()
        assert_fitted_on(4, folder)
