"""A command: help with options under headings, options from a TOML file, and results as JSON or as lines."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from distrff.cli import VERBOSE, spelt_as_options
from distrff.cli.options import OfColumns, StorageOption, WordOrJson, together
from distrff.utils.text import public_text

OTHER = "Other options"
"""The last heading in `--help`, of the options without one."""


class Command(click.Command):
    """A click command with `--config`, and with the options of a `section` together in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = click.Option(
            ["--config"],
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            is_eager=True,  # its values are there before the other options are read
            expose_value=False,
            callback=_take_config,
            help="TOML file of options by their names, such as n-components = 2048, or of arguments, such as "
            "data; what is on the command line counts more.",
        )
        self.params.append(config)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `--header none`, as in pandas, for `--no-header`: click has no flags that may have a value."""
        line = re.sub(r"(?<![^\0])--header[\0=]none(?![^\0])", "--no-header", "\0".join(args))
        return super().parse_args(ctx, line.split("\0") if args else args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", OTHER), []).append(record)
        sections[OTHER] = sections.pop(OTHER)  # last; it has --help
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def command(name: str | None = None) -> Any:
    """The decorator that makes a `Command` of a function."""
    return click.command(name, cls=Command)


# Options from a file.


def _take_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Take the values in a TOML file as defaults; `--config`'s own value is of no use afterwards."""
    if path is None:
        return
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read as TOML ({error})", ctx, param) from None
    everyones = _commands(ctx)
    options = {name for one in everyones for name in _named(one.params, click.Option)}
    params = _named(ctx.command.params, click.Option)
    # An argument that is an option of another command has another meaning there: MODEL and --model.
    arguments = _named(ctx.command.params, click.Argument)
    params |= {name: argument for name, argument in arguments.items() if name not in options}
    known = options.union(*(_named(one.params, click.Argument) for one in everyones))
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("_", "-")
        if (of := params.get(name)) is not None:
            values[str(of.name)] = _as_on_the_command_line(of, key, value, ctx)
        elif name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.BadParameter(f"{path} has {key!r}, which no command takes{hint}", ctx, param)
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _named(params: Iterable[click.Parameter], kind: type[click.Parameter]) -> dict[str, click.Parameter]:
    """The parameters of a kind by the names that a file may give them: those of the command line."""
    named: dict[str, click.Parameter] = {}
    for param in params:
        if isinstance(param, kind) and param.expose_value:
            spelt = param.opts if kind is click.Option else [str(param.name).replace("_", "-")]
            named |= dict.fromkeys([name.removeprefix("--") for name in spelt], param)
    return named


def _commands(ctx: click.Context) -> list[click.Command]:
    """All commands, which may share a file."""
    group = ctx.parent.command if ctx.parent is not None else None
    if not isinstance(group, click.Group):
        return [ctx.command]
    found = (group.get_command(ctx, name) for name in group.list_commands(ctx))
    return [one for one in found if one is not None]


def _as_on_the_command_line(param: click.Parameter, key: str, value: Any, ctx: click.Context) -> Any:
    """A TOML value as click would have it from the command line, to be checked as from there."""
    if isinstance(param, click.Option) and param.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter(f"{key} must be true or false, got {value!r}", ctx, param)
        return value
    if isinstance(value, dict) and not isinstance(param.type, WordOrJson):
        if not isinstance(param.type, OfColumns | StorageOption):
            raise click.BadParameter(f"{key} is a table of values; give one value", ctx, param)
        return [f"{name}={_text(one, ':')}" for name, one in value.items()]
    if isinstance(value, dict):
        return value
    if param.multiple or param.nargs == -1:
        return [_text(one) for one in (value if isinstance(value, list) else [value])]
    return _text(value)


def _text(value: Any, between: str = ",") -> str:
    if isinstance(value, list):
        return between.join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# Output.


def be_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of `--verbose`."""
    ctx.meta[VERBOSE] = value  # for the group, which reports failures
    if value:
        logging.disable(logging.NOTSET)
        logging.getLogger("distrff").setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(_PublicFormatter("%(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler])


class _PublicFormatter(logging.Formatter):
    """Writes lines of any library without the secrets of the URLs that they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return public_text(super().format(record))


verbosity_options = together(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else on standard output."
    ),
    click.option(
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=be_verbose,
        help="Show logs, all warnings, and tracebacks.",
    ),
)


def show(values: dict[str, Any], *, as_json: bool, lines: Iterable[str] | None = None) -> None:
    """Print values as one JSON object, non-finite numbers as null, or else the lines for people.

    Without lines these are one a value.
    """
    from distrff.utils.serialize import strict

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
    """One line a value, names in a column; floats with six digits."""
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
