"""Cuts of the rows, which follow from a few numbers alone, and which segment a worker takes next."""

from functools import partial
from itertools import chain, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distrff.engine.distributed import SegmentShares
from distrff.engine.reduction import (
    gram_segmentation,
    light_segmentation,
    light_segmentation_of_features,
    margin_tile_rows,
)

N_ROWS = st.integers(1, 10**10)
DTYPES = st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)])


def assert_covers(cuts):
    bounds = cuts.bounds()
    assert len(bounds) == cuts.n_segments
    assert bounds[0][0] == 0
    assert bounds[-1][1] == cuts.n_rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    assert all(stop - start == cuts.segment_rows for start, stop in bounds[:-1])
    assert 0 < bounds[-1][1] - bounds[-1][0] <= cuts.segment_rows
    assert all(type(number) is int for pair in bounds[:3] for number in pair)  # names of random streams


@given(n_rows=N_ROWS, n_features=st.integers(1, 40_000), n_outputs=st.integers(1, 100), dtype=DTYPES)
def test_cuts_of_the_gram_sweep(n_rows, n_features, n_outputs, dtype):
    cuts = gram_segmentation(n_rows, n_features, n_outputs, dtype)
    assert cuts == gram_segmentation(n_rows, n_features, n_outputs, dtype)
    assert cuts.n_rows == n_rows
    row_bytes = (n_features + 1 + n_outputs) * dtype.itemsize  # tiles: powers of two of at most 80 MiB
    assert 512 <= cuts.tile_rows <= 8192 and cuts.tile_rows & (cuts.tile_rows - 1) == 0
    assert cuts.tile_rows == 512 or cuts.tile_rows * row_bytes <= 80 * 2**20
    assert cuts.tile_rows == 8192 or 2 * cuts.tile_rows * row_bytes > 80 * 2**20
    assert cuts.segment_rows % 64 == 0
    # From 15,000 rows, unless there are fewer, to 2**17; but half or twice as many where the number of
    # segments is rounded up to a multiple of sixteen or down to a power of two. Two cores share fewer rows.
    assert cuts.segment_rows >= min(2_500 if cuts.n_segments == 2 else 7_500, n_rows)
    assert cuts.n_segments >= 2 or n_rows < 5_000
    assert cuts.segment_rows <= 2**18 + 64
    if n_rows < 10**8:
        assert_covers(cuts)


@given(n_rows=N_ROWS, n_columns=st.integers(1, 10**6))
def test_cuts_of_light_sweeps(n_rows, n_columns):
    cuts = light_segmentation(n_rows, n_columns)
    assert cuts.n_rows == n_rows
    assert 1024 <= cuts.segment_rows <= 2**18
    assert cuts.segment_rows == 1024 or 8 * n_columns * cuts.segment_rows <= 2**26
    assert 256 <= cuts.tile_rows <= cuts.segment_rows
    assert cuts.tile_rows == 256 or 8 * n_columns * cuts.tile_rows <= 2**25
    if n_rows < 10**7:
        assert_covers(cuts)


@given(n_rows=N_ROWS, n_features=st.integers(1, 40_000), dtype=DTYPES)
def test_cuts_of_light_sweeps_over_features(n_rows, n_features, dtype):
    tile_rows = margin_tile_rows(n_features, dtype)
    cuts = light_segmentation_of_features(n_rows, n_features, tile_rows)
    assert cuts.n_rows == n_rows
    assert cuts.tile_rows == tile_rows
    assert cuts.segment_rows % tile_rows == 0
    if n_rows < 10**7:
        assert_covers(cuts)
    # A hundredth of a second at least, some tenths at most; but a sweep of a tenth is cut in two.
    assert cuts.n_segments == 1 or cuts.segment_rows * max(n_features, 1024) >= 2**24
    most = max(2**13, min(2**17, 2**27 // n_features), -(-n_rows // 2**11))  # of very many rows, longer
    assert cuts.segment_rows <= most + tile_rows
    if 2 * tile_rows < n_rows and n_rows * n_features >= 2**25:
        assert cuts.n_segments >= 2


def test_workers_finish_together_after_seconds_of_work():
    """A power of two of workers has the same number of segments each; wider Grams have shorter ones."""
    gram = partial(gram_segmentation, n_outputs=1, dtype=np.dtype(np.float32))
    assert not any(gram(n, 2048).n_segments % 16 for n in (300_000, 10**6, 3 * 10**6, 7_200_000))
    rows = [gram(10**7, D).segment_rows for D in (64, 2048, 4096, 16_384)]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] > 4 * rows[-1]


# Which segment a worker takes next: each once, neighbours together, none left while somebody is free


WORKERS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 5), max_size=6)


@given(n_segments=st.integers(0, 60), threads=WORKERS, data=st.data())
def test_every_segment_is_taken_once_whoever_asks(n_segments, threads, data):
    shares = SegmentShares(list(range(n_segments)), threads)
    taken = []
    while shares:
        taken.append(shares.take(data.draw(st.sampled_from([*threads, "late", "any"]))))
    assert sorted(taken) == list(range(n_segments))


@given(n_segments=st.integers(0, 60), threads=WORKERS.filter(bool), data=st.data())
def test_what_a_worker_keeps_it_takes_itself_and_first(n_segments, threads, data):
    homes = st.sampled_from([*threads, "gone", ""])
    home = [data.draw(homes) for _ in range(n_segments)]
    kept = {worker: [i for i in range(n_segments) if home[i] == worker] for worker in (*threads, "gone")}
    shares = SegmentShares(list(range(n_segments)), threads, kept)
    taken = {worker: [] for worker in threads}
    while shares:
        worker = data.draw(st.sampled_from([*threads]))
        segment = shares.take(worker, threads)
        if segment is not None:
            taken[worker].append(segment)
    assert sorted(chain.from_iterable(taken.values())) == list(range(n_segments))
    for worker, segments in taken.items():
        assert segments[: len(kept[worker])] == kept[worker]
