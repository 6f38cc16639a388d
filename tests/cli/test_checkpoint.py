"""`distrff fit --checkpoint`: ended and started again, what it leaves, and what it refuses."""

import shutil
import signal
import time

import numpy as np
import pytest

import distrff as drf
from distrff.errors import InputError
from distrff.io.parts import CheckpointStore
from tests.support.commands import DISTRFF, start, wait_until

SMALL = ("--n-components", 16, "--length-scale", 2, "--random-state", 0)


@pytest.fixture
def fit(distrff, rows, tmp_path):
    """Runs a small fit with a checkpoint; more words are options."""

    def run(*more):
        words = (rows.zarr, *SMALL, "--out", tmp_path / "m.zarr", "--checkpoint", tmp_path / "kept")
        return distrff("fit", *words, *more)

    return run


def test_it_is_removed_at_the_end(fit, tmp_path):
    assert fit("--checkpoint-every", 0).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["m.zarr"]


def test_a_fit_that_was_killed_while_it_removed_its_checkpoint(fit, distrff, rows, tmp_path, monkeypatch):
    """The same command finds its own model there; others do not take it for theirs."""

    def killed(location):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr("distrff.io.parts.remove_checkpoint", killed)
        done = fit()
    assert done.code == 0
    assert "warning: the checkpoint could not be removed (the disk is gone); delete it" in done.told
    kept = drf.load_model(tmp_path / "m.zarr").coef
    shutil.copytree(tmp_path / "kept", tmp_path / "again")
    words = ("fit", rows.zarr, *SMALL, "--out", tmp_path / "m.zarr")
    assert "pass --overwrite" in distrff.refused(*words)
    assert fit().code == 0
    np.testing.assert_array_equal(drf.load_model(tmp_path / "m.zarr").coef, kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "m.zarr"]
    assert "pass --overwrite" in fit().stderr
    # Nor does the checkpoint make the model of another fit its own.
    assert distrff(*words, "--overwrite", "--alpha", 3).code == 0
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    (tmp_path / "again").rename(tmp_path / "kept")
    assert "pass --overwrite" in fit().stderr


def test_a_place_that_becomes_read_only_costs_no_model(fit, tmp_path, monkeypatch):
    def refuses(location, pieces):
        raise InputError(f"{location} could not be written: it is read-only now")

    began = CheckpointStore.begin

    def begin(store, header):
        found = began(store, header)
        monkeypatch.setattr("distrff.io.parts._write_whole", refuses)
        return found

    monkeypatch.setattr(CheckpointStore, "begin", begin)
    done = fit("--checkpoint-every", 0)
    assert done.code == 0, done
    assert "it is read-only now); the fit goes on, and tries again" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "workers", "code", "told"),
    [
        (signal.SIGTERM, ("--workers", 1), 143, "ended by SIGTERM"),
        (signal.SIGTERM, (), 143, "ended by SIGTERM"),
        (signal.SIGINT, (), 130, "interrupted"),
    ],
)
def test_it_is_told_to_end_and_goes_on(distrff, stored, tmp_path, number, workers, code, told):
    """A signal in the middle of a pass; `inspect` says how far the fit is; the bits are the same."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 4), dtype=np.float32)
    data, kept = stored("d.zarr", X=X, y=X[:, 0] * X[:, 1]), tmp_path / "kept"
    words = (data, "--n-components", 1024, "--length-scale", 1, "--alpha", 1, "--random-state", 0)
    process = start(
        *DISTRFF, "fit", *words, "--out", tmp_path / "m.zarr",
        "--checkpoint", kept, "--checkpoint-every", "0.2", *workers,
    )  # fmt: skip
    wait_until(lambda: list(kept.glob("sums/*/*.part")) or process.poll() is not None, 120)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (code, ""), stderr
    assert stderr.splitlines()[-1] == (
        f"distrff: {told}; what is finished is in {kept}: the same fit goes on from there"
    )
    found = distrff("inspect", kept, "--json").json
    assert (found["model"], found["solver"], found["n_samples"]) == ("KernelRidge", "gram", len(X))
    assert found["passes done"] < found["passes planned"]
    assert found["last write"] <= time.strftime("%Y-%m-%d %H:%M:%S")
    done = distrff("fit", *words, "--out", tmp_path / "m.zarr", "--checkpoint", kept)
    assert done.code == 0, done
    assert not kept.exists()
    assert distrff("fit", *words, "--out", tmp_path / "quiet.zarr").code == 0
    coefs = [drf.load_model(tmp_path / name).coef for name in ("m.zarr", "quiet.zarr")]
    np.testing.assert_array_equal(*coefs)


@pytest.mark.parametrize(
    ("place", "more", "message"),
    [
        ("m.zarr", (), "--checkpoint {0}/m.zarr and the model {0}/m.zarr overlap"),
        ("m.zarr/kept", (), "overlap"),
        ("kept", ("--report", "{0}/kept/page.html"), "and the checkpoint {0}/kept overlap"),
        ("file", (), "file"),
        ("full", (), "holds other things (notes.txt)"),
        ("nowhere://kept", (), "nowhere"),
        ("kept", ("--checkpoint-every", "-1"), "--checkpoint-every"),
        ("kept", ("--checkpoint-every", "nan"), "--checkpoint-every must be a number of seconds"),
    ],
)
def test_places_and_times_that_are_refused(distrff, rows, tmp_path, place, more, message):
    (tmp_path / "file").write_text("something else")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    url = place if "://" in place else tmp_path / place
    words = (*SMALL, "--out", tmp_path / "m.zarr", "--checkpoint", url, *(w.format(tmp_path) for w in more))
    told = distrff.refused("fit", rows.zarr, *words)
    assert message.format(tmp_path) in told
    assert "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_a_plan_counts_it_and_writes_nothing(distrff, rows, tmp_path):
    words = ("plan", rows.zarr, "--n-components", 1024, "--length-scale", 2, "--json")
    peaks = [
        distrff(*words, *more).json["worker_peak_bytes"]
        for more in ((), ("--checkpoint", tmp_path / "kept"), ("--checkpoint", "s3://bucket/kept"))
    ]
    assert peaks[0] < peaks[1] <= peaks[2]
    assert not list(tmp_path.iterdir())
