"""Where a result grows: whole in its place at the end, and kept when interrupted, to go on from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distrff.errors import ClusterError, InputError
from distrff.model_store.own_folders import remove_folder
from distrff.model_store.places import (
    exists_refusal,
    full_disk_told,
    local_path,
    put_in_place,
    stored_header,
)
from distrff.public_names import public_name
from distrff.sweeps.location import Location
from distrff.sweeps.region_marks import RegionMarks

# What a result must have in common with an unfinished one, and what it is called in messages.
_MUST_AGREE = {
    "model_digest": "another model",
    "data_digest": "other data",
    "columns": "other results or ids",
    "format": "another format of file",
    "n_rows": "another number of rows",
    "region_rows": "another version's cuts of the rows",
    "chunk_rows": "another version's cuts of the rows",
}


class ResultPlace:
    """The place of a result, `out`, and where it is written until it is whole.

    On a local file system that is a folder beside it, which is moved into place. An object store cannot
    rename: there it is `out` itself, whose header says "incomplete" until the end.

    Parameters
    ----------
    out : Location
    kinds : tuple of str
        What may be replaced.
    overwrite, resume : bool
    """

    def __init__(self, out: Location, kinds: tuple[str, ...], *, overwrite: bool, resume: bool) -> None:
        self._out = out
        self._kinds = kinds
        self._overwrite = overwrite
        self._resume = resume
        self._target = local_path(out.url)
        if self._target is None:
            self.growing = out
        else:
            self.growing = Location(str(self._target.with_name(f".{self._target.name}.partial")))

    def check(self) -> None:
        """Raise InputError now for what `filled` would refuse later, but for another model or other data.

        Costs a look at the store, and writes nothing.
        """
        unfinished = self._unfinished()
        is_local = self._target is not None
        if unfinished is None or is_local:
            try:
                exists_refusal(self._out.url, self._overwrite, self._out.storage_options, kinds=self._kinds)
            except InputError as error:
                if self._resume and unfinished is None:
                    raise InputError(
                        f"nothing is unfinished that --resume could go on with: {error}"
                    ) from None
                raise
        if unfinished is not None and not (self._resume or self._overwrite):
            raise InputError(
                f"{self.growing} was left unfinished, or is being written now; go on with it by resume=True "
                f"or --resume, or begin anew by overwrite=True or --overwrite"
            )

    @contextmanager
    def filled(self, header: Mapping[str, Any]) -> Iterator[frozenset[int] | None]:
        """Yield where the runs of rows begin that are written already, or None to begin with nothing.

        At the end the result is in its place. When an error of the data ends the block, nothing of
        it is left; an interrupt or a lost cluster leaves what is written, if any run of rows is.
        """
        self.check()
        unfinished = self._unfinished()
        if unfinished and self._resume:
            self._refuse_others(unfinished, header)
            done: frozenset[int] | None = RegionMarks(self.growing).starts()
        else:
            self._remove()
            done = None
        with full_disk_told(self._out.url), self._left_to_resume(header):
            yield done
        if self._target is not None:
            put_in_place(Path(self.growing.url), self._out.url, overwrite=self._overwrite, kinds=self._kinds)

    @contextmanager
    def _left_to_resume(self, header: Mapping[str, Any]) -> Iterator[None]:
        """Keep what is written when the block ends by an interrupt or a lost cluster, if anything is."""
        marks = RegionMarks(self.growing)
        try:
            yield
        except BaseException as error:
            ends = isinstance(error, InputError) and not isinstance(error, ClusterError)
            n_written = 0 if ends else len(marks.starts())
            if n_written:
                error.add_note(
                    f"{n_written} runs of {header['region_rows']} rows are kept; the same command with "
                    f"--resume (resume=True) goes on"
                )
            else:
                self._remove()
            raise

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the header of an unfinished result, empty if it has none yet."""
        if self._target is not None and not Path(self.growing.url).exists():
            return None
        header = stored_header(self.growing.url, self.growing.storage_options)
        if self._target is not None:
            return header or {}
        incomplete = header is not None and header.get("kind") in self._kinds and not header.get("complete")
        return header if incomplete else None

    def _refuse_others(self, unfinished: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        for key, what in _MUST_AGREE.items():
            if unfinished.get(key) != header[key]:
                raise InputError(
                    f"what is unfinished at {public_name(self._out.url)} is of {what}; begin anew by "
                    f"overwrite=True or --overwrite"
                )

    def _remove(self) -> None:
        if self._target is None:
            self.growing.remove()
        else:
            remove_folder(Path(self.growing.url))
