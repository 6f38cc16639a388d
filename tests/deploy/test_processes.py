"""The rendered cluster and the Jobs as processes: fitted and predicted, in the clear on S3 and over TLS."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import yaml
import zarr
from click.testing import CliRunner

from distrff import load_model
from distrff.cli import main
from distrff.cluster import connect
from distrff.errors import ClusterError
from tests.deploy import chart, pods
from tests.deploy.pods import Surroundings, container_of, containers_of

JOBS = chart.ROOT / "deploy" / "kubernetes"
LOOPBACK = ("--host", "127.0.0.1")
N_ROWS = 500

Start = Callable[[chart.Overlays, dict[str, dict[str, str]]], str]


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    """`start(overlays, secrets)`: the rendered scheduler and a worker until the test ends; its address."""
    with pods.processes() as begin:

        def start(overlays: chart.Overlays, secrets: dict[str, dict[str, str]]) -> str:
            pod = containers_of(overlays)
            port, dashboard, own = pods.free_ports(3)
            names = {
                "dask-scheduler:8786": f"127.0.0.1:{port}",
                "8786": port,
                ":8787": f"127.0.0.1:{dashboard}",
                "8790": f"127.0.0.1:{own}",
                "/scratch": str(tmp_path),
            }
            around = Surroundings(tmp_path, secrets, names, {"8787": dashboard, "8790": own})
            worker = pod.get("dask-worker-spot", pod["dask-worker"])
            begun = [
                begin(container, around, name, *LOOPBACK)
                for name, container in (("scheduler", pod["dask-scheduler"]), ("worker", worker))
            ]
            # The chart gives its further groups no probe, but what answers is the same.
            for probed, process in zip((pod["dask-scheduler"], pod["dask-worker"]), begun, strict=True):
                for probe in {"livenessProbe", "readinessProbe"} & probed.keys():
                    pods.wait_for_probe(probed, probe, around, process)
            return f"127.0.0.1:{port}"

        yield start


def job(path: str) -> dict[str, Any]:
    """A Job's container, with a machine so small that it is fitted in no time."""
    container = container_of(yaml.safe_load((JOBS / path).read_text()))
    # Of options that are given twice the last one counts.
    more = ["--n-components=32", "--length-scale=2"] if "fit" in container["args"] else []
    return container | {"args": [*container["args"], *more]}


def with_variable(container: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """The container with another value of one of its variables."""
    assert any(variable["name"] == name for variable in container["env"])
    env = [{"name": name, "value": value} if v["name"] == name else v for v in container["env"]]
    return container | {"env": env}


def json_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_rows(store: Any) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    group = zarr.open_group(store, mode="w")
    for name, array in {"X": X, "y": np.sin(X[:, 0])}.items():
        group.create_array(name, data=array, chunks=(100, *array.shape[1:]))
    return X


def test_the_jobs_in_the_clear_on_object_storage(start, tmp_path, monkeypatch):
    pytest.importorskip("moto", reason="the extra `test` has it")
    pytest.importorskip("s3fs", reason="the extra `test` has it")
    import fsspec

    from examples.s3_roundtrip import s3_server

    with s3_server() as options:
        secret = {
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        fsspec.filesystem("s3", **options).mkdir("bucket")
        X = write_rows(
            zarr.storage.FsspecStore.from_url("s3://bucket/rows.zarr", storage_options=dict(options))
        )
        secrets = {"distrff-storage": secret}
        address = start((), secrets)
        around = Surroundings(tmp_path, secrets, {"dask-scheduler:8786": address})
        fitted = json_of(pods.run(job("fit/job.yaml"), around))
        assert fitted["workers"] == 1
        assert fitted["n_components"] == 32
        assert fitted["out"] == "s3://bucket/model.zarr"
        predicted = json_of(pods.run(job("predict-job.yaml"), around))
        assert predicted["n_samples"] == N_ROWS
        frame = pd.read_parquet("s3://bucket/predictions.parquet", storage_options=options)
        model = load_model("s3://bucket/model.zarr", storage_options=dict(options))
        np.testing.assert_allclose(frame["prediction"], model.predict(X), rtol=1e-12)
        assert_a_plan_beyond_the_workers_is_refused(f"tcp://{address}", options)


def assert_a_plan_beyond_the_workers_is_refused(address: str, options: dict[str, str]) -> None:
    """The limit that the chart hands to the workers is the one that the plan goes by."""
    words = [word for key, value in options.items() for word in ("--storage-option", f"{key}={value}")]
    machine = ["--n-components", "200000", "--scheduler", address]
    done = CliRunner().invoke(main, ["plan", "s3://bucket/rows.zarr", *words, *machine])
    assert done.exit_code == 4
    assert "smallest changes that fit: a memory limit of" in done.output


def certificates(folder: Path) -> dict[str, str]:
    """The secret that the README's commands make, with an authority of its own."""
    folder.mkdir()
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs the openssl program")
    for command in re.findall(r"^openssl .*$", (chart.HELM / "README.md").read_text(), re.MULTILINE):
        subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)
    return {name: (folder / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}


def test_the_jobs_over_tls(start, tmp_path):
    """All overlays at once: the worker is one of the group on nodes that may be taken away."""
    X = write_rows(tmp_path / "rows.zarr")
    tokens = {"distrff-tls": certificates(tmp_path / "tls"), "distrff-storage": {}}
    address = start(chart.OVERLAYS, tokens)
    around = Surroundings(tmp_path, tokens, {"dask-scheduler:8786": address, "s3://bucket": str(tmp_path)})
    (patch,) = yaml.safe_load((JOBS / "fit-tls" / "kustomization.yaml").read_text())["patches"]
    (variable,) = container_of(yaml.safe_load(patch["patch"]))["env"]
    assert variable["value"].startswith("tls://")
    fitted = json_of(pods.run(with_variable(job("fit/job.yaml"), **variable), around))
    assert fitted["workers"] == 1
    by_all_cores = [note for note in fitted["notes"] if "BLAS ran on" in note]  # as values-highmem.yaml says
    assert len(by_all_cores) == (n_cores() > 1)
    predicted = json_of(pods.run(with_variable(job("predict-job.yaml"), **variable), around))
    assert predicted["n_samples"] == N_ROWS
    frame, model = pd.read_parquet(tmp_path / "predictions.parquet"), load_model(str(tmp_path / "model.zarr"))
    np.testing.assert_allclose(frame["prediction"], model.predict(X), rtol=1e-12)
    notebook = containers_of(chart.OVERLAYS)["dask-jupyter"]
    tokens["distrff-jupyter"] = {"token": "any"}
    client = ["python", "-c", "from distributed import Client; print(Client().scheduler.address)"]
    assert pods.run(notebook | {"args": client}, around).stdout.strip() == f"tls://{address}"
    assert_strangers_are_told(address, certificates(tmp_path / "others"))


def n_cores() -> int:
    """Cores that BLAS may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def assert_strangers_are_told(address: str, others: dict[str, str]) -> None:
    """Who has no certificate, or one of another authority, is not let in."""
    with (
        pytest.raises(ClusterError, match="its address would begin with tls://"),
        connect(f"tcp://{address}", timeout=1),
    ):
        pass
    names = {"ca-file": "ca.crt", "client.cert": "tls.crt", "client.key": "tls.key"}
    settings = {f"distributed.comm.tls.{name}": others[file] for name, file in names.items()}
    with (
        dask.config.set(settings),
        pytest.raises(ClusterError, match="did not sign the certificate of what listens there"),
        connect(f"tls://{address}", timeout=1),
    ):
        pass


def test_without_certificates_a_tls_scheduler_does_not_start(tmp_path):
    """It does not fall back to the clear."""
    scheduler = containers_of(chart.OVERLAYS)["dask-scheduler"]
    port, dashboard = pods.free_ports(2)
    around = Surroundings(tmp_path, {}, {"8786": port, ":8787": f"127.0.0.1:{dashboard}"})
    done = pods.run(scheduler, around, *LOOPBACK)
    assert done.returncode != 0
    assert "TLS" in done.stderr
