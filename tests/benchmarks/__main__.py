"""Benchmarks of what must be fast or small: `python -m tests.benchmarks [GROUP ...] [--only NAME]`.

`python -m tests.benchmarks book` runs the benchmark book instead; `book --help` says more.
`DISTRFF_DATA` names a folder of public files. `DISTRFF_TABLES` names a folder of Parquet files with the
columns `y` and `is_test`, which the group `peers` fits as well: numbers where `y` are floats, else classes.

Each prints one JSON object a line: its name, the figure reached, the figure asked for, and
the raw medians behind it. Ratios are of alternating runs on the same warm worker processes.
"""

import argparse
import json
import sys
import warnings

from tests.benchmarks import (
    chaos,
    checkpoints,
    convert,
    defaults,
    features,
    judging,
    losses,
    maps,
    object_store,
    overhead,
    plane,
)
from tests.benchmarks.book.command import main as book
from tests.benchmarks.book.maps import peers as peers_on_maps
from tests.benchmarks.book.peers import on_tables

GROUPS = {
    "losses": losses.BENCHMARKS,
    "features": features.BENCHMARKS,
    "defaults": defaults.BENCHMARKS,
    "plane": plane.BENCHMARKS,
    "maps": maps.BENCHMARKS | {"peers": peers_on_maps},
    "peers": {"tables": on_tables},
    "chaos": chaos.BENCHMARKS | checkpoints.BENCHMARKS,
    "overhead": overhead.BENCHMARKS,
    "judging": judging.BENCHMARKS,
    "ingest": convert.BENCHMARKS | object_store.BENCHMARKS,
}


def main() -> int:
    if sys.argv[1:2] == ["book"]:
        return book(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"among {', '.join(GROUPS)}; default all")
    parser.add_argument("--only", help="run benchmarks whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply row counts, to try them out")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group(s) {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    warnings.simplefilter("ignore")
    for group in arguments.groups or GROUPS:
        for name, benchmark in GROUPS[group].items():
            if arguments.only and arguments.only not in name:
                continue
            for result in benchmark(arguments.scale):
                print(json.dumps({"group": group, "name": name, **result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
