"""Folders that one process fills: removed when it is done, and by the next one if it was killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
