"""Arrays in .npy and .npz files, read in runs of rows."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from distrff.errors import InputError
from distrff.io.convert.text import TextFile
from distrff.io.dataset import check_real, cuts, native
from distrff.io.storage import file_name, full_disk_errors, one_line, own_folder, retryable, storage_errors
from distrff.io.tables import RawSource
from distrff.preprocessing.profile import TableOptions
from distrff.preprocessing.table import RawColumn, TableSteps

_BLOCK_BYTES = 8 * 2**20


class ArrayBlock(NamedTuple):
    """Some rows of the arrays of one file."""

    start: int  # number of the first row
    X: np.ndarray  # of shape (r, d)
    y: np.ndarray | None  # of shape (r,) or (r, k)
    position: int  # decompressed bytes read so far

    @property
    def mark(self) -> int:
        """The number of rows up to its end."""
        return self.start + len(self.X)


class ArraySource(RawSource):
    """The arrays X and y of a .npz file, or X of a .npy file and y of another, as a table.

    Its columns are "X", a list of numbers, and "y"; or each column of X by its index, where options or steps
    name columns. All axes of X but the first are flattened. `x_name` and `y_name` are names of arrays in a
    .npz file; for a .npy file `y_name` is the path of another one that holds y.
    """

    unit = "bytes"

    def __init__(self, file: TextFile, x_name: str = "X", y_name: str | None = None) -> None:
        self.file, self._x_name, self._y_name = file, x_name, y_name
        self.name = file.name
        with ExitStack() as stack:
            X, y = self._arrays(stack)
            if not X.shape or not X.shape[0] or 0 in X.shape[1:]:
                raise InputError(f"{X.name} has shape {X.shape}, which holds no rows; name another as x_name")
            check_real(X.dtype, X.name)
            self.targets: tuple[str, ...] = ()
            self._label_kind = "number"
            if y is not None:
                if y.shape[:1] != X.shape[:1] or len(y.shape) > 2:
                    raise InputError(f"{y.name} has shape {y.shape}, but {X.name} has {X.shape[0]} rows")
                if y.dtype.kind not in "biufUS":
                    raise InputError(f"{y.name} has dtype {y.dtype}; targets are numbers or text")
                self.targets = tuple(f"y_{i}" for i in range(y.shape[1])) if y.shape[1:] else ("y",)
                self._label_kind = "number" if y.dtype.kind in "biuf" else "text"
        self._n_rows, self._n_columns = X.shape[0], int(np.prod(X.shape[1:]))
        self._dtype = native(X.dtype)
        self.total = X.n_bytes
        self._separate(False)

    def _separate(self, are_separate: bool) -> None:
        """Make each column of X a column of the table, or X one column of lists."""
        self.columns = tuple(map(str, range(self._n_columns))) if are_separate else ("X",)

    def completed(self, options: TableOptions) -> TableOptions:
        """The options with y as the target, unless they name another."""
        # As one list X is one column to the steps, whatever its width; by index only where options name
        # columns.
        chosen = (options.target, options.columns, options.drop, options.sample_weight)
        self._separate(any(choice is not None for choice in chosen))
        options = super().completed(options)
        if options.target is not None or not self.targets:
            return options
        return replace(options, target="y" if self.targets == ("y",) else list(self.targets))

    @property
    def kinds(self) -> dict[str, str | None]:  # type: ignore[override]
        return {**dict.fromkeys(self.columns, "number"), **dict.fromkeys(self.targets, self._label_kind)}

    def pieces(self, names: Sequence[str], after: Any = None) -> Iterator[ArrayBlock]:
        """Yield the rows in runs of about 8 MB of X; with the mark of a run as `after`, those after it."""
        # The mark is a number of rows: plain arrays begin again at any of them.
        row_bytes, first = self._dtype.itemsize * self._n_columns, int(after or 0)
        with ExitStack() as stack:
            X, y = self._arrays(stack)
            for array in (X, y) if y is not None else (X,):
                array.skip(first)
            for start, stop in cuts(first, self._n_rows, max(1, _BLOCK_BYTES // row_bytes)):
                n = stop - start
                rows = X.take(n).reshape(n, self._n_columns).astype(self._dtype, copy=False)
                labels = None if y is None else y.take(n).astype(native(y.dtype), copy=False)
                yield ArrayBlock(start, rows, labels, stop * row_bytes)

    def raw(self, piece: ArrayBlock, names: Sequence[str]) -> dict[str, RawColumn]:
        return {name: self._column(piece, name) for name in names}

    def _column(self, piece: ArrayBlock, name: str) -> RawColumn:
        if name == "X":
            return RawColumn("number", piece.X)
        if name in self.targets and piece.y is not None:
            return _labels(piece.y if piece.y.ndim == 1 else piece.y[:, self.targets.index(name)])
        return RawColumn("number", piece.X[:, int(name)])

    def follow(self, steps: TableSteps) -> None:
        """Read X as the steps do: as one list, or column by column."""
        self._separate("X" not in steps.raw_names)

    def _arrays(self, stack: ExitStack) -> tuple[_Stream, _Stream | None]:
        # Row by row from the stream: np.load needs the whole array of a .npz in memory, and maps local .npy
        # files only.
        with storage_errors(f"{self.file.name} cannot be reached"):
            handle = stack.enter_context(self.file.fs.open(self.file.path, "rb"))
        # Then X is a file of its own, and y another.
        self.is_npy = handle.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
        handle.seek(0)
        if self.is_npy:
            return _Stream(handle, self.file.name, stack), self._targets_beside(stack)
        with _reading(self.file.name):
            archive = zipfile.ZipFile(handle)
        members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]

        def member(name: str, parameter: str) -> _Stream:
            if name not in members:
                raise InputError(
                    f"{self.file.name} has no array {name!r}; give {parameter} as one of: "
                    f"{', '.join(members) or 'none'}"
                )
            # A stream, as a compressed member is not to be unpacked to disk or memory.
            stream = stack.enter_context(archive.open(f"{name}.npy"))
            return _Stream(stream, f"array {name!r} of {self.file.name}", stack)

        X = member(self._x_name, "x_name")
        has_y = self._y_name is not None or "y" in members
        return X, member(self._y_name or "y", "y_name") if has_y else None

    def _targets_beside(self, stack: ExitStack) -> _Stream | None:
        if self._y_name is None:
            return None
        name = file_name(self.file.fs, self._y_name)
        try:
            return _Stream(stack.enter_context(self.file.fs.open(self._y_name, "rb")), name, stack)
        except FileNotFoundError as error:
            raise InputError(
                f"{name} does not exist; for a .npy file y_name is the path of the file that holds y"
            ) from error


class _Stream:
    """An array in NumPy's format, read row by row from the first."""

    def __init__(self, handle: Any, name: str, stack: ExitStack) -> None:
        self.name = name
        with _reading(name):
            # By the header alone: pickled objects are never loaded.
            version = npy.read_magic(handle)
            # Format 3 differs from 2 in the names of fields alone, which are refused below.
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, by_columns, self.dtype = read(handle)
        if self.dtype.hasobject or self.dtype.names:
            raise InputError(f"{name} holds {self.dtype}; save plain numbers or text")
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:]))
        self.n_bytes = self._row_bytes * (self.shape[0] if self.shape else 0)
        self._handle = handle
        # Rows of an array in Fortran order lie all over the file.
        self._rows = _on_disk(handle, self, stack) if by_columns and len(self.shape) > 1 else None
        self._at = 0

    def skip(self, n: int) -> None:
        """Pass over the next n rows."""
        self._at += n
        if self._rows is None:
            with _reading(self.name):
                # Relative, so that it holds in a member of an archive, too, which is unpacked up to there.
                self._handle.seek(n * self._row_bytes, 1)

    def take(self, n: int) -> np.ndarray:
        """The next n rows."""
        if self._rows is not None:
            self._at += n
            return np.ascontiguousarray(self._rows[self._at - n : self._at])
        with _reading(self.name):
            data = self._handle.read(n * self._row_bytes)
        if len(data) < n * self._row_bytes:
            raise InputError(f"{self.name} ends before its {self.shape[0]} rows; the file is truncated")
        return np.frombuffer(data, self.dtype).reshape(n, *self.shape[1:])


def _on_disk(handle: Any, stream: _Stream, stack: ExitStack) -> np.ndarray:
    """An array in Fortran order as a memory map of a temporary file."""
    parent = Path(tempfile.gettempdir())
    path = stack.enter_context(own_folder(parent, "distrff-array-", mode=0o700)) / "array"
    with full_disk_errors(path), path.open("wb") as copy, _reading(stream.name):
        while part := handle.read(_BLOCK_BYTES):
            copy.write(part)
    if path.stat().st_size < stream.n_bytes:
        raise InputError(f"{stream.name} ends before its {stream.shape[0]} rows; the file is truncated")
    return np.memmap(path, stream.dtype, "r", shape=stream.shape, order="F")


def _labels(y: np.ndarray) -> RawColumn:
    if y.dtype.kind in "biuf":
        return RawColumn("number", y)
    # Coded here, as a batch of Arrow's would be: labels of text are few.
    words, codes = np.unique(y.astype(str), return_inverse=True)
    return RawColumn("text", codes.astype(np.int32), words=tuple(words.tolist()))


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn the errors of a damaged file into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{name} cannot be read ({one_line(error)}); the file is truncated or damaged: write it again"
        ) from error
    except OSError as error:
        raise retryable(error) from error
