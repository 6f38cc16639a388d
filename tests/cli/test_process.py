"""The command as users run it: a process of its own, with a cluster of its own."""

import os
import signal
import subprocess
import time

import numpy as np
import psutil
import pytest

import distrff as drf
from distrff.utils.serialize import digest_of
from tests.support.commands import DISTRFF, interrupt, run, start, wait_until

D4096 = ("--n-components", 4096, "--alpha", 1, "--length-scale", 1)


@pytest.fixture
def large(stored):
    """Rows whose sums take some seconds."""
    X = np.random.default_rng(0).standard_normal((200_000, 4), dtype=np.float32)
    return stored("d.zarr", X=X, y=X[:, 0] * X[:, 1])


@pytest.mark.slow
def test_fit_and_score_on_workers_of_their_own(distrff_process, rows, tmp_path):
    words = ("--features", "fourier", "--n-components", 16, "--workers", 1, "--memory-limit", "2GB", "--json")
    fitted = distrff_process("fit", rows.zarr, "--out", tmp_path / "m.zarr", *words)
    assert fitted.json["workers"] == 1
    assert fitted.told == ["defaults used: --length-scale auto --alpha cv --scale auto"]
    scored = distrff_process("score", tmp_path / "m.zarr", rows.zarr, "--workers", 1, "--json")
    assert scored.json["n_samples"] == 600
    assert scored.told == []
    # With the bits of this process, in which few rows are fitted without such options.
    seeded = ("fit", rows.zarr, "--n-components", 64, "--random-state", 0, "--json")
    few = distrff_process(*seeded, "--out", tmp_path / "here.zarr")
    assert (few.json["workers"], few.json["status"]) == (1, "CONVERGED")
    assert distrff_process(*seeded, "--out", tmp_path / "there.zarr", "--workers", 2).json["workers"] == 2
    models = [drf.load_model(tmp_path / name) for name in ("here.zarr", "there.zarr")]
    assert digest_of(models[0].coef, models[0].intercept) == digest_of(models[1].coef, models[1].intercept)
    refused = distrff_process("score", tmp_path / "nothing.zarr", rows.zarr, "--json")
    assert (refused.code, refused.stdout, len(refused.told)) == (2, "", 1)
    assert refused.told[0].startswith("distrff: ")


@pytest.mark.slow
def test_the_only_worker_is_killed(distrff, large, tmp_path):
    words = ("--n-components", 2048, "--alpha", 1, "--length-scale", 1, "--random-state", 0)
    fit = start(*DISTRFF, "fit", large, "--out", tmp_path / "m.zarr", *words, "--workers", "1")
    max(_hard_working_workers(fit), key=lambda process: process.cpu_times().user).kill()
    _, stderr = fit.communicate(timeout=300)
    assert fit.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert distrff("fit", large, "--out", tmp_path / "undisturbed.zarr", *words).code == 0
    coefficients = [drf.load_model(tmp_path / name).coef for name in ("m.zarr", "undisturbed.zarr")]
    np.testing.assert_array_equal(*coefficients)


@pytest.mark.slow
def test_an_interrupted_fit_leaves_nothing_behind(large, tmp_path):
    words = ("fit", large, "--out", tmp_path / "m.zarr", *D4096, "--dtype", "float64", "--workers", 1)
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    fit = start(*DISTRFF, *words, start_new_session=True, env=environment)
    _hard_working_workers(fit)
    stdout, stderr = interrupt(fit)  # as a terminal does
    assert stdout == ""
    assert stderr.splitlines()[-2:] == ["interrupted: what runs is ended", "distrff: interrupted"]
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


@pytest.mark.slow
def test_folders_of_killed_workers_do_not_survive_the_next_command(large, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("fit", large, "--n-components", 64, "--alpha", 1, "--length-scale", 1, "--workers", 1)
    environment = os.environ | {"TMPDIR": str(scratch)}
    fit = start(*DISTRFF, *words, "--out", tmp_path / "m.zarr", start_new_session=True, env=environment)
    wait_until(lambda: list(scratch.glob("distrff-workers-*/*/*")), 120)
    os.killpg(fit.pid, signal.SIGKILL)
    fit.communicate(timeout=60)
    assert list(scratch.iterdir())
    done = run(*DISTRFF, *words, "--out", tmp_path / "m.zarr", env=environment)
    assert done.returncode == 0, done.stderr
    assert not list(scratch.iterdir())


def _hard_working_workers(fit: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the child processes once one of them is through with its imports."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and fit.poll() is None:
        children = psutil.Process(fit.pid).children(recursive=True)
        if any(child.cpu_times().user > 3.0 for child in children):
            return children
        time.sleep(0.1)
    raise AssertionError(f"no worker began to work: {fit.communicate()}")


@pytest.mark.slow
def test_ctrl_c_is_answered_before_what_is_finished_is_saved(large, tmp_path):
    place = ("--out", tmp_path / "m.zarr", "--checkpoint", tmp_path / "kept")
    words = ("fit", large, *place, *D4096, "--workers", 1)
    with start(*DISTRFF, *words, start_new_session=True) as fit:
        _hard_working_workers(fit)
        os.killpg(fit.pid, signal.SIGINT)
        began = time.monotonic()
        answer = next(line for line in fit.stderr if line.startswith("interrupted"))
        answered = time.monotonic() - began
        rest = fit.communicate(timeout=120)[1].splitlines()
    assert answer == "interrupted: what is finished is saved first\n"
    assert answered < 30  # hundredths of a second on a machine that does nothing else
    assert rest[-1].startswith("distrff: interrupted")
    assert fit.returncode == 130
