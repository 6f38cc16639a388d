"""The picture of peers: on each set our error over theirs, against our seconds over theirs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from distrff.diagnostics.plots import COLORS, MARKERS
from tests.benchmarks.book.peers import PEERS, Ratio

TITLE = "Our error over that of each peer, against our seconds over theirs; a point for each set"


def draw(ratios: Mapping[str, Sequence[Ratio]], path: Path) -> None:
    """Write a panel for each peer; below 1 we are the more accurate, left of 1 the faster."""
    figure = Figure(figsize=(10, 4.5 * -(-len(ratios) // 2)), layout="constrained")
    panels = list(figure.subplots(-(-len(ratios) // 2), 2, sharex=True, sharey=True, squeeze=False).flat)
    for ax, (peer, of_sets) in zip(panels, ratios.items(), strict=False):
        for color, marker, task in zip(COLORS, MARKERS, ("numbers", "classes"), strict=False):
            some = [one for one in of_sets if one.task == task]
            if some:
                points = [one.seconds for one in some], [one.error for one in some]
                ax.plot(*points, color=color, marker=marker, linestyle="none", label=task)
        for one in of_sets:
            ax.annotate(one.set, (one.seconds, one.error), (4, 3), textcoords="offset points", fontsize=7)
        ax.axhline(1, color="black", linewidth=0.8)
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set(xscale="log", yscale="log", title=PEERS[peer])
        ax.legend()
    for ax in panels[len(ratios) :]:
        ax.remove()
    figure.supxlabel("our seconds over theirs")
    figure.supylabel("our error over theirs")
    with matplotlib.rc_context({"svg.hashsalt": "distrff"}):  # the same file each time
        figure.savefig(path, metadata={"Date": None})
