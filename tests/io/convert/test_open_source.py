"""Which files are raw, and of what format: told by what they begin with."""

from __future__ import annotations

import http.server
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import zarr

from distrff.errors import InputError
from distrff.io.convert.delimited import CsvSource
from distrff.io.convert.libsvm import LibsvmSource
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.sources import open_source
from distrff.io.open import is_raw
from distrff.io.parquet_rows import ParquetTable


@pytest.fixture
def folder(tmp_path):
    """A file of each format, all by the same kind of name."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    frame.to_csv(tmp_path / "csv", index=False)
    frame.to_parquet(tmp_path / "parquet")
    (tmp_path / "libsvm").write_text("1 1:2\n-1 2:3\n")
    for name, save in (("npz", np.savez), ("npy", np.save)):
        with (tmp_path / name).open("wb") as file:
            save(file, frame.to_numpy())
    zarr.create_group(tmp_path / "group")
    return tmp_path


KINDS = dict(csv=CsvSource, libsvm=LibsvmSource, npz=ArraySource, npy=ArraySource, parquet=ParquetTable)


@pytest.mark.parametrize("name", KINDS)
def test_formats(folder, name):
    assert type(open_source([folder / name], x_name="arr_0" if name == "npz" else None)) is KINDS[name]
    assert is_raw(folder / name, None) == (name != "parquet")


def test_what_is_not_raw(folder):
    assert not is_raw(folder / "group", None)
    assert not is_raw(folder / "none", None)
    assert is_raw(f"{folder}/c*", None)
    assert not is_raw(f"{folder}/none*", None)
    with pytest.raises(InputError, match="one of 2 NumPy files; convert them one by one"):
        open_source([folder / "npz", folder / "npy"])


def test_folders_behind_a_web_server(folder, monkeypatch):
    pytest.importorskip("aiohttp", reason="fsspec reads http by aiohttp")
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert not is_raw(f"{url}/group", None)
        assert is_raw(f"{url}/csv", None)
        server.shutdown()
