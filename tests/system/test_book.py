"""The benchmark book: its lines at a tiny scale, going on, failures, limits of time, tables and pictures."""

import json
import math
import signal
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.dummy import DummyClassifier
from sklearn.metrics import log_loss

from tests.benchmarks import spine
from tests.benchmarks.book import command, contestants, datasets, peers, scaling, sweeps, table
from tests.benchmarks.book.lines import Bound, Line, Setting
from tests.benchmarks.book.processes import Ended, results_of
from tests.benchmarks.book.running import LINES, Results, header, run
from tests.support.commands import is_running, wait_until

SKIPPED = ("kept_sweep", "mnist", "adult", "alpha_cv_before", "maps_heaton", "peers_energy")
# The rest is of the same kinds.
LAST = ("gram", "path", "alpha_cv", "time_by_rows", "limit", "svc", "maps_deviations")


@pytest.fixture
def in_one_process(monkeypatch, local_cluster):
    """Threads in the place of worker processes, which take seconds to start."""
    with local_cluster(2, processes=False) as cluster:

        @contextmanager
        def workers(n_workers=2):
            with Client(cluster) as client:
                yield client

        monkeypatch.setattr("distrff.cli.plan._ARITHMETIC_SECONDS", 0.02)
        monkeypatch.setattr("distrff.cli.plan._READING_SECONDS", 0.02)
        monkeypatch.setattr(sweeps, "_RATE_SECONDS", 0.02)
        monkeypatch.setattr(sweeps, "_READ_BYTES", 2**22)
        monkeypatch.setattr(spine, "N_COMPONENTS", 64)
        for module in [found for name, found in sys.modules.items() if name.startswith("tests.benchmarks.")]:
            if hasattr(module, "workers"):
                monkeypatch.setattr(module, "workers", workers)
        yield


def line(name, *found, asked=None):
    def cases(setting):
        for one in found:
            if isinstance(one, Exception):
                raise one
            yield one

    return Line(name, f"what {name} is", cases, 1.0, asked)


def begun(folder, scale=1.0):
    folder.mkdir(exist_ok=True)
    results = Results(folder / "results.jsonl")
    results.begin(header(scale))
    return results


@pytest.mark.parametrize(
    "name", [*SKIPPED, LAST[0], *(pytest.param(one, marks=pytest.mark.slow) for one in LAST[1:])]
)
def test_a_line_runs_or_says_what_it_lacks(name, in_one_process, monkeypatch, tmp_path):
    monkeypatch.delenv("DISTRFF_DATA", raising=False)
    (one,) = (one for one in LINES if one.name == name)
    results = begun(tmp_path, 0.0005)
    run([one], Setting(scale=0.0005), results, in_this_process=True)
    assert name in results.done, results.found
    for found in results.found:
        skipped = found.get("skipped", "")
        assert (name in SKIPPED) == bool(skipped) or math.isfinite(found["reached"])
        assert found.get("holds") is None  # nothing is judged at other sizes
    assert Results.read(results.path).found == json.loads(json.dumps(results.found))
    assert one.title in table.full_table(results)


def test_what_is_refused_or_only_estimated(tmp_path, capsys):
    begun(tmp_path, 0.5)
    for words, said in ((["--resume", "--full"], "is of scale 0.5"), ([], "--resume")):
        with pytest.raises(SystemExit):
            command.main([*words, "--out", str(tmp_path)])
        assert said in capsys.readouterr().err
    assert command.main(["--full", "--estimate", "--out", str(tmp_path / "out")]) == 0
    assert f"{len(LINES)} line(s) on all rows: about " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_fails_is_a_line_and_is_tried_again(tmp_path):
    results = begun(tmp_path)
    first = line("first", {"reached": 1.0}, ValueError("it is broken"))
    run([first, line("second", {"reached": 2.0})], Setting(), results, in_this_process=True)
    assert [found.get("skipped") for found in results.found] == [None, "ValueError: it is broken", None]
    results = Results.read(results.path)
    assert [found["line"] for found in results.found] == ["second"]  # the half of the first is dropped
    results.begin(header(1.0))
    mended = [line("first", {"reached": 3.0}), line("second", AssertionError("it is done"))]
    run(mended, Setting(), results, in_this_process=True)
    found = {found["line"]: found["reached"] for found in Results.read(results.path).found}
    assert found == {"first": 3.0, "second": 2.0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_a_run_leaves_what_was_found(number, tmp_path, monkeypatch, capsys):
    def interrupted(lines, setting, results, **options):
        if results.done:
            signal.raise_signal(number)
        run([line(lines[0].name, {"reached": 1.0})], setting, results, in_this_process=True)

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main(["--no-environments", "--out", str(tmp_path)]) == 130
    assert "--resume" in capsys.readouterr().err
    assert len(Results.read(tmp_path / "results.jsonl").done) == 1
    assert LINES[0].name in (tmp_path / "table.md").read_text()


SLEEPER = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"pids": [os.getpid(), child.pid]}), flush=True)
time.sleep(600)
"""


def test_a_program_that_takes_too_long_or_fails_ends_with_all_that_it_started():
    with pytest.raises(Ended, match="stopped after 1 s"):
        list(results_of((sys.executable, "-c", SLEEPER), 1.0))
    with pytest.raises(Ended, match="ZeroDivisionError"):
        list(results_of((sys.executable, "-c", "1 / 0"), 60.0))
    results = results_of((sys.executable, "-c", SLEEPER), 60.0)
    found = next(results)
    results.close()  # as a Ctrl-C does
    wait_until(lambda: not any(is_running(pid) for pid in found["pids"]))


def test_tables_and_pictures_and_only_a_full_run_becomes_the_table_of_readme(tmp_path, monkeypatch):
    growth = {"axis": "rows", **scaling._exponents([10, 20, 40], [[1, 2, 4], [1, 2, 4.1]])}
    lines = [
        line("gram", {"case": "float32", "reached": 1.05}, {"case": "float64", "reached": 1.2},
             asked=Bound(high=1.12)),
        line("light", {"case": "kept | so", "skipped": "it cannot"}),
        line("path", {"case": "later", "reached": 1.0, "commit": "f" * 40}),
        line("time_by_rows", growth, asked=Bound(0.95, 1.05)),
    ]  # fmt: skip
    results = begun(tmp_path / "run")
    run(lines, Setting(), results, in_this_process=True)
    full, short = table.full_table(results), table.readme_table(results)
    for row in ("| what gram is | float64 | ≤ 1.12 × | 1.2 × |  | no |", "| kept / so |  | – it cannot |"):
        assert row in full
    assert "| later, commit fffffff |" in full
    assert "| what gram is (float64) | ≤ 1.12 × | 1.2 × (missed) |" in short  # the worst case
    assert "it cannot" not in short
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}old\n{table.END}\nafter\n")
    for name, path in (
        ("README", readme),
        ("STORED", tmp_path / "s.jsonl"),
        ("STORED_TABLE", tmp_path / "s.md"),
    ):
        monkeypatch.setattr(table, name, path)
    begun(tmp_path / "short", 0.1)
    for folder, why in (("short", "publish a full one"), ("run", "lacks")):
        with pytest.raises(ValueError, match=why):
            table.publish(tmp_path / folder)
    others = [line(one.name, {"reached": 1.0}) for one in LINES if one.name not in results.done]
    run(others, Setting(), results, in_this_process=True)
    table.publish(tmp_path / "run")
    before, _, after = readme.read_text().partition(table.readme_table(results))
    assert (before, after) == (f"before\n{table.BEGIN}", f"{table.END}\nafter\n")
    assert (tmp_path / "s.md").read_text() == table.full_table(
        Results.read(tmp_path / "run" / "results.jsonl")
    )


def fit(of, peer, error, seconds, **more):
    shared = {"case": f"{of}, {peer}", "set": of, "task": "numbers", "least_error": 0.005, "unit": "s"}
    return {**shared, "peer": peer, "error": error, "reached": seconds, **more}


def test_peers_are_compared_on_the_sets_that_both_have_fitted(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "TABLES", [datasets.NamedSet(name, "numbers", None) for name in "ab"])
    found = [
        *(fit("a", peers.OURS, 0.0, 2.0), fit("a", "catboost", 0.01, 4.0)),  # an error of 0 is half a row
        *(fit("b", peers.OURS, 0.2, 4.0), fit("b", "catboost", 0.1, 2.0), fit("b", "xrfm", 0.199, 4.0)),
        fit("b", peers.WITH_PROBABILITIES, 0.2, 9.0, log_loss=0.3),
        {"case": "b, LightGBM", "set": "b", "peer": "lightgbm", "skipped": "not installed: no"},
    ]
    catboost, xrfm = peers.ratios(found).values()
    assert [(one.error, one.seconds) for one in catboost] == [(0.5, 0.5), (2.0, 2.0)]
    assert [one.log_loss for one in (*catboost, *xrfm)] == [None] * 3
    results = begun(tmp_path)
    run([line("peers_a", *found[:2]), line("peers_b", *found[2:])], Setting(), results, in_this_process=True)
    full = table.write(results, tmp_path).read_text()
    for row in (
        "| our error over CatBoost's: geometric mean | sets: 1 better, 0 within 1 %, 1 worse | ≤ 0.7 × | 1 ×",
        "| our seconds over CatBoost's: geometric mean |  | ≤ 1.8 × | 1 × |  | yes |",
        "| sets on which our error is over 1 % above CatBoost's |  | ≤ 20.00 % | 50.00 % |  | no |",
        "| our error over xRFM's: geometric mean | sets: 0 better, 1 within 1 %, 0 worse |  | 1.01 × |",
        f"]({table.PICTURE})",
    ):
        assert row in full
    assert "CatBoost" in (tmp_path / table.PICTURE).read_text()
    assert all(one["holds"] is None for one in peers.summary(found[:2], Setting()) if "holds" in one)


def test_tables_of_the_user_are_fitted_and_those_that_are_none_say_why(tmp_path, monkeypatch):
    columns = {"x": [0.5, 1, 2, 4, 8], "word": ["a", "b", None, "a", "b"], "is_test": [0, 0, 0, 1, 1]}
    rows = pd.DataFrame(columns)
    rows.assign(y=[0.0, 1.0, 2.0, 3.0, 4.0]).to_parquet(tmp_path / "numbers.parquet")
    rows.assign(y=["u", "v", "v", "u", "v"]).to_parquet(tmp_path / "classes.parquet")
    rows.to_parquet(tmp_path / "without.parquet")
    monkeypatch.setenv(datasets.TABLES_OF_USER, str(tmp_path))
    monkeypatch.setattr(peers, "TABLES", ())
    monkeypatch.setattr(peers, "prepared", lambda names, cache: {})
    monkeypatch.setattr(peers, "run_contestant", lambda name, *rest: {"seconds": 2.0, "error": 0.5})
    classes, numbers = (one.rows(1.0) for one in datasets.tables_of_user()[:2])
    assert (classes.task, sorted(classes.y)) == ("classes", [0, 1])
    assert (numbers.task, sorted(numbers.y)) == ("numbers", [0.0, 1.0])
    assert sorted(numbers.X.tolist()) == [[0.5, 1, 0], [1, 0, 1]]  # the row without a word is left out
    found = list(peers.on_tables(1.0))
    fits = [(one["set"], one["peer"]) for one in found if "set" in one and "peer" in one]
    n = len(contestants.ON_TABLES)
    assert len(fits) == 2 * n - 1 and ("numbers", peers.WITH_PROBABILITIES) not in fits
    assert [one["set"] for one in found if "skipped" in one] == ["without"]
    (error,) = (one for one in found if one.get("title", "").startswith("our error over CatBoost's"))
    assert error["reached"] == 1.0 and error["asked"] == "≤ 0.7 ×"


def test_models_are_judged_by_errors_and_by_log_loss():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), rng.integers(0, 3, 60)
    rows = contestants.Rows(X[:40], y[:40], X[40:], y[40:], "classes")
    model = DummyClassifier(strategy="prior").fit(rows.X, rows.y)
    found = contestants._errors(model, rows)
    assert found["error"] == 1 - model.score(rows.X_test, rows.y_test)
    assert found["log_loss"] == pytest.approx(log_loss(rows.y_test, model.predict_proba(rows.X_test)))
    lacking = DummyClassifier(strategy="prior").fit(rows.X[rows.y > 0], rows.y[rows.y > 0])
    assert np.isfinite(contestants._errors(lacking, rows)["log_loss"])


@pytest.mark.slow
def test_peers_without_an_environment_say_so(monkeypatch):
    (named,) = (one for one in peers.TABLES if one.name == "breast_cancer")
    found = {one["peer"]: one for one in peers._fits(named, Setting(scale=0.0005))}
    assert found[peers.OURS]["reached"] > 0 and found[peers.OURS]["error"] < 0.2
    assert found[peers.WITH_PROBABILITIES]["log_loss"] < 1
    assert {one.get("skipped") for name, one in found.items() if name in peers.PEERS} == {
        "its environment was not asked for"
    }
