"""Where stored things go: what may be replaced there, and how something whole takes its place."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import zarr
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from distrff.errors import DistrffError, InputError, InputTypeError, access_remedy
from distrff.utils.text import public_name, public_text, refuse_open_secret

ROOT = "distrff"  # the attribute of a root zarr.json in which distrff says what it wrote there
FOLDER_MARK = "_distrff.json"  # in a folder that is no Zarr: what zarr.json says elsewhere

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Url = str | os.PathLike[str]
Options = Mapping[str, Any] | None


def exists_refusal(
    url: Url,
    overwrite: bool,
    storage_options: Options = None,
    *,
    kinds: tuple[str, ...] = (),
) -> None:
    """Raise now what writing to `url` would raise later; called before a long fit. Writes nothing.

    With `overwrite`, only what distrff wrote, of one of `kinds` if any are named, or an empty folder may
    be replaced, so that a slip of the hand costs no data.

    Raises
    ------
    InputError
        If something is there that may not be replaced, or the parent folder or the store is not usable.
    """
    refuse_dangling_link(url)
    local = local_path(url)
    with in_one_line(InputError, f"{public_name(url)} cannot be reached"):
        exists, document = root_document(url, storage_options)
    if local is not None and not local.parent.is_dir():
        raise InputError(
            f"{public_name(url)}: the folder {public_name(local.parent)} does not exist; create it first"
        )
    if local is not None and not os.access(local.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{public_name(url)}: the folder {public_name(local.parent)} is not writable; choose another path"
        )
    if not exists:
        return
    is_empty = local is not None and local.is_dir() and not any(local.iterdir())
    header = header_of(document)
    if not is_empty and (header is None or (kinds and header.get("kind") not in kinds)):
        raise InputError(
            f"{public_name(url)} exists and is not a {' or '.join(kinds) or 'group'} of distrff, "
            f"so --overwrite spares it; choose another path"
        )
    if not overwrite:
        raise InputError(f"{public_name(url)} exists; pass overwrite=True or --overwrite to replace it")


def refuse_dangling_link(url: Url) -> None:
    """Refuse a symbolic link that leads nowhere: what was written would stand where nobody looks for it.

    Raises
    ------
    InputError
    """
    if local_path(url) is None:
        return
    link = Path(_without_protocol(url))
    if link.is_symlink() and not link.exists():
        raise InputError(
            f"{public_name(url)} is a symbolic link to {public_name(os.readlink(link))}, which does not "
            f"exist; remove the link or choose another path"
        )


@contextmanager
def replacing(path: Url, *, overwrite: bool = False, kinds: tuple[str, ...] = ()) -> Iterator[Path]:
    """Give an empty folder beside the local `path`, and put it in that place on success.

    On any exception, KeyboardInterrupt included, the new folder is removed and what was at `path`
    is there as before; it is deleted only once the new content is in place. Tasks that write into the
    new folder must be over or cancelled when the block is left. `overwrite` and `kinds` are those of
    `exists_refusal`, which is asked before and, since hours may pass, again at the end.
    """
    exists_refusal(path, overwrite, kinds=kinds)
    target = local_path(path)
    if target is None:
        raise InputError(f"{public_name(path)} is not a local path; an object store cannot rename")
    with full_disk_told(path), own_folder(target.parent, f".{target.name}.", ".partial") as fresh:
        try:
            yield fresh
            put_in_place(fresh, path, overwrite=overwrite, kinds=kinds)
        finally:
            remove_folder(fresh)


@contextmanager
def full_disk_told(path: Url) -> Iterator[None]:
    """Turn what a file system raises that has no room for what is written to `path` into one clear line.

    Raises
    ------
    InputError
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        told = InputError(
            f"{public_name(path)} could not be written ({error.strerror}): make room there, or choose "
            f"another disk (of temporary files by the environment variable TMPDIR)"
        )
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        raise told from error


def put_in_place(fresh: Path, path: Url, *, overwrite: bool, kinds: tuple[str, ...]) -> None:
    """Move a finished folder to the local `path`, if it may go there; see `exists_refusal`."""
    target = local_path(path)
    assert target is not None
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    for file in filter(Path.is_file, fresh.rglob("*")):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    exists_refusal(path, overwrite, kinds=kinds)
    try:
        if target.exists():
            target.rename(aside)
        fresh.rename(target)
    finally:
        if aside.exists() and not target.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def in_one_line(error_type: type[DistrffError], what: str) -> Iterator[None]:
    """Turn what a file system raises into one line that begins with `what`.

    The object stores behind fsspec raise exceptions of their own with no common base.
    """
    try:
        yield
    except DistrffError:
        raise
    except Exception as error:
        detail = public_text(" ".join(str(error).split())) or type(error).__name__
        raise error_type(f"{what}: {detail}{access_remedy(error)}") from error


def local_path(url: Url) -> Path | None:
    """Return the path without symbolic links, or None for a URL of another file system."""
    text = _without_protocol(url)
    # Of a loop of links, Path.resolve raises.
    return None if "://" in text or "::" in text else Path(os.path.realpath(text))


def _without_protocol(url: Url) -> str:
    try:
        return os.fsdecode(url).removeprefix("file://")
    except TypeError:
        raise InputTypeError(f"a path or a URL is needed, got {url!r}") from None


def file_system(url: Url, storage_options: Options) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path on it."""
    local = local_path(url)
    if local is not None:
        return fsspec.filesystem("file", auto_mkdir=True), str(local)
    refuse_open_secret(os.fsdecode(url))
    fs, path = fsspec.core.url_to_fs(os.fsdecode(url), **(storage_options or {}))
    return fs, path.rstrip("/")


def root_document(url: Url, storage_options: Options) -> tuple[bool, Any]:
    """Return whether anything is at `url`, and what its zarr.json or folder mark says (None without one)."""
    fs, path = file_system(url, storage_options)
    for name in ("zarr.json", FOLDER_MARK):
        try:
            document = json.loads(file_bytes(fs, f"{path}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ValueError, RecursionError):
            document = {}
        return True, document if isinstance(document, dict) else {}
    return fs.exists(path), None


def file_bytes(fs: Any, path: str) -> bytes:
    """Return what a file holds; a pipe would be waited for, and a device may have no end.

    Raises
    ------
    ValueError
        If it is no regular file.
    """
    if isinstance(fs, LocalFileSystem) and (kind := fs.info(path)["type"]) not in ("file", "directory"):
        raise ValueError(f"{Path(path).name} is no regular file ({kind})")
    return bytes(fs.cat_file(path))


def stored_header(url: Url, storage_options: Options = None) -> dict[str, Any] | None:
    """Return what distrff noted in the root of what is at `url`, None if it wrote nothing there."""
    return header_of(root_document(url, storage_options)[1])


def header_of(document: Any) -> dict[str, Any] | None:
    """Return what distrff noted in a root document, None if nothing."""
    for key in ("attributes", ROOT):
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else None


# Folders that one process fills: removed when it is done, and by the next one if it was killed.


@contextmanager
def own_folder(parent: Path, prefix: str, suffix: str = "", *, mode: int = 0o777) -> Iterator[Path]:
    """Give an empty folder in `parent`, which is removed at the end if it is still there.

    Those of the same names that killed processes left behind are removed first. Whose process lives is told
    by a lock on the folder, which ends with its process. Where the file system has no locks for folders
    (NFS), all are left alone.
    """
    remove_abandoned(parent, prefix, suffix)
    folder, lock = _locked_folder(parent, prefix, suffix, mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned(parent: Path, prefix: str, suffix: str = "") -> None:
    """Remove the folders of `own_folder` in which no process works any more."""
    name = re.compile(f"{re.escape(prefix)}[0-9a-f]{{8}}{re.escape(suffix)}")
    try:
        names = os.listdir(parent)
    except PermissionError:  # a folder to write to, whose contents are hidden
        return
    for folder in (parent / found for found in names if name.fullmatch(found)):
        try:
            lock = _lock(folder)
        except OSError:
            continue
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_folder(folder: Path) -> None:
    """Remove a folder that tasks may have written to until now, if it is there."""
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.2)  # Zarr's own threads still finish the write that an interrupt cut off
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(parent: Path, prefix: str, suffix: str, mode: int) -> tuple[Path, int | None]:
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
        folder.mkdir(mode)
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for abandoned before it was locked, and removes it
        except OSError:  # no locks here
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _lock(folder: str | Path) -> int:
    """Return the handle of a folder that nobody else has locked; an OSError says why there is none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


# Where stored rows lie, and which errors of a store are final.

# How much a reader decodes at once where the storage leaves a choice: large enough that the
# fixed cost of a read and the latency of an object store vanish, small against a worker's memory.
SPAN_BYTES = 8 * 2**20


def locate(path: Any, storage_options: dict[str, Any] | None) -> tuple[Any, str]:
    """Return the fsspec filesystem that holds `path` and the path inside it.

    Raises
    ------
    InputTypeError
        If `path` is neither a string nor path-like.
    InputError
        If the protocol is unknown, its package is missing or it refuses the options, or the URL holds a
        password that is not percent-encoded.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputTypeError(f"path must be a string or a path, got {type(path).__name__}")
    text = os.fspath(path)
    refuse_open_secret(text)
    with reaching(public_name(text)):
        return url_to_fs(text, **(storage_options or {}))


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Turn what a filesystem raises while something is opened into an `InputError` that says `name`.

    Only for calls of the filesystem: their packages raise exceptions of their own (no credentials,
    no such host) with no common base.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        remedy = access_remedy(error) or "; check the path and the storage options"
        raise InputError(f"{name} cannot be reached ({one_line(error)}){remedy}") from error


def is_local(fs: Any) -> bool:
    """Tell whether `fs` is this machine's own file system."""
    return isinstance(fs, LocalFileSystem)


def file_name(fs: Any, path: str) -> str:
    """Return what messages call a file at a path of `fs`, from which the protocol was stripped."""
    return path if is_local(fs) else public_name(fs.unstrip_protocol(path))


SEEN_BY_ALL = "if workers run on several machines, use a folder that all of them share, or an object store"
"""What to do about rows that one process sees and another does not."""


def passing(error: Exception) -> Exception:
    """Return an error of a read as one that is retried if it may pass.

    That is an OSError. The packages of object stores also raise exceptions of their own for a lost
    connection; they become OSErrors. Python's own exceptions are returned as they are.
    """
    if isinstance(error, OSError) or type(error).__module__ == "builtins":
        return error
    return OSError(errno.EIO, one_line(error))


def one_line(error: BaseException) -> str:
    """Return a short description of an error of another library."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    # All that file systems say of a file that is not there is its path, in a spelling of their own.
    text = "" if isinstance(error, FileNotFoundError) else public_text(" ".join(str(error).split()))
    return f"{kind}: {text[:160]}" if text else kind


# A place on a file system that tasks write to, with what it takes to get there.


@dataclass(frozen=True)
class Location:
    """A path or URL, and the options of its file system, which are shown nowhere.

    Its representation is what logs of workers and messages of Dask may hold.
    """

    url: str = field(repr=False)
    storage_options: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return public_name(self.url)

    def within(self, name: str) -> Location:
        """Return the place of that name inside this one."""
        return Location(f"{self.url.rstrip('/')}/{name}", self.storage_options)

    def file_system(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the path on it.

        Raises
        ------
        InputError
            If it cannot be reached.
        """
        return locate(self.url, self.storage_options)

    def store(self) -> Any:
        """Return what zarr takes as a store: a local path, or fsspec's."""
        fs, path = self.file_system()
        if is_local(fs):
            return path
        return zarr.storage.FsspecStore.from_url(self.url, storage_options=self.storage_options)

    def exists(self) -> bool:
        """Return whether anything is there."""
        fs, path = self.file_system()
        with reaching(str(self)):
            return bool(fs.exists(path))

    def names(self) -> list[str]:
        """Return the names of the files in it, none where there is nothing."""
        fs, path = self.file_system()
        with reaching(str(self)):
            fs.invalidate_cache(path)
            found = fs.ls(path, detail=False) if fs.exists(path) else []
        return [item.rstrip("/").rsplit("/", 1)[-1] for item in found]

    def write(self, content: bytes) -> None:
        """Write one file; its folder must be there."""
        fs, path = self.file_system()
        fs.pipe_file(path, content)

    def read(self) -> bytes | None:
        """Return the content of a file, None if there is none."""
        fs, path = self.file_system()
        with reaching(str(self)):
            try:
                return bytes(fs.cat_file(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def make_folder(self) -> None:
        """Make a folder where the file system has any."""
        fs, path = self.file_system()
        with reaching(str(self)):
            if is_local(fs):
                fs.makedirs(path, exist_ok=True)

    def remove(self) -> None:
        """Remove all that is there."""
        fs, path = self.file_system()
        with reaching(str(self)):
            fs.invalidate_cache(path)
            if fs.exists(path):
                fs.rm(path, recursive=True)


# Which runs of rows of an unfinished result are written: an empty file for each.

_FOLDER = "_written"


@dataclass(frozen=True)
class RegionMarks:
    """Marks beside the data, each made once its run of rows is written whole."""

    place: Location

    def begin(self) -> None:
        """Make room for marks."""
        self.place.within(_FOLDER).make_folder()

    def mark(self, start: int) -> None:
        """Note that the run that begins at row `start` is written."""
        self.place.within(f"{_FOLDER}/{start:012d}").write(b"")

    def starts(self) -> frozenset[int]:
        """Return where the written runs begin."""
        return frozenset(map(int, self.place.within(_FOLDER).names()))

    def clear(self) -> None:
        """Remove all marks."""
        self.place.within(_FOLDER).remove()
