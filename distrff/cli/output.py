"""What a command prints on standard output: one JSON object, or lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from distrff.cli import spelt_as_options
from distrff.cli.options import VERBOSE


def show(values: dict[str, Any], *, as_json: bool, lines: Iterable[str] | None = None) -> None:
    """Print the values.

    Parameters
    ----------
    values : dict
        NumPy values are unwrapped, numbers that are not finite become null.
    as_json : bool
    lines : iterable of str, optional
        For people; by default one line a value.
    """
    from distrff.diagnostics.strict import strict

    if as_json:
        click.echo(json.dumps(strict(values), allow_nan=False))
        return
    for line in aligned(values) if lines is None else lines:
        click.echo(line)


@contextmanager
def progress_lines(ctx: click.Context) -> Iterator[None]:
    """Write on standard error how far the fits in the block are, where it is no terminal, for logs.

    With `--verbose` the logger does so.
    """
    from distrff.engine.progress import lines_echoed

    if ctx.meta.get(VERBOSE):
        yield
        return
    with lines_echoed(lambda line: click.echo(line, err=True)):
        yield


def aligned(values: dict[str, Any]) -> list[str]:
    """Return one line a value, names in a column; floats with six digits."""
    width = max(map(len, values), default=0)
    return [f"{name:<{width}}  {_readable(value)}" for name, value in values.items()]


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):  # a shape
        return " × ".join(map(str, value))
    if isinstance(value, list):
        return ", ".join(map(_readable, value))
    if isinstance(value, dict):  # such as why columns were left out, in the library's words
        return "; ".join(f"{name}: {spelt_as_options(_readable(v))}" for name, v in value.items()) or "-"
    return "-" if value is None else str(value)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, "string" for NumPy's variable-length one."""
    return "string" if dtype.kind == "T" else str(dtype)
