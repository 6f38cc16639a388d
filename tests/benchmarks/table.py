"""README's table of benchmarks, from the lines that a run printed.

python -m tests.benchmarks accuracy spine judging > tests/benchmarks/results.jsonl
python -m tests.benchmarks.table
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("results.jsonl")
README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- benchmarks -->\n", "<!-- /benchmarks -->"

Result = dict[str, Any]


class Row(NamedTuple):
    """A line of the table: of one result, named by its benchmark and perhaps one more of its entries."""

    what: str
    name: str
    reached: Callable[[Result], str]
    beside: str
    which: tuple[str, Any] | None = None


def _percent(key: str) -> Callable[[Result], str]:
    return lambda found: f"{100 * found[key]:.2f} %"


def _ratio(key: str, digits: int = 2) -> Callable[[Result], str]:
    return lambda found: f"{found[key]:.{digits}f}"


def _faster(found: Result) -> str:
    return f"{found['speedup']:.1f} times as fast, {found['memory_ratio']:.2f} of the memory"


def _seconds(found: Result) -> str:
    return f"{100 * found['accuracy']:.2f} % correct in {found['seconds']:.0f} s"


ROWS = (
    Row("Adult (a9a), ridge on 500 Fourier features, error", "adult", _percent("error"),
        "exact RBF SVC 15.0 %"),
    Row("CPU (cpu_act), ridge on 1024 Nyström features, relative error", "cpu", _percent("error"),
        "exact kernel ridge 3.6 %"),
    Row("digits 0 to 8, squared hinge on 500 Fourier features, correct", "digits", _percent("accuracy"),
        "exact RBF SVM 97.2 %, linear 93.4 %"),
    Row("kin40k, split 0, 8192 Nyström features, a width a column, RMSE", "kin40k", _ratio("error", 3),
        "exact GP with learnt widths 0.080 (published)", ("features", "nystroem")),
    Row("kin40k, split 0, 8192 Fourier features, learned metric, RMSE", "kin40k", _ratio("error", 3),
        "exact GP with learnt widths 0.080 (published)", ("features", "fourier")),
    Row("covtype, 74,000 rows, random binning, error", "covtype_by_binning", _percent("median"),
        "exact RBF SVC 11.5 % in 685 s"),
    Row("MNIST, Nyström 8192, squared hinge", "mnist", _seconds, "rfflearn, 4096 Fourier features: 98.14 %"),
    Row("Gram sweep, 500,000 rows, D = 2048, float32: time of the bare products", "gram_sweep",
        lambda found: f"{found['ratio']:.2f} times", "", ("dtype", "float32")),
    Row("the same fit by dask.array", "against_dask_array", _faster, ""),
    Row("the same fit by scikit-learn, in memory", "against_scikit_learn", _faster, ""),
    Row("25 penalties and 5 folds, time of one penalty", "alpha_by_cv",
        lambda found: f"{found['ratio']:.2f} times", ""),
    Row("evaluation of 10⁷ rows, memory of a worker above idle", "evaluation",
        lambda found: f"{found['peak_mb']:.0f} MB", "", ("kind", "numbers")),
)  # fmt: skip


def table_of(text: str) -> str:
    """Return the Markdown table of the lines of a run; what was not run has no line."""
    results = [json.loads(line) for line in text.splitlines()]
    lines = ["| what | reached | beside it |", "|---|---|---|"]
    for row in ROWS:
        for found in results:
            is_it = found["name"] == row.name and (
                row.which is None or found.get(row.which[0]) == row.which[1]
            )
            if is_it and "skipped" not in found:
                lines.append(f"| {row.what} | {row.reached(found)} | {row.beside} |")
                break
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table into README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{table_of(RESULTS.read_text())}{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
