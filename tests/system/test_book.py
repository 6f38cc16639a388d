"""The benchmark book: tiny runs of its lines, its estimate, going on, failures, tables and pictures."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

from distrff.cli import bench
from tests.benchmarks import spine
from tests.benchmarks.book import (
    against_baseline,
    command,
    environments,
    limits,
    pictures,
    races,
    scaling,
    sweeps,
    table,
)
from tests.benchmarks.book.contestants import CONTESTANTS, Rows
from tests.benchmarks.book.datasets import SETS
from tests.benchmarks.book.environments import Environment, Place, prepared
from tests.benchmarks.book.lines import Bound, Line, Setting, shown, shown_reached, spread
from tests.benchmarks.book.processes import Ended, TookTooLong, result_and_peak, results_of
from tests.benchmarks.book.running import LINES, Results, estimate, header, minutes_of, run
from tests.support.commands import is_running, wait_until

TINY = Setting(scale=0.0005)
HERE = ("ridge_cv", "one_alpha", "svc", "path", "adult", "cpu")
ON_WORKERS = ("gram", "light", "alpha_cv", "time_by_rows", "time_by_features", "limit")
SKIPPED = ("kept_sweep", "mnist", "kin40k", "alpha_cv_before", "set_a9a")


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    """Sets of files are not there, so that the tests are the same everywhere."""
    monkeypatch.delenv("DISTRFF_DATA", raising=False)


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


def line(name, *found, minutes=1.0, asked=None):
    def cases(setting):
        for one in found:
            if isinstance(one, Exception):
                raise one
            yield one

    return Line(name, f"what {name} is", cases, minutes, asked)


@pytest.mark.parametrize("name", ON_WORKERS)
def test_a_line_on_workers_runs(name, in_one_process, tmp_path):
    assert any("reached" in found for found in check(name, tmp_path))


@pytest.mark.parametrize("name", HERE[:4])
def test_a_line_without_workers_runs(name, tmp_path):
    assert all("reached" in found for found in check(name, tmp_path))


@pytest.mark.parametrize("name", [*SKIPPED, *HERE[4:]])
def test_a_line_says_what_it_lacks(name, tmp_path):
    reasons = [found["skipped"] for found in check(name, tmp_path)]
    assert all("DISTRFF_DATA" in why or "environment" in why or "keep_features" in why for why in reasons)


def check(name, tmp_path):
    (one,) = (one for one in LINES if one.name == name)
    results = begun(tmp_path, TINY.scale)
    run([one], TINY, results, in_this_process=True)
    assert name in results.done, results.found
    assert results.found
    for found in results.found:
        assert found.get("skipped") or math.isfinite(found["reached"])
        assert found.get("holds") is None  # nothing is judged at other sizes
        if "low" in found:
            assert found["low"] <= found["high"]
    assert Results.read(results.path).found == json.loads(json.dumps(results.found))
    assert one.title in table.full_table(results)
    return results.found


def begun(tmp_path, scale=1.0):
    results = Results(tmp_path / "results.jsonl")
    results.begin(header(scale))
    return results


def test_names_are_told_apart_and_every_line_has_minutes():
    assert len({one.name for one in LINES}) == len(LINES)
    assert len([one for one in LINES if one.name.startswith(races.PREFIX)]) == len(SETS) == 12
    assert all(one.minutes > 0 for one in LINES)
    assert set(table.IN_README) <= {one.name for one in LINES} | {races.SUMMARY.name}
    known = {*environments.NEIGHBOURS, "baseline"}
    assert {name for one in LINES for name in one.environments} <= known
    assert {one.environment for one in CONTESTANTS.values()} <= known | {"here"}


def test_lines_are_chosen_by_name():
    assert [one.name for one in command.chosen("kin40k")] == ["kin40k"]
    assert [one.name for one in command.chosen("_kin40k")] == ["set_kin40k"]
    assert command.chosen(None) == list(LINES)
    assert not command.chosen("there is no such line")


def test_bounds_and_numbers_in_words():
    assert Bound(high=1.1).text("×") == "≤ 1.1 ×"
    assert Bound(low=0.95, high=1.05).text("") == "0.95 to 1.05"
    assert not Bound(high=1.1).holds(1.2)
    assert Bound(low=0.95, high=1.05).holds(1.0)
    assert (shown(0.1497, "%"), shown(12345.6, "s"), shown(0.08634)) == ("14.97 %", "12,346 s", "0.0863")
    missed = {"unit": "×", "asked": "≤ 1.1 ×", "holds": False}
    assert [shown_reached(missed | {"reached": x}) for x in (1.1034, 1.2)] == ["1.1034 ×", "1.2 ×"]
    assert spread([3.0, 1.0, 2.0]) == {"reached": 2.0, "low": 1.0, "high": 3.0}


def test_a_result_is_judged_at_full_size_only():
    found = {"reached": 1.2}
    one = line("a", asked=Bound(high=1.1))
    assert one.judged(Setting(1.0), found)["holds"] is False
    assert one.judged(Setting(0.1), found)["holds"] is None
    assert one.judged(Setting(1.0), {**found, "asked": Bound(high=2)})["holds"] is True
    assert "holds" not in one.judged(Setting(1.0), {**found, "asked": None})


def test_exponents_of_power_laws():
    sizes = [1e3, 2e3, 4e3]
    assert scaling.exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert scaling.exponent(sizes, [7.0] * 3) == pytest.approx(0, abs=1e-12)
    rounds = [[n * (1 + 0.01 * i) for n in sizes] for i in range(3)]
    found = scaling._exponents(sizes, rounds)
    assert found["reached"] == pytest.approx(1)
    assert found["values"] == pytest.approx(rounds[1])


def test_the_estimate_is_of_the_lines_the_machine_and_the_environments():
    lines = [line("a", minutes=10), line("b", minutes=20)]
    start = minutes_of(line("c", minutes=0), 1.0, 1.0)
    assert estimate(lines, 1.0, 1.0) == pytest.approx(30 + 2 * start)
    assert estimate(lines, 1.0, 2.0) == pytest.approx(60 + 2 * start)
    assert estimate(lines, 0.5, 1.0) == pytest.approx(15 + 2 * start)
    assert estimate(lines, 1.0, 1.0, n_environments=3) > estimate(lines, 1.0, 1.0)


def test_it_states_how_long_it_takes_and_runs_nothing(tmp_path, capsys):
    words = ["--full", "--estimate", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    assert f"{len(LINES)} line(s) on all rows: about " in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", ["0", "-3", "nan", "2", "much"])
def test_a_share_that_is_none_is_refused(share, capsys):
    with pytest.raises(SystemExit):
        command.main(["--estimate", f"--scale={share}"])
    assert f"needs a number above 0 and at most 1, got {share!r}" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder_is_refused_and_left(tmp_path, capsys):
    file = tmp_path / "README.md"
    file.write_text("as it was")
    assert command.main(["--only", "svc", "--no-environments", "--out", str(file)]) == 2
    assert f"nothing can be written to --out {file}" in capsys.readouterr().err
    assert file.read_text() == "as it was"


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


def test_a_run_that_is_there_is_neither_lost_nor_mixed_with_other_sizes(tmp_path, capsys):
    begun(tmp_path, 0.5)
    for words, said in (([], "--resume"), (["--resume", "--full"], "is of scale 0.5")):
        with pytest.raises(SystemExit):
            command.main([*words, "--out", str(tmp_path)])
        assert said in capsys.readouterr().err


def test_a_run_of_another_machine_is_not_gone_on_with(tmp_path, capsys):
    of_another = {**header(0.5), "machine": {"processor": "another"}}
    Results(tmp_path / "results.jsonl").begin(of_another)
    with pytest.raises(SystemExit):
        command.main(["--resume", "--scale", "0.5", "--out", str(tmp_path)])
    assert "is of another machine" in capsys.readouterr().err


def test_a_run_from_the_command_line(tmp_path, capsys):
    """The line is in a process of its own."""
    words = ["--only", "one_alpha", "--scale", "0.001", "--no-environments", "--out", str(tmp_path)]
    assert command.main(words) == 0
    assert "RBFSampler" in capsys.readouterr().err
    results = Results.read(tmp_path / "results.jsonl")
    assert [found["case"] for found in results.found] == ["D = 8", "D = 32"]
    assert {found["commit"] for found in results.found} == {results.header["commit"]}
    assert table.full_table(results) in (tmp_path / "table.md").read_text()


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


def test_a_program_that_takes_too_long_ends_with_all_that_it_started():
    found = []
    started = time.monotonic()
    with pytest.raises(Ended, match="stopped after 2 s"):
        found.extend(results_of((sys.executable, "-c", SLEEPER), 2.0))
    assert time.monotonic() - started < 30


SLOW = "import time; time.sleep({}); print('{{}}', flush=True); time.sleep({})"


@pytest.mark.parametrize(
    ("slept", "error", "said"),
    [((600, 0), Ended, "had not started after 1 s"), ((0, 600), TookTooLong, "1 s")],
)
def test_the_start_of_a_program_has_a_limit_of_its_own(slept, error, said):
    with pytest.raises(Ended, match=said) as ended:
        list(
            results_of(
                (sys.executable, "-c", SLOW.format(*slept)), 1.0, starting_seconds=60.0 if slept[1] else 1.0
            )
        )
    assert ended.type is error


def test_what_it_printed_before_is_kept_and_nothing_is_left():
    results = results_of((sys.executable, "-c", SLEEPER), 60.0)
    found = next(results)
    results.close()  # as a Ctrl-C does
    wait_until(lambda: not any(is_running(pid) for pid in found["pids"]))
    assert not Path(found["folder"]).exists()


def test_what_libraries_print_beside_is_passed_over():
    printed = "print(\"{'a': 1}\"); print('3'); print('{half'); print('{\"reached\": 1.0}')"
    assert list(results_of((sys.executable, "-c", printed), 60)) == [{"reached": 1.0}]


def test_a_half_written_line_is_passed_over_and_no_results_are_refused(tmp_path, capsys):
    results = begun(tmp_path, 0.5)
    run([line("first", {"reached": 1.0})], Setting(), results, in_this_process=True)
    with results.path.open("a") as file:
        file.write('{"line": "second", "rea')
    assert [found["line"] for found in Results.read(results.path).found] == ["first"]
    results.path.write_text("")
    with pytest.raises(SystemExit):
        command.main(["--resume", "--scale", "0.5", "--out", str(tmp_path)])
    assert "has no results of a run" in capsys.readouterr().err


def test_a_program_that_fails_says_why():
    with pytest.raises(Ended, match="ZeroDivisionError"):
        list(results_of((sys.executable, "-c", "1 / 0"), 60.0))


def test_memory_is_that_of_all_processes():
    code = "import time; a = b'1' * 150_000_000; time.sleep(0.5); print('{}')"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}]); print('{{\"a\": 1}}')"
    found = result_and_peak((sys.executable, "-c", child), 60.0)
    assert 150e6 < found["peak_bytes"] < 400e6


def rows(task):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3)).astype(np.float32)
    values = X[:, 0] + 0.1 * rng.standard_normal(400)
    y = np.digitize(values, [-0.5, 0.5]) if task == "classes" else values
    return Rows(X[:300], y[:300], X[300:], y[300:], task, n_components=64)


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("name", [name for name, one in CONTESTANTS.items() if one.environment == "here"])
def test_a_contestant_learns(name, task):
    given = rows(task)
    with threadpool_limits(1):  # threads that wait for each other take seconds on cores that others use
        found = CONTESTANTS[name].solve(given)
    assert given.error(np.asarray(found)) < 0.4
    assert given.error(given.y_test) == 0


def test_who_is_not_installed_is_a_line(tmp_path):
    """XGBoost is asked for in an environment that lacks it."""
    given = rows("numbers")
    path = tmp_path / "rows.npz"
    np.savez(path, X=given.X, y=given.y, X_test=given.X_test, y_test=given.y_test, task=given.task)
    here = Setting(places={"xgpr": Place(sys.executable)})
    assert "ModuleNotFoundError" in races._run("xgpr", path, here, 100.0)["skipped"]
    assert races._run("falkon", path, here, 100.0)["skipped"] == "its environment was not asked for"


def test_a_race_says_who_is_both_faster_and_more_accurate(monkeypatch):
    made = {
        "distrff": {"seconds": 2.0, "error": 0.1},
        "sklearn_exact": {"seconds": 1.0, "error": 0.05},
        "sklearn_trees": {"seconds": 1.0, "error": 0.2},
        "sklearn_features": {"seconds": 3.0, "error": 0.05},
    }
    limit = {}

    def ran(name, path, setting, seconds):
        limit[name] = seconds
        return {**made[name], "peak_bytes": 1} if name in made else {"skipped": "it is not there"}

    monkeypatch.setattr(races, "_run", ran)
    digits = next(one for one in SETS if one.name == "digits")
    *results, verdict = races._race(digits, Setting())
    assert len(results) == len(CONTESTANTS)
    assert verdict["better"] == [CONTESTANTS["sklearn_exact"].title]
    assert verdict["reached"] == 1
    assert limit["sklearn_trees"] < limit["distrff"]
    made = {"distrff": made["distrff"]}
    slow = {"skipped": "stopped", "is_slower": True}
    monkeypatch.setattr(
        races, "_run", lambda name, *_: {**made[name], "peak_bytes": 1} if name in made else slow
    )
    *_, of_slow = races._race(digits, Setting())
    assert (of_slow["reached"], of_slow["compared"]) == (0, len(CONTESTANTS) - 1)
    summary = races.sets_that_hold([verdict, {**verdict, "set": "other", "better": []}])
    assert summary["reached"] == 1
    assert summary["losing"] == {"digits": verdict["better"]}
    met = [*results, verdict]
    assert CONTESTANTS["falkon"].title in races.sets_that_hold(met)["absent"]
    assert CONTESTANTS["sklearn_exact"].title not in races.sets_that_hold(met)["absent"]


@pytest.mark.parametrize("named", SETS, ids=lambda named: named.name)
def test_a_set_has_rows_or_names_its_file(named):
    try:
        found = named.rows(0.5)
    except FileNotFoundError as missing:
        assert "DISTRFF_DATA" in str(missing)
        return
    assert len(found.X) == len(found.y)
    assert np.isfinite(found.X).all()
    if named.task == "classes":
        assert set(found.y_test) <= set(range(10))


def test_an_environment_that_cannot_be_made_is_a_reason(tmp_path, monkeypatch):
    told = {
        "no probe": Environment("json", (), (sys.executable, "-c", "import sys; sys.exit('fatal: no host')")),
        "no program": Environment("json", (), ("there-is-no-such-program",)),
    }
    monkeypatch.setattr(environments, "NEIGHBOURS", told)
    monkeypatch.setattr(environments, "BASELINE", "f" * 40)
    places = prepared([*told, "baseline"], tmp_path)
    assert all(place.python is None for place in places.values())
    assert "fatal: no host" in places["no probe"].reason
    assert "there is no there-is-no-such-program" in places["no program"].reason
    assert "no git checkout" in places["baseline"].reason
    assert not (tmp_path / "no probe").exists()


def raced(name, contestant, seconds, error):
    return {
        **{"case": f"{name}, {contestant}", "set": name, "contestant": contestant, "asked": None},
        **{"unit": "s", **spread([seconds, seconds * 1.1, seconds * 0.9]), "error": error},
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
