"""The messages of the package, as the command line shows them: none names a parameter of Python."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import distrff
from distrff.cli import spelt_as_options

# What no command calls, or calls with what it has checked.
OF_PYTHON = (
    "cli/",
    "diagnostics/bounds.py",
    "diagnostics/plots.py",
    "estimators/base.py: warm_start",
    "estimators/base.py: a checkpoint is of a fit that begins anew",
    "estimators/held_out.py: min_delta",
    "estimators/held_out.py: EarlyStopping",
    "estimators/gram.py",
    "fitting/problem.py: warm_start",
    "fitting/problem.py: fit_intercept must be",
    "estimators/ridge.py: class_weight cannot be applied to a Gram",
    "fitting/sums.py: … numbers as targets",  # the command takes the model of the sums that it is given
    "features/compose.py: maps[…] has weights",
    "features/compose.py: weights='cv' needs",  # no command makes a map of several
    "features/search/candidates.py: maps=",
    "features/base.py: kernel__",
    "io/arrays.py",  # of arrays in memory
    "io/convert/convert.py: distrff.open_dataset(xarray",  # a line of Python for files that no command reads
    "io/open.py: sample_dim",
    "io/open.py: … to distrff.open_dataset(frame",
    "io/zarr_rows.py: …: column_names",  # an attribute of the group
    "metrics.py",
    "model/write.py: ids are columns",
    "solvers/ridge.py: n_features",
)


def messages() -> Iterator[tuple[str, str]]:
    """Yield the texts of a raise, a warn or a note with their file; "…" for what is filled in."""
    folder = Path(distrff.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and re.search(
                r"(Error|Refused|Mismatch|Remedy|warn|add_note)$", ast.unparse(call.func)
            ):
                for argument in call.args:
                    yield from ((str(path.relative_to(folder)), text) for text in texts_of(argument))
        for constant in tree.body:
            if isinstance(constant, ast.Assign):
                yield from ((str(path.relative_to(folder)), text) for text in texts_of(constant.value))


def texts_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and " " in node.value else []
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        return ["".join(map(str, parts))]
    return [text for child in ast.iter_child_nodes(node) for text in texts_of(child)]


def test_no_message_of_a_command_names_a_parameter_of_python():
    public = [getattr(distrff, name) for name in distrff.__all__]
    parameters = {name for value in public if callable(value) for name in inspect.signature(value).parameters}
    long = "|".join(name for name in parameters if "_" in name)
    python = re.compile(rf"(?<![-\w.'])(?:(?:{long})\b|(?:{'|'.join(parameters)})=(?!=))")
    found = list(messages())
    assert len(found) > 400
    left = []
    for path, text in found:
        if any(f"{path}: {text}".startswith(known) for known in OF_PYTHON):
            continue
        shown = spelt_as_options(text)
        if python.search(shown):
            left.append(f"{path}: {shown}")
    assert not left
