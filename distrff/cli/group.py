"""The group of commands: each is loaded when it is asked for, and fails in one line with an exit code."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from distrff.cli.exits import failures_told


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
