"""Deaths at seeded moments: the fits end, with the bits of a fit that nothing disturbs."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.chaos import PROBLEMS, arena, chaos_run, quiet_run

RUNS = 200


def chaos(scale: float) -> Iterator[dict[str, Any]]:
    """Runs of real processes that are killed, stopped and starved; asked: all with the quiet bits."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    same = clients = flaky = undisturbed = 0
    deaths: Counter[str] = Counter()
    n_runs, problems, slowest = max(1, round(RUNS * scale)), list(PROBLEMS), 0.0
    others = []
    with tempfile.TemporaryDirectory() as folder, arena(Path(folder)) as processes:
        quiet = {name: quiet_run(processes, name) for name in problems}
        for seed in range(n_runs):
            name = problems[seed % len(problems)]
            digest, seconds = quiet[name]
            try:
                run = chaos_run(processes, name, seed, seconds)
            except AssertionError as error:
                others.append(str(error))
                processes.close()
                continue
            print(
                f"{seed:3d} {name:10s} {run['seconds']:5.1f} s  {', '.join(run['deaths'])}", file=sys.stderr
            )
            if run["digest"] == digest:
                same += 1
            else:
                others.append(f"seed {seed}, {name}: other bits after {run['deaths']}")
            deaths.update(run["deaths"])
            undisturbed += not run["deaths"]
            clients, flaky, slowest = (
                clients + run["clients"],
                flaky + run["flaky"],
                max(slowest, run["seconds"]),
            )
    yield {
        "figure": same, "asked": n_runs, "deaths": dict(deaths), "clients started": clients,
        "runs that ended before a death": undisturbed,
        "runs that read from a failing store": flaky, "slowest run, s": slowest, "others": others,
    }  # fmt: skip


BENCHMARKS = {"chaos": chaos}
