"""Which commands there are, what asking for help costs, and how commands end."""

import errno
import logging
import subprocess
import sys
import warnings

import click
import pytest
from click.testing import CliRunner

from distrff.cli import failures_reported, main
from distrff.cli.command import command as command_of
from distrff.errors import ClusterError, DataWarning, NonFiniteError, PlanRefused, PrecisionWarning

COMMANDS = [
    "quickstart", "convert", "inspect", "plan", "fit", "gram", "merge", "solve", "score", "importance",
    "calibrate", "predict", "raster", "transform", "bench", "kernel-error",
]  # fmt: skip


def test_the_version(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.8.7")
    done = CliRunner().invoke(main, ["--version"])
    assert (done.exit_code, done.output) == (0, "distrff 9.8.7\n")


def test_help_lists_every_command_which_explains_itself(distrff_without_workers):
    done = distrff_without_workers("--help")
    assert done.code == 0
    assert main.list_commands(click.Context(main)) == COMMANDS
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
        own = distrff_without_workers(name, "--help")
        assert own.code == 0
        assert own.stdout.startswith(f"Usage: distrff {name} ")
        assert ("or CSV (.csv, .csv.gz), by its ending, to write" in " ".join(own.stdout.split())) == (
            name == "predict"
        )


def test_asking_for_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom distrff.cli import main\n"
        "for words in (['--help'], ['fit', '--help']):\n"
        "    main(words, standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"numpy", "scipy", "pandas", "zarr", "sklearn", "dask", "distributed"} & set(loaded)


def test_a_part_of_the_dask_command_and_wrong_usage():
    dask = click.Group("dask")
    dask.add_command(main)
    result = CliRunner().invoke(dask, ["distrff", "inspect", "nothing-here"])
    assert result.exit_code == 2
    assert "nothing-here does not exist" in result.output
    for words in (["fot"], ["fit"], ["fit", "rows", "--out", "m", "--model", "svc"]):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, "Traceback" in result.output) == (2, False)


def ended(action, *words: str) -> tuple[int, str]:
    """Return exit code and output of a command that does `action`."""

    @command_of()
    def command() -> None:
        action()

    class Group(click.Group):
        def invoke(self, ctx: click.Context) -> object:
            with failures_reported(ctx):
                return super().invoke(ctx)

    result = CliRunner().invoke(Group(commands={"command": command}), ["command", *words])
    return result.exit_code, result.output


def raising(error: BaseException):
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (NonFiniteError("X contains NaN\nin row 3"), 2, "distrff: X contains NaN in row 3\n"),
        (ClusterError("no answer"), 2, "distrff: no answer\n"),
        (PermissionError(13, "Permission denied", "f"), 2, "distrff: PermissionError: [Errno 13] Permission"),
        (PlanRefused("needs 3 TB"), 4, "distrff: needs 3 TB\n"),
        (KeyboardInterrupt(), 130, "distrff: interrupted\n"),
        (ZeroDivisionError("by 0"), 1, "distrff: internal error, ZeroDivisionError: by 0; --verbose shows"),
        (click.UsageError("no such thing"), 2, "Usage: "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_failure_has_its_exit_code(error, code, line):
    got, output = ended(raising(error))
    assert got == code
    assert output.startswith(line)
    assert "Traceback" not in output


def test_verbose_shows_where_and_a_reader_that_leaves_is_no_failure():
    """`distrff inspect x | head -1` closes the pipe; click exits with 1 and says nothing."""
    code, output = ended(raising(ZeroDivisionError("by 0")), "--verbose")
    assert code == 1
    assert "Traceback" in output
    assert output.endswith("distrff: internal error, ZeroDivisionError: by 0\n")
    assert ended(raising(BrokenPipeError(errno.EPIPE, "Broken pipe"))) == (1, "")


def noise() -> None:
    warnings.warn("a column\nis constant", DataWarning, stacklevel=1)
    warnings.warn("float64 was used", PrecisionWarning, stacklevel=1)
    warnings.warn("port 8787 is in use", UserWarning, stacklevel=1)
    logging.getLogger("distributed.scheduler").error("lost a worker")


def test_our_warnings_are_a_line_each_and_others_are_shown_by_verbose():
    before = logging.root.manager.disable
    assert ended(noise) == (0, "warning: a column is constant\nwarning: float64 was used\n")
    assert logging.root.manager.disable == before
    code, output = ended(noise, "--verbose")
    assert code == 0
    assert "warning: port 8787 is in use\n" in output
