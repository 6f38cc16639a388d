"""Looks at HTML in a headless Chromium: several frames in one start, each measured from outside."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)

# Runs in the page around the frames, which have its origin. A frame's colour scheme is that of its element.
_SCRIPT = """
function visible(element) {
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}
function scrollsItself(element) {
  for (let e = element; e; e = e.parentElement) {
    const overflow = e.ownerDocument.defaultView.getComputedStyle(e).overflowX;
    if (overflow === "auto" || overflow === "scroll") return true;
  }
  return false;
}
function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
function luminance(color) {
  const [r, g, b] = color.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const color = rgb(e.ownerDocument.defaultView.getComputedStyle(e).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color.slice(0, 3);
  }
  return [255, 255, 255];
}
function contrast(element) {
  const style = element.ownerDocument.defaultView.getComputedStyle(element);
  const ink = rgb(element.closest("svg") ? style.fill : style.color).slice(0, 3);
  const [high, low] = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, width = view.innerWidth;
  const all = [...page.body.querySelectorAll("*")].filter(visible);
  const beyond = all.filter(e => {
    const box = e.getBoundingClientRect();
    return (box.right > width + 0.5 || box.left < -0.5) && !scrollsItself(e);
  });
  const isWritten = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const written = all.filter(e => isWritten(e) && !e.closest("title, desc, style"));
  const name = e => e.tagName + ": " + e.textContent.trim().slice(0, 40);
  const sizes = written.filter(e => e.closest("svg")).map(e =>
    parseFloat(view.getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
      / e.ownerSVGElement.viewBox.baseVal.width);
  return {
    innerWidth: width,
    scrollWidth: page.documentElement.scrollWidth,
    scrollHeight: page.documentElement.scrollHeight,
    background: view.getComputedStyle(page.body).backgroundColor,
    beyond: beyond.map(name),
    faint: written.filter(e => contrast(e) < 4.5).map(e => name(e) + " " + contrast(e).toFixed(2)),
    n_texts: written.length,
    smallestChartText: Math.min(...sizes, 99),
  };
}
window.addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  const out = document.createElement("pre");
  out.id = "findings";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
"""


class Frame(NamedTuple):
    """HTML to be looked at, so many pixels wide, in the theme "light" or "dark" of the browser."""

    name: str
    html: str
    width: int
    theme: str


def find_browser() -> str | None:
    """Return the path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def measured(browser: str, frames: Sequence[Frame], folder: Path) -> list[dict[str, Any]]:
    """Return what the script finds in each frame; the browser's profile goes into the empty `folder`."""
    (folder / "frames.html").write_text(_around(frames), encoding="utf-8")
    arguments = [*_FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900", "--dump-dom"]
    done = subprocess.run(
        [browser, *arguments, (folder / "frames.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    findings = re.search(r'<pre id="findings">(.*?)</pre>', done.stdout, re.DOTALL)
    assert findings is not None, done.stderr[-2000:]
    return json.loads(html.unescape(findings[1]))


def _around(frames: Sequence[Frame]) -> str:
    inside = "\n".join(
        f'<iframe srcdoc="{html.escape(frame.html)}" width="{frame.width}" height="800" '
        f'style="border: 0; color-scheme: {frame.theme}"></iframe>'
        for frame in frames
    )
    return f'<!DOCTYPE html><meta charset="utf-8"><body>{inside}<script>{_SCRIPT}</script></body>'
