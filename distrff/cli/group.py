"""The group of commands: each is loaded when it is asked for, and fails in one line with an exit code."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import click

from distrff.cli.options import VERBOSE, spelt_as_options
from distrff.errors import ClusterWarning, DataWarning, InputError, PlanRefused, PrecisionWarning
from distrff.utils.text import public_text


class CommandGroup(click.Group):
    """A click group whose commands live in modules that are imported late.

    Parameters
    ----------
    commands_by_name : dict of str to str
        Module of each command, which has the command's own name there, with underscores for dashes; in
        the order of `--help`.
    """

    def __init__(self, *args: Any, commands_by_name: dict[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._modules = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        return getattr(import_module(self._modules[cmd_name]), cmd_name.replace("-", "_"))

    def invoke(self, ctx: click.Context) -> Any:
        with failures_told(ctx):
            return super().invoke(ctx)


# How a command ends: exit codes, one line for each failure and warning, no noise of other libraries.

INTERNAL_ERROR = 1
WRONG_INPUT = 2
NOT_CONVERGED = 3
REFUSED = 4
INTERRUPTED = 130

_OURS = (ClusterWarning, DataWarning, PrecisionWarning)


@contextmanager
def failures_told(ctx: click.Context) -> Iterator[None]:
    """Turn exceptions of the body into one line on standard error and an exit code."""
    try:
        with _quiet_libraries(ctx), _ended_like_interrupts():
            yield
    except click.ClickException as error:
        told = error.format_message()  # by click itself; it quotes what was given
        if public_text(told) == told:
            raise
        raise click.UsageError(public_text(told), ctx) from None
    except (click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        _stop(ctx, INTERRUPTED, "interrupted")
    except InputError as error:
        _stop(ctx, WRONG_INPUT, spelt_as_options(str(error)))
    except PlanRefused as error:
        _stop(ctx, REFUSED, spelt_as_options(str(error)))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader of a pipe left; click knows how to go quietly
        _stop(ctx, WRONG_INPUT, f"{type(error).__name__}: {error}")
    except Exception as error:
        where = "" if ctx.meta.get(VERBOSE) else "; --verbose shows where"
        _stop(ctx, INTERNAL_ERROR, f"internal error, {type(error).__name__}: {error}{where}")


@contextmanager
def _ended_like_interrupts() -> Iterator[None]:
    """Clean up on SIGTERM and SIGHUP as on Ctrl-C: a batch system's time limit, a closed terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _stop(ctx: click.Context, code: int, message: str) -> NoReturn:
    # Other libraries' errors may quote URLs that are signed or hold a password.
    if ctx.meta.get(VERBOSE) and code != INTERRUPTED:
        for line in traceback.format_exc().splitlines():
            click.echo(public_text(line), err=True)
    notes = getattr(sys.exception(), "__notes__", [])
    click.echo("distrff: " + public_text(_one_line("; ".join([message, *notes]))), err=True)
    ctx.exit(code)


@contextmanager
def _quiet_libraries(ctx: click.Context) -> Iterator[None]:
    """Show our own warnings as one line each, once; hide those of others, and logs, unless `--verbose`."""
    told: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        # scikit-learn's ConvergenceWarning by its name: to import it would slow down every command.
        ours = issubclass(category, _OURS) or category.__name__ == "ConvergenceWarning"
        line = public_text(_one_line(spelt_as_options(str(message)) if ours else str(message)))
        if (ctx.meta.get(VERBOSE) or ours) and line not in told:
            told.add(line)
            click.echo("warning: " + line, err=True)

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        logging.disable(before)


def _one_line(text: str) -> str:
    return " ".join(text.split())
