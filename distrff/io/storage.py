"""Locations of stored things: reading and writing there, replacing them, and errors of file systems."""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from distrff.errors import DistrffError, InputError, InputTypeError, ModelFileError, access_remedy
from distrff.utils.text import (
    GENERATOR,
    human_seconds,
    in_one_line,
    public_name,
    public_text,
    refuse_open_secret,
)
from distrff.utils.validation import refuse_loose_json, storable

ROOT = "distrff"  # the attribute of a root zarr.json with the header of what distrff wrote there
FOLDER_MARK = "_distrff.json"  # holds the header in a folder that is not Zarr
PAGE = "page"
"""The kind of a file that holds a report page of distrff."""

SPAN_BYTES = 8 * 2**20
"""Bytes that a reader decodes at once where the storage leaves a choice: large against the fixed cost of a
read and the latency of an object store, small against a worker's memory."""

PIECE_BYTES = 2**24
"""Of a large file that are written to an object store, or read from it, at once."""

BUFFER_BYTES = 4 * PIECE_BYTES
"""The most that fsspec holds of a file then: what is read ahead, and what is cut from that; of a file that is
sent as a whole, its pieces joined and the request."""

CSV_SUFFIXES = (".csv", ".csv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
_TABLE_SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
_OTHER_SUFFIXES = (".tsv", ".txt", ".json", ".npy", ".npz", ".gz", ".xlsx", ".feather", ".arrow", ".html")
_RESULT = re.compile(r"(prediction|decision|probability)(_.*)?", re.DOTALL)
_BESIDE = re.compile(r"(prediction|decision|probability|std|lower|upper|set)(_.*)?", re.DOTALL)
"""Of the names of files with predictions as text."""

MAX_JSON_BYTES = 2**25
"""Of a root zarr.json or a folder mark: the names of half a million columns. Python makes up to 24 bytes of
each byte of JSON, so that no file takes a gigabyte."""

SEEN_BY_ALL = "if workers run on several machines, use a folder that all of them share, or an object store"
"""The remedy where one process finds data and another does not."""

GLOB_CHARACTERS = "*?["
PARTIAL = ".partial"  # ends the names of folders that are not complete
_PAGE_HEAD_BYTES = 512  # a page names its generator in the first bytes
_MISSING = (FileNotFoundError, NotADirectoryError)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

T = TypeVar("T")
Url = str | os.PathLike[str]
Options = Mapping[str, Any] | None


@dataclass(frozen=True)
class Location:
    """A path or URL with the options of its file system; `str` gives it without credentials."""

    url: str = field(repr=False)  # Dask puts a repr into logs and messages
    options: Options = field(default=None, repr=False)

    @classmethod
    def of(cls, url: Any, options: Options = None) -> Location:
        """The location of a path or URL, or a location itself; raise InputTypeError for others."""
        if isinstance(url, cls):
            return url
        # str() would take anything, and make a path of None.
        text = os.fspath(url) if isinstance(url, os.PathLike) else url
        if not isinstance(text, str):
            raise InputTypeError(f"a path or a URL is needed, got {url!r}")
        return cls(text, options)

    def __str__(self) -> str:
        return public_name(self.url)

    @property
    def local(self) -> str | None:
        """The local path as given, or None for a URL of another file system."""
        text = self.url.removeprefix("file://")
        return None if "://" in text or "::" in text else os.path.expanduser(text)

    @property
    def path(self) -> Path | None:
        """The local path without symbolic links, or None for a URL of another file system."""
        # Path.resolve raises for a loop of links.
        return None if self.local is None else Path(os.path.realpath(self.local))

    def within(self, name: str) -> Location:
        """The location of a name inside this one."""
        return Location(f"{self.url.rstrip('/')}/{name}", self.options)

    def file_system(self) -> tuple[Any, str]:
        """The fsspec file system, and the path on it.

        Raises InputError if the protocol is unknown, its package is missing or it refuses the options, or the
        URL holds a password that is not percent-encoded.
        """
        refuse_open_secret(self.url)
        with storage_errors(f"{self} cannot be reached"):
            return url_to_fs(self.url, **(self.options or {}))

    def zarr_store(self, *, read_only: bool = False) -> Any:
        """A store for Zarr: a local path, or an `FsspecStore`."""
        from zarr.storage import FsspecStore  # imported here, as the command line's --help loads this module

        fs, path = self.file_system()
        # A path makes Zarr take its own store of files, by which readers know a local array.
        if is_local(fs):
            return path
        options = None if self.options is None else dict(self.options)
        return FsspecStore.from_url(self.url, storage_options=options, read_only=read_only)

    @contextmanager
    def reached(self) -> Iterator[tuple[Any, str]]:
        """Yield the patient fsspec file system and the path on it; its errors become an InputError."""
        fs, path = self.file_system()
        with storage_errors(f"{self} cannot be reached"):
            yield _Patient(fs), path

    @property
    def is_csv(self) -> bool:
        return self.url.lower().rstrip("/").endswith(CSV_SUFFIXES)

    def _has_predictions(self) -> bool:
        """Whether the columns of a CSV file, which holds no header of distrff, are those of predictions."""
        line = b""
        with self.reached() as (fs, path), suppress(*_MISSING):
            if fs.isfile(path):
                with fs.of.open(path, "rb", compression="infer") as file:
                    line = file.readline(MAX_JSON_BYTES)
        # By the names of its columns, as CSV has no place for a header of distrff.
        names = next(csv.reader([line.decode(errors="replace")]), [])
        first = next((i for i, name in enumerate(names) if _RESULT.fullmatch(name)), len(names))
        results = names[first:]  # after the ids; a column like decision_date alone is somebody's own
        is_one = len(results) == 1 and "_" in results[0]
        return bool(results) and not is_one and all(map(_BESIDE.fullmatch, results))

    def exists(self) -> bool:
        # Not by fsspec's own `exists`, for which a lost connection is a missing file.
        with self.reached() as (fs, path), suppress(*_MISSING):
            fs.info(path)
            return True
        return False

    def names(self) -> list[str]:
        found: list[str] = []
        with self.reached() as (fs, path), suppress(*_MISSING):
            # fsspec would answer from an earlier listing.
            fs.invalidate_cache(path)
            found = fs.ls(path, detail=False)
        # Some stores list the folder itself as well.
        return [item.rstrip("/").rsplit("/", 1)[-1] for item in found if item.strip("/") != path.strip("/")]

    def files(self, suffixes: tuple[str, ...] = ("",)) -> tuple[Any, list[str]]:
        """The file system, and the files of this file, folder or glob in natural order, none hidden."""
        with self.reached() as (fs, path):
            return self.file_system()[0], _files(fs, path, suffixes)

    def versions(self) -> list[tuple[str, int, str]]:
        """Name, size and version of each file there; none of web servers, which have no versions."""
        if "http://" in self.url or "https://" in self.url:
            return []  # which would have to be asked for each page and file, too
        with self.reached() as (fs, path):
            if fs.isdir(path):
                infos = list(fs.find(path, detail=True).values())
            else:
                infos = [fs.info(name) for name in _files(fs, path, ("",))]
        return sorted((str(info["name"]).removeprefix(path), *size_and_version(info)) for info in infos)

    def write(self, content: bytes) -> None:
        """Write one file; its folder must exist."""
        fs, path = self.file_system()
        fs.pipe_file(path, content)

    def write_pieces(self, pieces: Sequence[Any]) -> None:
        """Write one file from pieces of bytes, of which little is copied at a time."""
        # A small file goes whole, in one request: of a large one the first part may be there when the rest
        # fails.
        if sum(map(len, pieces)) <= BUFFER_BYTES // 2:
            self.write(b"".join(pieces))
            return
        fs, path = self.file_system()
        with fs.open(path, "wb", block_size=PIECE_BYTES) as file:
            for piece in pieces:
                for start in range(0, len(piece), PIECE_BYTES):
                    file.write(piece[start : start + PIECE_BYTES])

    def make_folder(self) -> None:
        fs, path = self.file_system()
        if is_local(fs):
            fs.makedirs(path, exist_ok=True)

    def remove(self) -> None:
        """Remove everything that exists there."""
        # fsspec remembers listings, and would leave what another process wrote meanwhile.
        with self.reached() as (fs, path), suppress(*_MISSING):
            fs.invalidate_cache(path)
            fs.rm(path, recursive=True)

    def root(self) -> dict[str, Any] | None:
        """Its zarr.json or folder mark, None if neither exists; {} for no JSON object, or a too long one."""
        with self.reached() as (fs, path):
            for name in ("zarr.json", FOLDER_MARK):
                try:
                    file = f"{path}/{name}"
                    document = patiently(partial(json_of, fs.of, file, MAX_JSON_BYTES), (ValueError,))
                except _MISSING:
                    continue
                except (ValueError, RecursionError):
                    document = {}
                return document if isinstance(document, dict) else {}
        return None

    def header(self) -> dict[str, Any] | None:
        """The header of what distrff wrote there; None if it wrote nothing."""
        if self.is_csv and self._has_predictions():
            return {"kind": "predictions", "complete": True}
        path = self.path
        if path is not None and path.is_file():
            with storage_errors(f"{self} cannot be read"), path.open("rb") as handle:
                return {"kind": PAGE} if GENERATOR.encode() in handle.read(_PAGE_HEAD_BYTES) else None
        return header_of(self.root())


# By which a file system tells versions of a file apart; the first of those that it has is taken.
_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


def size_and_version(info: Mapping[str, Any]) -> tuple[int, str]:
    """Size in bytes, and a tag that changes when the file is rewritten."""
    version = next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")
    return int(info.get("size") or 0), version


def _files(fs: Any, path: str, suffixes: tuple[str, ...]) -> list[str]:
    if fs.isfile(path):
        return [path]
    if fs.isdir(path):
        # Writers keep files of their own (_temporary, _metadata, .crc) beside the data.
        inside = {file: file.removeprefix(path).split("/") for file in fs.find(path)}
        shown = [f for f, parts in inside.items() if not any(p.startswith(("_", ".")) for p in parts)]
        return in_natural_order(file for file in shown if file.endswith(suffixes))
    found = fs.glob(path) if any(c in path for c in GLOB_CHARACTERS) else []
    return in_natural_order(f for f in found if fs.isfile(f) and not f.rsplit("/", 1)[-1].startswith("."))


def in_natural_order(files: Iterable[str]) -> list[str]:
    """Paths in the order of dask, part.2 before part.10, so that a table has one order of rows."""
    from dask.utils import natural_sort_key  # imported here, as a model loads and predicts without dask

    return sorted(files, key=lambda file: (natural_sort_key(file), file))


def header_of(document: Any) -> dict[str, Any] | None:
    """The header of distrff in a root document, an object or its JSON; None if there is none."""
    for key in ("attributes", ROOT):
        document = document.get(key) if isinstance(document, dict) else None
    # A grid of predictions holds it as JSON, since attributes of NetCDF do not nest.
    if isinstance(document, str):
        with contextlib.suppress(json.JSONDecodeError):
            document = json.loads(document)
    return document if isinstance(document, dict) else None


def is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


def file_name(fs: Any, path: str) -> str:
    """The name of a file for messages, given its path on `fs` without the protocol."""
    return path if is_local(fs) else public_name(fs.unstrip_protocol(path))


def first_bytes(fs: Any, path: str) -> bytes:
    """The first bytes of a file, which identify its format."""
    with fs.open(path, "rb") as handle:
        return bytes(handle.read(io.DEFAULT_BUFFER_SIZE)[:8])


def file_bytes(fs: Any, path: str, max_bytes: int) -> bytes:
    """The content of a file; of one with more than `max_bytes` bytes the first `max_bytes` + 1.

    Raises ValueError if it is not a regular file.
    """
    end = max_bytes + 1
    if is_local(fs):
        # Reading a pipe would wait for a writer, and a device may have no end.
        info = fs.info(path)
        if info["type"] not in ("file", "directory"):
            raise ValueError(f"{Path(path).name} is no regular file ({info['type']})")
        end = min(end, info["size"])  # Python allocates what it is told to read
    return bytes(patiently(lambda: fs.cat_file(path, start=0, end=end)))


def json_of(fs: Any, path: str, max_bytes: int) -> Any:
    """Content of a JSON file; raise ValueError if it is longer than `max_bytes`, or no JSON."""
    content = file_bytes(fs, path, max_bytes)
    if len(content) > max_bytes:
        raise ValueError(f"{path.rpartition('/')[2]} has more than {max_bytes:,} bytes")
    return json.loads(content)


def overlaps(first: Location, second: Location) -> bool:
    """Whether one of two locations is, contains or lies inside the other."""
    (system, path), (other_system, other_path) = _place(first), _place(second)
    return system == other_system and (path.is_relative_to(other_path) or other_path.is_relative_to(path))


def _place(location: Location) -> tuple[str, PurePath]:
    """The kind of file system, and the path on it."""
    if location.path is not None:
        return "file", location.path
    # By the URL without credentials: two users of one bucket are at one place.
    protocol, _, path = str(location).partition("://")
    return protocol, PurePosixPath(path.rstrip("/"))


def refuse_overlap(option: str, out: Url | Location, **others: Url | Location) -> None:
    """Raise InputError if `out`, which `option` writes, is, contains or lies inside one of the others."""
    target = Location.of(out)
    for name, other in others.items():
        if overlaps(target, Location.of(other)):
            raise InputError(
                f"{option} {target} and the {name} {Location.of(other)} overlap; choose another path"
            )


# Writing: what may be replaced, and replacing it by something complete.


def check_writable(location: Location, *, overwrite: bool = False, kinds: tuple[str, ...] = ()) -> None:
    """Raise now what writing there would raise later, such as at the end of a long fit; write nothing.

    With `overwrite`, an empty folder may be replaced, and what distrff wrote, of one of `kinds` if any are
    given. A broken symbolic link, a folder that is not writable and a name of other files are refused too.
    """
    _check_ending(location, kinds)
    target = location.path
    if target is not None:
        _check_folder(location, target)
    header = location.header()
    if header is None and not location.exists():
        return
    # What distrff did not write is never replaced: so a mistyped path costs no data.
    is_empty = target is not None and target.is_dir() and not any(target.iterdir())
    if not is_empty and (header is None or (kinds and header.get("kind") not in kinds)):
        raise InputError(
            f"{location} exists and is not a {' or '.join(kinds) or 'group'} of distrff, "
            f"so --overwrite does not replace it; choose another path"
        )
    if not overwrite:
        raise InputError(f"{location} exists; pass overwrite=True or --overwrite to replace it")


def _check_ending(location: Location, kinds: tuple[str, ...]) -> None:
    """Refuse the name of a file for what is a group: other programs, and people, go by it."""
    name = location.url.lower().rstrip("/")
    others: tuple[str, ...] = (*_TABLE_SUFFIXES, *_OTHER_SUFFIXES)
    what, endings = "a Zarr group is written there", ".zarr"
    if "predictions" in kinds:
        others = () if name.endswith(_TABLE_SUFFIXES) else _OTHER_SUFFIXES  # of which .gz ends .csv.gz too
        what, endings = "results are Zarr, Parquet or CSV", ".zarr, .parquet, .csv or .csv.gz"
    if PAGE not in kinds and name.endswith(others):
        raise InputError(
            f"{location} has the name of another kind of file, and {what}; name one that ends in {endings}"
        )


def _check_folder(location: Location, target: Path) -> None:
    """Refuse a local path that is not writable, or is a broken link."""
    link, folder = Path(str(location.local)), public_name(target.parent)
    if link.is_symlink() and not link.exists():
        raise InputError(
            f"{location} is a symbolic link to {public_name(os.readlink(link))}, which does not "
            f"exist; remove the link or choose another path"
        )
    if not target.parent.is_dir():
        raise InputError(f"{location}: the folder {folder} does not exist; create it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"{location}: the folder {folder} is not writable; choose another path")


@contextmanager
def replacing(
    location: Location, *, overwrite: bool = False, kinds: tuple[str, ...] = (), token: str | None = None
) -> Iterator[Location]:
    """Yield an empty folder to write a group into, which is at `location` after the block.

    On a local file system the folder lies beside `location`. After any exception, KeyboardInterrupt included,
    it is removed and `location` is as before. Tasks that write into the folder must have ended or been
    cancelled by the end of the block. In an object store the folder is `location` itself, whose root says
    "incomplete" until the group's own root is written at the end; after an exception it is removed.

    With a `token`, eight hexadecimal digits, the folder stays after an exception, and with the same token the
    next call yields it as it was left; anyone else who writes to `location` removes it.
    """
    target = location.path
    if target is None:  # an object store cannot rename: so whoever reads must see that it is not complete
        unfinished = {"kind": kinds[0] if kinds else None, "format": 1, "complete": False}
        unfinished |= {} if token is None else {"token": token}
        found = location.header() or {}
        if token is None or found.get("token") != token:
            check_writable(location, overwrite=overwrite, kinds=kinds)
        try:
            if token is None or found != unfinished:
                emptying = unfinished if token is None else unfinished | {"emptied": False}
                with storage_errors(f"{location} could not be written"):
                    # First of all, so that no reader takes what is half removed for complete.
                    location.within("zarr.json").write(root_text(emptying))
                    for name in location.names():
                        if name != "zarr.json":
                            location.within(name).remove()
                    if token is not None:
                        # Only now: before, the next process would take the rest of an old group for its own.
                        location.within("zarr.json").write(root_text(unfinished))
            yield location
        except BaseException:
            if token is None:
                with suppress(DistrffError):
                    location.remove()
            raise
        return
    check_writable(location, overwrite=overwrite, kinds=kinds)
    parent, prefix = target.parent, f".{target.name}."
    holder = own_folder(parent, prefix, PARTIAL) if token is None else lasting_folder(target, token)
    with full_disk_errors(location), holder as fresh:
        try:
            yield Location(str(fresh))
            # Checks again: hours may have passed. The old content goes only once the new one is in place.
            put_in_place(fresh, location, overwrite=overwrite, kinds=kinds)
        finally:
            if token is None:
                remove_folder(fresh)


def root_text(header: dict[str, Any]) -> bytes:
    """The root zarr.json of a group with the header of distrff."""
    root = {"zarr_format": 3, "node_type": "group", "attributes": {ROOT: header}}
    return json.dumps(root, indent=2, allow_nan=False).encode()


def write_file(
    text: str, location: Location, *, overwrite: bool = False, kinds: tuple[str, ...] = ()
) -> None:
    """Write a local file as UTF-8, completely or not at all; see `check_writable`."""
    check_writable(location, overwrite=overwrite, kinds=kinds)
    target = location.path
    assert target is not None
    with full_disk_errors(location), own_folder(target.parent, f".{target.name}.", PARTIAL) as folder:
        (folder / "file").write_text(text, encoding="utf-8")
        (folder / "file").replace(target)


def put_in_place(fresh: Path, location: Location, *, overwrite: bool, kinds: tuple[str, ...]) -> None:
    """Move a complete folder to a local place, if that may be written; see `check_writable`."""
    target = location.path
    assert target is not None
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    # A rename may reach the disk before the files do: after a crash a complete name would hold empty ones.
    sync_files(fresh)
    check_writable(location, overwrite=overwrite, kinds=kinds)
    try:
        if target.exists():
            # Aside and not away: if the second rename fails the old content comes back.
            target.rename(aside)
        fresh.rename(target)
    finally:
        # An interrupt between the two renames: what was there comes back.
        if aside.exists() and not target.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    remove_abandoned(target.parent, f".{target.name}.", ".old")  # of a process that was killed here


def sync_files(folder: Path, since: float = 0.0) -> None:
    """Bring the files of a folder to the disk: those written since a time, none of hidden folders."""
    for file in filter(Path.is_file, folder.rglob("*")):
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if file.stat().st_mtime >= since:
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


# Folders of a process. Each is locked while it is in use, and the lock ends with its process, however that
# ends: what is not locked was left behind by a killed one, and goes. Where the file system has no locks for
# folders (NFS), nothing tells the two apart, and no folder is removed.


@contextmanager
def own_folder(parent: Path, prefix: str, suffix: str = "", *, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty folder in `parent`, which is removed at the end if it still exists.

    Folders of the same names that killed processes left behind are removed first.
    """
    # Nobody but the next process of this kind removes what a killed one left.
    remove_abandoned(parent, prefix, suffix)
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
        folder.mkdir(mode)
        with suppress(BlockingIOError, FileNotFoundError):
            lock = _lock(folder)
            if lock is None or folder.exists():
                break
            os.close(lock)
        # Another process saw it without a lock, took it for abandoned and removes it.
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


@contextmanager
def lasting_folder(target: Path, token: str) -> Iterator[Path]:
    """Yield the folder beside a local path that belongs to a token, with what is in it; it is not removed.

    The folders of other tokens are. Raises InputError while another process works in this one.
    """
    folder = partial_folder(target, token)
    remove_abandoned(target.parent, f".{target.name}.", PARTIAL, but=folder.name)
    folder.mkdir(exist_ok=True)
    try:
        lock = _lock(folder)
    except (BlockingIOError, FileNotFoundError) as error:
        raise InputError(
            f"{public_name(target)} is being written by another process; wait for its end"
        ) from error
    try:
        yield folder
    finally:
        _unlock(lock)


def partial_folder(target: Path, token: str) -> Path:
    """The folder of `lasting_folder`."""
    return target.with_name(f".{target.name}.{token}{PARTIAL}")


_HOLDER = ".process.json"  # in a held folder: whose it is now


@contextmanager
def held(location: Location) -> Iterator[None]:
    """Hold a folder on a local disk, made if need be; raise InputError while somebody else does."""
    path, lock = location.path, None
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
        except BlockingIOError as error:
            raise InputError(
                f"{location} is in use by {_holder_of(path)}; wait until that ends, end it, or choose "
                f"another place"
            ) from error
        except OSError:  # whoever writes there tells what is wrong with the place
            pass
    if path is None or lock is None:
        yield
        return
    note = path / _HOLDER
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "began": time.time()}
        with suppress(OSError):
            # For the message of whoever is refused meanwhile; the lock alone decides.
            note.write_text(json.dumps(holder))
        yield
    finally:
        with suppress(OSError):  # the folder is not empty, or was removed
            note.unlink(missing_ok=True)
            path.rmdir()
        _unlock(lock)


def _holder_of(path: Path) -> str:
    try:
        holder = json.loads((path / _HOLDER).read_text())
        age = human_seconds(max(0.0, time.time() - holder["began"]))
        return f"process {int(holder['pid'])} on {holder['host']}, which began {age} ago"
    except (OSError, ValueError, TypeError, KeyError):  # it writes its note only after it has the lock
        return "another process"


def remove_abandoned(parent: Path, prefix: str, suffix: str = "", but: str | None = None) -> None:
    """Remove the folders of `own_folder` that no process uses, except one of the name `but`."""
    name = re.compile(f"{re.escape(prefix)}[0-9a-f]{{8}}{re.escape(suffix)}")
    try:
        names = os.listdir(parent)
    except PermissionError:  # the folder can be written but not listed
        return
    for folder in (parent / found for found in names if name.fullmatch(found) and found != but):
        lock = None
        with suppress(OSError):
            lock = _lock(folder)
        # In a shared folder such as /tmp the locks of others can be had, too; their folders are theirs.
        if lock is not None and os.fstat(lock).st_uid == os.geteuid():
            # Under another name: if this process is killed here, nobody takes the rest for the whole.
            removed = folder
            with suppress(OSError):
                removed = folder.rename(parent / f"{prefix}{secrets.token_hex(4)}{suffix}")
            shutil.rmtree(removed, ignore_errors=True)
        _unlock(lock)


def remove_folder(folder: Path) -> None:
    """Remove a folder that tasks may just have written to, if it exists."""
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.2)  # after an interrupt, Zarr's own threads still finish their write
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: str | Path) -> int | None:
    """Lock a folder, and return its file descriptor; None where there are no locks.

    Raises BlockingIOError if another process has it, and FileNotFoundError if it is gone.
    """
    handle = None
    try:
        # A symbolic link of such a name is somebody else's.
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError as error:
        _unlock(handle)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise
        return None


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


# Errors of file systems as clear messages.


@contextmanager
def storage_errors(
    what: str,
    error_type: type[DistrffError] = InputError,
    remedy: str = "check the path and the storage options",
) -> Iterator[None]:
    """Turn the exceptions of a file system into errors of one line that begins with `what`."""
    try:
        yield
    except error_type:
        raise
    # The packages behind fsspec raise their own exceptions (no credentials, no such host), which have no
    # common base class: so only calls of the file system belong into the block.
    except Exception as error:
        raise error_type(f"{what} ({one_line(error)}){access_remedy(error) or f'; {remedy}'}") from error


@contextmanager
def full_disk_errors(location: Location | Path) -> Iterator[None]:
    """Turn the errors of a full disk into an InputError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        full = InputError(
            f"{location} could not be written ({error.strerror}): make room there, or choose another disk "
            f"(for temporary files by the environment variable TMPDIR)"
        )
        # A note may say how to go on with what is written.
        for note in getattr(error, "__notes__", ()):
            full.add_note(note)
        raise full from error


_WAITS = (0.05, 0.2, 0.5, 1.0)  # seconds; a read that fails one time in ten fails so once in 100,000
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def patiently(read: Callable[[], T], lasting: tuple[type[Exception], ...] = ()) -> T:
    """Read, and repeat it after an error that may pass; those of the types in `lasting` do not."""
    # A segment is summed again after an error that may pass, but a store that fails one request in ten
    # would hardly ever let a segment of many requests through.
    for wait in _WAITS:
        try:
            return read()
        except Exception as error:
            # Missing credentials are told at once: no second try brings them.
            may_pass = isinstance(retryable(error), OSError) and not access_remedy(error)
            if isinstance(error, _LASTING + lasting) or not may_pass:
                raise
            time.sleep(wait)
    return read()


class _Patient:
    """A file system whose requests are repeated after errors that may pass; see `patiently`."""

    def __init__(self, fs: Any) -> None:
        self.of = fs

    # Not by those of fsspec, for which a lost connection is a missing file.

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        with suppress(*_MISSING):
            return str(self.info(path)["type"])
        return None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        request = getattr(self.of, name)
        return lambda *args, **options: patiently(partial(request, *args, **options))


def retryable(error: Exception) -> Exception:
    """The error of a read, as an OSError, which is retried, if it may be a lost connection."""
    # The packages of object stores raise their own exceptions for these; Python's own say what they are.
    if isinstance(error, OSError) or type(error).__module__ == "builtins":
        return error
    return OSError(errno.EIO, one_line(error))


def one_line(error: BaseException) -> str:
    """A short description of an error of another library."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    # The error of a missing file holds only its path, as the file system spells it.
    text = "" if isinstance(error, FileNotFoundError) else public_text(" ".join(str(error).split()))
    return f"{kind}: {text[:160]}" if text else kind


# A model or a Gram as a Zarr v3 group; no pickle, and NumPy alone can read its arrays.

FORMAT = 1
_STORED = ("model", "gram", "toeplitz")
_REMEDY = "it is damaged or was altered: save it again or restore a copy"
_DTYPES = tuple(np.dtype(code).name for code in "?bhilBHILefd")  # those of `storable`
_MAX_ARRAY_BYTES = 2**47  # the memory that a process can address
_MAX_DESCRIPTION_BYTES = 2**16  # of an array's zarr.json, which takes less than a thousand


def write_group(
    url: Url,
    arrays: Mapping[str, np.ndarray],
    metadata: dict[str, Any],
    *,
    kind: str,
    overwrite: bool = False,
    storage_options: Options = None,
) -> None:
    """Write `arrays` and `metadata` as one group, which readers see complete or not at all; see `replacing`.

    Arrays hold booleans, integers or floats of at most 64 bits, in any shape (0-d and empty ones too);
    `metadata` is strict JSON: string keys, finite numbers. `kind` is "model", "gram" or "toeplitz".
    Raises InputError for more than `MAX_JSON_BYTES` of it, which nobody would read.
    """
    arrays = {name: storable(name, A) for name, A in arrays.items()}
    refuse_loose_json(metadata, "metadata")
    header = {
        "kind": kind,
        "format": FORMAT,
        "version": package_version(),
        "complete": True,
        "checksums": {name: hashlib.sha256(A.data).hexdigest() for name, A in arrays.items()},
        "metadata": metadata,
    }
    # Last, as it covers all other entries.
    header["metadata_checksum"] = _seal(header, {name: _description(A) for name, A in arrays.items()})
    location, root = Location.of(url, storage_options), root_text(header)
    if len(root) > MAX_JSON_BYTES:
        raise InputError(
            f"{location} could not be written: its metadata take {len(root):,} bytes as JSON, at most "
            f"{MAX_JSON_BYTES:,} can be read; give columns shorter names, or none"
        )
    with (
        storage_errors(f"{location} could not be written"),
        replacing(location, overwrite=overwrite, kinds=_STORED) as fresh,
    ):
        _fill(fresh, arrays, root)


def read_group(
    url: Url, *, kind: str, storage_options: Options = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The pair (arrays, metadata) as `write_group` wrote them, all checked against the checksums.

    Raises ModelFileError if there is no group, or it is of another kind, incomplete, of a newer format,
    damaged or altered.
    """
    location = Location.of(url, storage_options)
    with storage_errors(f"{location} cannot be read", ModelFileError):
        document = location.root()
        header = header_of(document)
        if header is None:
            what = "is not a Zarr group" if location.exists() else "does not exist"
            long = f"no header in its zarr.json, or that has more than {MAX_JSON_BYTES:,} bytes"
            what = what if document is None else f"is not a group of distrff ({long})"
            raise ModelFileError(f"{location} {what}; give the path that a {kind} was saved to")
        found, form = header.get("kind"), header.get("format")
        # Before the kind and the checksums, which a later format may have otherwise.
        if isinstance(form, int) and form > FORMAT:
            writer, mine = (f"distrff {in_one_line(v)}" for v in (header.get("version"), package_version()))
            raise ModelFileError(
                f"{location} was written by {writer} in format {in_one_line(form)}, "
                f"unknown to {mine}; update distrff"
            )
        if found != kind:
            raise ModelFileError(f"{location}: this is a {in_one_line(found)}, not a {kind}")
        if header.get("complete") is not True:
            raise ModelFileError(
                f"{location} is incomplete, its writing was interrupted; save the {kind} again"
            )
        fs, path = location.file_system()
        arrays, described = {}, {}
        # What the header says is checked before anything is allocated by it: it may be forged.
        for name, checksum in (header.get("checksums") or {}).items():
            what = f"{location}: array {in_one_line(name)!r}"
            if re.fullmatch(r"\w{1,200}", name) is None:  # a path would lead out of the group
                raise ModelFileError(f"{what} is missing; {_REMEDY}")
            arrays[name], described[name] = _stored_array(what, fs, f"{path}/{name}", checksum)
        if header.get("metadata_checksum") != _seal(header, described):
            raise ModelFileError(f"{location}: the metadata do not match their checksum; {_REMEDY}")
        return arrays, header["metadata"]


@contextmanager
def contents_of(url: Url, kind: str) -> Iterator[None]:
    """Turn whatever is raised for the arrays and metadata of a group into a ModelFileError of one line."""
    name = public_name(url)
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{name}: {in_one_line(error)}") from error
    except KeyError as error:
        raise ModelFileError(f"{name} lacks {in_one_line(error)}; save the {kind} again") from error
    except Exception as error:  # values of a wrong type, which a forged file may hold, may raise anything
        detail = f"{type(error).__name__}: {in_one_line(error)}"
        raise ModelFileError(f"{name} is no {kind} ({detail}); save it again") from error


def refuse_others(arrays: Iterable[str], known: Iterable[str], prefixes: tuple[str, ...] = ()) -> None:
    """Raise ModelFileError if an array is neither known nor has a name with one of the prefixes."""
    others = [name for name in arrays if not name.startswith(prefixes)]
    for name in sorted(set(others) - set(known)):
        raise ModelFileError(f"nothing is known of an array {name!r}; it was altered, or update distrff")


def _fill(fresh: Location, arrays: Mapping[str, np.ndarray], root: bytes) -> None:
    # File by file in this thread: the order is fixed, and nothing is written after an interrupt.
    for name, A in arrays.items():
        chunk = f"{name}/{_chunk_key(A.ndim)}"
        fresh.within(chunk.rpartition("/")[0]).make_folder()
        fresh.within(f"{name}/zarr.json").write(json.dumps(_description(A), indent=2).encode())
        if A.size:
            fresh.within(chunk).write(A.tobytes())
    fresh.within("zarr.json").write(root)


def _chunk_key(n_dimensions: int) -> str:
    return "/".join(["c", *"0" * n_dimensions])


def _description(A: np.ndarray) -> dict[str, Any]:
    """The array's zarr.json (Zarr v3 core specification, whose type names are NumPy's)."""
    # One chunk, uncompressed and little-endian, so that NumPy alone can read it.
    chunk_shape = [max(1, size) for size in A.shape]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(A.shape),
        "data_type": A.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "fill_value": A.dtype.type(0).item(),
        "attributes": {},
    }


def _stored_array(what: str, fs: Any, path: str, checksum: str) -> tuple[np.ndarray, dict[str, Any]]:
    with storage_errors(f"{what} cannot be read", ModelFileError, _REMEDY):
        try:
            described = json_of(fs, f"{path}/zarr.json", _MAX_DESCRIPTION_BYTES)
            shape, dtype = _form(described)
            size = math.prod(shape) * dtype.itemsize
            data = file_bytes(fs, f"{path}/{_chunk_key(len(shape))}", size) if size else b""
        except FileNotFoundError:
            raise ModelFileError(f"{what} is missing; {_REMEDY}") from None
        if len(data) != size:
            held = f"{len(data):,}" if len(data) < size else "more"
            raise ModelFileError(
                f"{what} does not match its checksum ({held} bytes, its shape has {size:,}); {_REMEDY}"
            )
        if hashlib.sha256(data).hexdigest() != checksum:
            raise ModelFileError(f"{what} does not match its checksum; {_REMEDY}")
        # astype copies, as an array on bytes cannot be written to.
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape), described


def _form(described: dict[str, Any]) -> tuple[list[int], np.dtype]:
    """Shape and dtype of a description; raise ValueError for others than arrays can have."""
    shape, name = described["shape"], described["data_type"]
    if name not in _DTYPES:
        raise ValueError(f"its data_type is {in_one_line(name)!r}")
    # By `type`: for isinstance JSON's true is an int.
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"its shape is {in_one_line(shape)}")
    dtype = np.dtype(name)
    if math.prod(shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise ValueError(f"its shape is {in_one_line(shape)}, more than a process can address")
    return shape, dtype


def _seal(header: dict[str, Any], described: dict[str, dict[str, Any]]) -> str:
    # With the descriptions: another shape or dtype would read other numbers from bytes of the same checksum.
    sealed = {key: value for key, value in header.items() if key != "metadata_checksum"}
    text = json.dumps([sealed, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def package_version() -> str:
    try:
        return version("distrff")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"


def saving_buffer_bytes(checkpoint: Any) -> int:
    """The most that a thread holds beside a sum while it moves its file, at a path, URL or location."""
    # A local file is written from the sum itself, and read into it.
    return 0 if Location.of(checkpoint).path is not None else BUFFER_BYTES
