"""`distrff fit --report FILE`: the page of the fit, whole or not at all, and nothing else in its place."""

import pytest

from distrff import KernelRidge, load_model
from distrff.errors import InputError
from distrff.io.storage import PAGE as KIND
from distrff.io.storage import Location, write_file
from distrff.utils.text import html_page

SMALL = ("--n-components", 16, "--length-scale", 2, "--random-state", 0)
OF_FLAG = ("--target", "flag", "--columns", "a,b")
MODELS = {
    "ridge": ("--target", "y", "--columns", "a,b"),
    "ridge-classifier": OF_FLAG,
    "svc": (*OF_FLAG, "--tol", 0.1),
    "likelihood": OF_FLAG,
    "pca": ("--columns", "a,b"),
}
PAGE = html_page("An earlier one")


# A page takes seconds; the page of ridge is in other tests of this file.
OTHERS = ("ridge", "ridge-classifier", "likelihood")


@pytest.mark.parametrize("model", [pytest.param(m, marks=[pytest.mark.slow] * (m in OTHERS)) for m in MODELS])
def test_every_model_has_a_page(distrff, rows, tmp_path, model):
    out, page = tmp_path / "m.zarr", tmp_path / "page.html"
    words = (rows.parquet, "--model", model, *MODELS[model], *SMALL)
    done = distrff("fit", *words, "--out", out, "--report", page, "--json")
    assert done.json["report"] == str(page)
    written = page.read_text(encoding="utf-8")
    assert f"Fit of {done.json['model']}" in written
    assert written.startswith("<!DOCTYPE html>") and written.endswith("</html>\n")
    assert {file.name for file in tmp_path.iterdir()} == {"m.zarr", "page.html"}


def test_an_earlier_page_is_replaced_only_when_asked(distrff, rows, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    words = ("fit", rows.zarr, *SMALL, "--alpha", 1, "--out", tmp_path / "m.zarr", "--report", page)
    assert "page.html exists; pass --overwrite to replace it" in distrff.refused(*words)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    done = distrff(*words, "--overwrite")
    assert done.code == 0, done
    assert f"report page {page}" in done.stdout
    assert "Fit of KernelRidge" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("flags", [(), ("--overwrite",)], ids=str)
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("precious.csv", "is not a page of distrff, so --overwrite does not replace it"),
        ("folder", "is a folder; name a file in it"),
    ],
)
def test_what_is_not_written_is_refused_at_once(distrff_without_workers, rows, tmp_path, where, said, flags):
    (tmp_path / "precious.csv").write_text("precious")
    (tmp_path / "folder").mkdir()
    page = tmp_path / where
    words = ("fit", rows.zarr, *SMALL, "--out", tmp_path / "m.zarr", "--report", page, *flags)
    (line,) = distrff_without_workers.refused(*words).splitlines()
    assert said in line
    assert {file.name for file in tmp_path.rglob("*")} == {"precious.csv", "folder"}
    assert (tmp_path / "precious.csv").read_text() == "precious"


def test_what_came_there_during_the_fit_stays(distrff, rows, tmp_path, monkeypatch):
    """The model is kept, and the line says where."""
    out, page = tmp_path / "m.zarr", tmp_path / "page.html"
    fit = KernelRidge.fit

    def fit_while_another_writes(*args, **kwargs):
        page.write_text(PAGE)
        return fit(*args, **kwargs)

    monkeypatch.setattr(KernelRidge, "fit", fit_while_another_writes)
    words = ("fit", rows.zarr, *SMALL, "--alpha", 1, "--out", out, "--report", page)
    assert f"the model is written to {out}" in distrff.refused(*words)
    assert page.read_text() == PAGE
    assert load_model(str(out)).kind == "KernelRidge"


def test_a_page_that_cannot_be_written_whole_leaves_the_earlier_one(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text(PAGE)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="no space"):
        write_file(html_page("A newer one", ""), Location.of(page), overwrite=True, kinds=(KIND,))
    assert page.read_text() == PAGE
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="or --overwrite"):
        write_file(PAGE, Location.of(page), kinds=(KIND,))
