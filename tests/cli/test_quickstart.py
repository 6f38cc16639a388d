"""`distrff quickstart` at a small scale: what it leaves, what it refuses, and that it leaves nothing else."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from distrff import load_model, open_dataset
from tests.support.commands import DISTRFF, interrupt, start

SMALL = ("--n-rows", 4000, "--n-columns", 5, "--n-components", 64, "--workers", 1)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A folder that says of itself that an earlier quickstart made it."""
    folder = tmp_path_factory.mktemp("quickstart") / "made"
    zarr.create_group(folder, attributes={"distrff": {"kind": "quickstart"}})
    (folder / "report.html").write_text("earlier")
    return folder


@pytest.fixture(scope="module")
def finished(earlier, distrff_process):
    """A run in a process of its own, which replaces an earlier one: its folder, and how it ended."""
    done = distrff_process("quickstart", *SMALL, "--dir", earlier, "--overwrite", "--json")
    assert os.listdir(earlier.parent) == ["made"], done
    return earlier, done


def test_an_earlier_result_is_replaced_only_when_asked(distrff_without_workers, earlier):
    assert "--overwrite" in distrff_without_workers.refused("quickstart", *SMALL, "--dir", earlier)
    assert (earlier / "report.html").read_text() == "earlier"


def test_json_is_one_strict_object_of_what_the_model_scores_on_the_test_rows(finished):
    folder, done = finished
    assert done.stdout.count("\n") == 1
    for key in ("train", "test", "model", "report"):
        assert Path(done.json[key]).parent == folder
        assert Path(done.json[key]).exists()
    found = done.json["n_samples"], done.json["status"], done.json["workers"]
    assert found == (4000, "CONVERGED", 1)
    assert "Writing 4,000 rows" in done.stderr
    assert "The plan is" in done.stderr
    scores = done.json["scores"]
    rmse = [scores[name]["rmse"] for name in ("best_possible", "kernel_ridge", "linear_ridge")]
    # The seed is fixed: 64 features halve the way from the line to the truth, with much room.
    assert rmse[0] < rmse[1] < 0.9 * rmse[2]
    assert rmse[0] == pytest.approx(0.3, abs=6 * 0.3 / np.sqrt(2 * 10_000))
    test = open_dataset(folder / "test.zarr")
    y = test.y.compute()
    prediction = load_model(str(folder / "model.zarr")).predict(test.X.compute())
    # Features are float32: other tiles, other roundings.
    assert np.sqrt(np.mean((prediction - y) ** 2)) == pytest.approx(rmse[1], rel=1e-5)
    f = zarr.open_group(folder / "test.zarr", mode="r")["f"][:]
    assert np.sqrt(np.mean((f - y) ** 2)) == pytest.approx(rmse[0], rel=1e-12)
    r2 = 1 - np.mean((f - y) ** 2) / np.var(y)
    assert r2 == pytest.approx(scores["best_possible"]["r2"], rel=1e-9)


def test_the_report_is_one_page_that_needs_nothing_else(finished):
    folder, _ = finished
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("Error against alpha", "number of features", "Plan against measured", "time of the fit",
                 "best possible"):  # fmt: skip
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    for file in [folder / "report.html", *folder.rglob("zarr.json")]:
        assert ".partial" not in file.read_text(encoding="utf-8"), "a name of the temporary folder stays"


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
@pytest.mark.parametrize("content", ["file", "folder", "model"])
def test_what_is_not_a_quickstart_stays(distrff_without_workers, tmp_path, content, flags):
    folder = tmp_path / "there"
    if content == "file":
        folder.write_text("precious")
    elif content == "folder":
        folder.mkdir()
        (folder / "notes.txt").write_text("precious")
    else:
        zarr.create_group(folder, attributes={"distrff": {"kind": "model"}})
    before = sorted(tmp_path.rglob("*"))
    message = distrff_without_workers.refused("quickstart", *SMALL, "--dir", folder, *flags)
    assert "choose another path" in message
    assert message.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_workers_without_the_memory_are_refused_and_leave_nothing(distrff_without_workers, tmp_path):
    words = ("--n-rows", 500, "--n-components", 16, "--workers", 1, "--memory-limit", "300MB")
    done = distrff_without_workers("quickstart", "--dir", tmp_path / "made", *words)
    assert (done.code, "memory limit" in done.stderr) == (4, True), done
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "moment",
    ["Starting", *(pytest.param(one, marks=pytest.mark.slow) for one in ("Writing", "Fitting kernel"))],
)
def test_an_interrupt_leaves_nothing(tmp_path, moment):
    """As Ctrl-C does: the signal goes to all processes of the group, soon after the moment named."""
    (tmp_path / "scratch").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "scratch"), "PYTHONUNBUFFERED": "1"}
    words = ("quickstart", *SMALL, "--n-rows", 60_000, "--dir", tmp_path / "made")
    with start(*DISTRFF, *words, start_new_session=True, env=environment) as running:
        next(line for line in running.stdout if moment in line)
        time.sleep(0.1)
        _, stderr = interrupt(running)
    assert stderr.splitlines()[-1] == "distrff: interrupted"
    assert os.listdir(tmp_path) == ["scratch"]
    assert not [name for name in os.listdir(tmp_path / "scratch") if name.startswith("distrff")]
