"""The benchmark book: its lines at a tiny scale, going on, failures, limits of time, tables and pictures."""

import json
import math
import signal
import sys
from contextlib import contextmanager

import pytest
from distributed import Client

from tests.benchmarks import spine
from tests.benchmarks.book import command, scaling, sweeps, table
from tests.benchmarks.book.lines import Bound, Line, Setting
from tests.benchmarks.book.processes import Ended, results_of
from tests.benchmarks.book.running import LINES, Results, header, run
from tests.support.commands import is_running, wait_until

SKIPPED = ("kept_sweep", "mnist", "adult", "alpha_cv_before", "maps_heaton")
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
