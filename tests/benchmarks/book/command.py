"""`python -m tests.benchmarks book`: what is run, for how long, and what is left when it ends."""

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.book import table
from tests.benchmarks.book.environments import default_cache, is_made, prepared
from tests.benchmarks.book.lines import Line, Setting, shown_reached
from tests.benchmarks.book.running import LINES, Results, estimate, header, machine_factor, run

_SHORT_SCALE = 0.1
_DATA = "DISTRFF_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says, and return the exit code: 1 where a line does not hold or failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.publish is not None:
        try:
            table.publish(options.publish)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        return 0
    lines = chosen(options.only)
    if not lines:
        parser.error(
            f"no line's name contains {options.only!r}; there are {', '.join(one.name for one in LINES)}"
        )
    if options.list:
        for line in lines:
            print(f"{line.name:18s} {line.title}")
        return 0
    scale = 1.0 if options.full else options.scale
    stored = options.out / "results.jsonl"
    results = Results(stored)
    if stored.is_file():
        if not options.resume:
            parser.error(f"{stored} is there; go on with --resume, or take another --out")
        try:
            results = Results.read(stored)
        except ValueError as error:
            parser.error(str(error))
        if results.header["scale"] != scale:
            parser.error(f"{stored} is of scale {results.header['scale']:g}, this run of {scale:g}")
        if results.header["machine"] != header(scale)["machine"]:
            parser.error(f"{stored} is of another machine: {results.header['machine']}")
    return _run([line for line in lines if line.name not in results.done], scale, results, options)


def _run(lines: Sequence[Line], scale: float, results: Results, options: argparse.Namespace) -> int:
    data = os.environ.get(_DATA, "")
    wanted = list(dict.fromkeys(name for line in lines for name in line.environments))
    if options.no_environments:
        wanted = []
    factor = machine_factor()
    new = sum(not is_made(name, options.cache) for name in wanted)
    minutes = estimate(lines, scale, factor, new)
    print(
        f"{len(lines)} line(s) on {'all' if scale >= 1 else f'{scale:g} of the'} rows: about {minutes:.0f} "
        f"minute(s) here (a core is now {1 / factor:.2g} times as fast as the one that they are stated for)",
        file=sys.stderr,
        flush=True,
    )
    if options.estimate:
        return 0
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        results.begin(header(scale))
    except OSError as error:
        print(f"error: nothing can be written to --out {options.out}: {error}", file=sys.stderr)
        return 2
    interrupted = False
    # A batch system ends a job so: what was found is to be written, and the programs are to end.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        setting = Setting(scale, data, prepared(wanted, options.cache))
        for line in lines:
            n = len(results.found)
            print(f"{line.name} …", file=sys.stderr, flush=True)
            run([line], setting, results, factor=factor)
            for found in results.found[n:]:
                print(_said(found), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        signal.signal(signal.SIGTERM, before)
    written = table.write(results, options.out)
    if interrupted:
        print(f"interrupted; what was found is in {written}, go on with --resume", file=sys.stderr)
        return 130
    print(f"{written}", file=sys.stderr)
    is_short = any(found.get("holds") is False for found in table.with_summary(results))
    return int(is_short or any(line.name not in results.done for line in lines))


def chosen(part: str | None) -> list[Line]:
    """Return the line of this name, or those whose name contains it; all without one."""
    same = [line for line in LINES if line.name == part]
    return same or [line for line in LINES if part is None or part in line.name]


def _said(found: dict) -> str:
    case = f" ({found['case']})" if found["case"] else ""
    reached = shown_reached(found) if "reached" in found else f"– {found['skipped']}"
    asked = f", asked {found['asked']}" if found["asked"] else ""
    return f"  {found['title']}{case}: {reached}{asked}"


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"needs a number above 0 and at most 1, got {text!r}")
    return share


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks book", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all rows; else --scale")
    parser.add_argument("--scale", type=_share, default=_SHORT_SCALE, help="share of the rows, default 0.1")
    parser.add_argument("--only", metavar="NAME", help="the line of this name, or those that contain it")
    parser.add_argument("--list", action="store_true", help="name the lines, and run nothing")
    parser.add_argument("--estimate", action="store_true", help="say how long it takes, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("benchmark-book"), metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="pass over lines that FOLDER has")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder that keeps environments")
    parser.add_argument("--no-environments", action="store_true", help="leave out who needs one")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="make a full run README's table")
    return parser
