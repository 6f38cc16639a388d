"""Raw files, read in blocks of a few bytes."""

from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from distrff.io.convert import text as texts
from distrff.io.convert.text import TextFile


@pytest.fixture
def text_file(tmp_path: Path) -> Callable[..., TextFile]:
    """Write bytes to a file, and return it."""

    def write(data: bytes, name: str = "rows.csv") -> TextFile:
        (tmp_path / name).write_bytes(data)
        return TextFile(fsspec.filesystem("file"), str(tmp_path / name))

    return write


@pytest.fixture(params=[64, 300, 8 * 2**20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sizes of blocks from about a record on."""
    monkeypatch.setattr(texts, "BLOCK_BYTES", request.param)
    return request.param
