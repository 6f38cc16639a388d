"""Fits in real processes that are killed at seeded moments; many more are in the chaos benchmark."""

import pytest

from tests.support.chaos import arena, chaos_run, quiet_run


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with arena(tmp_path_factory.mktemp("chaos")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("ridge", 0), ("hinge", 1)])
def test_deaths_change_no_bit(processes, name, seed):
    digest, seconds = quiet_run(processes, name)
    run = chaos_run(processes, name, seed, seconds)
    assert run["digest"] == digest, f"other bits after {run['deaths']}"
