"""Values of options that are more than a word or a number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

KERNEL_NAMES = ("gaussian", "laplacian", "cauchy", "exponential", "matern")


class Numbers(click.ParamType):
    """A word of a given few, a number, or numbers with commas between: str, float or list of float."""

    name = "numbers"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self._words:
            return value
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            accepted = ", ".join([*self._words, "a number", "numbers with commas between"])
            self.fail(f"{value!r} is none of: {accepted}", param, ctx)
        return numbers[0] if len(numbers) == 1 else numbers


class Names(click.ParamType):
    """Names with commas between: list of str."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class KernelDescription(click.ParamType):
    """A kernel's name, or JSON as text or in a file: str or dict."""

    name = "kernel"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in KERNEL_NAMES:
            return value
        if not value.lstrip().startswith("{") and not value.endswith(".json"):
            self.fail(f"{value!r} is none of {', '.join(KERNEL_NAMES)}, JSON, or a .json file", param, ctx)
        return _json_object(self, value, param, ctx)


class ClassWeight(click.ParamType):
    """ "balanced", or JSON of label: weight as text or in a file: str or dict."""

    name = "class weight"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value == "balanced":
            return value
        return _json_object(self, value, param, ctx)


class StorageOption(click.ParamType):
    """key=value: a pair, whose value is a bool or int where it is spelt like one, else str."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            # Not what was given: it may be a secret.
            self.fail("a text without '=' is not of the form key=value", param, ctx)
        return key, _plain_value(text)


def _plain_value(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?[1-9]\d*|0", text) else text  # "007" is a name, not a number


def _json_object(
    kind: click.ParamType, value: str, param: click.Parameter | None, ctx: click.Context | None
) -> dict[str, Any]:
    try:
        text = Path(value).read_text() if value.endswith(".json") else value
        data = json.loads(text)
    except (OSError, ValueError) as error:
        kind.fail(f"{value!r} cannot be read as JSON ({error})", param, ctx)
    if not isinstance(data, dict):
        kind.fail(f"{value!r} is no JSON object", param, ctx)
    return data
