"""Pieces decoded side by side: in order, few at a time, and none after a failure."""

from __future__ import annotations

import threading
import time

import pytest
from dask.system import CPU_COUNT

from distrff.io.rows import in_order


def test_results_come_in_the_order_of_the_pieces(rng):
    delays = rng.random(30) * 0.003

    def work(i: int) -> int:
        time.sleep(delays[i])
        return i * i

    assert list(in_order(work, range(30))) == [(i, i * i) for i in range(30)]


def test_few_pieces_are_read_ahead():
    read = 0

    def pieces():
        nonlocal read
        for i in range(100):
            read += 1
            yield i

    for i, _ in in_order(lambda i: i, pieces()):
        assert read <= i + CPU_COUNT + 2


def test_a_failure_ends_the_work():
    begun, lock = [], threading.Lock()

    def work(i: int) -> int:
        with lock:
            begun.append(i)
        if i == 3:
            raise ValueError("piece 3")
        return i

    with pytest.raises(ValueError, match="piece 3"):
        list(in_order(work, range(1000)))
    assert max(begun) <= 3 + CPU_COUNT + 2
