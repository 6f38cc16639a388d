"""`distrff quickstart` at a small scale: what it leaves, what it refuses, and that it leaves nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr

from distrff.cli import main
from distrff.cli import quickstart as demonstration
from distrff.io.open import open_dataset
from distrff.model.persistence import load_model

SMALL = ["--n-rows", "4000", "--n-columns", "5", "--n-components", "64", "--workers", "2"]


def command(*arguments):
    return [sys.executable, "-c", "from distrff.cli import main; main()", "quickstart", *arguments]


def refused(runner, *arguments):
    result = runner.invoke(main, ["quickstart", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in a process of its own: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("quickstart") / "made"
    arguments = command(*SMALL, "--dir", str(folder), "--json")
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    assert os.listdir(folder.parent) == ["made"]
    return folder, ran


def refuse_constant(name):
    raise AssertionError(f"{name} is not strict JSON")


def test_json_is_one_strict_object_and_stands_alone(finished):
    folder, ran = finished
    result = json.loads(ran.stdout, parse_constant=refuse_constant)
    assert ran.stdout.count("\n") == 1
    for key in ("train", "test", "model", "report"):
        assert Path(result[key]).parent == folder
        assert Path(result[key]).exists()
    assert result["n_samples"] == 4000
    assert result["status"] == "CONVERGED"
    assert result["workers"] == 2
    assert "Writing 4,000 rows" in ran.stderr
    assert "The plan is" in ran.stderr


def test_the_machine_is_between_the_line_and_the_truth(finished):
    scores = json.loads(finished[1].stdout)["scores"]
    rmse = [scores[name]["rmse"] for name in ("best_possible", "kernel_ridge", "linear_ridge")]
    # The seed is fixed: 64 features halve the way from the line to the truth, with much room.
    assert rmse[0] < rmse[1] < 0.9 * rmse[2]
    assert rmse[0] == pytest.approx(0.3, abs=6 * 0.3 / np.sqrt(2 * 10_000))


def test_the_model_predicts_the_rows_as_it_was_scored(finished):
    folder, ran = finished
    scores = json.loads(ran.stdout)["scores"]
    test = open_dataset(folder / "test.zarr")
    y = test.y.compute()
    prediction = load_model(str(folder / "model.zarr")).predict(test.X.compute())
    # Features are float32: other tiles, other roundings.
    assert np.sqrt(np.mean((prediction - y) ** 2)) == pytest.approx(scores["kernel_ridge"]["rmse"], rel=1e-5)
    f = zarr.open_group(folder / "test.zarr", mode="r")["f"][:]
    assert np.sqrt(np.mean((f - y) ** 2)) == pytest.approx(scores["best_possible"]["rmse"], rel=1e-12)
    r2 = 1 - np.mean((f - y) ** 2) / np.var(y)
    assert r2 == pytest.approx(scores["best_possible"]["r2"], rel=1e-9)


def test_the_report_is_one_page_that_needs_nothing_else(finished):
    folder, _ = finished
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in (
        "Error against alpha",
        "number of features",
        "Plan against measured",
        "time of the fit",
        "best possible",
    ):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_no_name_of_the_temporary_folder_stays(finished):
    folder, _ = finished
    for file in [folder / "report.html", *folder.rglob("zarr.json")]:
        assert ".partial" not in file.read_text(encoding="utf-8"), file


def test_an_earlier_result_is_replaced_only_when_asked(runner, finished):
    folder, _ = finished
    before = (folder / "report.html").stat().st_mtime_ns
    assert "--overwrite" in refused(runner, *SMALL, "--dir", folder)
    assert (folder / "report.html").stat().st_mtime_ns == before
    result = runner.invoke(main, ["quickstart", *SMALL, "--dir", str(folder), "--overwrite"])
    assert result.exit_code == 0, result.output
    assert (folder / "report.html").stat().st_mtime_ns > before
    assert os.listdir(folder.parent) == ["made"]
    for text in ("kernel ridge", "linear ridge", "best possible", str(folder / "report.html")):
        assert text in result.stdout


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
@pytest.mark.parametrize("content", ["file", "folder", "model"])
def test_what_is_not_a_quickstart_stays(runner, tmp_path, content, flags):
    folder = tmp_path / "there"
    if content == "file":
        folder.write_text("precious")
    elif content == "folder":
        folder.mkdir()
        (folder / "notes.txt").write_text("precious")
    else:
        zarr.create_group(folder, attributes={"distrff": {"kind": "model"}})
    before = sorted(tmp_path.rglob("*"))
    message = refused(runner, *SMALL, "--dir", folder, *flags)
    assert "choose another path" in message
    assert message.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--n-components", "63"], "--n-components must"),
        (["--n-rows", "5"], "--n-rows"),
        (["--n-columns", "0"], "--n-columns"),
        (["--memory-limit", "much"], "--memory-limit"),
        (["--dir", "no/such/parent"], "does not exist"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_and_leave_nothing(runner, tmp_path, monkeypatch, arguments, word):
    monkeypatch.chdir(tmp_path)
    assert word in refused(runner, "--n-rows", 500, "--n-components", 16, *arguments)
    assert os.listdir(tmp_path) == []


def test_a_plan_that_does_not_fit_leaves_nothing(runner, tmp_path):
    arguments = ["--n-rows", "500", "--workers", "1", "--memory-limit", "300MB", "--dir", tmp_path / "made"]
    result = runner.invoke(main, ["quickstart", *map(str, arguments)])
    assert result.exit_code == 4, result.output
    assert "memory limit" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["Writing", "Starting", "Fitting kernel"])
def test_an_interrupt_leaves_nothing(tmp_path, moment):
    """As Ctrl-C does: the signal goes to all processes of the group, soon after the moment named."""
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        command(*SMALL, "--n-rows", "60000", "--dir", str(tmp_path / "made")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch"), "PYTHONUNBUFFERED": "1"},
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        next(line for line in running.stdout if moment in line)
        time.sleep(0.1)
        family = [running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))]
        os.killpg(running.pid, signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "distrff: interrupted"
    assert "Traceback" not in stderr
    assert sorted(os.listdir(tmp_path)) == ["scratch"]
    assert not [name for name in os.listdir(tmp_path / "scratch") if name.startswith("distrff")]
    _, alive = psutil.wait_procs([p for pid in family if (p := _process(pid))], timeout=10)
    assert not alive


def test_workers_are_as_many_as_cores_and_memory_are_good_for(monkeypatch):
    for cores, memory, expected in ((2, 32e9, 2), (64, 512e9, 8), (16, 8e9, 3), (4, 1e9, 1)):
        monkeypatch.setattr("dask.system.CPU_COUNT", cores)
        monkeypatch.setattr("distributed.system.MEMORY_LIMIT", memory)
        assert demonstration.local_workers() == expected


def _process(pid):
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
