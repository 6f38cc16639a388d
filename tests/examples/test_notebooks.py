"""The notebooks, executed in kernels of their own with few rows.

They are stored without outputs: those would be one computer's numbers, would grow old unseen, and would bury
each change of a sentence under pages of markup. What they show is checked here.
"""

import json
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Return what runs a notebook with few rows, and then tells the value of an expression in it.

    Before its last cell it does what it is told.
    """
    monkeypatch.setenv("DISTRFF_EXAMPLE_ROWS", "400")
    for variable in ("TMPDIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):  # nothing is left in the home folder
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)

    def run(name, expression, before_the_end=""):
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        notebook.cells.insert(-1, nbformat.v4.new_code_cell(before_the_end))
        asked = nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({expression}))")
        notebook.cells.append(asked)
        client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        return notebook, json.loads(asked.outputs[-1]["text"])

    return run


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def shown(notebook, kind):
    """Return what the cells show of one MIME type."""
    return [output["data"][kind] for output in outputs(notebook) if kind in output.get("data", {})]


def printed(notebook):
    return "".join(output["text"] for output in outputs(notebook) if output.output_type == "stream")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_they_are_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None and not cell.metadata for cell in code)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.slow
def test_a_million_rows(execute, tmp_path):
    notebook, rmse = execute("01-million-rows", "scores['RMSE'].tolist()")
    best, kernel, linear = rmse
    assert 0.08 < best < 0.12
    assert best < kernel < linear
    cards = [card for card in shown(notebook, "text/html") if "distrff-card" in card]
    titles = [re.search('distrff-title">([^<]*)<', card)[1] for card in cards]
    assert titles == ["Dataset", "Plan of a fit", "Fit of KernelRidge", "Frozen KernelRidge"]
    assert not list(tmp_path.glob("million-rows-*")), "nothing stays behind"


@pytest.mark.slow
def test_workers_that_end_slowly_are_not_the_last_word(execute):
    """Workers that are stopped cannot go by themselves, as on a machine that is much too busy."""
    stop = "import signal\nfor pid in client.run(os.getpid).values():\n    os.kill(pid, signal.SIGSTOP)"
    notebook, ended = execute("01-million-rows", "client.status", before_the_end=stop)
    assert ended == "closed"
    assert notebook.cells[-2].outputs == []


@pytest.mark.slow
def test_a_remote_scheduler(execute, tmp_path):
    notebook, found = execute(
        "02-remote-scheduler",
        "[bool(everywhere['agree'].all()), everywhere.shape[1], model.report_['workers'], "
        "abs(alone.coef_ - model.coef_).max(), [process.returncode is not None for process in processes]]",
    )
    # All agree on one worker beside the client and a name; the same bits; both processes have ended.
    assert found == [True, 3, 1, 0.0, [True, True]]
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in printed(notebook)
    assert not list(tmp_path.glob("remote-scheduler-*"))


@pytest.mark.slow
def test_the_choice_of_a_map(execute):
    notebook, errors = execute("03-choose-a-map", "errors.to_dict()")
    assert errors["smooth"]["Fourier, a width a column"] < errors["smooth"]["linear"]
    assert all(0.05 < error < 2 for kind in ("smooth", "rough") for error in errors[kind].values())
    assert len(shown(notebook, "image/png")) == 3


@pytest.mark.slow
def test_margins_and_probabilities(execute):
    notebook, found = execute(
        "04-svm-and-probability",
        "[svm.score(*test), svm.report_['duality_gap'], hard.margin_, "
        "[model.score(*test) for model in likely.values()]]",
    )
    accuracy, gap, margin, likely = found
    assert min(accuracy, *likely) > 0.7
    assert gap <= 1e-3
    assert margin > 0
    assert len(shown(notebook, "image/png")) == 2
    assert "violate y·f ≥ 1" in printed(notebook)


@pytest.mark.slow
def test_points_become_a_map(execute, tmp_path):
    pytest.importorskip("xarray", reason="xarray is not installed")
    notebook, found = execute(
        "05-points-to-map",
        "[held_out, NOISE, compared.to_dict(), written['n_outside'], list(raster.draws.dims), "
        "over_clouds.std()]",
    )
    error, noise, compared, n_outside, dimensions, of_mean = found
    assert noise * 0.8 < error < noise * 2  # 400 points leave much of the fine structure
    std = compared["mean standard deviation"]
    assert std["under clouds"] > 1.5 * std["around islands"]
    assert compared["share within two"]["everywhere"] > 0.8
    assert compared["new measurements in 90 % intervals"]["everywhere"] > 0.6
    assert n_outside == 0
    assert dimensions == ["draw", "lat", "lon"]
    assert 0 < of_mean < std["under clouds"]
    assert len(shown(notebook, "image/png")) == 2
    assert not list(tmp_path.glob("points-to-map-*"))


@pytest.mark.slow
def test_bands_and_counts(execute):
    notebook, found = execute(
        "06-quantiles-and-counts", "[table.to_dict(), counts.score(X, faults, exposure=length)]"
    )
    table, d2 = found
    assert all(0.75 < column["coverage"] < 1 for column in table.values())  # 200 rows
    assert table["ridge, one width"]["in the evening"] < table["quantiles"]["in the evening"]
    assert d2 > 0.05
    assert len(shown(notebook, "image/png")) == 1
