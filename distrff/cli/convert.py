"""`distrff convert`: raw files to a Zarr group of rows."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.command import command
from distrff.cli.data import storage_options, target_of
from distrff.cli.options import (
    checkpoint_options,
    choice,
    flag,
    integer,
    row_options,
    table_options,
    verbosity_options,
)
from distrff.cli.output import show


@command()
@click.argument("src", nargs=-1, required=True)
@click.argument("dst")
@row_options
@table_options
@click.option("--shuffle", type=click.IntRange(min=0), metavar="SEED", help="Store the rows in random order.")
@click.option(
    "--test-fraction", type=float, metavar="F", help="Set that share of the rows apart, in DST/test."
)
@choice("--dtype", "auto float32 float64")
@integer("--chunk-rows", "Rows of a chunk.  [default: about 4 MB]")
@flag("--overwrite", "Replace what was converted to DST before.")
@checkpoint_options
@verbosity_options
def convert(src: tuple[str, ...], dst: str, as_json: bool, **options: Any) -> None:
    """Convert the files SRC to the Zarr group DST, to be fitted and scored as DATA.

    SRC are files, folders or globs of one format, found by their first bytes: delimited text or
    libsvm files, compressed or not; a .npz or .npy file of NumPy; Parquet. DST becomes a group with
    the arrays X, y and sample_weight, whole or not at all. Memory is that of a few blocks for files of
    any size.
    """
    from distrff.io.convert.convert import convert as convert_files
    from distrff.io.storage import refuse_overlap

    for path in src:
        refuse_overlap("DST", dst, source=path)
    arguments = options | {"target": target_of(options), "storage_options": storage_options(options)}
    report = convert_files(list(src), dst, **arguments)
    show(report, as_json=as_json)
