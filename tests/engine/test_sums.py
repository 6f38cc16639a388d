"""Sums of a pass that processes note and store."""

from threading import Thread
from weakref import WeakValueDictionary

from distrff.engine.checkpoint import PassSums, write_finished
from distrff.engine.tasks import Partial, WorkRecord


class Folder:
    """A place in memory for sums."""

    def __init__(self):
        self.stored = {}

    def nodes(self):
        return []

    def write(self, node, partial):
        self.stored[node] = partial.value

    def remove(self, nodes):
        assert not nodes


def test_a_sum_is_noted_while_others_are_written(monkeypatch):
    """Another thread ends its segment while the sums before it are walked through."""
    sums, partials = PassSums(Folder(), every=1e6, n_segments=3), [Partial(i, WorkRecord()) for i in range(3)]
    other, walked_through = Thread(target=sums.note, args=((0, 2), partials[2])), WeakValueDictionary.keys

    def keys(of):
        for place, key in enumerate(walked_through(of)):
            yield key
            if not place and not other.ident:
                other.start()
                other.join(0.1)

    monkeypatch.setattr("distrff.engine.checkpoint._UNWRITTEN", {})  # none of other tests
    monkeypatch.setattr(WeakValueDictionary, "keys", keys)
    sums.note((0, 0), partials[0])
    sums.note((0, 1), partials[1])
    write_finished()
    other.join()
    write_finished()
    assert sums.folder.stored == {(0, i): i for i in range(3)}
