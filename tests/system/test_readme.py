"""README: its commands and its Python run as they stand, its links are there, its table is generated."""

import re

import dask
import numpy as np
import pandas as pd
from click.testing import CliRunner

from distrff.cli import main
from tests.benchmarks.book.running import Results
from tests.benchmarks.book.table import BEGIN, END, STORED, STORED_TABLE, full_table, readme_table
from tests.support.documents import ROOT, blocks, commands, dead_links, smaller

README = ROOT / "README.md"
TEXT = README.read_text()


def test_the_two_commands_come_first_and_what_it_links_to_is_there():
    first, second = blocks(TEXT, "")[:2]
    assert TEXT.index(second) < TEXT.index("```python")
    assert first == "pip install . && distrff quickstart\n"
    assert second == 'pip install ".[test]" && pytest\n'
    assert not dead_links(README)
    assert len(TEXT.splitlines()) <= 150


def test_each_pain_has_a_test():
    table = TEXT[TEXT.index("| pain |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) > 10
    for line in table:
        files = re.findall(r"\[(test_\w+\.py)\]\((tests/[\w/]+\.py)\)", line)
        assert files, line
        assert all(path.endswith(f"/{name}") for name, path in files), line


def test_what_it_shows_runs_in_order(tmp_path, monkeypatch, capsys, cluster, rng):
    monkeypatch.chdir(tmp_path)
    scheduler, runner = cluster.scheduler_address, CliRunner()
    small = ["--n-rows", "3000", "--n-columns", "4", "--n-components", "64", "--workers", "1"]
    done = runner.invoke(main, ["quickstart", *small])
    assert done.exit_code == 0, done.output
    for text in ("kernel ridge", "linear ridge", "best possible", "report.html"):
        assert text in done.stdout
    (python,) = blocks(TEXT, "python")
    assert len(python.splitlines()) == 6  # the import, and five lines
    names: dict[str, object] = {}
    with dask.config.set(scheduler="threads"):
        exec(python, names)
    assert "R²" in capsys.readouterr().out
    assert len(pd.read_parquet("predictions.parquet")) == names["data"].n_rows
    table = pd.DataFrame({"size": rng.normal(size=300), "kind": rng.choice(["a", "b"], 300)})
    table["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(300), unit="h")
    table["price"] = np.sin(table["size"]) + (table["kind"] == "a")
    table.loc[::20, "size"] = table.loc[5::30, "price"] = None
    table.to_csv("rows.csv", index=False)
    table.drop(columns="price").to_csv("new.csv", index=False)
    for words in commands(blocks(TEXT, "")[2]):
        done = runner.invoke(
            main, [*smaller(words, scheduler), *(["--overwrite"] if words[0] == "predict" else [])]
        )
        assert done.exit_code == 0, (words, done.output)
    assert pd.read_csv("predictions.csv")["prediction"].notna().sum() == 300


def test_its_table_of_benchmarks_is_that_of_the_last_run():
    results = Results.read(STORED)
    assert results.header["scale"] == 1
    assert f"{BEGIN}{readme_table(results)}{END}" in TEXT
    assert STORED_TABLE.read_text() == full_table(results)
