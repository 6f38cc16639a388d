"""Tables of a run in Markdown: all of it, and the part that README shows; the picture of peers beside.

    python -m tests.benchmarks book --full --out FOLDER
    python -m tests.benchmarks book --publish FOLDER

The second keeps the results in this checkout and writes README's table, `results.md` and the picture from
them.
"""

import shutil
from pathlib import Path

from tests.benchmarks.book import peers, picture
from tests.benchmarks.book.environments import ROOT
from tests.benchmarks.book.lines import Result, Setting, shown, shown_reached
from tests.benchmarks.book.races import SUMMARY, sets_that_hold
from tests.benchmarks.book.running import LINES, Results

STORED = ROOT / "tests" / "benchmarks" / "results.jsonl"
STORED_TABLE = STORED.with_suffix(".md")
PICTURE = "peers.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks -->\n", "<!-- /benchmarks -->"
IN_README = (
    *("gram", "light", "alpha_cv", "path", "mnist", "kin40k", "svc_cv"),
    *("adult", "twelve_sets", "time_by_rows", "memory_by_rows"),
)
_WORDS = {True: "yes", False: "no", None: ""}


def with_summary(results: Results) -> list[Result]:
    """Return all results in the book's order, and what sets say together where some were run.

    A run that went on with some lines anew has these at its end.
    """
    place = {line.name: i for i, line in enumerate(LINES)}
    found = sorted(results.found, key=lambda one: place.get(one["line"], len(place)))
    setting = Setting(results.header["scale"])
    of_peers = peers.summary(found, setting)
    summary = sets_that_hold(found)
    if summary is None:
        return [*found, *of_peers]
    judged = SUMMARY.judged(setting, summary)
    if summary["n_sets"] < 12:
        judged["holds"] = None
    return [*found, judged, *of_peers]


def full_table(results: Results) -> str:
    """Return a line for each result, with its spread or the reason why there is none."""
    rows = ["| what | case | asked | reached | spread | holds |", "|---|---|---|---|---|---|"]
    for found in with_summary(results):
        cells = (found["title"], _case(found, results), found["asked"], *_reached(found))
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    said = f"{_of_what(results)}\n\n" + "\n".join(rows) + "\n"
    return f"{said}\n![{picture.TITLE}]({PICTURE})\n" if peers.ratios(results.found) else said


def readme_table(results: Results) -> str:
    """Return a row for each title that README shows: of its cases the worst one, marked if it missed."""
    rows = [f"| what ({_machine(results)}) | asked | reached |", "|---|---|---|"]
    shown_ones = with_summary(results)
    for name in IN_README:
        found = [one for one in shown_ones if one["line"] == name and "reached" in one]
        for title in dict.fromkeys(one["title"] for one in found):
            worst = min((one for one in found if one["title"] == title), key=_slack)
            words = _sets(worst) if "losing" in worst else worst["case"]
            case = f" ({words})" if words else ""
            reached = shown_reached(worst) + (" (missed)" if worst.get("holds") is False else "")
            rows.append("| " + " | ".join(map(_cell, (title + case, worst["asked"], reached))) + " |")
    return "\n".join(rows) + "\n"


def _sets(summary: Result) -> str:
    """Return of the sets the names alone: the full table has the neighbours."""
    words = ["all but " + ", ".join(summary["losing"])] if summary["losing"] else []
    words += ["not compared: " + ", ".join(summary["absent"])] if summary["absent"] else []
    return "; ".join(words)


def _case(found: Result, results: Results) -> str:
    """Return the case, and the commit of a result that is of another one than the run began with."""
    commit = found.get("commit")
    other = f"commit {commit[:7]}" if commit and commit != results.header.get("commit") else ""
    return ", ".join(filter(None, [found["case"], other]))


def _slack(found: Result) -> float:
    # "≤ 1.1 ×" and "≥ 0.7": how many times better than asked; without a bound the first is as good as any.
    words = found["asked"].split()
    if len(words) < 2 or words[0] not in ("≤", "≥") or not found["reached"]:
        return 0.0
    asked = float(words[1].replace(",", "")) / (100 if found["unit"] == "%" else 1)
    return asked / found["reached"] if words[0] == "≤" else found["reached"] / asked


def _reached(found: Result) -> tuple[str, str, str]:
    if "reached" not in found:
        return f"– {found.get('skipped', '')}", "", ""
    unit = found["unit"]
    spread = f"{shown(found['low'])} to {shown(found['high'], unit)}" if "low" in found else ""
    if unit == "%" and "low" in found:
        spread = f"{shown(found['low'], unit)} to {shown(found['high'], unit)}"
    reached = shown_reached(found)
    if "error" in found:
        reached += f", error {found['error']:.4g}"
    if "log_loss" in found:
        reached += f", log loss {found['log_loss']:.4g}"
    return reached, spread, _WORDS[found.get("holds")]


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())


def _machine(results: Results) -> str:
    header = results.header
    machine = header.get("machine", {})
    words = [machine["processor"]] if "processor" in machine else []
    words += [machine["blas"]] if machine.get("blas") else []
    words += [f"{machine['cores']} cores"] if "cores" in machine else []
    words.append(header["date"])
    commits = [header.get("commit"), *(found.get("commit") for found in results.found)]
    of = [commit[:7] for commit in dict.fromkeys(commits) if commit]
    words += [f"commit{'s' * (len(of) > 1)} {', '.join(of)}"] if of else []
    return ", ".join(words)


def _of_what(results: Results) -> str:
    header = results.header
    versions = ", ".join(f"{name} {found}" for name, found in header.get("versions", {}).items())
    sizes = "" if header["scale"] >= 1 else f" At {header['scale']:g} of the rows: nothing is judged."
    return " ".join(filter(None, [f"{_machine(results)}.", f"{versions}." if versions else "", sizes]))


def write(results: Results, folder: Path) -> Path:
    """Write the full table and the picture beside the results."""
    path = folder / "table.md"
    _write(results, path)
    return path


def _write(results: Results, path: Path) -> None:
    path.write_text(full_table(results))
    if found := peers.ratios(results.found):
        picture.draw(found, path.with_name(PICTURE))


def publish(folder: Path) -> None:
    """Keep a full run in this checkout, and write README's table from it.

    Raises
    ------
    ValueError
        Where the run was not at full size, or lines of it are not done: its numbers are not those that
        README speaks of.
    """
    results = Results.read(folder / "results.jsonl")
    if results.header["scale"] < 1:
        raise ValueError(f"{folder} has a run at {results.header['scale']:g} of the rows; publish a full one")
    missing = [line.name for line in LINES if line.name not in results.done]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; go on with --resume")
    shutil.copyfile(folder / "results.jsonl", STORED)
    write_stored(Results.read(STORED))


def write_stored(results: Results) -> None:
    """Write README's table, `results.md` and its picture from the results that are kept."""
    _write(results, STORED_TABLE)
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}{readme_table(results)}{END}{after}")
