"""Maps with gaps: our default beside published methods, the true kernel, settings by hand, and neighbours."""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks import maps
from tests.benchmarks.book.contestants import ON_MAPS, Rows
from tests.benchmarks.book.environments import default_cache, prepared
from tests.benchmarks.book.lines import Bound, Line, Result, Setting, spread
from tests.benchmarks.book.races import run_contestant

_PEER_ROWS, _MOST_SECONDS = (10_000, 50_000), 900.0
_ENVIRONMENTS = tuple({one.environment: None for one in ON_MAPS.values() if one.environment != "here"})
_SATELLITE = "satellite image under clouds, 105,569 cells"
_COVERED = Bound(0.93, 0.97)


def _heaton(setting: Setting) -> Iterator[Result]:
    *seeds, _ = found = list(maps.heaton(setting.scale))
    if not seeds:
        yield _left_out(found)
        return
    for name, said, unit in (
        ("mae", "mean absolute error in 42,740 others (best published: 1.10)", ""),
        ("rmse", "RMSE (best published: 1.53)", ""),
        ("crps", "CRPS (best published: 0.83)", ""),
        ("is95", "interval score of 95 % (best published: 7.44)", ""),
        ("coverage", "share within intervals of 95 %", "%"),
        ("seconds", "fit, predictions, deviations and intervals", "s"),
    ):
        asked = maps.ASKED_OF_SATELLITE[name]
        bound = _COVERED if name == "coverage" else Bound(high=asked)
        found_of = spread([one[name] for one in seeds])
        yield {"title": f"{_SATELLITE}: {said}", "asked": bound, "unit": unit, **found_of}


def _left_out(found: Sequence[Result]) -> Result:
    return {"skipped": found[-1]["left_out"]}


def _made(setting: Setting) -> Iterator[Result]:
    for mean in (one for one in maps.made(setting.scale) if "seeds" in one):
        low, high = mean["spread"]
        yield {"case": mean["field"], "reached": mean["ratio"], "low": low, "high": high}
        yield {
            "title": "the same: share of the gaps within intervals of 95 %",
            "case": f"{mean['field']}; the true kernel's: {100 * mean['true_coverage']:.2f} %",
            "reached": mean["coverage"],
            "asked": _COVERED,
            "unit": "%",
        }


def _discs(setting: Setting) -> Iterator[Result]:
    found = list(maps.discs(setting.scale))
    if "left_out" in found[-1]:
        yield _left_out(found)
        return
    whole, *_, compared = found
    yield {"reached": compared["ratio"], "case": f"two fifths; RMSE by hand {compared['best_by_hand']:.3g} m"}
    yield {
        "title": "the same: share of the discs within intervals of 95 %",
        "case": f"all; RMSE {whole['rmse']:.3g} m",
        "reached": whole["coverage"],
        "asked": _COVERED,
        "unit": "%",
    }


def _deviations(setting: Setting) -> Iterator[Result]:
    for one in maps.deviations(setting.scale):
        case = f"{one['field']}, alpha {one['alpha']:g}, {one['places']}"
        for name, said in (("rms", "root mean square"), ("percentile_99", "99 % are within")):
            bound = Bound(high=maps.ASKED_OF_RATIOS[name])
            yield {"case": f"{case}: {said}", "reached": one[name], "asked": bound}


def _speed(setting: Setting) -> Iterator[Result]:
    for one in maps.speed(setting.scale):
        if "left_out" in one:
            yield {"case": "raster of terrain", "skipped": one["left_out"]}
            continue
        size = f"{one['n_places']:,} places" if "n_places" in one else f"raster of {one['cells']:,} cells"
        case = f"{size}, {one['features']:,} features"
        yield {"case": case, "reached": one["seconds"], "asked": Bound(high=one["asked"])}


def _peers(setting: Setting) -> Iterator[Result]:
    """Fit some cells of the satellite image, and predict those under clouds: seconds, and RMSE in degrees."""
    if reason := maps.missing(maps.SATELLITE):
        yield {"skipped": reason}
        return
    X, y, X_gaps, y_gaps = maps.satellite()
    with tempfile.TemporaryDirectory() as folder:
        for n in map(setting.rows, _PEER_ROWS):
            some = np.random.default_rng(0).permutation(len(X))[:n]
            path = Path(folder) / f"{n}.npz"
            np.savez(path, **dataclasses.asdict(Rows(X[some], y[some], X_gaps, y_gaps, "numbers")))
            for name, contestant in ON_MAPS.items():
                found = run_contestant(name, path, setting, _MOST_SECONDS)
                case = f"{n:,} cells, {contestant.title}"
                if "skipped" in found:
                    yield {"case": case, **found}
                    continue
                seconds = found.pop("seconds")
                found["error"] *= float(np.std(y_gaps))
                yield {"case": case, "reached": seconds, **found}


def peers(scale: float) -> Iterator[Result]:
    """Yield seconds and errors of our default and of neighbours, each in an environment of its own."""
    yield from _peers(Setting(scale, places=prepared(_ENVIRONMENTS, default_cache())))


LINES = (
    Line("maps_heaton", _SATELLITE, _heaton, 12),
    Line("maps_made", "made fields, gaps: error there, of the true kernel's", _made, 40, Bound(high=1.03)),
    Line(
        "maps_discs",
        "terrain with discs cut out: error there, of that of the best of 20 settings by hand",
        _discs,
        30,
        Bound(high=1.05),
    ),
    Line(
        "maps_deviations",
        "standard deviations of 3,000 rows: error of their ratio to exact ones",
        _deviations,
        5,
        unit="%",
    ),
    Line("maps_speed", "standard deviations of a map", _speed, 6, unit="s"),
    Line(
        "maps_peers",
        "some of the satellite image: our default and its neighbours",
        _peers,
        30,
        unit="s",
        environments=_ENVIRONMENTS,
    ),
)
