"""Cards in notebooks, of plans, datasets, kernels and models: whole, true, and safe from hostile names."""

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

import distrff as drf
from distrff.io.arrays import as_dataset
from distrff.kernels.base import Kernel

HOSTILE = "</style><script>alert('x')</script><img src=x onerror=alert(1)>&\"\x00"
FOURIER = drf.FourierFeatures(drf.Gaussian(1.0), 16)


def parse(card):
    """The elements of a card, after making sure that nothing in it comes from elsewhere or runs."""
    assert card.startswith('<div class="distrff distrff-card">')
    root = ElementTree.fromstring(card)
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "img", "link", "iframe", "object", "html", "body"}, tags
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    assert not re.search(r"https?:|url\(|@import", card)
    return root


def facts(card):
    """Names and values that a card lists."""
    root = parse(card)
    return {item.find("dt").text: item.find("dd").text for item in root.iter("dl") for item in item}


def test_datasets_and_models_with_hostile_names(rng):
    frame = pd.DataFrame(rng.standard_normal((60, 2)), columns=[HOSTILE, "b"])
    labels = np.array([HOSTILE, "other"])[(frame["b"] > 0).astype(int)]
    model = drf.KernelRidgeClassifier(FOURIER, alpha="cv", cv=3, random_state=0).fit(frame, labels).model_
    model = dataclasses.replace(model, report={**model.report, "source": HOSTILE})
    shown = facts(model._repr_html_())
    assert shown["classes"].startswith("2: </style><script>")
    assert shown["columns"].endswith(", b") and shown["ended"] == "converged"
    assert shown["kernel"].replace("\u200b", "") == "Gaussian(length_scale=1.0)"
    assert facts(dataclasses.replace(model, report={})._repr_html_())["features"] == "16"
    dataset = as_dataset(frame, frame["b"].rename(HOSTILE), np.ones(60))
    table = {"columns_dropped": {HOSTILE: HOSTILE}}
    dataset = dataclasses.replace(dataset, source=HOSTILE, table_report=table, target_names=(HOSTILE,))
    card = dataset._repr_html_()
    shown = facts(card)
    assert shown["rows"] == "60"
    assert shown["columns"] == "2 of float64"
    assert shown["weights"] == "yes"
    assert "<script>alert('x')</script>" in shown["rows from"], "shown as text"
    assert shown["column names"].endswith(", b")
    assert shown["target"].endswith(", float64")
    assert "columns left out: " in "".join(parse(card).itertext())
    shown = facts(as_dataset(pd.DataFrame(np.ones((5, 30))).add_prefix("c"))._repr_html_())
    assert shown["target"] == "none" and shown["column names"].endswith("c19 and 10 more")
    assert facts(as_dataset(csr_matrix(np.eye(50)))._repr_html_())["columns"] == "50 of float64, 2.00% filled"
    for theme in ("prefers-color-scheme: dark", 'data-jp-theme-light="true"', 'data-jp-theme-light="false"'):
        assert theme in card
    assert not re.search(r"^(body|html|:root|main|table|\*) *\{", card, re.MULTILINE), "styles stay inside"


@pytest.mark.parametrize(
    "estimator",
    [
        drf.KernelRidge(FOURIER, alpha="cv"),
        drf.KernelRidge(FOURIER, alpha=1.0, solver="cg"),
        drf.KernelRidge(FOURIER, alpha=1.0, solver="sgd"),
    ],
    ids=lambda estimator: estimator.solver,
)
def test_a_plan(rng, estimator):
    X = rng.standard_normal((100, 3))
    plan = estimator.plan(X, X[:, 0])
    shown = facts(plan._repr_html_())
    assert (shown["rows"], shown["columns"], shown["features"]) == ("100", "3", "16")
    assert shown["passes over the rows"] == str(plan.n_sweeps)
    assert "predicted, from rates measured on these workers" in shown
    text = "".join(parse(plan._repr_html_()).itertext())
    assert all(remark in text and remark in str(plan) for remark in plan.remarks())
    assert bool(plan.remarks()) == (estimator.solver != "auto")
    assert "a worker's memory limit" in text
    unlimited = dataclasses.replace(plan, memory_limit=0, seconds=None)
    assert "The workers have no memory limit." in "".join(parse(unlimited._repr_html_()).itertext())
    assert "predicted" not in unlimited._repr_html_()


KERNELS = [
    drf.Gaussian(0.5),
    drf.Laplacian("auto"),
    drf.Cauchy(1e-5),
    drf.Exponential(1e5),
    drf.Matern("ard", nu=0.25),
    2.5 * drf.Gaussian("auto") + drf.Laplacian(3.0) * drf.Matern(1.0),
    drf.Gaussian((0.5, 4.0)),
    drf.Laplacian(tuple(np.linspace(1, 2, 40))),
    drf.Polynomial(3),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: repr(kernel)[:40])
def test_a_kernel(kernel: Kernel):
    shown = facts(kernel._repr_html_())
    assert shown["widths"] == ("to be found by the fit" if kernel.is_auto else "decided")
    assert len(shown["kernel"]) < 200
    n_widths = max(kernel._column_counts(), default=0)
    assert shown["columns"] == (str(n_widths) if n_widths else "any")
    root = parse(kernel._repr_html_())
    assert len(root.findall(".//ul[@class='bars']/li")) == min(n_widths, 12)
    if kernel == drf.Gaussian((0.5, 4.0)):  # the half distance along a column: k = ½ at ℓ·√(2·log 2)
        text = "".join(root.itertext())
        assert all(f"{width * np.sqrt(2 * np.log(2)):.3g}" in text for width in (0.5, 4.0))
