"""Which segment a worker takes next: each once, neighbours together, none left while somebody is free."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distrff.engine.execution import SegmentShares

WORKERS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 5), max_size=6)


@given(n_segments=st.integers(0, 200), threads=WORKERS, data=st.data())
def test_every_segment_is_taken_once_whoever_asks(n_segments, threads, data):
    shares = SegmentShares(n_segments, threads)
    taken = []
    while shares:
        taken.append(shares.take(data.draw(st.sampled_from([*threads, "late", "any"]))))
    assert sorted(taken) == list(range(n_segments))


@given(threads=WORKERS.filter(bool), per_thread=st.integers(1, 8))
def test_runs_are_as_long_as_threads_ask_for(threads, per_thread):
    shares = SegmentShares(per_thread * sum(threads.values()), threads)
    for worker, n_threads in threads.items():
        taken = [shares.take(worker) for _ in range(per_thread * n_threads)]
        assert all(b == a + 1 for a, b in pairwise(taken))
    assert not shares


def test_who_has_none_left_takes_half_of_the_longest_run():
    shares = SegmentShares(16, {"slow": 1, "fast": 1})
    assert [shares.take("fast") for _ in range(8)] == list(range(8, 16))
    assert [shares.take("fast"), shares.take("slow"), shares.take("fast")] == [4, 0, 5]
    assert shares.take("late") == 2
