"""The command line: `distrff`, and `dask distrff` through Dask's own.

Dask imports this module whenever its command runs, so nothing here loads NumPy or Dask.
"""

from __future__ import annotations

import click

from distrff.cli.group import CommandGroup

main = CommandGroup(
    name="distrff",
    commands_by_name={
        "quickstart": "distrff.cli.quickstart",
        "convert": "distrff.cli.convert",
        "plan": "distrff.cli.plan",
        "fit": "distrff.cli.fit",
        "score": "distrff.cli.predict",
        "predict": "distrff.cli.predict",
        "transform": "distrff.cli.predict",
        "inspect": "distrff.cli.inspect",
        "kernel-error": "distrff.cli.kernel_error",
        "bench": "distrff.cli.bench",
    },
    help="""Kernel machines on data that does not fit in one machine.

    DATA is a Parquet file, folder or glob, or a Zarr group with the arrays X and y; a path
    or a URL. Files of text (CSV, TSV, libsvm) and of NumPy (.npz, .npy) are converted to such a
    group by convert, and for a single command by that command itself; only inspect wants them converted.

    \b
    Exit codes:
      0    done
      1    internal error
      2    wrong usage or input
      3    not converged
      4    refused by the plan: it would not fit in memory
      130  interrupted
    """,
)
click.version_option(package_name="distrff", message="distrff %(version)s")(main)

__all__ = ["main"]
