"""Where results go: links that lead nowhere, disks without room, and what killed commands left there."""

import errno
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from distrff.io.storage import read_group
from tests.support import commands

SMALL = ("--n-components", 16, "--length-scale", 2, "--random-state", 0, "--alpha", 1)


def words_of(command, rows, models, out) -> tuple:
    return {
        "convert": ("convert", rows.parquet, out, "--target", "y"),
        "fit": ("fit", rows.zarr, *SMALL, "--out", out),
        "report": ("fit", rows.zarr, *SMALL, "--out", out.with_name("m.zarr"), "--report", out),
        "predict": ("predict", models["numbers"], rows.zarr, "--out", out),
        "predict to Parquet": ("predict", models["numbers"], rows.zarr, "--out", f"{out}.parquet"),
        "transform": ("transform", models["numbers"], rows.zarr, "--out", out),
        "quickstart": ("quickstart", "--dir", out),
    }[command]


@pytest.mark.parametrize("to", ["nowhere", "folder/nowhere", "itself"])
@pytest.mark.parametrize(
    "command", ["convert", "fit", "report", "predict", "predict to Parquet", "transform", "quickstart"]
)
def test_a_link_that_leads_nowhere_is_refused(distrff, rows, models, tmp_path, command, to):
    out = tmp_path / ("out.parquet" if "Parquet" in command else "out")
    out.symlink_to(out if to == "itself" else tmp_path / to)
    for more in ((), ("--overwrite",)):
        done = distrff(*words_of(command, rows, models, tmp_path / "out"), *more)
        assert done.code == 2, done
        (line,) = [line for line in done.told if line.startswith("distrff: ")]
        assert "is a symbolic link to " in line
        assert "does not exist; remove the link or choose another path" in line
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.slow
def test_a_killed_convert_leaves_nothing_for_long(distrff, tmp_path):
    """Really killed, while it shuffles; the next one to that place removes what is left, no other does."""
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,c\n" + "1.5,2.5,3.5\n" * 1_000_000)
    words = ("convert", rows, tmp_path / "out.zarr", "--shuffle", 0)
    process = commands.start(*commands.DISTRFF, *words)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.zarr.*.partial/.buckets-*/*/*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    rows.write_text("a,b,c\n1,2,3\n4,5,6\n")
    (live,) = tmp_path.glob(".out.zarr.*.partial")
    # What lives stays; here it is stopped, so that it cannot end by itself.
    process.send_signal(signal.SIGSTOP)
    assert distrff("convert", rows, tmp_path / "out.zarr").code == 0
    assert live.exists()
    process.kill()
    process.communicate()
    assert distrff("convert", rows, tmp_path / "other.zarr").code == 0
    assert live.exists()
    assert distrff("convert", rows, tmp_path / "out.zarr", "--overwrite").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "out.zarr", "other.zarr"}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("convert", errno.ENOSPC),
        ("convert, shuffled", errno.EDQUOT),
        ("fit", errno.ENOSPC),
        ("fit", errno.EDQUOT),
        ("report", errno.EDQUOT),
    ],
)
def test_a_full_disk_is_told_with_the_path(distrff, rows, models, tmp_path, monkeypatch, command, number):
    """Files of this process; what workers write is the next test."""
    out, write_text = tmp_path / "out", Path.write_text

    def full(*args, **how):
        raise OSError(number, os.strerror(number))

    if command.startswith("convert"):
        monkeypatch.setattr("distrff.io.convert.runs.GrowingArray._flush", full)
        if "shuffled" in command:
            monkeypatch.setattr("distrff.io.convert.runs.Runs.write", full)
    elif command == "fit":
        monkeypatch.setattr("distrff.io.storage._fill", full)
    else:
        monkeypatch.setattr(
            Path, "write_text", lambda p, *a, **k: full() if "partial" in str(p) else write_text(p, *a, **k)
        )
    more = ("--shuffle", 0) if "shuffled" in command else ()
    done = distrff(*words_of(command.split(",")[0], rows, models, out), *more)
    assert (done.code, done.stdout) == (2, ""), done
    assert f"distrff: {out} could not be written ({os.strerror(number)}): make room there" in done.stderr
    if command == "report":
        assert f"the model is written to {tmp_path / 'm.zarr'}" in done.stderr
        read_group(tmp_path / "m.zarr", kind="model")
    assert [path.name for path in tmp_path.iterdir()] == (["m.zarr"] if command == "report" else [])


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "fit", "predict", "predict to Parquet", "transform"])
def test_files_that_really_cannot_grow(rows, models, stored, tmp_path, command, rng):
    """The system itself refuses to write, in this process and in its workers."""
    X = rng.standard_normal((60_000, 3))
    large = rows._replace(zarr=stored("large.zarr", X=X, y=X[:, 0]), parquet=tmp_path / "X.npy")
    np.save(large.parquet, X)
    words = words_of(command, rows if command == "fit" else large, models, tmp_path / "out")
    if command == "convert":
        words = words[:3]
    if command == "fit":  # whose factor is a file of half a megabyte
        words += ("--n-components", 256, "--include-std")
    if command != "convert":
        words += ("--workers", 1)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**16, 2**16))
    done = commands.run(*commands.DISTRFF, *words, preexec_fn=limit)
    assert done.returncode == 2, done
    line = done.stderr.splitlines()[-1]
    name = tmp_path / ("out.parquet" if "Parquet" in command else "out")
    assert f"distrff: {name} could not be written (File too large): make room" in line
