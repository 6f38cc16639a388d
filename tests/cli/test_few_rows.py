"""Commands on few rows work in this process; options of workers, and more rows, start workers."""

import shutil

import numpy as np
import pytest
from distributed import Client, LocalCluster

import distrff as drf
from distrff.cli import data
from tests.cli.conftest import Distrff

MAP = "--features fourier --n-components 16 --length-scale 2 --random-state 0"
COMMANDS = (
    f"fit {{zarr}} {MAP} --out {{out}} --checkpoint {{out}}-kept --report {{out}}.html",
    f"plan {{zarr}} {MAP}",
    f"gram {{zarr}} {MAP} --out {{out}}",
    f"kernel-error {{zarr}} {MAP} --n-pairs 64 --n-blocks 2 --block-rows 32",
    "inspect {zarr}",
    "score {model} {zarr}",
    "importance {model} {zarr}",
    "calibrate {model} {zarr}",
    "predict {model} {zarr} --out {out}",
    "transform {model} {zarr} --out {out}",
    "raster {model} --grid 0=0:1:3 --grid 1=0:1:3 --grid 2=0:1:3 --out {out}",
)


@pytest.fixture
def clients(monkeypatch):
    """The clients that are made, without which no work gets to a worker.

    Local workers are threads in the place of processes, which take seconds to start.
    """
    made, init = [], Client.__init__

    def noted(client, *args, **options):
        made.append(client)
        init(client, *args, **options)

    monkeypatch.setattr(Client, "__init__", noted)
    monkeypatch.setattr(
        "distrff.engine.cluster.LocalCluster",
        lambda **options: LocalCluster(**options | {"processes": False}),
    )
    return made


@pytest.fixture
def run(clients, rows, models, tmp_path):
    """Runs a command given as one text; returns its end, and how many clients it made."""
    shutil.copytree(models["numbers"], tmp_path / "model.zarr")

    def ran(text, name="out.zarr"):
        clients.clear()
        places = {"zarr": rows.zarr, "parquet": rows.parquet, "model": tmp_path / "model.zarr"}
        done = Distrff()(*text.format(**places, out=tmp_path / name).split())
        return done, len(clients)

    return ran


@pytest.mark.parametrize("command", COMMANDS)
def test_few_rows_need_no_workers_and_more_do(run, command, monkeypatch):
    done, n_clients = run(command)
    assert (done.code, n_clients) == (0, 0), done
    monkeypatch.setattr(data, "_FEW_BYTES", 10)
    done, n_clients = run(command, "again.zarr")
    assert (done.code, n_clients) == (0, 1), done


def test_options_of_workers_start_them_and_change_no_bit(run, clients, cluster, rows, tmp_path):
    features = drf.FourierFeatures(drf.Gaussian(2.0), n_components=16)
    model = drf.KernelRidge(features, random_state=0).fit(drf.open_dataset(rows.zarr))
    assert not clients
    there = f"--scheduler {cluster.scheduler_address}"
    for options in ("", "--workers 2", "--memory-limit 2GB", "--scheduler local", there):
        done, n_clients = run(f"fit {{zarr}} {MAP} --out {{out}} --overwrite {options}")
        assert (done.code, n_clients) == (0, bool(options)), done
        coef = drf.load_model(tmp_path / "out.zarr").coef
        np.testing.assert_array_equal(coef, model.model_.coef)


def test_what_does_not_fit_is_refused_in_this_process_too(run, tmp_path):
    sizes = "--features fourier --n-components 1000000 --solver gram --alpha 1"
    done, n_clients = run(f"fit {{zarr}} {sizes} --out {{out}}")
    assert (done.code, n_clients) == (4, 0), done
    assert "smallest changes that fit" in done.stderr
    assert not (tmp_path / "out.zarr").exists()
