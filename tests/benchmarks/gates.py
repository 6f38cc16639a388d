"""The gates of a change that must keep what the product does: `python -m tests.benchmarks.gates`.

On the code before the change: `gates --out BEFORE.json`; after it, on the same computer: `gates --out
AFTER.json --against BEFORE.json`. It runs the fingerprints (the exit code is 1 if a bit differs), the default
fit of each set of `tests.benchmarks defaults` with its test error, and the median seconds of what a change
must not make slower, and prints the table of the house. `--only fingerprints defaults medians house` chooses
among them: the defaults take half an hour. `DISTRFF_DATA` names the folder of the public files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import defaults
from tests.support import house


def fingerprints(before: dict[str, Any]) -> dict[str, Any]:
    return _of_script("fingerprint", before)


def medians(before: dict[str, Any]) -> dict[str, Any]:
    found = _of_script("fingerprint", {}, "--medians", "3")["medians"]
    then = before.get("medians", {})
    return {
        name: {"seconds": s, "ratio": s / then[name]["seconds"] if name in then else None}
        for name, s in found.items()
    }


def _of_script(name: str, before: dict[str, Any], *options: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out, against = Path(folder) / "out.json", Path(folder) / "before.json"
        if before:
            against.write_text(json.dumps(before["fingerprints"]))
            options += ("--against", str(against))
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--out", str(out), *options]
        subprocess.run(command, check=False)
        return json.loads(out.read_text())


def default_fits(before: dict[str, Any]) -> dict[str, Any]:
    """Test errors by default, and over those before the change; asked: 1.02, or one standard error."""
    then = before.get("defaults", {})
    found = {}
    for line in defaults.by_default(1.0):
        name = line["set"]
        if "default" in line and "default" in then.get(name, {}):
            line["ratio"] = line["default"] / then[name]["default"]
        found[name] = line
        print(json.dumps(line), flush=True)
    return found


def house_numbers(before: dict[str, Any]) -> dict[str, Any]:
    return house.numbers()


GATES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "house": house_numbers,
    "fingerprints": fingerprints,
    "medians": medians,
    "defaults": default_fits,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gates", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GATES, default=list(GATES))
    parser.add_argument("--out", help="write what was found there")
    parser.add_argument("--against", help="compare with what an earlier run wrote")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    before = json.loads(Path(arguments.against).read_text()) if arguments.against else {}
    found = {name: GATES[name](before) for name in arguments.only}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(found, indent=1, sort_keys=True))
    for name in ("house", "medians"):
        for key, value in found.get(name, {}).items():
            print(f"{key}: {value}", *([f"(before: {before[name].get(key)})"] if name in before else []))
    same = found.get("fingerprints") == before.get("fingerprints", found.get("fingerprints"))
    return int(bool(before) and "fingerprints" in found and not same)


if __name__ == "__main__":
    sys.exit(main())
