"""The rendered cluster and the Jobs as processes: fitted and predicted, in the clear on S3 and over TLS."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import zarr

from distrff.engine.cluster import connect
from distrff.engine.tasks import blas_threads
from distrff.errors import ClusterError
from distrff.model.persistence import load_model
from tests.deploy import chart, pods
from tests.deploy.kubernetes import hardened, job, operated, waiting
from tests.deploy.pods import Surroundings

LOOPBACK = ("--host", "127.0.0.1")
SERVICES = (
    "dask-scheduler:8786", "distrff-fit-scheduler:8786", "distrff-scheduler.default.svc.cluster.local:8786"
)  # fmt: skip
SMALL = ("--n-components=32", "--length-scale=2")  # of options that are given twice the last one counts
N_ROWS = 500

Container = Mapping[str, Any]


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
    places = {"8790": listens, ":8790": listens}
    place = around.with_places(places, {"8790": port})
    process = begin(container, place, f"worker-{port}", *LOOPBACK)
    pods.wait_for_probe(probed, "livenessProbe", place, process)


def json_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_rows(store: Any) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    group = zarr.open_group(store, mode="w")
    for name, array in {"X": X, "y": np.sin(X[:, 0])}.items():
        group.create_array(name, data=array, chunks=(N_ROWS // 2, *array.shape[1:]))
    return X


def assert_predicted(place: str, X: np.ndarray, options: dict[str, str] | None = None) -> None:
    frame = pd.read_parquet(f"{place}/predictions.parquet", storage_options=options)
    model = load_model(f"{place}/model.zarr", storage_options=options)
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
        pod = hardened(())
        _, around = begin_cluster(begin, around, pod["dask-scheduler"], pod["dask-worker"])
        waited = pods.run(waiting("fit"), around)
        assert waited.returncode == 0, waited.stderr
        fitted = json_of(pods.run(job("fit"), around, *SMALL))
        assert fitted["workers"] == 1
        assert fitted["n_components"] == 32
        assert fitted["out"] == "s3://bucket/model.zarr"
        predicted = json_of(pods.run(job("predict"), around))
        assert predicted["n_samples"] == N_ROWS
        assert_predicted("s3://bucket", X, dict(options))


def test_a_pod_writes_to_its_volumes_and_nowhere_else(tmp_path):
    """What the other tests of this file rest on, when they start what is rendered."""
    if reason := pods.why_not_confined():
        pytest.skip(reason)
    script = "for d in /scratch /tmp $HOME . /usr $PREFIX; do touch $d/x 2> /dev/null && echo $d; done; true"
    worker = hardened(())["dask-worker"] | {"args": ["sh", "-c", script.replace("$PREFIX", sys.prefix)]}
    around = Surroundings(tmp_path)
    volumes = tmp_path / "volumes"
    assert pods.run(worker, around).stdout.split() == [str(volumes / "scratch"), str(volumes / "tmp")]
    open_root = worker | {"securityContext": {}}
    assert len(pods.run(open_root, around).stdout.split()) > 2


def test_the_autoscaled_scheduler_answers_what_the_operator_asks(tmp_path):
    """How many workers it wants; and it retires one, by whose name the operator deletes a deployment."""
    around, parts = Surroundings(tmp_path), operated("autoscaled")
    with pods.processes() as begin:
        address, place = begin_cluster(begin, around, parts["scheduler"], parts["worker"])
        api = f"http://127.0.0.1:{place.ports['8787']}/api/v1"
        with urllib.request.urlopen(f"{api}/adaptive_target", timeout=10) as answer:
            assert json.load(answer) == {"workers": 0}
        other = {"name": "DASK_WORKER_NAME", "value": "another"}
        env = [v for v in parts["worker"]["env"] if v["name"] != other["name"]]
        begin_worker(begin, place, parts["worker"] | {"env": [*env, other]}, parts["worker"])
        asked = urllib.request.Request(f"{api}/retire_workers", json.dumps({"n": 1}).encode())
        with connect(f"tcp://{address}", timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                (retired,) = json.load(answer).values()
            (left,) = client.scheduler_info(-1)["workers"].values()
        names = {"another", "distrff-default-worker-0123456789"}
        assert {retired["name"], left["name"]} == names


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

    That both have the same scheduler is another test's.
    """
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    X = write_rows(bucket / "rows.zarr")
    secrets = {"distrff-tls": certificates(tmp_path / "tls"), "distrff-jupyter": {"token": "any"}}
    around = Surroundings(tmp_path, secrets, {"s3://bucket": str(bucket)}, stores=(bucket,))
    operator, ours = operated("tls/dask-job"), hardened(chart.OVERLAYS)
    with pods.processes() as begin:
        address, around = begin_cluster(begin, around, operator["scheduler"], operator["worker"])
        waited = pods.run(operator["wait-for-a-worker"], around)
        assert waited.returncode == 0, waited.stderr
        assert json_of(pods.run(operator["distrff"], around, *SMALL))["workers"] == 1
        predicted = json_of(pods.run(job("tls/predict"), around))
        assert predicted["n_samples"] == N_ROWS
        assert_predicted(str(bucket), X)
        client = ["python", "-c", "from distributed import Client; print(Client().scheduler.address)"]
        notebook = ours["dask-jupyter"] | {"args": client}
        assert pods.run(notebook, around).stdout.strip() == f"tls://{address}"
        # The chart gives its further groups no probe, but what answers is the same.
        begin_worker(begin, around, ours["dask-worker-spot"], ours["dask-worker"])
        assert_workers_are_as_asked(address, secrets["distrff-tls"])
        assert_strangers_are_told(address, tls_of("a stranger"))


def assert_workers_are_as_asked(address: str, secret: Mapping[str, str]) -> None:
    """The operator's has the name by which it is taken away; of the cores the chart's has all for BLAS."""
    names = {"ca-file": "ca.crt", "client.cert": "tls.crt", "client.key": "tls.key"}
    settings = {f"distributed.comm.tls.{name}": secret[key] for name, key in names.items()}
    with dask.config.set(settings), connect(f"tls://{address}", timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        workers = client.scheduler_info(-1)["workers"]
        threads = {workers[its]["name"]: n_threads for its, n_threads in client.run(blas_threads).items()}
    # Cores that BLAS may use.
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert threads.pop("distrff-fit-default-worker-0123456789") == 1
    assert list(threads.values()) == [min(8, n_cores)]


def assert_strangers_are_told(address: str, of_another_authority: dict[str, str]) -> None:
    """Who has no certificate, or one of another authority, is not let in."""
    for scheme, settings, told in (
        ("tcp", {}, f"TLS is used on both sides or on neither .tls://{address} with TLS"),
        ("tls", of_another_authority, "did not sign the certificate of what listens there"),
    ):
        refused = pytest.raises(ClusterError, match=told)
        with dask.config.set(settings), refused, connect(f"{scheme}://{address}", timeout=1):
            pass


def test_without_certificates_a_tls_scheduler_does_not_start(tmp_path):
    """It does not fall back to the clear."""
    scheduler = hardened(chart.OVERLAYS)["dask-scheduler"]
    port, dashboard = pods.free_ports(2)
    around = Surroundings(tmp_path, {}, {"8786": port, ":8787": f"127.0.0.1:{dashboard}"})
    done = pods.run(scheduler, around, *LOOPBACK)
    assert done.returncode != 0
    assert "TLS" in done.stderr
