"""A command: options made of public signatures or from TOML, grouped help, results as JSON or lines."""

from __future__ import annotations

import ast
import json
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

import distrff as drf
from distrff.cli import VERBOSE, spelt_as_options
from distrff.utils.text import public_text

# Signatures and parameter texts of public names, read from their source.
#
# Importing them instead would load NumPy, Numba and scikit-learn: two seconds for `--help`, and for each
# misspelt option.


class Parameter(NamedTuple):
    """A parameter of a public name, as its signature and its docstring have it."""

    default: Any
    kind: str  # the type in words: 'float, "cv" or "gcv"'
    text: str


@cache
def parameters_of(name: str) -> dict[str, Parameter]:
    """Parameters of a public function or constructor."""
    # The package's table of lazy names says which file defines each.
    module = _Module.of(drf._MODULES[name])
    node = module.definition(name)
    if isinstance(node, ast.ClassDef):
        return _of_class(module, node)
    assert isinstance(node, ast.FunctionDef)
    return _documented(_of_function(module, node, skipped=0), node)


class _Module(NamedTuple):
    """The source of a module, and where statements begin, which are parsed when they are asked for."""

    # To parse the whole files takes a quarter of a second, at the start of every command.
    source: str
    definitions: dict[str, tuple[int, int]]  # where functions and classes begin, and where their names end
    constants: dict[str, int]  # where their values begin
    imported: dict[str, str]  # names from distrff, and their modules

    @classmethod
    @cache
    def of(cls, name: str) -> _Module:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        return cls(
            source,
            {found[1]: found.span() for found in _DEFINITION.finditer(source)},
            {found[1]: found.end() for found in _CONSTANT.finditer(source)},
            {word: found[1] for found in _IMPORT.finditer(source) for word in re.findall(r"\w+", found[2])},
        )

    def definition(self, name: str) -> ast.stmt:
        """A function or class with its decorators; of a class only what stands before other methods."""
        start, named = self.definitions[name]
        return ast.parse(self.source[start : self._end(named)]).body[0]

    def constant(self, name: str) -> ast.expr:
        start = self.constants[name]
        return ast.parse(self.source[start : self._end(start)].strip(), mode="eval").body

    def _end(self, start: int) -> int:
        found = _END.search(self.source, start)
        return found.start() if found else len(self.source)


_DEFINITION = re.compile(r"^(?:@[^\n]*\n)*(?:class|def) (\w+)", re.MULTILINE)
_CONSTANT = re.compile(r"^(\w+)(?:: [^=\n]*)? = ", re.MULTILINE)
_IMPORT = re.compile(r"^from (distrff[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)
# The next statement, or a method other than `__init__`: fields stand before both. A bracket ends a signature.
_END = re.compile(r"^[^\s)\]}]|^    (?:@|def (?!__init__\b))", re.MULTILINE)


def _of_class(module: _Module, node: ast.ClassDef) -> dict[str, Parameter]:
    """Parameters of a constructor: its own `__init__`, or the fields of dataclasses, those of bases first."""
    found: dict[str, Parameter] = {}
    # In the order in which dataclasses collect fields: later bases first, so that the first one wins.
    for base in reversed([one.id for one in node.bases if isinstance(one, ast.Name)]):
        # Only bases of this package can be followed; those of scikit-learn have no fields.
        elsewhere = base not in module.definitions and base in module.imported
        home = _Module.of(module.imported[base]) if elsewhere else module
        if base in home.definitions:
            above = home.definition(base)
            assert isinstance(above, ast.ClassDef)
            found |= _of_class(home, above)
    own = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if own:
        found = _of_function(module, own[0], skipped=1)  # self
    elif any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        for field in node.body:
            # What a call of `field` declares, follows from data.
            if not isinstance(field, ast.AnnAssign) or isinstance(field.value, ast.Call):
                continue
            if "KW_ONLY" not in ast.unparse(field.annotation):
                found[ast.unparse(field.target)] = Parameter(_literal(module, field.value), "", "")
    return _documented(found, node)


def _of_function(module: _Module, node: ast.FunctionDef, skipped: int) -> dict[str, Parameter]:
    named = [*node.args.args[skipped:], *node.args.kwonlyargs]
    given = [*node.args.defaults, *node.args.kw_defaults]
    # Defaults are those of the last arguments.
    defaults = [*[None] * (len(named) - len(given)), *given]
    found = zip(named, defaults, strict=True)
    return {argument.arg: Parameter(_literal(module, default), "", "") for argument, default in found}


def _literal(module: _Module, default: ast.expr | None) -> Any:
    """Value of a default: a literal, or a constant of the module; None where there is none."""
    if isinstance(default, ast.Name):
        default = module.constant(default.id)
    return None if default is None else ast.literal_eval(default)


def _documented(found: dict[str, Parameter], node: ast.ClassDef | ast.FunctionDef) -> dict[str, Parameter]:
    """The parameters with types and texts of a numpydoc docstring, where this has them."""
    docstring = ast.get_docstring(node) or ""
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?:\n\n\w[^\n]*\n-{3,}|\Z)", docstring, re.DOTALL | re.MULTILINE
    )
    entries = re.findall(r"^(\w.*)\n?((?:(?: .*)?\n?)*)", section[1] if section else "", re.MULTILINE)
    for head, text in entries:
        names, _, kind = head.partition(" : ")
        for name in names.split(", "):
            if name in found:
                found[name] = Parameter(found[name].default, kind, " ".join(text.split()))
    return found


F = TypeVar("F", bound=Callable[..., Any])


# Values of options that are more than one word or number.


class Value(click.ParamType):
    """A word, a number, or numbers with commas between; all else stays text."""

    name = "value"

    def __init__(self, kind: str = "") -> None:
        # By the words of a docstring: annotations are often Any.
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
        # Still text: the class that takes the value checks it, and knows better what to say.
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
        # The last sign: names of columns may hold others.
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
        # Decorators of a whole group may hold some whose own heading stands already: those keep it.
        n_before = len(getattr(function, "__click_params__", ()))
        # Decorators apply from the last to the first.
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
    if any(parameters_of(owner)[name].default != default for owner in owners):
        default = None  # none that holds for all
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
    # None stands for an option that is not given: the class has its own default.
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


OTHER = "Other options"
"""The last heading in `--help`, of the options without one."""
AS_JSON = "as_json"


class Result(NamedTuple):
    """Findings of a command: values for JSON, and lines for people, by default one a value."""

    values: dict[str, Any]
    lines: Iterable[str] | None = None
    code: int = 0


class Command(click.Command):
    """A click command that prints the `Result` of its function, with grouped options in its help.

    All have `--json`, `--verbose` and `--config`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        json_help = "Print one JSON object, and nothing else on standard output."
        self.params += [
            click.Option(["--json", AS_JSON], is_flag=True, help=json_help),
            click.Option(
                ["--verbose"],
                is_flag=True,
                expose_value=False,
                callback=be_verbose,
                help="Show logs, all warnings, and tracebacks.",
            ),
            click.Option(
                ["--config"],
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                is_eager=True,  # its values are there before the other options are read
                expose_value=False,
                callback=_take_config,
                help="TOML file of options by their names, such as n-components = 2048, or of arguments, "
                "such as data; what is on the command line counts more.",
            ),
        ]

    def invoke(self, ctx: click.Context) -> None:
        """Call the function, and print its result: as one strict JSON object, or as lines."""
        # Popped: functions of commands do not take it.
        ctx.meta[AS_JSON] = ctx.params.pop(AS_JSON)
        result = super().invoke(ctx)
        if result is None:
            return
        values, lines, code = result
        if ctx.meta[AS_JSON]:
            # Imported here: it has NumPy, for which `--help` need not wait.
            from distrff.utils.serialize import strict

            lines = [json.dumps(strict(values), allow_nan=False)]
        for line in aligned(values) if lines is None else lines:
            click.echo(line)
        if code:
            ctx.exit(code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `--header none`, as in pandas, for `--no-header`: click has no flags that may have a value."""
        # NUL is the one character that no argument holds.
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
    # A file may serve several commands: an option of another one is no mistake.
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
    # As defaults: click checks them as its own, and the command line wins.
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
    # A table of TOML is a JSON object for a kernel, and pairs of columns or of storage options for others.
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
    # Truth is spelt true and false on the command line.
    return str(value).lower() if isinstance(value, bool) else str(value)


# Output.


def be_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of `--verbose`."""
    ctx.meta[VERBOSE] = value  # for the group, which reports failures
    if value:
        # Takes back what the group disabled for quiet commands.
        logging.disable(logging.NOTSET)
        logging.getLogger("distrff").setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(_PublicFormatter("%(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler])


class _PublicFormatter(logging.Formatter):
    """Writes lines of any library without the secrets of the URLs that they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return public_text(super().format(record))


@contextmanager
def progress_lines(ctx: click.Context) -> Iterator[None]:
    """Write on standard error how far the fits in the block are, where it is no terminal, for logs."""
    from distrff.engine.progress import lines_echoed

    # The logger says as much.
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
