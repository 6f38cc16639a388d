"""`distrff plan --as-helm-values`: what it prints is what the planner then accepts, and not more."""

import re

import pytest
import yaml
from dask.utils import parse_bytes

from distrff import FourierFeatures, KernelRidge, open_dataset
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused

_STEP = 256 * 2**20


@pytest.fixture
def planned(distrff_without_workers, rows, monkeypatch):
    """Runs the command on rows, the session's by default, for which no cluster may be started."""
    monkeypatch.setattr("distrff.engine.cluster.connect", None)

    def run(*words, data=rows.zarr):
        return distrff_without_workers("plan", data, "--as-helm-values", "--features", "fourier", *words)

    return run


@pytest.fixture
def refused(distrff_without_workers, rows):
    def run(*words, code=2, data=rows.zarr):
        words = ("--as-helm-values", "--features", "fourier", *words)
        return distrff_without_workers.refused("plan", data, *words, code=code)

    return run


def values_of(done, part="worker") -> dict:
    assert done.code == 0, done.stderr
    return yaml.safe_load(done.stdout)[part]


def memory_of(done, part="worker") -> int:
    return parse_bytes(values_of(done, part)["resources"]["limits"]["memory"])


def plan_again(rows, worker, n_components, memory_limit):
    """The plan for workers as the chart starts them from these values."""
    workers = Workers(3, worker["threads_per_worker"], memory_limit)
    model = KernelRidge(FourierFeatures(None, n_components), alpha="cv", scale="standard")
    return model.plan_for(workers, open_dataset(str(rows.zarr)))


@pytest.mark.parametrize(("n_components", "threads"), [(64, 2), (8192, 4)])
def test_the_memory_is_what_the_fastest_plan_needs(planned, rows, n_components, threads):
    words = ("--n-components", n_components, "--threads-per-worker", threads, "--workers", 7)
    worker = values_of(planned(*words))
    assert (worker["threads_per_worker"], worker["replicas"]) == (threads, 7)
    assert worker["resources"]["limits"] == worker["resources"]["requests"]
    assert worker["resources"]["limits"]["cpu"] == threads
    memory = parse_bytes(worker["resources"]["limits"]["memory"])
    assert plan_again(rows, worker, n_components, memory).folds_per_task == 5
    if memory > 4 * 2**30:  # beyond rounding and the planner's hundredth
        try:
            assert plan_again(rows, worker, n_components, int(0.98 * memory) - _STEP).folds_per_task == 1
        except PlanRefused as refused:
            assert "memory limit" in str(refused)


def test_the_client_has_room_for_the_model(planned):
    """And, of standard deviations, for their factor three times: as it comes, whole, and as it is written."""
    words = ("--n-components", 8192)
    plain, more = (memory_of(planned(*words, *std), "jupyter") for std in ((), ("--include-std",)))
    assert more - plain == 3 * 8 * 8192**2
    words = ("--memory-limit", "1000TiB", "--n-components")
    small, large = (memory_of(planned(*words, D), "jupyter") for D in (64, 2_000_000))
    assert small < large


def test_a_limit_makes_folds_wait_or_is_refused_with_what_is_needed(planned, refused, rows):
    """Where all of a limit is needed it is printed to the MiB."""
    most = memory_of(planned("--n-components", 8192))
    done = planned("--n-components", 8192, "--memory-limit", "16GiB")
    assert memory_of(done) <= 16 * 2**30 < most
    assert "1 a task" in done.stdout
    assert plan_again(rows, values_of(done), 8192, memory_of(done)).folds_per_task == 1
    message = refused("--n-components", 8192, "--memory-limit", "2GiB", code=4)
    assert "smallest changes that fit: a memory limit of" in message
    needed = float(message.split("a memory limit of ")[1].split(" GB")[0]) * 1e9
    limit = int(1.01 * needed) // 2**20
    assert memory_of(planned("--n-components", 8192, "--memory-limit", f"{limit}MiB")) <= limit * 2**20


@pytest.mark.parametrize("words", [(), ("--alpha", 1), ("--alpha", 1, "--solver", "cg")], ids=str)
def test_one_thread_that_needs_far_less_is_told(planned, words):
    """What the note says is what is printed for one thread, which has nothing more to say."""
    words = ("--n-components", 8192, *words)
    of_four, of_one = planned(*words), planned(*words, "--threads-per-worker", 1)
    memory = [values_of(done)["resources"]["limits"]["memory"] for done in (of_one, of_four)]
    note = f"note: with --threads-per-worker 1 a worker needs {memory[0]} in place of {memory[1]}:"
    assert note in of_four.stderr
    assert "note:" not in of_four.stdout + of_one.stderr
    assert "cpu" not in values_of(of_one)["resources"]["limits"]  # the cores are left to BLAS
    for words in ((1024,), (200_000, "--alpha", 1)):  # the Gram is small, or there is none
        assert "note:" not in planned("--n-components", *words).stderr


def test_more_than_nodes_have_is_refused_with_what_would_do(planned, refused):
    message = refused("--n-components", 200_000, code=4)
    assert "--memory-limit is 1TiB where it is not given" in message
    fewer = int(re.search(r"--n-components (\d+)", message)[1])
    assert planned("--n-components", fewer).code == 0
    refused("--n-components", fewer + 2, code=4)
    given = values_of(planned("--n-components", 200_000, "--alpha", 1))["resources"]["limits"]["memory"]
    assert f"a given --alpha needs {given} a worker (conjugate gradients" in message
    # A limit that is given is not questioned.
    assert memory_of(planned("--n-components", 200_000, "--memory-limit", "0")) > 2**40
    message = refused("--n-components", 200_000, "--memory-limit", "2TiB", code=4)
    assert "where it is not given" not in message


def test_each_refusal_names_what_would_do(refused, stored, rows):
    data = stored("classes.zarr", X=rows.X, y=rows.y > 0)
    for words, said in (
        (("--model", "svc", "--C", "cv"), "a given --C needs"),
        (("--model", "pca"), "--n-components "),
    ):
        message = refused("--n-components", 200_000, *words, code=4, data=data)
        assert said in message
        assert ("a given" in message) == ("svc" in words)
