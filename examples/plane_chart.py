"""A function of two columns as a chart: rows of two classes, its line f = 0, its margins f = ±1.

What `svm_margins.py` draws with. The charts are SVG to be inlined in a page of `distrff.diagnostics`,
whose colours they take; classes differ in shape and lines in width as well, so that grey is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distrff.utils.axes import Scale, scale_of
from distrff.utils.svg import escape

WIDTH, LEFT, TOP, BELOW = 400.0, 34.0, 30.0, 36.0
GRID_LINES = 101  # on which f is known, each way

_CLASS = {1: "var(--series-1, #0b62a8)", -1: "var(--series-2, #c2560c)"}
_QUIET = "fill:var(--quiet, #5b6675)"
_RING = "fill:none;stroke:currentColor;stroke-width:1.6"
_DECISION = "fill:none;stroke:currentColor;stroke-width:2.4;stroke-linecap:round"
_BAND = "fill:currentColor;fill-opacity:0.09"
_NAMES = {1: "+1", -1: "−1"}


class Surface(NamedTuple):
    """Values F[i, j] of f at (x[j], y[i])."""

    x: np.ndarray
    y: np.ndarray
    F: np.ndarray


class Meeting(NamedTuple):
    """A point in the hulls of a few rows of each class, in the order +1, −1."""

    point: np.ndarray
    corners: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Frame:
    """Where points of the plane are drawn: one unit is as long across as upwards.

    Parameters
    ----------
    x, y : Scale
    """

    x: Scale
    y: Scale

    @classmethod
    def around(cls, X: np.ndarray) -> Frame:
        """Return the frame that holds all rows of X, of shape (n, 2)."""
        return cls(scale_of(X[:, 0].tolist()), scale_of(X[:, 1].tolist()))

    @property
    def height(self) -> float:
        """Height of the plot area."""
        return (WIDTH - 12 - LEFT) * (self.y.high - self.y.low) / (self.x.high - self.x.low)

    def across(self, x: np.ndarray) -> np.ndarray:
        """Return the drawn places of coordinates across."""
        return LEFT + (np.asarray(x) - self.x.low) / (self.x.high - self.x.low) * (WIDTH - 12 - LEFT)

    def upwards(self, y: np.ndarray) -> np.ndarray:
        """Return the drawn places of coordinates upwards."""
        return TOP + self.height * (self.y.high - np.asarray(y)) / (self.y.high - self.y.low)

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the coordinates of the lines on which f is to be known."""
        return (
            np.linspace(self.x.low, self.x.high, GRID_LINES),
            np.linspace(self.y.low, self.y.high, GRID_LINES),
        )


def plane_chart(
    title: str,
    frame: Frame,
    X: np.ndarray,
    y: np.ndarray,
    *,
    surface: Surface | None = None,
    ringed: np.ndarray | None = None,
    ringed_label: str = "support row",
    meeting: Meeting | None = None,
) -> str:
    """Return the chart as an ``<svg>`` element.

    Parameters
    ----------
    title : str
        For screen readers and as a tooltip; the visible heading is the page's.
    frame : Frame
    X : ndarray of shape (n, 2)
    y : ndarray of shape (n,)
        ±1.
    surface : Surface, optional
        On the frame's grid; without it there are rows alone.
    ringed : ndarray of bool, shape (n,), optional
        Rows with a ring around them.
    ringed_label : str
        What a ring says, for the legend.
    meeting : Meeting, optional
    """
    entries = [(_row(9, -4, label), _NAMES[label]) for label in (1, -1)]
    body = _axes(frame)
    if surface is not None:
        body += _layers(frame, surface)
        margins = "".join(f'<path d="M0 {-4 + 3 * k}H18" style="{_margin(k)}"/>' for k in (1, -1))
        entries += [(f'<path d="M0 -4H18" style="{_DECISION}"/>', "f = 0"), (margins, "f = ±1")]
    if meeting is not None:
        body += _meeting(frame, meeting)
        entries.append((_cross(9, -4), "in both hulls"))
    body += [_row(*place, label) for *place, label in zip(*_places(frame, X), y.tolist(), strict=True)]
    if ringed is not None:
        body += [_ring(*place) for place in zip(*_places(frame, X[ringed]), strict=True)]
        entries.append((_ring(9, -4), ringed_label))
    height = TOP + frame.height + BELOW
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" font-size="12" fill="currentColor">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join([_legend(entries), *body]) + "\n</svg>"
    )


def segments(surface: Surface, level: float) -> np.ndarray:
    """Return the pieces of the line f = level, of shape (n, 2, 2): piece, end, coordinate.

    Each square of the grid is cut into two triangles, in which f is taken as linear.
    """
    x, y, F = surface
    P = np.stack(np.broadcast_arrays(x[None, :], y[:, None], F - level), axis=-1)
    a, b, c, d = P[:-1, :-1], P[:-1, 1:], P[1:, :-1], P[1:, 1:]
    corners = [np.stack(triangle, axis=-2).reshape(-1, 3, 3) for triangle in ((a, b, c), (d, c, b))]
    return np.concatenate([_cut(triangles) for triangles in corners])


def _cut(triangles: np.ndarray) -> np.ndarray:
    """Return where the planes through corners (x, y, f) meet f = 0, of shape (n, 2, 2)."""
    above = triangles[:, :, 2] > 0
    crossed = above.any(axis=1) & ~above.all(axis=1)
    triangles, above = triangles[crossed], above[crossed]
    # The corner that is alone on its side; the line crosses both edges that leave it.
    alone = np.argmax(above == (above.sum(axis=1) == 1)[:, None], axis=1)
    rows = np.arange(len(triangles))
    apex = triangles[rows, alone]
    ends = []
    for step in (1, 2):
        other = triangles[rows, (alone + step) % 3]
        share = apex[:, 2] / (apex[:, 2] - other[:, 2])
        ends.append(apex[:, :2] + share[:, None] * (other[:, :2] - apex[:, :2]))
    return np.stack(ends, axis=1)


def _layers(frame: Frame, surface: Surface) -> list[str]:
    """Return the band between the margins, the margins, and the line f = 0 above them."""
    lines = [(level, _margin(level)) for level in (1, -1)] + [(0, _DECISION)]
    drawn = [(_path(frame, segments(surface, level)), style) for level, style in lines]
    return [
        f'<path d="{_band(frame, surface)}" style="{_BAND}"/>',
        *(f'<path d="{path}" style="{style}"/>' for path, style in drawn if path),
    ]


def _meeting(frame: Frame, meeting: Meeting) -> list[str]:
    """Return the hull of each class's rows, and a cross at the point that is in both."""
    parts = []
    for label, corners in zip((1, -1), meeting.corners, strict=True):
        outline = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(*_places(frame, corners), strict=True))
        style = f"fill:{_CLASS[label]};fill-opacity:0.12;stroke:{_CLASS[label]};stroke-width:1.3"
        parts.append(f'<path d="{outline}Z" style="{style}"/>')
    (x,), (y,) = _places(frame, meeting.point[None, :])
    return [*parts, _cross(x, y)]


def _cross(x: float, y: float) -> str:
    return f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" style="{_DECISION}"/>'


def _path(frame: Frame, pieces: np.ndarray) -> str:
    x, y = frame.across(pieces[:, :, 0]), frame.upwards(pieces[:, :, 1])
    return "".join(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" for (x0, x1), (y0, y1) in zip(x, y, strict=True))


def _band(frame: Frame, surface: Surface) -> str:
    """Return |f| < 1 as strips, one or several for each line of the grid."""
    half = frame.height / (GRID_LINES - 1) / 2
    strips = []
    for y, f in zip(frame.upwards(surface.y), surface.F, strict=True):
        top, bottom = max(y - half, TOP), min(y + half, TOP + frame.height)
        edges = frame.across(stretches_within_one(surface.x, f))
        strips += [f"M{a:.1f} {top:.2f}H{b:.1f}V{bottom:.2f}H{a:.1f}Z" for a, b in edges]
    return "".join(strips)


def stretches_within_one(x: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return (start, end) of the stretches with |f| < 1, between whose nodes f is taken as linear."""
    cuts = [x[[0, -1]]]
    for level in (1.0, -1.0):
        g = f - level
        i = np.flatnonzero((g[:-1] > 0) != (g[1:] > 0))
        cuts.append(x[i] + g[i] / (g[i] - g[i + 1]) * (x[i + 1] - x[i]))
    ends = np.sort(np.concatenate(cuts))
    middle = np.interp((ends[:-1] + ends[1:]) / 2, x, f)
    return np.stack([ends[:-1], ends[1:]], axis=1)[np.abs(middle) < 1]


def _axes(frame: Frame) -> list[str]:
    bottom, right = TOP + frame.height, WIDTH - 12
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{frame.height:.1f}" '
        'style="fill:none;stroke:currentColor;stroke-opacity:0.35"/>'
    ]
    for value, text in frame.x.ticks:
        x = frame.across(np.array(value))
        parts.append(f'<path d="M{x:.1f} {bottom:.1f}v4" style="stroke:currentColor"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle" style="{_QUIET}">{text}</text>'
        )
    for value, text in frame.y.ticks:
        y = frame.upwards(np.array(value))
        parts.append(f'<path d="M{LEFT} {y:.1f}h-4" style="stroke:currentColor"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end" style="{_QUIET}">{text}</text>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 32:.1f}" text-anchor="middle" style="{_QUIET}">x₁</text>')
    parts.append(f'<text x="2" y="{TOP + 12}" style="{_QUIET}">x₂</text>')
    return parts


def _places(frame: Frame, X: np.ndarray) -> tuple[list[float], list[float]]:
    return frame.across(X[:, 0]).tolist(), frame.upwards(X[:, 1]).tolist()


def _margin(level: int) -> str:
    return f"fill:none;stroke:{_CLASS[level]};stroke-width:1.3;stroke-linecap:round"


def _row(x: float, y: float, label: int) -> str:
    """A disc for the class +1, a diamond for −1."""
    if label > 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.1" style="fill:{_CLASS[1]}"/>'
    return f'<path d="M{x - 3.9:.1f} {y:.1f}l3.9 -3.9l3.9 3.9l-3.9 3.9Z" style="fill:{_CLASS[-1]}"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.2" style="{_RING}"/>'


def _legend(entries: list[tuple[str, str]]) -> str:
    parts, x = [], LEFT
    for symbol, label in entries:
        parts.append(
            f'<g transform="translate({x:.1f} 18)">{symbol}<text x="23" y="0">{escape(label)}</text></g>'
        )
        x += 23 + 6.7 * len(label) + 16
    return "\n".join(parts)
