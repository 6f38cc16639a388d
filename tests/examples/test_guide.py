"""The guide: its Python and its commands run as they stand, its links are there, its sizes are the plan's."""

import re
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

import distrff as drf
from distrff.cli import main
from distrff.engine.tasks import Workers
from distrff.fitting.cost import min_memory_limit
from tests.support.documents import ROOT, SCHEDULER, blocks, commands, dead_links, smaller

GUIDE = ROOT / "examples" / "guide"
FEWER = {
    "512": "128",
    "5_000": "2_500",
    "EquispacedFourierFeatures()": "EquispacedFourierFeatures(n_components=500)",
    ", 300)": ", 60)",
}
PAGES = sorted(GUIDE.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere_and_the_readme_to_every_page(page: Path):
    assert not dead_links(page)
    assert f"(examples/guide/{page.name})" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda page: page.stem
)
def test_its_python_runs_in_order(page, tmp_path, monkeypatch, cluster):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page.read_text(), "python"):
        program = block.replace(SCHEDULER, cluster.scheduler_address)
        for text, fewer in FEWER.items():
            program = program.replace(text, fewer)
        with dask.config.set(scheduler="threads"):
            exec(program, names)
    if page.stem == "python":
        assert names["model"].score(names["X"], names["y"]) > 0.9


def test_its_commands_run_in_order(tmp_path, monkeypatch, cluster, rng):
    monkeypatch.chdir(tmp_path)
    write_files(rng)
    runner, ran = CliRunner(), []
    (block,) = blocks((GUIDE / "command-line.md").read_text(), "")
    for words in commands(block):
        done = runner.invoke(main, smaller(words, cluster.scheduler_address), prog_name="distrff")
        assert done.exit_code == 0, (words, done.output)
        ran.append(words[0])
    assert set(main.list_commands(None)) - set(ran) <= {"quickstart", "transform"}
    assert len(pd.read_parquet("predictions.parquet")["customer"]) == 300
    assert zarr.open_group("rows.zarr", mode="r")["test/X"].shape[0] > 0


def test_the_commands_that_say_which_rows_run(tmp_path, monkeypatch, cluster, rng):
    monkeypatch.chdir(tmp_path)
    X, person = rng.random((400, 2)), np.arange(400) % 20
    table = pd.DataFrame(X, columns=["lon", "lat"]).assign(height=np.sin(6 * X[:, 0]))
    table.to_parquet("places.parquet", index=False)
    table.rename(columns={"height": "y"}).assign(person=person).to_parquet("visits.parquet", index=False)
    dates = pd.date_range("2024-01-01", periods=100).repeat(4)
    table.rename(columns={"height": "sold"}).assign(date=dates).to_parquet("sales.parquet", index=False)
    told = []
    for block in blocks((GUIDE / "which-rows.md").read_text(), ""):
        for words in commands(block):
            # No search of a map: what is tested is which rows are held out.
            given = [] if "--features" in words else ["--features", "fourier"]
            done = CliRunner().invoke(main, [*smaller(words, cluster.scheduler_address), *given])
            assert done.exit_code == 0, (words, done.output)
            told.append(done.output)
    held_out = ("whole groups of 'person' (20 of them)", "", "0.1 × 0.1 cells of lon, lat", "spans of date")
    assert [one in output for one, output in zip(held_out, told, strict=True)] == [True] * 4, told


def write_files(rng: np.random.Generator) -> None:
    """Write what the commands read."""
    X = rng.standard_normal((1200, 3))
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=np.sin(X[:, 0]))
    mixed = table.assign(kind=np.where(X[:, 1] > 0, "one", "two"))
    for i in range(2):
        mixed[i::2].to_csv(f"rows-{i}.csv.gz", index=False)
    table.assign(customer=np.arange(1200)).to_parquet("rows.parquet", index=False)
    for name in ("held-out.parquet", "other.parquet", "monday.parquet", "tuesday.parquet"):
        table[:300].to_parquet(name, index=False)
    table[:300].assign(customer=np.arange(300)).to_parquet("new.parquet", index=False)
    places = pd.DataFrame({"lon": 5 + rng.random(500), "lat": 45 + rng.random(500)})
    places.assign(height=np.sin(6 * places["lon"]) + 0.1 * rng.normal(size=500)).to_parquet(
        "places.parquet", index=False
    )


def memory_table() -> dict[int, list[float]]:
    """D, and the flops and bytes beside it, of the table of sizes."""
    rows = re.findall(r"^\| (\d+) \| ([\d.]+e\d+ \|.*) \|$", (GUIDE / "costs.md").read_text(), re.MULTILINE)
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
        ridge = drf.KernelRidge(features, alpha, scale="none", keep_features=False)
        return ridge.plan_for(Workers(1, 1, limit), data)

    at_once, given = counted("cv"), counted(1.0)
    in_turn, diagonal = counted("cv", below=at_once), counted(1.0, below=given)
    assert (at_once.n_sweeps, in_turn.n_sweeps, diagonal.preconditioner) == (2, 6, "diagonal")
    peaks = [plan.worker_peak_bytes for plan in (at_once, in_turn, given, diagonal)]
    # Some MB more or less change nothing that a reader decides by the table.
    told = memory_table()
    assert len(told) == 5
    assert told[D] == pytest.approx([at_once.flops, *peaks], rel=0.03)
