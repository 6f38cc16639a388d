"""Options from a TOML file, and the headings of options in the help of a command."""

import re

import click
import numpy as np
import pandas as pd
import pytest

from distrff import NystroemFeatures, load_model
from distrff.cli import main
from distrff.cli.build import checked_estimator, fit
from distrff.cli.command import Command
from distrff.cli.predict import score


@pytest.fixture
def given(tmp_path):
    """Return the values of the options of a command, given text of TOML and further words."""

    def values(text: str, *words: str, of: click.Command = fit) -> click.Context:
        (tmp_path / "c.toml").write_text(text)
        group = click.Context(main, info_name="distrff")
        return of.make_context("fit", ["--config", str(tmp_path / "c.toml"), *words], parent=group)

    return values


def test_each_kind_of_option_and_arguments_by_their_names(given):
    found = given(
        """
        data = "rows.parquet"
        out = "m.zarr"
        target = "y"
        columns = ["a", "b"]
        one-hot = true
        n_components = 64
        features = "nystroem"
        length-scale = [1.0, 2]
        alphas = [0.1, 1]
        no-intercept = false
        storage-option = {anon = true, key = "007"}
        model = "svc"
        class-weight = {yes = 2.5}
        bounds = {lon = [5, 6.5]}
        coverage = 0.9
        """
    )
    expected = {
        "data": "rows.parquet", "out": "m.zarr", "target": ("y",), "columns": ["a", "b"], "one_hot": True,
        "n_components": 64, "length_scale": [1.0, 2.0], "alphas": [0.1, 1.0], "no_intercept": False,
        "storage_options": (("anon", True), ("key", "007")), "class_weight": {"yes": 2.5},
        "bounds": {"lon": (5.0, 6.5)}, "as_json": False,
    }  # fmt: skip
    assert {name: found.params[name] for name in expected} == expected


def test_the_command_line_counts_more_and_a_file_counts_as_given(given):
    found = given('data = "x"\nout = "m"\nlength-scale = 2\nn-components = 64\n', "--n-components", "32")
    estimator = checked_estimator(found)
    assert (estimator.features.n_components, estimator.features.kernel.length_scale) == (32, 2.0)
    assert not isinstance(estimator.features, NystroemFeatures)  # a width alone means Fourier features
    with pytest.raises(click.UsageError, match="--loss goes with --model svc"):
        checked_estimator(given('data = "x"\nout = "m"\nloss = "hinge"\n'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n-compnents = 3", "'n-compnents', which no command takes; did you mean n-components?"),
        ("zzz = 3", "'zzz', which no command takes$"),
        ("config = 'c.toml'", "'config', which no command takes"),
        ("a =", "cannot be read as TOML"),
        ('one-hot = "x"', "one-hot must be true or false, got 'x'"),
        ("json = 1", "json must be true or false, got 1"),
        ("n-components = {a = 1}", "n-components is a table of values; give one value"),
        ('missing = "fill"', "'fill' is not one of"),
    ],
)
def test_what_a_file_cannot_say(given, text, message):
    with pytest.raises(click.BadParameter, match=message):
        given(text, "rows", "--out", "m")


_TIMES = "it holds times; --datetime seconds, parts or both takes them"


def test_plan_and_fit_share_a_file(distrff, tmp_path, rng):
    frame = pd.DataFrame({"a": rng.normal(size=300), "text": "u", "when": pd.Timestamp("2020-01-01")})
    frame.assign(y=np.sin(frame["a"])).to_parquet(tmp_path / "x.parquet")
    config = tmp_path / "fit.toml"
    config.write_text(
        f'data = "{tmp_path}/x.parquet"\nout = "{tmp_path}/m.zarr"\ntarget = "y"\nn-components = 16\n'
        "length-scale = 1\nrandom-state = 0\njson = true\n"
    )
    planned, fitted = (distrff(command, "--config", config) for command in ("plan", "fit"))
    assert planned.json["n_features"] == fitted.json["n_components"] == 16
    assert load_model(str(tmp_path / "m.zarr")).specification.n_features == 16
    for done in (planned, fitted):  # what is left out is said before the fit
        lines = done.stderr.splitlines()
        whys = ("text (it holds text; --one-hot takes it)", f"when ({_TIMES})")
        assert all(lines.index(f"warning: left out: {why}") < 4 for why in whys)
    done = distrff("plan", "--config", config, "--one-hot", "--missing", "mean")
    assert f"left out: when ({_TIMES})" in done.stderr


def test_an_argument_that_is_an_option_elsewhere_stays_on_the_command_line(given):
    words = ("other.zarr", "rows.parquet")
    found = given('model = "svc"\nmissing = "mean"\n', *words, of=score)
    assert (found.params["model"], found.params["data"]) == words


def test_grams_like_the_first_may_share_its_file(distrff, tmp_path, rng):
    for name in ("a", "b"):
        frame = pd.DataFrame({"x": rng.normal(size=200), "kind": rng.choice(["u", "v"], 200)})
        frame.assign(y=np.sin(frame["x"])).to_parquet(tmp_path / f"{name}.parquet")
    config = tmp_path / "gram.toml"
    of_map = 'features = "fourier"\nlength-scale = 1\nn-components = 16\n'
    config.write_text(f'target = "y"\none-hot = true\n{of_map}')
    made = [tmp_path / f"{name}.zarr" for name in ("a", "b")]
    assert distrff("gram", tmp_path / "a.parquet", "--config", config, "--out", made[0]).code == 0
    like = ("--like", made[0], "--config", config, "--out", made[1])
    assert distrff("gram", tmp_path / "b.parquet", *like).code == 0
    message = distrff.refused("merge", made[0], made[1], made[0], "--out", tmp_path / "all.zarr")
    assert "is named twice, and its rows would count twice" in message
    assert distrff("merge", *made, "--out", tmp_path / "all.zarr", "--json").json["n_samples"] == 400


def test_options_are_listed_under_what_they_are_for():
    context = click.Context(main, info_name="distrff")
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert isinstance(command, Command)
        text = command.get_help(click.Context(command, parent=context, info_name=name))
        for param in command.params:
            found = sum(f"{line} ".startswith(f"  {param.opts[0]} ") for line in text.splitlines())
            assert (found > 0) == isinstance(param, click.Option), (name, param.opts)
        assert text.splitlines()[-1].startswith("  --help")
    lines = fit.get_help(click.Context(fit)).splitlines()
    headings = [line[:-1] for line in lines if re.fullmatch(r"\w[\w ]*:", line)]
    assert headings == [
        "Result", "Checkpoint", "Rows", "Text files", "Columns of tables", "Model", "Feature map and kernel",
        "Penalty", "Rows held out", "Solver", "Workers", "Other options",
    ]  # fmt: skip
