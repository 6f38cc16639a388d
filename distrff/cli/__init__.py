"""The command line: `distrff`, and `dask distrff` through Dask's own.

Each command is loaded when it is called, and fails in one line with an exit code. Dask imports this module
whenever its command runs, so nothing here loads NumPy or Dask.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import click

from distrff.errors import (
    CheckpointWarning,
    ClusterWarning,
    DataWarning,
    InputError,
    PlanRefused,
    PrecisionWarning,
    Terminated,
)
from distrff.utils.process import signals_raise
from distrff.utils.text import public_text

__all__ = ["main"]

# Keys of a context's meta, which the commands share with their group.
VERBOSE = "distrff.verbose"
LAST_WORK = "distrff.last_work"  # what is done yet after Ctrl-C, in words


_PURPOSES = {
    "To begin": ("quickstart",),
    "Data": ("convert", "inspect"),
    "Models": ("plan", "fit"),
    "Models of sums": ("gram", "merge", "solve"),
    "How good they are": ("score", "importance", "calibrate"),
    "Predictions": ("predict", "raster", "transform"),
    "Measurements": ("bench", "kernel-error"),
}
"""The commands by what they are for, as `--help` shows them."""
_COMMANDS = tuple(name for names in _PURPOSES.values() for name in names)


_MODULES = {
    # Commands whose module has another name than their own.
    "fit": "build",
    "convert": "data",
    **dict.fromkeys(("bench", "kernel_error"), "plan"),
    **dict.fromkeys(("merge", "solve"), "gram"),
    **dict.fromkeys(("score", "importance", "calibrate", "raster", "transform"), "predict"),
}


# The classes that the words of --model, --features and --folds stand for.

MODELS = {
    "ridge": "KernelRidge",
    "ridge-classifier": "KernelRidgeClassifier",
    "svc": "KernelSVC",
    "likelihood": "KernelLikelihoodClassifier",
    "regressor": "KernelRegressor",
    "pca": "KernelPCA",
}
MAPS = {
    "auto": "AutoFeatures",
    "fourier": "FourierFeatures",
    "equispaced": "EquispacedFourierFeatures",
    "binning": "RandomBinningFeatures",
    "nystroem": "NystroemFeatures",
    "linear": "LinearFeatures",
}
FOLDS = {
    "hash": "HashFolds",
    "contiguous": "ContiguousFolds",
    "groups": "GroupFolds",
    "blocks": "BlockFolds",
    "forward": "ForwardFolds",
}


class CommandGroup(click.Group):
    """A click group that imports the module of a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = _MODULES.get(name, name)
        return getattr(import_module(f"distrff.cli.{module}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, names in _PURPOSES.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(purpose):
                formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in found if one])

    def invoke(self, ctx: click.Context) -> Any:
        with failures_reported(ctx):
            return super().invoke(ctx)


main = CommandGroup(
    name="distrff",
    context_settings={"show_default": True},
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
      143  ended by SIGTERM
    """,
)
click.version_option(package_name="distrff", message="distrff %(version)s")(main)


# How a command ends: exit codes, one line for each failure and warning, no noise of other libraries.

INTERNAL_ERROR = 1
WRONG_INPUT = 2
NOT_CONVERGED = 3
REFUSED = 4
INTERRUPTED = 130
TERMINATED = 143

_OURS = (CheckpointWarning, ClusterWarning, DataWarning, PrecisionWarning)


@contextmanager
def failures_reported(ctx: click.Context) -> Iterator[None]:
    """Turn exceptions of the body into one line on standard error and an exit code."""
    try:
        with _quiet_libraries(ctx), _ended_by_signals(ctx):
            yield
    except click.ClickException as error:
        message = error.format_message()  # click's own, which quotes what was given
        if public_text(message) == message:
            raise
        # What was given may be a URL with a password.
        raise click.UsageError(public_text(message), ctx) from None
    # Before OSError and all others: these are ends that a command chose.
    except (click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        _stop(ctx, INTERRUPTED, "interrupted")
    except Terminated:
        _stop(ctx, TERMINATED, "ended by SIGTERM")
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


def _ended_by_signals(ctx: click.Context) -> AbstractContextManager[None]:
    """Clean up on SIGTERM and SIGHUP as on Ctrl-C: a batch system's time limit, a closed terminal."""
    is_told = False

    def answered() -> KeyboardInterrupt:
        # In one line, at once: to end workers, or to save for a checkpoint, takes seconds.
        nonlocal is_told
        if not is_told:  # the exception may be lost, and raised again
            is_told = True
            line = "interrupted: " + ctx.meta.get(LAST_WORK, "what runs is ended")
            # The terminal's line may be that of a fit. Not `click.echo`, which this may have interrupted.
            os.write(2, f"{chr(10) if os.isatty(2) else ''}{line}\n".encode())
        return KeyboardInterrupt()

    exceptions: dict[int, Callable[[], BaseException]] = {
        signal.SIGTERM: Terminated,
        signal.SIGHUP: KeyboardInterrupt,
    }
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # background jobs of a shell ignore it
        exceptions[signal.SIGINT] = answered
    return signals_raise(exceptions)


def _stop(ctx: click.Context, code: int, message: str) -> NoReturn:
    # Other libraries' errors may quote URLs that are signed or hold a password.
    if ctx.meta.get(VERBOSE) and code not in (INTERRUPTED, TERMINATED):
        for line in traceback.format_exc().splitlines():
            click.echo(public_text(line), err=True)
    notes = map(spelt_as_options, getattr(sys.exception(), "__notes__", []))
    click.echo("distrff: " + public_text(_one_line("; ".join([message, *notes]))), err=True)
    ctx.exit(code)


@contextmanager
def _quiet_libraries(ctx: click.Context) -> Iterator[None]:
    """Show our own warnings as one line each, once; hide those of others, and logs, unless `--verbose`."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        # scikit-learn's ConvergenceWarning by its name: to import it would slow down every command.
        ours = issubclass(category, _OURS) or category.__name__ == "ConvergenceWarning"
        line = public_text(_one_line(spelt_as_options(str(message)) if ours else str(message)))
        if (ctx.meta.get(VERBOSE) or ours) and line not in shown:
            shown.add(line)
            click.echo("warning: " + line, err=True)

    # Restored at the end: tests, and `dask distrff`, call commands in a process that goes on.
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


# Messages of the library name Python's parameters and classes; those of a command name its options.

_CALL = r"\w\((?:[^()]|\([^()]*\))*\)"  # such as a kernel's repr
_OPTION = r"((--[\w-]+)(?: [\w.…]+)?)"  # whole, and without its value
_QUOTE = "'"
_SIGN = r"'[^\w'\s]+t?'"  # such as a delimiter, which stays in quotes: a shell has other uses for ; and |
_TWICE = re.compile(rf"{_OPTION}(?: or \1\b| \((?:\1|\2)\))")  # where a message has both spellings
_CLASSES = {name: f"--model {word}" for word, name in MODELS.items()}
_CLASSES |= {name: f"--features {word}" for word, name in MAPS.items()}
_RULES = {name: f"--folds {word}" for word, name in FOLDS.items()}
_RULE = re.compile(rf"(?:\bcv=)?\b({'|'.join(_RULES)})\b(?:\(([^()]*)\))?")


def spelt_as_options(text: str) -> str:
    """A message with each parameter and class as its option: dtype='float64' as --dtype float64.

    Names in quotes stay, as they may be columns; so do calls, and parameters that have no option.
    """
    options = _options()
    any_name = "|".join(options)
    # A name with an underscore is no English word: bare in a message it is the parameter.
    long = "|".join(name for name in options if "_" in name)

    def spelt(found: re.Match[str]) -> str:
        name, value = found["name"] or found["bare"], found["value"]
        if found["kind"]:
            return _CLASSES[found["kind"]]
        if name is None:
            return found[0]
        option, *opposite = options[name]
        if value == "False" and opposite:
            return opposite[0]
        if value in (None, "", "True"):
            return option
        return f"{option} {value if re.fullmatch(_SIGN, value) else value.replace(_QUOTE, '')}"

    word = r"'[^']*'"
    value = rf"{word}(?:(?:, | or ){word})*|[\w.+-]*[\w…]|(?=[,;.)\s]|$)"
    starts = r"(?= (?:must be|goes with|was given|has) )"
    parameter = rf"(?P<name>{any_name})=(?P<value>{value})"
    # "a larger tol" is the option too; a tol elsewhere may be a word.
    bare = rf"(?P<bare>{long}|^(?:{any_name}){starts}|(?<=a larger )tol|(?<=a smaller )C)(?![\w'\"=])"
    # "a KernelSVC" is one that is fitted already.
    kind = rf"(?:(?<!\ba )|(?<=fit a ))(?P<kind>{'|'.join(_CLASSES)})(?![\w'\"(])"
    text = re.sub(r"\btypes=\{'([^']*)': '(\w+)'\}", r"--types \1=\2", text)
    text = re.sub(r"\bn_components(?==[^,]+, but the map has)", "n_outputs", text)  # of KernelPCA
    text = re.sub(r"\bn_workers\b", "workers", text)  # of connect
    text = _RULE.sub(lambda found: f"{_RULES[found[1]]} {found[2] or ''}".rstrip(), text)
    text = re.sub(r"\bn_folds\b(?==| must)", "cv", text)
    text = re.sub(r"^size(?==| must)", "block_size", text)
    text = re.sub(r"\bextra=\['?([^'\]]*)'?\] to open_dataset", r"--extra \1", text)
    text = re.sub(r"; in a script put [^;]*", "", text)
    text = re.sub(r"\bopen_dataset\(\.\.\., ([^()]*)\)", r"\1", text)
    text = re.sub(rf"{_CALL}|(?<![\w.'\"/?&-])(?:{parameter}|{bare}|{kind})", spelt, text)
    return _TWICE.sub(r"\1", text)


@cache
def _options() -> dict[str, list[str]]:
    """Option of each parameter, and perhaps its opposite."""
    # Of any command, since a message may speak of another than its own; but the sizes of quickstart's rows
    # are no parameters of the library.
    commands = [main.get_command(click.Context(main), name) for name in _COMMANDS if name != "quickstart"]
    return {
        str(option.name): [option.opts[0], *option.secondary_opts]
        for command in commands
        for option in (command.params if command else [])
        if isinstance(option, click.Option)
    }
