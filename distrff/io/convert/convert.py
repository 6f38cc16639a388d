"""Conversion of raw files, whose format their first bytes say, to a Zarr group of rows."""

from __future__ import annotations

import logging
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from scipy.sparse import issparse

from distrff.engine.checkpoint import check_every, ending_on_sigterm
from distrff.engine.progress import pass_line
from distrff.errors import InputError, NonFiniteError
from distrff.io.convert.dialect import Dialect
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.runs import (
    KIND,
    Checkpoint,
    DamagedRun,
    DenseWriter,
    RowOrder,
    Sink,
    SparseWriter,
    mark_complete,
    new_group,
    saved_at_the_end,
)
from distrff.io.convert.text import (
    LABEL,
    CsvSource,
    LibsvmSource,
    TextBlock,
    TextFile,
    WiderTypes,
    head_of,
    looks_like_libsvm,
    refuse_other_libsvm,
)
from distrff.io.dataset import Span, in_order
from distrff.io.parquet_rows import MAGIC, parquet_table
from distrff.io.storage import (
    PARQUET_SUFFIXES,
    Location,
    Options,
    check_writable,
    first_bytes,
    full_disk_errors,
    held,
    own_folder,
    package_version,
    refuse_overlap,
    size_and_version,
    storage_errors,
)
from distrff.io.tables import (
    ColumnSelection,
    RawSource,
    choose_columns,
    report_of_unseen,
    with_names,
    with_row_numbers,
)
from distrff.io.zarr_rows import BESIDE
from distrff.preprocessing.profile import TableOptions, TableProfile, as_declared
from distrff.preprocessing.table import NumberStep, RawColumn, TableSteps, TargetStep
from distrff.preprocessing.words import Unseen
from distrff.utils.random import resolve_seed
from distrff.utils.serialize import digest_of
from distrff.utils.validation import check_count

_NUMPY = (b"PK\x03\x04", b"\x93NUMPY")  # .npz, .npy


def open_source(
    paths: Any,
    *,
    dialect: Dialect | None = None,
    known: Sequence[str] = (),
    words: Collection[str] = (),
    x_name: str = "X",
    y_name: str | None = None,
    storage_options: Options = None,
) -> RawSource:
    """The source of raw files, given as a file, a folder, a glob or a list of these.

    `dialect`, `known` and `words` are those of `CsvSource`, `x_name` and `y_name` those of `ArraySource`.
    """
    # By the first bytes and not by names: libsvm files have any.
    files, dialect = files_of(paths, storage_options), dialect or Dialect()
    with storage_errors(f"{files[0].name} cannot be reached"):
        magic = first_bytes(files[0].fs, files[0].path)
    if magic.startswith(MAGIC) or files[0].path.endswith(PARQUET_SUFFIXES):
        dialect.refuse_for(f"{files[0].name} is Parquet")
        return parquet_table(paths, storage_options)
    # Excel workbooks are Zip archives, too.
    if magic.startswith(_NUMPY[0]):
        with files[0].fs.open(files[0].path, "rb") as archive:
            refuse_other_archive(archive, files[0].name)
    if magic.startswith(_NUMPY):
        if len(files) > 1:
            raise InputError(f"{files[0].name} is one of {len(files)} NumPy files; convert them one by one")
        dialect.refuse_for(f"{files[0].name} is a file of NumPy")
        return ArraySource(files[0], x_name, y_name)
    head = head_of(files[0]._replace(encoding=dialect.encoding), 2**16)
    # Before delimited text, for which its lines are fields between blanks.
    if looks_like_libsvm(head) and dialect.delimiter is None:
        dialect.refuse_for(f"{files[0].name} is a libsvm file")
        return LibsvmSource(files)
    refuse_other_libsvm(head, files[0].name)
    refuse_foreign(head, files[0].name)
    return CsvSource(files, dialect, known, words)


def files_of(paths: Any, storage_options: Options = None) -> list[TextFile]:
    """The files of a file, a folder, a glob or a list of these."""
    files: list[TextFile] = []
    for path in paths if isinstance(paths, (list, tuple)) else [paths]:
        location = Location.of(path, storage_options)
        fs, found = location.files()
        if not found:
            raise InputError(f"{location} does not exist or holds no files; check the path")
        files.extend(TextFile(fs, file) for file in found)
    if not files:
        raise InputError("the list of files is empty; give at least one file to convert")
    return files


def version_of(files: Sequence[TextFile]) -> str:
    """Number, size and version of some files, in one line and without reading them."""
    seen: list[tuple[str, int, str]] = []
    with storage_errors(f"{files[0].name} cannot be reached"):
        for file in files:
            # A checksum would tell more, but take a pass over the files.
            info = file.fs.info(file.path)
            seen.append((file.name, *size_and_version(info)))
    return f"{len(files)} files, {sum(n for _, n, _ in seen):,} bytes, version {digest_of(seen)[:8]}"


# Kinds of files that are not read, named by their first bytes, and what reads them; {} is the path.


def _frame(call: str, more: str = "") -> str:
    return f"pandas.{call}.to_parquet('rows.parquet'){more}"


_UNPACK = "unpack it and give the files in it"
_OTHER = "unpack it{}, or compress by gzip, bzip2, xz or zstd"
_XARRAY = "distrff.open_dataset(xarray.open_dataset('{}'), sample_dim=...)"
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"ARROW1|FEA1", "a Feather (Arrow IPC) file", _frame("read_feather('{}')")),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _frame("read_hdf('{}')", f", or for NetCDF {_XARRAY}")),
    (rb"CDF[\x01\x02\x05]", "a NetCDF file", _XARRAY),
    (rb"\x80[\x02-\x05]", "a pickle", _frame("read_pickle('{}')", ", if you trust its source")),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook (xls)", _frame("read_excel('{}')")),
    (rb"ORC", "an ORC file", _frame("read_orc('{}')")),
    (rb"Obj\x01", "an Avro file", "polars.read_avro('{}').write_parquet('rows.parquet')"),
    (
        rb"SQLite format 3",
        "an SQLite database",
        _frame("read_sql('select * from TABLE', sqlite3.connect('{}'))"),
    ),
    (rb"<stata_dta>|[\x71-\x73][\x01\x02]\x01\x00", "a Stata file", _frame("read_stata('{}')")),
    (rb"\$FL[23]", "an SPSS file", _frame("read_spss('{}')")),
    (rb"\x00{12}\xc2\xea\x81\x60|HEADER RECORD\*{7}LIB", "a SAS file", _frame("read_sas('{}')")),
    (rb"MATLAB 5", "a MATLAB file", "numpy.savez('rows.npz', **scipy.io.loadmat('{}'))"),
    (rb"%%MatrixMarket", "a MatrixMarket file", "fit scipy.sparse.csr_array(scipy.io.mmread('{}'))"),
    # R compresses by gzip, which is unpacked before anyone looks here.
    (rb"X\n\x00{3}|RD[AX][23]\n", "a file of R", "arrow::write_parquet(readRDS('{}'), 'rows.parquet') in R"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", _OTHER.format(" by lz4 -d")),
    (rb"\xff\x06\x00\x00sNaPpY", "compressed by Snappy", _OTHER.format("")),
    (rb"\x1f\x9d", "compressed by compress (.Z)", "unpack it by uncompress"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (rb"Rar!", "a RAR archive", _UNPACK),
    (rb"(?s).{257}ustar", "a tar archive", _UNPACK),
    (rb"%PDF", "a PDF document", "give the table that it was made of"),
    (
        rb"version https://git-lfs",
        "the pointer to a file in Git LFS",
        "fetch the file itself by git lfs pull",
    ),
    # Before JSON, which begins alike: the first that fits is named.
    (rb"\s*\{[^\n]*\}\s*(\n|$)", "JSON lines", _frame("read_json('{}', lines=True)")),
    (rb"\s*[\[{]\s*[\[{\"\]}]", "JSON", _frame("read_json('{}')")),
    (
        rb"(?i)(\s*(%[^\n]*)?\n)*\s*@relation\b",
        "an ARFF file",
        _frame("DataFrame(scipy.io.arff.loadarff('{}')[0])"),
    ),
    # Before XML, of which HTML has the form.
    (rb"(?i)\s*<(!doctype html|html|table)", "an HTML page", _frame("read_html('{}')[0]")),
    (rb"\s*<\?xml|\s*<\w+[ >]", "an XML file", _frame("read_xml('{}')")),
)


def refuse_foreign(head: bytes, name: str) -> None:
    """Raise InputError for files that no format here fits, naming what would read them."""
    for begin, what, remedy in _KINDS:
        if re.match(begin, head):
            raise InputError(f"{name} is {what}, which is not read here; {remedy.replace('{}', name)}")
    if b"\x00" in head:
        order = "le" if head[1::2].count(0) > head[::2].count(0) else "be"  # of UTF-16 without a mark
        raise InputError(
            f"{name} is no text, as it holds zero bytes, and of no format that is known; write it as CSV or "
            f"Parquet, or give encoding='utf-16-{order}' if it is UTF-16"
        )


def refuse_other_archive(file: Any, name: str) -> None:
    """Raise InputError for a Zip archive that is no .npz of dense arrays."""
    try:
        members = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        return  # which the reader of .npz names
    if {"data.npy", "indices.npy", "indptr.npy"} <= set(members):
        what, remedy = "a sparse matrix of SciPy", f"fit scipy.sparse.load_npz({name!r}) itself"
    elif any(member.endswith(".npy") for member in members):
        return
    elif "xl/workbook.xml" in members:
        what, remedy = "an Excel workbook (xlsx)", f"pandas.read_excel({name!r}).to_parquet('rows.parquet')"
    else:
        what = f"a Zip archive of {len(members)} files ({', '.join(members[:3])})"
        remedy = f"unpack it by unzip, or pandas.read_csv({name!r}).to_parquet('rows.parquet')"
    raise InputError(f"{name} is {what}, which is not read here; {remedy}")


# The conversion.


logger = logging.getLogger(__name__)

_DTYPES = {"auto": None, "float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


def convert(
    src: Any,
    dst: Any,
    *,
    target: Any = None,
    positive: Any = None,
    columns: Sequence[int | str] | str | int | None = None,
    drop: Sequence[int | str] | str | int | None = None,
    sample_weight: int | str | None = None,
    one_hot: bool = False,
    max_categories: int = 256,
    hash_columns: bool = False,
    datetime: str | None = None,
    missing: str = "error",
    types: Mapping[Any, str] | None = None,
    keep_index: bool = False,
    steps: TableSteps | None = None,
    groups: int | str | None = None,
    extra: Sequence[int | str] | str = (),
    shuffle: int | None = None,
    test_fraction: float | None = None,
    dtype: str = "auto",
    chunk_rows: int | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    header: bool | None = None,
    quote: str = '"',
    encoding: str | None = None,
    x_name: str = "X",
    y_name: str | None = None,
    overwrite: bool = False,
    checkpoint: str | None = None,
    checkpoint_every: float | None = None,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Convert files to a Zarr group with the arrays X, y and sample_weight, and return a report.

    Parameters
    ----------
    src : str, path, or list of these
        Files, folders or globs of one format, recognized by their first bytes: delimited text or libsvm
        files, optionally compressed by gzip, bzip2, xz or Zstandard; a .npz or .npy file; Parquet. Several
        files are read in sorted order.
    dst : str or path
        Path or URL of the group to write.
    target : str, int or list, optional
        Columns of y. Text becomes labels. Libsvm files and .npz files have their own.
    positive : str or number, optional
        The label of the target that becomes 1; all others become 0.
    columns, drop : list of str or int, optional
        Columns of X, or those to leave out. An integer is an index unless a column has that name.
    sample_weight : str or int, optional
        Column of the weights.
    one_hot : bool
        Make a column of 0 and 1 for each category of text columns; otherwise these are left out.
    max_categories : int
        A column with more categories is left out, or hashed.
    hash_columns : bool
        Hash a column with more categories into `max_categories` columns.
    datetime : {"seconds", "parts", "both"}, optional
        What becomes of dates and times: seconds since the column's minimum, sine and cosine of year, weekday
        and hour, or both. Times of day and durations become seconds by each. None leaves them all out.
    missing : {"error", "drop", "mean", "indicator"}
        What becomes of missing values: they are refused, their rows are left out, the mean replaces them, or
        the mean and a further column that marks them. Rows without a target are left out by all but "error".
    types : mapping of str to {"text", "number", "time"}, optional
        Kinds of columns where their values do not tell: codes of digits are "text". "category" is text;
        "date" and "datetime" are times, written like 2020-12-31.
    keep_index : bool
        Take a column that only numbers the rows, which is left out otherwise; see `open_dataset`.
    steps : TableSteps, optional
        The `steps` of a model or of an earlier dataset: encode the columns of a table as there, for rows that
        the model is to score, by its means, first times and categories. The options above must not be given;
        without the target's column the rows are those to predict, as in `open_dataset`.
    groups, extra : str or int, and list of these, optional
        The column that says which group a row belongs to, and further ones for folds; see `open_dataset`,
        which finds them beside X by their names. A row without a value there is refused.
    shuffle : int, optional
        Seed of a uniformly random order of all rows.
    test_fraction : float, optional
        Probability with which each row goes to the group `test` inside of dst.
    dtype : {"auto", "float32", "float64"}
        Of X. "auto": the common type of its columns; decimal numbers in text are float64.
    chunk_rows : int, optional
        Rows per chunk of X; default about 4 MB. A shard has eight chunks.
    delimiter : str, optional
        The character between the fields of delimited text, or "whitespace" for runs of blanks. By default
        the one by which most of the first records have equally many fields, of which most are numbers, times
        or truth values; refused where two fit about as well. The report says `read_as`.
    decimal : {".", ","}, optional
        The decimal sign of numbers in delimited text; by default the one that most of its numbers have.
    header : bool, optional
        Whether delimited text begins with names; by default if its first line has words and no number.
    quote : str
        The character around fields of text that may hold delimiters and line ends; "none" for none.
    encoding : str, optional
        Of text, such as "latin-1"; by default UTF-8, or UTF-16 if the file begins with its byte order mark.
    x_name, y_name : str
        Arrays of a .npz file; default "X" and, if there is one, "y". For a .npy file y_name is the path
        of another one with the targets.
    overwrite : bool
        Replace a group that was converted before; in an object store it is removed first.
    checkpoint : str, optional
        Path or URL of a folder for what is finished of a shuffle. After any death the same call goes on from
        there, and writes the same bytes as a call that nothing disturbed; at the end the folder is removed.
        It takes as much room as the decoded rows. Of compressed text, what was read before is decompressed
        again.
    checkpoint_every : float, optional
        Seconds between two writes, so of work that may be done again. By default at least ten, and forty
        times as many as the last write took.
    storage_options : dict, optional
        For the fsspec filesystems of URLs.

    Returns
    -------
    dict
        Strict JSON: rows read, dropped and written, columns made, columns left out and why, layout, seconds.

    Raises
    ------
    InputError
        For anything in the files that cannot be used, naming file, line or row, and column. On a local disk
        dst is then as it was before; in an object store nothing is left there, but for what a checkpoint goes
        on from. For the checkpoint of other files or options, naming what differs.

    Notes
    -----
    One pass over the files if the types of the columns decide everything; otherwise an earlier pass for
    categories, means, minima, and the number of columns of libsvm files. Text is decoded in as many threads
    as there are cores; memory holds some blocks of 4 MB and one shard, whatever the size of the files.
    Shuffling takes as much further room on disk as the decoded rows. Rows of more than 2,048 columns of which
    fewer than a tenth are filled are stored as a sparse matrix: X is then a group with data, indices and
    indptr.
    """
    if dtype not in _DTYPES:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    check_count("chunk_rows", chunk_rows, or_none=True)
    if test_fraction is not None and not 0 < test_fraction < 1:
        raise InputError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}")
    seed = None if shuffle is None else resolve_seed(shuffle)
    location, place = Location.of(dst, storage_options), None
    if checkpoint is not None:
        place = _place_of_checkpoint(checkpoint, checkpoint_every, seed, src, location)
    elif checkpoint_every is not None:
        raise InputError(f"checkpoint_every={checkpoint_every!r} needs a checkpoint")
    if place is None or place.header() is None:  # else the next lines find what an earlier process left
        check_writable(location, overwrite=overwrite, kinds=(KIND,))
    options = TableOptions(
        target=target, columns=columns, drop=drop, sample_weight=sample_weight, one_hot=one_hot,
        max_categories=max_categories, hash_columns=hash_columns, missing=missing, datetime=datetime,
        types=types, keep_index=keep_index, groups=groups, extra=extra,
    )  # fmt: skip
    beside = options.first_given() or (None if positive is None else "positive")
    if steps is not None and beside is not None:
        raise InputError(f"{beside} was given beside steps, which define all columns; leave it out")
    dialect = Dialect(delimiter, decimal, header, quote, encoding)
    # Before the dialect is guessed, as columns of words tell nothing of the decimal sign.
    words = [str(name) for name, kind in (types or {}).items() if kind == "text"]
    arrays: dict[str, Any] = {"x_name": x_name, "y_name": y_name, "storage_options": storage_options}
    if steps is not None:
        source = open_source(src, dialect=dialect, known=steps.raw_names, words=steps.text_names, **arrays)
        # Files of libsvm always hold the label.
        steps = steps if isinstance(source, LibsvmSource) else steps.for_names(source.kinds)
    else:
        source = open_source(src, dialect=dialect, words=words, **arrays)
        options = replace(source.completed(options), positive=positive)  # refused without a target
        source = with_row_numbers(source, options)
    order = RowOrder(seed, test_fraction)
    conversion = Conversion(source, options, steps, dtype=_DTYPES[dtype], chunk_rows=chunk_rows, order=order)
    if place is not None:
        files = files_of(src, storage_options)
        # The targets of a .npy file are a file of their own, which may change as well.
        if y_name is not None and isinstance(source, ArraySource) and source.is_npy:
            files += files_of(y_name, storage_options)
        # All that any byte of the output follows from, and so the version: another one may write other bytes.
        given = {field.name: getattr(options, field.name) for field in fields(options)}
        given |= {"dialect": dialect, "x_name": x_name, "y_name": y_name, "dtype": dtype}
        given |= {"shuffle": seed, "chunk_rows": chunk_rows, "test_fraction": test_fraction}
        given |= {"steps": None if steps is None else digest_of(steps.to_dict())}
        fingerprint = {"version": package_version(), "files": version_of(files), "dst": str(location)}
        fingerprint |= {name: repr(value) for name, value in given.items()}
        with held(place):
            found = Checkpoint.begin(place, fingerprint, checkpoint_every)
            return replace(conversion, checkpoint=found).written_to(location, overwrite=overwrite)
    return conversion.written_to(location, overwrite=overwrite)


def _place_of_checkpoint(
    checkpoint: Any, every: float | None, seed: int | None, src: Any, dst: Location
) -> Location:
    """The place of the checkpoint; refuse a place that cannot hold one."""
    if seed is None:
        raise InputError(
            "a checkpoint is for a shuffle; give shuffle=0 or another seed as well, or no checkpoint"
        )
    check_every(every)
    # Its folder is removed at the end, and must hold neither the source nor the output.
    place = Location.of(checkpoint, dst.options)
    refuse_overlap("checkpoint", place, dst=dst)
    for path in src if isinstance(src, list | tuple) else [src]:
        refuse_overlap("checkpoint", place, source=path)
    return place


def convert_like(
    src: Any,
    dst: Any,
    steps: TableSteps,
    *,
    dialect: Dialect | None = None,
    ids: Sequence[str] = (),
    groups: int | str | None = None,
    extra: Sequence[int | str] = (),
    x_name: str = "X",
    y_name: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Convert files with the steps of a model, or of an earlier conversion; see `convert`.

    A column that is missing or of another kind than before is refused. `ids` are columns of delimited text
    that are stored beside X as they stand.
    """
    arrays: dict[str, Any] = {"x_name": x_name, "y_name": y_name, "storage_options": storage_options}
    source = open_source(src, dialect=dialect, known=steps.raw_names, words=steps.text_names, **arrays)
    if ids and not isinstance(source, CsvSource):
        raise InputError(
            f"{source.name} has no columns that identify its rows; ids go with delimited text, Parquet "
            f"and Zarr"
        )
    options = TableOptions(ids=ids, groups=groups, extra=extra)
    return Conversion(source, options, steps).written_to(Location.of(dst, storage_options))


# From a raw source to a Zarr group: rows are encoded, split, shuffled, written.

TEST = "test"
"""Name of the group of the test rows, inside the group of the others."""

# CSR takes 12 bytes an entry, dense float64 8, so that it saves room below two thirds; but it costs more time
# an entry, and pays for rows that are wide and nearly empty.
_MIN_SPARSE_COLUMNS, _MAX_FILLED = 2048, 0.1


@dataclass(frozen=True)
class Conversion:
    """Writes the rows of a source, encoded by the given steps, or by those that the options call for."""

    source: RawSource
    options: TableOptions
    steps: TableSteps | None = None
    dtype: np.dtype | None = None
    chunk_rows: int | None = None
    order: RowOrder = field(default_factory=RowOrder)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    def written_to(self, location: Location, *, overwrite: bool = False) -> dict[str, Any]:
        """Write the rows to a Zarr group and return the report; see `convert`."""
        started, checkpoint = time.perf_counter(), self.checkpoint
        # As an exception, a signal to end lets what is finished be saved.
        with nullcontext() if checkpoint.location is None else ending_on_sigterm():
            report = checkpoint.finished(location)
            while report is None:
                try:
                    with new_group(location, overwrite=overwrite, token=checkpoint.token) as group:
                        written = self._write(group)
                    report = written
                # Both are met in any pass, and all that was written by narrower types, or from damaged
                # rows, is written anew: so the group begins anew, and only runs that are whole stay.
                except WiderTypes:
                    checkpoint.start_over(self.source.state())
                except DamagedRun as damage:
                    logger.warning("%s", damage)
                    checkpoint.drop_runs(damage.number)
            checkpoint.remove()
        return {"out": str(location), **report, "seconds": time.perf_counter() - started}

    def _write(self, group: zarr.Group) -> dict[str, Any]:
        checkpoint = self.checkpoint
        with _disk_room(group) as folder:
            checkpoint.open(group, folder, self.order.n_parts)
            encoder, report = self._encoder()
            sink, n_raw, n_kept, unseen = self._first_pass(group, encoder)
            with saved_at_the_end(checkpoint.write_notes):
                n_rows, n_test = [*sink.finish(), 0][:2]  # 0 without test rows
        if self.order.n_parts > 1 and not (n_rows and n_test):
            raise InputError(
                f"test_fraction={self.order.test_fraction} of {n_rows + n_test} rows leaves none "
                f"{'to train on' if not n_rows else 'for testing'}; choose another"
            )
        X = group["X"]
        is_sparse = isinstance(X, zarr.Group)
        if (read_as := self.source.described()) is not None:
            report["read_as"] = read_as
        report |= report_of_unseen(unseen, encoder.steps, n_kept) | {
            "rows_read": n_raw,
            "rows_dropped": n_raw - n_kept,
            "rows_written": n_rows,
            "rows_test": n_test,
            "layout": "csr" if is_sparse else "dense",
            "dtype": str((X["data"] if is_sparse else X).dtype),
        }
        # Before the marks: after a kill in between the next call finds its report, and writes nothing again.
        checkpoint.finish(report)
        # The outer group last: readers look at its mark.
        for written in [group[TEST], group] if self.order.n_parts > 1 else [group]:
            written.update_attributes({"steps": encoder.steps.to_dict(), "report": report})
            # Not for libsvm, whose millions of columns have numbers alone.
            if isinstance(encoder, TableEncoder):
                names = {"column_names": encoder.steps.names_out, BESIDE: tuple(encoder.beside)}
                written.update_attributes({what: list(those) for what, those in names.items() if those})
                encoder.describe_times(written)
            mark_complete(written)
        return report

    def _first_pass(
        self, group: zarr.Group, encoder: TableEncoder | SparseEncoder
    ) -> tuple[Sink, int, int, Mapping[str, Unseen]]:
        """Pass all rows to a sink; return it, how many rows were read and kept, and unseen categories."""
        source, positive, checkpoint = self.source, self.options.positive, self.checkpoint
        done, n_kept = dict(checkpoint.runs.done), int(checkpoint.runs.n_rows.sum())
        unseen: Mapping[str, Unseen] = {}
        sink: Sink | None = None
        # The layout follows from the first rows of all, and not from rows of runs: these are CSR for libsvm
        # and dense for a table, whatever the output is.
        if done["is_sparse"] is not None:
            sink = self._sink(group, done["is_sparse"])
        beside = encoder.beside if isinstance(encoder, TableEncoder) else ()
        # Each once, as an id may be a column of X as well.
        names = dict.fromkeys([*encoder.steps.raw_names, *beside])
        # Of a finished first pass all rows lie in runs.
        pieces: Iterator[Any] = iter(()) if done["is_last"] else source.pieces(list(names), done["mark"])
        with _progress("convert", source, checkpoint) as advance_to, saved_at_the_end(checkpoint.write_run):
            # Encoded in threads and taken in order, so that files and runs hold the same bytes each time.
            for piece, (rows, n, new) in in_order(encoder.encode, pieces):
                unseen = Unseen.total([unseen, new])
                n_kept += rows["X"].shape[0]
                if rows["X"].shape[0]:
                    if sink is None:
                        done["is_sparse"] = _are_sparse(rows["X"])
                        sink = self._sink(group, done["is_sparse"])
                    sink.append(rows)
                # Counted with the pass, and stored with it: a label that no row has is refused at the end,
                # not by a pass of its own.
                n_positive = 0 if positive is None else int(rows["y"].sum())
                advance_to(piece.position)
                done |= {"mark": piece.mark, "n_raw": done["n_raw"] + n}
                done["n_positive"] += n_positive
                # A copy, since `done` goes on before the run is written.
                checkpoint.advance(dict(done))
            if sink is None:
                raise InputError(
                    f"no row of {source.name} is left, since each lacks a value; use another rule for "
                    f"missing values"
                )
            if positive is not None and not done["n_positive"]:
                raise InputError(
                    f"no row of {source.name} has the label positive={positive!r}; give one that the "
                    f"target holds"
                )
            # Only the end of the source says so: a last piece looks like any other.
            if not done["is_last"]:
                checkpoint.advance(done | {"is_last": True})
        return sink, done["n_raw"], n_kept, unseen

    def _sink(self, group: zarr.Group, is_sparse: bool) -> Sink:
        """The sink of encoded rows: the group, or both the group and its test group; shuffled or not."""
        groups = [group, group.require_group(TEST)] if self.order.n_parts > 1 else [group]
        kind = SparseWriter if is_sparse else DenseWriter
        writers = [kind(one, self.chunk_rows) for one in groups]
        return Sink(writers, self.order, self.checkpoint)

    def _encoder(self) -> tuple[TableEncoder | SparseEncoder, dict[str, Any]]:
        source, checkpoint = self.source, self.checkpoint
        # Steps of an earlier process spare the pass that found them, and its runs are encoded by them.
        types, steps, report = checkpoint.steps or (checkpoint.value("types"), self.steps, None)
        if types is not None:
            source.restore(types)
        if steps is None:
            steps, report = self._new_steps()
            checkpoint.keep("steps", (source.state(), steps, report))
        elif report is None:  # of a model
            source.follow(steps)
            checkpoint.keep("steps", (source.state(), steps, None))
        report = report or {"columns_made": len(steps.names_out)}
        if isinstance(source, LibsvmSource):
            if self.options.beside:
                raise InputError(f"{source.name} is a libsvm file, which has no columns beside X; name none")
            return SparseEncoder(source, steps), report
        options = with_names(source, self.options)
        if options.beside:
            roles = {"ids": [*options.ids], "groups": options.groups, "extra": [*options.extra]}
            report = report | {"beside": {role: names for role, names in roles.items() if names}}
        # Last, so that an id that X has as well is read as text, too: 007 stays 007.
        if isinstance(source, CsvSource):
            source.keep_whole(options.beside)
            source.identify(options.ids)
        kinds = {**source.kinds, **(options.types or {}), **dict.fromkeys(options.ids, _ID)}
        beside = {name: kinds[name] or "" for name in options.beside}
        return TableEncoder(source, steps, self.dtype, beside, is_of_fit=self.steps is None), report

    def _new_steps(self) -> tuple[TableSteps, dict[str, Any] | None]:
        """The steps that the options call for, and the report of a table."""
        source, dtype = self.source, self.dtype
        if isinstance(source, LibsvmSource):
            dtype = dtype or np.dtype(np.float64)
            return _libsvm_steps(source, self._over, dtype, self.options.positive), None
        options = with_names(source, self.options)
        choice = choose_columns(source, options)
        source.prepare(choice)
        steps, report = _table_steps(source, choice, options, self._over)
        if dtype is not None:  # numbers are written in it straight away
            written = (
                replace(step, dtype=str(dtype)) if isinstance(step, NumberStep) else step
                for step in steps.columns
            )
            steps = replace(steps, columns=tuple(written))
        return steps, report

    def _over(self, function: Callable[[Any], Any], names: Sequence[str], merge: Merge, total: Any) -> Any:
        """A function of all pieces of the source, merged with a total in their order."""
        source, checkpoint = self.source, self.checkpoint
        # The mark of the last piece, and the total up to it.
        done: tuple[Any, Any] = checkpoint.value("profile") or (None, total)

        def save() -> None:
            checkpoint.keep("profile", done)

        with _progress("look through", source, checkpoint) as advance_to, saved_at_the_end(save):
            pieces: Iterator[Any] = source.pieces(names, done[0])
            for piece, part in in_order(function, pieces):
                # In one assignment: a signal between two would leave a piece counted twice, or never.
                done = (piece.mark, merge(done[1], part))
                advance_to(piece.position)
                if checkpoint.is_due():
                    save()
        return done[1]


def _are_sparse(X: Any) -> bool:
    # By the first rows, as nothing that was written can become of the other kind.
    n_filled = X.nnz if issparse(X) else np.count_nonzero(X)
    return X.shape[1] > _MIN_SPARSE_COLUMNS and bool(n_filled < _MAX_FILLED * X.shape[0] * X.shape[1])


@contextmanager
def _disk_room(group: zarr.Group) -> Iterator[Path]:
    """Yield an empty folder for buckets of rows: inside a local group, else among the temporary files."""
    store = group.store
    if isinstance(store, zarr.storage.LocalStore):
        # On the disk that must hold the output as well; hidden, so that it is not synced with it.
        with own_folder(Path(store.root), ".buckets-") as folder:
            yield folder
        return
    # Others can look into the folder of temporary files, but not into this one.
    parent = Path(tempfile.gettempdir())
    with full_disk_errors(parent), own_folder(parent, "distrff-buckets-", mode=0o700) as folder:
        yield folder


@contextmanager
def _progress(label: str, source: RawSource, checkpoint: Checkpoint) -> Iterator[AdvanceTo]:
    """Yield a function that tells a line of progress and a checkpoint how much of the source is read."""
    # Stores that tell no sizes give 0, by which no share can be said.
    total = max(1, source.total)

    def advance_to(position: int) -> None:
        line.update(position - line.n)
        checkpoint.record(label, position, total, source.unit)

    with pass_line(label, total, source.unit) as line:
        yield advance_to


AdvanceTo = Callable[[int], object]
Merge = Callable[[Any, Any], Any]
Over = Callable[[Callable[[Any], Any], Sequence[str], Merge, Any], Any]
"""A pass over a source; see `Conversion._over`."""

# Which steps a raw table needs: from its first rows if the types decide, else from all rows.


def _table_steps(
    source: RawSource, choice: ColumnSelection, options: TableOptions, over: Over
) -> tuple[TableSteps, dict[str, Any]]:
    """The steps for a table, and the report of what they do; see `steps_of`."""

    def profiled(piece: Any) -> TableProfile:
        raw = as_declared(source.raw(piece, choice.used), options.types)
        return TableProfile.of(raw, options.max_categories)

    # The first piece if the types of the columns decide everything; else all rows once, for categories,
    # means, and the minima of times.
    first = next(iter(source.pieces(choice.used)), None)
    if first is None:
        raise InputError(f"{source.name} has no rows; give a file with rows")
    profile = profiled(first)
    if _types_suffice(profile, choice, options):
        steps, report = choice.steps(profile, options)
        del report["missing"]  # of the first rows alone
        return steps, report
    profile = over(profiled, choice.used, TableProfile.merge, TableProfile.empty(options.max_categories))
    return choice.steps(profile, options)


def _types_suffice(head: TableProfile, choice: ColumnSelection, options: TableOptions) -> bool:
    """Whether no row after the first ones can change the steps."""
    # Means are those of all rows.
    if options.missing in ("mean", "indicator"):
        return False
    for name in choice.used:
        column = head.columns[name]
        # A later row says what an empty column is; categories and the least time are known after all rows.
        if column.is_empty or (name in choice.columns and column.kind not in ("number", "clock")):
            return False
    if options.positive is None or not choice.target:
        return True
    target = head.columns[choice.target[0]]
    # A label that the first rows hold is there; another one may come, or be a mistake.
    return target.kind != "text" or str(options.positive) in (target.words or {})


# Each column has a name and four sums: some 100 bytes. The widest of the usual sets have 16.6 (webspam) and
# 29.9 million (KDD cup 2010).
_MAX_COLUMNS = 2**25


def _libsvm_steps(source: LibsvmSource, over: Over, dtype: np.dtype, positive: Any) -> TableSteps:
    """The steps for libsvm files, after one pass: all columns as one list, and the label."""

    def looked_at(piece: TextBlock) -> tuple[int, int, bool]:
        rows = source.rows(piece)
        first, last = 1, 0  # no entries: an empty range
        if len(rows.indices):
            first, last = min(first, int(rows.indices.min())), int(rows.indices.max())
        return first, last, bool((rows.labels == np.floor(rows.labels)).all())

    def merge(total: tuple[int, int, bool], part: tuple[int, int, bool]) -> tuple[int, int, bool]:
        first, last = min(total[0], part[0]), max(total[1], part[1])
        if last + 1 - first > _MAX_COLUMNS:
            raise InputError(
                f"{source.name}: index {last:,} makes {last + 1 - first:,} columns, but at most "
                f"{_MAX_COLUMNS:,} are possible; renumber the columns that occur, or hash them to fewer"
            )
        return first, last, total[2] and part[2]

    first, last, labels_are_whole = over(looked_at, (), merge, (1, 0, True))
    if last < first:
        raise InputError(f"{source.name} holds no entries index:value; give a file with some")
    # Both bases are in use, and a file says which only by an index 0: without one its columns begin with 1.
    name = next(name for name, index in FIRST_INDEX.items() if index == first)
    # Whole labels may be classes, which read better as integers.
    kind = "uint8" if positive is not None else "int64" if labels_are_whole else "float64"
    target = TargetStep((LABEL,), "numbers", kind, positive=None if positive is None else str(positive))
    return TableSteps((NumberStep(name, str(dtype), last + 1 - first),), target)


# Pieces of a raw source as rows of X, y and weights, and of the columns beside them, by known steps.

_ID = "id"  # the kind of a column of text that is stored as it stands

FIRST_INDEX = {"x": 1, "x0": 0}
"""Name of the list of all columns of libsvm files, by the index of its first column."""


class TableEncoder:
    """Encodes pieces of a table; `is_of_fit` says that the steps were made for these very rows."""

    def __init__(
        self,
        source: RawSource,
        steps: TableSteps,
        dtype: np.dtype | None,
        beside: Mapping[str, str],
        *,
        is_of_fit: bool,
    ) -> None:
        steps.check_names(source.kinds, source.name)
        self._source, self.steps, self._dtype, self.beside = source, steps, dtype, beside
        self._is_of_fit = is_of_fit
        self._encoding = steps if is_of_fit else steps.for_other_rows()

    def encode(self, piece: Any) -> tuple[Span, int, Mapping[str, Unseen]]:
        """The rows of a piece, the number of its raw rows, and categories that the fit never saw.

        Called in any thread. An InputError names the place of a value that cannot be used.
        """
        # Refused here, where the piece still knows its file and line; rows that are written know neither.
        raw = self._source.raw(piece, self.steps.raw_names)
        self._refuse_infinity(piece, raw)
        self._refuse_missing(piece, raw)
        try:
            # NumPy would make infinity of a number that float32 cannot hold.
            with np.errstate(over="raise"):
                rows: Span = self._encoding.apply(raw)
                if self._dtype is not None:
                    rows["X"] = rows["X"].astype(self._dtype, copy=False)
        except FloatingPointError as error:
            raise self._too_large(piece, raw) from error
        if self.beside:  # of the rows that are kept, as X
            kept = self.steps.kept(raw)
            for i, (name, kind) in enumerate(self.beside.items()):
                values = self._values_beside(piece, name, kind, kept)
                rows[f"{BESIDE}/{i}"] = values if kept is None else values[kept]
        return rows, len(next(iter(raw.values()))), {} if self._is_of_fit else self.steps.unseen(raw)

    def _values_beside(self, piece: Any, name: str, kind: str, kept: np.ndarray | None) -> np.ndarray:
        """The values of a column beside X: numbers and text as they are, times in microseconds."""
        if kind == _ID:
            assert isinstance(self._source, CsvSource)
            return self._source.ids(piece, name)
        column = self._source.raw(piece, (name,))[name].of_kind(kind, name)
        if column.values.ndim > 1:
            raise InputError(f"column {name!r} holds lists; beside X comes one value per row")
        missing = column.missing()
        if missing is not None and kept is not None:
            missing = missing & kept
        if missing is not None and missing.any():
            place = self._source.place(piece, int(np.flatnonzero(missing)[0]))
            raise NonFiniteError(f"{place}, column {name!r}: no value; fill it, or leave the row out")
        if column.dtype and column.dtype != "bool":  # numbers that name a category
            column = column.of_kind("number", name)
        values = column.plain()
        return values.astype("M8[us]").astype(np.int64) if column.kind == "time" else values

    def describe_times(self, group: zarr.Group) -> None:
        """Write the unit of the times beside X."""
        unit = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}
        for i, kind in enumerate(self.beside.values()):
            if kind == "time":
                group[f"{BESIDE}/{i}"].update_attributes(unit)

    def _too_large(self, piece: Any, raw: dict[str, RawColumn]) -> InputError:
        """The error that says which number float32 cannot hold."""
        largest = np.finfo(np.float32).max
        # Slow, but only once, for the message.
        for step in self.steps.columns:
            values = raw[step.name].values
            if raw[step.name].kind != "number":
                continue
            beyond = np.abs(values.astype(np.float64)) > largest
            if beyond.any():
                row = int(np.flatnonzero(beyond.reshape(len(values), -1).any(axis=1))[0])
                return InputError(
                    f"{self._source.place(piece, row)}, column {step.name!r}: a number too large for "
                    f"float32; use dtype='float64'"
                )
        return InputError(f"{self._source.name} holds numbers too large for float32; use dtype='float64'")

    def _refuse_infinity(self, piece: Any, raw: dict[str, RawColumn]) -> None:
        """Refuse infinity in the rows that are kept; no rule for missing values covers it."""
        for name, column in raw.items():
            if column.kind != "number" or column.values.dtype.kind != "f" or np.isfinite(column.values).all():
                continue
            # Only in rows that are kept: those that lack a value are left out, whatever else they hold.
            infinite = np.isinf(column.values).reshape(len(column), -1)
            kept = self.steps.kept(raw)
            places = np.argwhere(infinite if kept is None else infinite & kept[:, None])
            if len(places):
                row, entry = places[0].tolist()
                called = f"column {name!r}" + (f", entry {entry}" if column.values.ndim > 1 else "")
                raise NonFiniteError(
                    f"{self._source.place(piece, row)}, {called}: infinity, or a number too large for "
                    f"{column.values.dtype}; correct the value, or leave it empty if it is missing"
                )

    def _refuse_missing(self, piece: Any, raw: dict[str, RawColumn]) -> None:
        """Refuse a missing value that no step fills and that leaves out no row, NaN included."""
        # Rows to predict may lack a value: they become NaN.
        if self.steps.keeps_incomplete:
            return
        columns = {step.name: step.fill is not None for step in self.steps.columns}
        for name in self.steps.raw_names:
            if name in self.steps.required or columns.get(name, False):
                continue
            missing = raw[name].missing_rows()
            if missing is not None:
                place = self._source.place(piece, int(np.flatnonzero(missing)[0]))
                rules = "'drop'" if name == self.steps.weight else "'drop', 'mean' or 'indicator'"
                raise NonFiniteError(
                    f"{place}, column {name!r}: no value; convert or fit with missing={rules}, or fill it"
                )


class SparseEncoder:
    """Encodes blocks of libsvm files by one `NumberStep` of a list of all columns, and perhaps the target."""

    def __init__(self, source: LibsvmSource, steps: TableSteps) -> None:
        step = steps.columns[0]
        if not isinstance(step, NumberStep) or step.name not in FIRST_INDEX:
            raise InputError(
                f"{source.name} is a libsvm file, but the model was fitted to named columns "
                f"({', '.join(steps.raw_names[:5])}, ...); give a file with these columns"
            )
        if steps.target is not None and steps.target.names != (LABEL,):
            raise InputError(f"{source.name} is a libsvm file, where the label is the target; name no other")
        self._source, self.steps, self._step = source, steps, step

    def encode(self, piece: TextBlock) -> tuple[Span, int, Mapping[str, Unseen]]:
        """The rows of a block, X in CSR, and their number; called in any thread."""
        found, first_index = self._source.rows(piece), FIRST_INDEX[self._step.name]
        self._source.check_width(piece, found, first_index, self._step.width)
        try:
            # NumPy would make infinity of a number that float32 cannot hold.
            with np.errstate(over="raise"):
                X = found.matrix(first_index, self._step.width).astype(self._step.dtype)
        except FloatingPointError as error:
            beyond = np.flatnonzero(np.abs(found.values) > np.finfo(np.float32).max)
            row = int(np.searchsorted(found.starts, beyond[0], side="right")) - 1
            raise InputError(
                f"{self._source.place(piece, row)}: a number too large for float32; use dtype='float64'"
            ) from error
        rows: Span = {"X": X}
        if self.steps.target is not None:
            rows["y"] = self.steps.target.apply({LABEL: RawColumn("number", found.labels)}, 0)
        return rows, len(found.labels), {}
