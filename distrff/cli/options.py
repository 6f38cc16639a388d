"""Options made of the signatures and docstrings of public names: names, defaults, values and help lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from distrff.cli.signatures import parameters_of

F = TypeVar("F", bound=Callable[..., Any])


# Values of options that are more than one word or number.


class Value(click.ParamType):
    """A word, a number, or numbers with commas between; what is none of them stays text.

    The class that takes the value checks it, and knows better what to say.
    """

    name = "value"

    def __init__(self, kind: str = "") -> None:
        self._number = float if "float" in kind else int if "int" in kind else str
        self._takes_truth = "True" in kind
        self._takes_several = bool(re.search(r"array|sequence|tuple", kind))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self._takes_truth and value in ("true", "false"):
            return value == "true"
        try:
            numbers = [self._number(part) for part in value.split(",")]
        except ValueError:
            return value
        if len(numbers) == 1:
            return numbers[0]
        return numbers if self._takes_several else value


class Names(click.ParamType):
    """Names with commas between: list of str."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class OfColumns(click.ParamType):
    """COLUMN=NUMBER, COLUMN=LOW:HIGH or COLUMN=TYPE, the last with commas between: a list of pairs.

    Several options together, or one, become a dictionary; a column that is given twice is refused.
    """

    name = "column=value"

    def __init__(self, form: str) -> None:
        self.form = form

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().rpartition("=")[::2] for part in value.split(",")]
        if not all(name and text for name, text in pairs):
            self.fail(f"{value!r} is not {self.form}", param, ctx)
        if self.form.endswith("TYPE"):
            return pairs
        (name, text), *more = pairs
        try:
            numbers = [float(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if more or len(numbers) != 1 + self.form.count(":"):
            self.fail(f"{value!r} is not {self.form}", param, ctx)
        return [(name, numbers[0] if len(numbers) == 1 else tuple(numbers))]


class WordOrJson(click.ParamType):
    """A word of a given few, or a JSON object as text or in a file: str or dict."""

    name = "word or JSON"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self._words:
            return value
        if not value.lstrip().startswith("{") and not value.endswith(".json"):
            self.fail(f"{value!r} is none of {', '.join(self._words)}, JSON, or a .json file", param, ctx)
        try:
            data = json.loads(Path(value).read_text() if value.endswith(".json") else value)
        except (OSError, ValueError) as error:
            self.fail(f"{value!r} cannot be read as JSON ({error})", param, ctx)
        if not isinstance(data, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return data


class StorageOption(click.ParamType):
    """key=value: a pair; the value is a bool or int if it is spelt like one, else str."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            # Not what was given: it may be a secret.
            self.fail("a text without '=' is not of the form key=value", param, ctx)
        if text.lower() in ("true", "false"):
            return key, text.lower() == "true"
        return key, int(text) if re.fullmatch(r"-?[1-9]\d*|0", text) else text  # "007" is no number


# Decorators of commands.


def together(*options: Callable[[F], F], section: str | None = None) -> Callable[[F], F]:
    """The options as one decorator, first in `--help` the first here; `section` is their heading there."""

    def decorated(function: F) -> F:
        n_before = len(getattr(function, "__click_params__", ()))
        function = reduce(lambda done, option: option(done), reversed(options), function)
        for param in function.__click_params__[n_before:]:  # type: ignore[attr-defined]
            if section is not None and not hasattr(param, "section"):
                param.section = section
        return function

    return decorated


def flag(name: str, help: str) -> Callable[[F], F]:
    """An option without a value."""
    return click.option(name, is_flag=True, help=help)


def parameter(
    owners: str | Sequence[str],
    name: str,
    spelt: str | None = None,
    help: str | None = None,
    *,
    of: str = "",
    **changed: Any,
) -> Callable[[F], F]:
    """An option that stands for a parameter of public names, the first of which describes it.

    Its value is None where it is not given: the class or function then takes its own default. `help` stands
    in the place of the first sentence of the docstring; `of` follows it, and says which classes have it.
    """
    owners = [owners] if isinstance(owners, str) else owners
    default, kind, text = parameters_of(owners[0])[name]
    if kind.startswith("{"):  # the words of all
        found = dict.fromkeys(word for owner in owners for word in _words_of(parameters_of(owner)[name].kind))
        kind = "{" + ", ".join(word if word in ("True", "False") else f'"{word}"' for word in found) + "}"
    key = spelt or name  # click would turn Cs into lower case
    words = " ".join(filter(None, [_first_sentence(text, owners[0]) if help is None else help, of]))
    made: dict[str, Any] = {"type": Value(kind), "metavar": _metavar(kind)}
    if isinstance(default, bool):
        made = {"is_flag": True, "default": False}
    elif kind.startswith("{") and "True" not in kind:
        made = {"type": click.Choice(_words_of(kind))}
    elif form := _form_of_columns(kind):
        made = {"type": OfColumns(form), "metavar": form, "multiple": True, "callback": _as_mapping}
    elif re.match(r"list of str", kind):
        made = {"type": Names(), "metavar": "NAME,...", "multiple": True, "callback": _joined}
    elif re.match(r"array-like|sequence", kind):
        made = {
            "type": Value("sequence of float"),
            "metavar": "NUMBER,...",
            "multiple": True,
            "callback": _joined,
        }
    elif "dict" in kind:
        made = {"type": WordOrJson(*_words_of(kind)), "metavar": _metavar(kind)}
    if made.get("multiple"):
        words += "" if "repeated" in words else " May be repeated."
    elif default is not None and not isinstance(default, bool):
        words += f"  [default: {default}]"
    option = "--" + key.replace("_", "-")
    return click.option(option, key, help=words.strip(), **{"default": None} | made | changed)


def parameters(owner: str, names: str) -> Callable[[F], F]:
    """Options for several parameters of a public name."""
    return together(*(parameter(owner, name) for name in names.split()))


def spelt_as_option(name: str) -> str:
    """An option by the name of its value."""
    return "--" + name.replace("_", "-")


def given(ctx: click.Context) -> dict[str, Any]:
    """Options that the command line or a file of options gives."""
    default = click.core.ParameterSource.DEFAULT
    return {
        name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) is not default
    }


def _form_of_columns(kind: str) -> str | None:
    forms = {
        "column to pair": "COLUMN=LOW:HIGH",
        "column to float": "COLUMN=NUMBER",
        "str to {": "COLUMN=TYPE",
    }
    return next((form for words, form in forms.items() if f"mapping of {words}" in kind), None)


def _words_of(kind: str) -> list[str]:
    said, _, _ = kind.partition("default=")
    return [word or truth for word, truth in re.findall(r'"([^"]+)"|\b(True|False)\b', said)]


def _metavar(kind: str) -> str:
    numbers = ["NUMBER"] if re.search("float|int", kind) else []
    several = ["NUMBER,..."] if numbers and re.search("array|sequence|tuple", kind) else []
    json = ["JSON"] if "dict" in kind else []
    found = "|".join([*_words_of(kind), *numbers, *several, *json])
    return f"[{found.lower()}]" if kind.startswith("{") else found or "NAME"


def _first_sentence(text: str, owner: str) -> str:
    """The first sentence of a docstring's text, with options in the place of the owner's parameters."""
    sentence = re.match(r"(.*?[.])(?:\s|$)|.*", text)
    found = sentence[0].strip() if sentence else ""
    for name in parameters_of(owner):
        found = re.sub(rf'`+{name}(?:=("?\w+"?))?`+', partial(_spelt, name), found)
    return re.sub(r'["`]', "", found)


def _spelt(name: str, found: re.Match[str]) -> str:
    return " ".join(filter(None, [spelt_as_option(name), found[1]]))


def _joined(ctx: click.Context, param: click.Parameter, given: tuple[Any, ...]) -> list[Any] | None:
    """The values of a repeated option; None where it is not given."""
    lists = (values if isinstance(values, list) else [values] for values in given)
    return [value for values in lists for value in values] or None


def _as_mapping(ctx: click.Context, param: click.Parameter, given: tuple[Any, ...]) -> Any:
    pairs = _joined(ctx, param, given) or []
    found = dict(pairs)
    if len(found) < len(pairs):
        raise click.UsageError(f"{param.opts[0]} has two values for a column; give one", ctx)
    return found or None
