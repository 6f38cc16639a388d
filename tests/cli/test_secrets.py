"""No secret of a URL on any way out: messages, tables, pages, logs, stored files, names of tasks."""

import pickle
import warnings

import fsspec
import numpy as np
import pandas as pd
import pytest

import distrff as drf

SECRET = "S3CRET"
# Each a place in memory, whose name is all that follows on the scheme: legal or not, it can be opened.
PLACES = ["memory://u:S3CRET@host/a", "memory://u:S3CRET PW@host/a", "memory://S3CRET@host/a"]
# None of these can be opened.
URLS = [
    "s3://user:pa/Ss3S3CRET@bucket/x",
    "s3://u:S3CRET@bucket/x",
    "s3://bucket/x?sig=S3CRET@",
    "http://u:S3CRET PW@127.0.0.1:1/x",
    "http://127.0.0.1:1/x.parquet?sig=S3CRET",
    "abfs://c@acc/x?sig=S3CRET",
    "simplecache::http://u:S3CRET@127.0.0.1:1/x",
    "zip://a.csv::http://127.0.0.1:1/x?sig=S3CRET",
    "nosuch://u:S3CRET@host/x",
    "memory://u:S3CRET PW@host/nothing",
    "memory://host/x.zarr?sig=S3CRET",
]
COMMANDS = {
    "convert": ["convert", "{url}", "{out}"],
    "convert to": ["convert", "{rows}", "{url}"],
    "plan": ["plan", "{url}"],
    "fit": ["fit", "{url}", "--target", "y", "--out", "{out}"],
    "fit to": ["fit", "{rows}", "--target", "nothing", "--out", "{url}"],
    "report": ["fit", "{rows}", "--target", "y", "--out", "{out}", "--report", "{url}"],
    "gram": ["gram", "{url}", "--target", "y", "--out", "{out}"],
    "gram like": ["gram", "{rows}", "--target", "y", "--out", "{out}", "--like", "{url}"],
    "merge": ["merge", "{url}", "{url}", "--out", "{out}"],
    "solve": ["solve", "{url}", "--out", "{out}"],
    "predict": ["predict", "{model}", "{url}", "--out", "{out}"],
    "predict with": ["predict", "{url}", "{rows}", "--out", "{out}"],
    "score": ["score", "{model}", "{url}"],
    "importance": ["importance", "{model}", "{url}"],
    "transform to": ["transform", "{url}", "{rows}", "--out", "{url}"],
    "inspect": ["inspect", "{url}"],
    "kernel-error": ["kernel-error", "{url}"],
    "scheduler": ["fit", "{rows}", "--target", "y", "--out", "{out}", "--scheduler", "{url}"],
    "workers": ["plan", "{rows}", "--workers", "{url}"],
    "kernel": ["plan", "{rows}", "--kernel", "{url}"],
    "argument": ["score", "{model}", "{rows}", "{url}"],
    "command": ["{url}"],
    "folder": ["quickstart", "--dir", "{url}/x"],
}


@pytest.fixture
def without_credentials(monkeypatch, no_credentials):
    """S3 asks nobody who is there: the refusal must come before any host is asked."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("distrff.io.storage._WAITS", (0.0,))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_says_of_a_url_that_it_cannot_use(
    command, distrff_without_workers, rows, models, without_credentials, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    given = {"rows": rows.parquet, "model": models["numbers"], "out": tmp_path / "out.zarr"}
    for url in URLS if not command.endswith(" to") else URLS[:-2]:
        words = [word.format(url=url, **given) for word in COMMANDS[command]]
        for more in ([], ["--verbose"]):
            done = distrff_without_workers(*words, *more)
            assert done.code == 2, (url, done)
            assert SECRET not in done.stdout + done.stderr, url
    assert not list(tmp_path.rglob("*.partial"))


@pytest.fixture(params=PLACES)
def place(request):
    pytest.importorskip("fsspec.implementations.asyn_wrapper")  # Zarr needs it for such file systems
    fs, folder = fsspec.filesystem("memory"), "/" + request.param.removeprefix("memory://")
    yield request.param, fs, folder
    fs.rm(folder.split("/")[1], recursive=True)


@pytest.mark.usefixtures("in_this_thread")  # a file in memory has one position for all who read it
def test_what_is_shown_and_kept_of_rows_and_models(place, capfd, caplog):
    """The whole way through Python, in this process: what is shown, logged, stored and sent."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=X[:, 0])
    place, fs, folder = place
    with fs.open(f"{folder}/rows.csv", "w") as file:
        frame.to_csv(file, index=False)
    with fs.open(f"{folder}/rows.parquet", "wb") as file:
        frame.to_parquet(file, index=False)
    before = set(fs.find(folder))
    shown: list[object] = [drf.convert(f"{place}/rows.csv", f"{place}/rows.zarr", target="y")]
    with warnings.catch_warnings(record=True) as warned, caplog.at_level("DEBUG", "distrff"):
        warnings.simplefilter("always")
        for name, how in (("rows.zarr", {}), ("rows.parquet", {"target": "y"})):
            data = drf.open_dataset(f"{place}/{name}", **how)
            model = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 8, random_state=0), alpha=1.0)
            shown += [repr(data), data._repr_html_(), repr(data.rows(0, 6)), list(data.X.dask), repr(data.X)]
            shown += [str(task) for task in dict(data.X.dask).values()]
            plan = model.plan(data)
            model.fit(data)
            shown += [plan, plan.to_dict(), model, model.report_, dict(model.report_)]
            shown += [model.report_.to_html(), model.report_._repr_html_(), pickle.dumps(model)]
            model.save(f"{place}/{name}.model")
            shown += [drf.load_model(f"{place}/{name}.model")]
            shown += [drf.write_predictions(model, data, f"{place}/{name}.predictions")]
            gram = drf.gram(data, model.features_, scale="none")
            gram.save(f"{place}/{name}.gram")
            shown += [gram]
        with pytest.raises(drf.errors.InputError) as caught:
            drf.open_dataset(f"{place}/rows.zarr", target="nothing")
    shown += [str(caught.value), caplog.text, *capfd.readouterr(), *(str(w.message) for w in warned)]
    stored = {path: fs.cat_file(path) for path in set(fs.find(folder)) - before}
    assert any(path.endswith("zarr.json") for path in stored)
    for what in [*shown, *stored.values()]:
        assert SECRET not in (what.decode("latin-1") if isinstance(what, bytes) else str(what))


def test_what_is_told_of_a_damaged_file(place, distrff_without_workers):
    place, fs, folder = place
    for name, content in {
        "a.parquet": b"PAR1 and no more",
        "a.csv.gz": b"\x1f\x8b\x08\x00 and no more",
        "a.npz": b"PK\x03\x04 and no more",
        "a.csv": b"a,b\n1,2\n3\n",
        "a.zarr/zarr.json": b"{",
    }.items():
        fs.pipe_file(f"{folder}/{name}", content)
        if is_group := name.startswith("a.zarr"):
            words = ("inspect", f"{place}/a.zarr")
        else:
            words = ("convert", f"{place}/{name}", f"{place}/out.zarr")
        message = distrff_without_workers.refused(*words)
        assert is_group or name in message
        assert SECRET not in message
