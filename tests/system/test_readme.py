"""README's Python and its commands run as they stand, from top to bottom, on few rows of the same kinds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

import distrff as drf
from distrff.cli import main
from distrff.engine.execution import PlannedWorkers
from distrff.estimators.fitting.plan import min_memory_limit

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCHEDULER = "tcp://scheduler:8786"  # of nobody; the session's cluster takes its place


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, "" for none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [text for found, text in fenced if found == language]


def test_the_two_commands_come_first_and_what_it_links_to_is_there():
    first, second = blocks("")[:2]
    assert README.index(second) < README.index("```python")
    assert first == "pip install . && distrff quickstart\n"
    assert second == 'pip install ".[test]" && pytest\n'
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_its_python_runs_in_order(tmp_path, monkeypatch, capsys, cluster):
    monkeypatch.chdir(tmp_path)
    found = blocks("python")
    assert sum(SCHEDULER in block for block in found) == 1
    names: dict[str, object] = {}
    for block in found:
        if SCHEDULER in block:
            exec(block.replace(SCHEDULER, cluster.scheduler_address), names)
        else:
            with dask.config.set(scheduler="threads"):
                exec(block, names)
    model, X, y = names["model"], names["X"], names["y"]
    assert model.score(X, y) > 0.9
    assert "sweeps" in capsys.readouterr().out


def commands() -> list[list[str]]:
    """The words of each line of README that is a command of ours, but for the set-up."""
    lines = [line for block in blocks("")[2:] for line in block.splitlines()]
    assert all(line.startswith("distrff ") for line in lines)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_its_commands_run_in_order(tmp_path, monkeypatch, cluster, rng):
    monkeypatch.chdir(tmp_path)
    write_files(rng)
    runner, ran = CliRunner(), []
    for words in commands():
        done = runner.invoke(main, smaller(words, cluster.scheduler_address), prog_name="distrff")
        assert done.exit_code == 0, (words, done.output)
        ran.append(words[0])
    assert set(main.list_commands(None)) - set(ran) <= {
        *("quickstart", "transform", "importance"),
        *("gram", "merge", "solve"),
    }
    assert len(pd.read_parquet("predictions.parquet")["customer"]) == 300
    assert zarr.open_group("rows.zarr", mode="r")["test/X"].shape[0] > 0


def write_files(rng: np.random.Generator) -> None:
    """Write what the commands read."""
    X = rng.standard_normal((1200, 3))
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=np.sin(X[:, 0]))
    mixed = table.assign(kind=np.where(X[:, 1] > 0, "one", "two"))
    for i in range(2):
        mixed[i::2].to_csv(f"rows-{i}.csv.gz", index=False)
    table.assign(customer=np.arange(1200)).to_parquet("rows.parquet", index=False)
    for name in ("held-out.parquet", "other.parquet"):
        table[:300].to_parquet(name, index=False)
    table[:300].assign(customer=np.arange(300)).to_parquet("new.parquet", index=False)
    places = pd.DataFrame({"lon": 5 + rng.random(500), "lat": 45 + rng.random(500)})
    places.assign(height=np.sin(6 * places["lon"])).to_parquet("places.parquet", index=False)


def smaller(words: list[str], scheduler: str) -> list[str]:
    """The same command with what a shell does to it, few features, and workers that are there."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        if "*" in word:
            found += sorted(map(str, Path().glob(word)))
        else:
            found.append("32" if before == "--n-components" else scheduler if word == SCHEDULER else word)
    takes_workers = any(option.name == "scheduler" for option in main.get_command(None, words[0]).params)
    return [*found, "--scheduler", scheduler] if takes_workers and "--scheduler" not in found else found


def memory_table() -> dict[int, list[float]]:
    """D, and the flops and bytes beside it, of the table of sizes."""
    rows = re.findall(r"^\| (\d+) \| ([\d.]+e\d+ \|.*) \|$", README, re.MULTILINE)
    units = {"": 1, "MB": 1e6, "GB": 1e9}
    cells = [[cell.strip().partition(" ") for cell in rest.split("|")] for _, rest in rows]
    return {
        int(D): [float(number) * units[unit] for number, _, unit in row]
        for (D, _), row in zip(rows, cells, strict=True)
    }


@pytest.mark.parametrize("D", [1024, 2048, 4096, 8192, 16384])
def test_its_table_of_sizes_is_what_the_plan_counts(tmp_path, D):
    group = zarr.create_group(tmp_path / "rows.zarr")  # of no chunks, which read as zeros
    group.create_array("X", shape=(1_000_000, 20), chunks=(65_536, 20), dtype=np.float32)
    group.create_array("y", shape=(1_000_000,), chunks=(65_536,), dtype=np.float32)
    data = drf.open_dataset(tmp_path / "rows.zarr")
    features = drf.FourierFeatures(drf.Gaussian(1.0), D)

    def counted(alpha, below=None):
        """The plan of a worker without a limit, or with one under which another plan would not fit."""
        limit = 0 if below is None else int(0.9 * min_memory_limit(below))
        return drf.KernelRidge(features, alpha, scale="none").plan_for(PlannedWorkers(1, 1, limit), data)

    at_once, given = counted("cv"), counted(1.0)
    in_turn, diagonal = counted("cv", below=at_once), counted(1.0, below=given)
    assert (at_once.n_sweeps, in_turn.n_sweeps, diagonal.preconditioner) == (2, 6, "diagonal")
    peaks = [plan.worker_peak_bytes for plan in (at_once, in_turn, given, diagonal)]
    # Some MB more or less change nothing that a reader decides by the table.
    told = memory_table()
    assert len(told) == 5
    assert told[D] == pytest.approx([at_once.flops, *peaks], rel=0.03)
