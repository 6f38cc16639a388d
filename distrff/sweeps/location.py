"""A place on a file system that tasks write to, with what it takes to get there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zarr

from distrff.data.storage import is_local, locate, reaching
from distrff.public_names import public_name


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
