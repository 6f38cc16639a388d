"""The pages of the public names that pdoc makes of the docstrings."""

import inspect
import re
import warnings

import pytest

import distrff

pdoc = pytest.importorskip("pdoc", reason="pdoc is not installed")


def test_pages_are_made_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the checkout has a folder of the package's name, of which pdoc would warn
    pdoc.render.configure(docformat="numpy", math=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pdoc.pdoc("distrff", "distrff.diagnostics.bounds", output_directory=tmp_path)
    ours = [str(w.message) for w in told if not issubclass(w.category, DeprecationWarning)]
    assert ours == []
    page = (tmp_path / "distrff.html").read_text()
    shown = set(re.findall(r'<section id="(\w+)"', page))
    assert set(distrff.__all__) - {"bounds", "metrics"} <= shown
    for module in (distrff.bounds, distrff.metrics):
        page = (tmp_path / f"{module.__name__.replace('.', '/')}.html").read_text()
        assert set(module.__all__) <= set(re.findall(r'<section id="(\w+)"', page))


def test_every_public_name_says_what_it_is():
    public = {name: getattr(distrff, name) for name in distrff.__all__}
    for module in (distrff.bounds, distrff.metrics):
        public |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    silent = [name for name, value in public.items() if not (value.__doc__ or "").strip()]
    assert not silent
    methods = [
        f"{name}.{method}"
        for name, value in public.items()
        if isinstance(value, type)
        for method, function in vars(value).items()
        if not method.startswith("_") and callable(function) and not inspect.getdoc(getattr(value, method))
    ]
    assert not methods
