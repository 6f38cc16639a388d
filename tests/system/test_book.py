"""The benchmark book: its lines at a tiny scale, going on, failures, limits of time, tables and pictures."""

from __future__ import annotations

import json
import math
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

from distrff.cli import plan as bench
from tests.benchmarks import spine
from tests.benchmarks.book import against_baseline, command, limits, pictures, scaling, sweeps, table
from tests.benchmarks.book.contestants import CONTESTANTS, Rows
from tests.benchmarks.book.lines import Bound, Line, Setting
from tests.benchmarks.book.processes import Ended, results_of
from tests.benchmarks.book.running import LINES, Results, header, run
from tests.support.commands import is_running, wait_until

HERE, ON_WORKERS = ("svc", "path"), ("gram", "alpha_cv", "time_by_rows", "limit")
SKIPPED = ("kept_sweep", "mnist", "adult", "alpha_cv_before")


@pytest.fixture
def in_one_process(monkeypatch):
    """Threads in the place of worker processes, which take seconds to start."""
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:

        @contextmanager
        def workers(n_workers=2):
            with Client(cluster) as client:
                yield client

        monkeypatch.setattr(bench, "_ARITHMETIC_SECONDS", 0.02)
        monkeypatch.setattr(bench, "_READING_SECONDS", 0.02)
        monkeypatch.setattr(sweeps, "_RATE_SECONDS", 0.02)
        monkeypatch.setattr(sweeps, "_READ_BYTES", 2**22)
        monkeypatch.setattr(spine, "N_COMPONENTS", 64)
        spine.ready_tile.cache_clear()
        for module in (sweeps, against_baseline, scaling, limits, spine):
            monkeypatch.setattr(module, "workers", workers)
        yield
        spine.ready_tile.cache_clear()


def line(name, *found, asked=None):
    def cases(setting):
        for one in found:
            if isinstance(one, Exception):
                raise one
            yield one

    return Line(name, f"what {name} is", cases, 1.0, asked)


def begun(tmp_path, scale=1.0):
    results = Results(tmp_path / "results.jsonl")
    results.begin(header(scale))
    return results


@pytest.mark.parametrize("name", [*HERE, *ON_WORKERS, *SKIPPED])
def test_a_line_runs_or_says_what_it_lacks(name, in_one_process, monkeypatch, tmp_path):
    monkeypatch.delenv("DISTRFF_DATA", raising=False)
    (one,) = (one for one in LINES if one.name == name)
    results = begun(tmp_path, 0.0005)
    run([one], Setting(scale=0.0005), results, in_this_process=True)
    assert name in results.done, results.found
    for found in results.found:
        skipped = found.get("skipped", "")
        assert (name in SKIPPED) == bool(skipped) or math.isfinite(found["reached"])
        assert not skipped or any(why in skipped for why in ("DISTRFF_DATA", "environment", "keep_features"))
        assert found.get("holds") is None  # nothing is judged at other sizes
    assert Results.read(results.path).found == json.loads(json.dumps(results.found))
    assert one.title in table.full_table(results)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--estimate", "--scale=nan"], "needs a number above 0 and at most 1, got 'nan'"),
        (["--resume", "--full"], "is of scale 0.5"),
        ([], "--resume"),
    ],
)
def test_what_is_refused(words, said, tmp_path, capsys):
    begun(tmp_path, 0.5)
    with pytest.raises(SystemExit):
        command.main([*words, "--out", str(tmp_path)])
    assert said in capsys.readouterr().err


def test_it_states_how_long_it_takes_and_runs_nothing(tmp_path, capsys):
    assert command.main(["--full", "--estimate", "--out", str(tmp_path / "out")]) == 0
    assert f"{len(LINES)} line(s) on all rows: about " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_fails_is_a_line_and_is_tried_again(tmp_path):
    results = begun(tmp_path)
    first = line("first", {"reached": 1.0}, ValueError("it is broken"))
    run([first, line("second", {"reached": 2.0})], Setting(), results, in_this_process=True)
    assert [found.get("skipped") for found in results.found] == [None, "ValueError: it is broken", None]
    assert list(results.done) == ["second"]
    results = Results.read(results.path)
    assert [found["line"] for found in results.found] == ["second"]  # the half of the first is dropped
    results.begin(header(1.0))
    mended = [line("first", {"reached": 3.0}), line("second", AssertionError("it is done"))]
    run(mended, Setting(), results, in_this_process=True)
    assert {found["line"]: found["reached"] for found in Results.read(results.path).found} == {
        "first": 3.0,
        "second": 2.0,
    }


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
import json, os, subprocess, sys, tempfile, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"pids": [os.getpid(), child.pid], "folder": tempfile.mkdtemp()}), flush=True)
time.sleep(600)
"""


def test_a_program_that_takes_too_long_or_fails_ends_with_all_that_it_started():
    with pytest.raises(Ended, match="stopped after 2 s"):
        list(results_of((sys.executable, "-c", SLEEPER), 2.0))
    with pytest.raises(Ended, match="ZeroDivisionError"):
        list(results_of((sys.executable, "-c", "1 / 0"), 60.0))
    results = results_of((sys.executable, "-c", SLEEPER), 60.0)
    found = next(results)
    results.close()  # as a Ctrl-C does
    wait_until(lambda: not any(is_running(pid) for pid in found["pids"]))
    assert not Path(found["folder"]).exists()


@pytest.mark.parametrize("name", [name for name, one in CONTESTANTS.items() if one.environment == "here"])
def test_a_contestant_learns(name, rng):
    X = rng.standard_normal((400, 3)).astype(np.float32)
    y = np.digitize(X[:, 0] + 0.1 * rng.standard_normal(400), [-0.5, 0.5])
    given = Rows(X[:300], y[:300], X[300:], y[300:], "classes", n_components=64)
    with threadpool_limits(1):  # threads that wait for each other take seconds on cores that others use
        assert given.error(np.asarray(CONTESTANTS[name].solve(given))) < 0.5


def raced(name, contestant, seconds, error):
    return {
        **{"case": f"{name}, {contestant}", "set": name, "contestant": contestant, "asked": None},
        **{"unit": "s", "reached": seconds, "low": seconds, "high": seconds, "error": error},
    }


def test_tables_and_pictures(tmp_path):
    results = begun(tmp_path)
    results.header["commit"] = "0" * 40
    growth = {"axis": "rows", **scaling._exponents([10, 20, 40], [[1, 2, 4], [1, 2, 4.1]])}
    lines = [
        line("gram", {"case": "float32", "reached": 1.05}, {"case": "float64", "reached": 1.2},
             asked=Bound(high=1.12)),
        line("light", {"case": "kept | so", "skipped": "it cannot"}),
        line("path", {"case": "later", "reached": 1.0, "commit": "f" * 40}),
        line("time_by_rows", growth, asked=Bound(0.95, 1.05)),
        line("limit", {"case": "ridge", "reached": 0.8, "parts": {"products": 2.0, "waiting": 0.5}}),
        line("set_a", raced("a", "distrff", 2.0, 0.1), raced("a", "xgpr", 1.0, 0.05),
             {"case": "a: verdict", "set": "a", "reached": 1, "better": ["xGPR"]}),
    ]  # fmt: skip
    run(lines, Setting(), results, in_this_process=True)
    full = table.full_table(results)
    assert "| what gram is | float64 | ≤ 1.12 × | 1.2 × |  | no |" in full
    assert "| kept / so |  | – it cannot |" in full
    assert "| later, commit fffffff |" in full
    assert "commits 0000000, fffffff." in full.splitlines()[0]
    assert "not a: xGPR" in full
    short = table.readme_table(results)
    assert "| what gram is (float64) | ≤ 1.12 × | 1.2 × |" in short  # the worst case
    assert "it cannot" not in short
    assert len({text.count("|") for text in short.splitlines()}) == 1
    drawn = pictures.draw(results.found, tmp_path)
    assert [path.name for path in drawn] == ["set_a.svg", "growth.svg", "limit.svg"]
    assert "exponent 1." in drawn[1].read_text() or drawn[1].stat().st_size > 5000
    assert "![growth](growth.svg)" in table.write(results, tmp_path, drawn).read_text()


def test_only_a_full_run_becomes_the_table_of_readme(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}old\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "README", readme)
    monkeypatch.setattr(table, "STORED", tmp_path / "stored.jsonl")
    monkeypatch.setattr(table, "STORED_TABLE", tmp_path / "stored.md")
    folder = tmp_path / "run"
    folder.mkdir()
    results = begun(folder, 0.1)
    with pytest.raises(ValueError, match="publish a full one"):
        table.publish(folder)
    results = begun(folder)
    run([line("gram", {"reached": 1.05})], Setting(), results, in_this_process=True)
    with pytest.raises(ValueError, match="lacks light"):
        table.publish(folder)
    others = [line(one.name, {"reached": 1.0}) for one in LINES if one.name != "gram"]
    run(others, Setting(), results, in_this_process=True)
    table.publish(folder)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "what gram is" in text
    assert "old" not in text
    stored = (tmp_path / "stored.md").read_text()
    in_order = [stored.index(f"| what {one.name} is |") for one in LINES]
    assert in_order == sorted(in_order)
    assert stored == table.full_table(Results.read(folder / "results.jsonl"))
