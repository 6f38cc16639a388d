"""How near a whole fit comes to what the rates of the machine allow, and where the rest goes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from distrff import KernelRidge, open_dataset
from distrff.cli.plan import cluster_rates, fit_limits
from tests.benchmarks import spine
from tests.benchmarks.book.lines import Line, Result, Setting, spread
from tests.benchmarks.measuring import workers, write_rows


def _where_time_goes(setting: Setting) -> Iterator[Result]:
    """Whole fits; the seconds of each part are what is counted by the rates measured on the same workers.

    What is left is waiting: for merges, for the scheduler, for the last segments, for the client.
    """
    n, features = setting.rows(500_000), spine.features_of_rows()
    features = features.set_params(n_components=setting.components(spine.N_COMPONENTS))
    cases = (("one penalty", 1.0), ("25 penalties and 5 folds", "cv"))
    with tempfile.TemporaryDirectory() as folder, workers():
        data = open_dataset(write_rows(Path(folder) / "rows.zarr", n, spine.N_COLUMNS))
        for case, alpha in cases:
            model = KernelRidge(features, alpha, random_state=0)
            plan = model.plan(data)
            model.fit(data)
            parts = fit_limits(plan, cluster_rates(data))["seconds"]
            reports = [model.fit(data).report_ for _ in range(setting.repeats(3))]
            limit, seconds = sum(parts.values()), [report["seconds"] for report in reports]
            waiting = max(0.0, spread(seconds)["reached"] - limit)
            yield {
                "case": case,
                "n_rows": n,
                **spread([limit / one for one in seconds]),
                "seconds": spread(seconds)["reached"],
                "parts": {**parts, "waiting": waiting},
                "phases": [list(phase) for phase in reports[0]["phases"]],
            }


LINES = (
    Line(
        "limit",
        "whole fits of 500,000 rows, D = 2048: share of what the rates allow",
        _where_time_goes,
        4,
        None,
        "",
    ),
)
