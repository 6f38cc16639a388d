"""Looks at HTML in a headless Chromium: several frames in one start, each measured from outside."""

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
function overflow(element) { return element.ownerDocument.defaultView.getComputedStyle(element).overflowX; }
function scrollsItself(element, root) {
  for (let e = element; e !== root; e = e.parentElement) {
    if (["auto", "scroll"].includes(overflow(e))) return true;
  }
  return false;
}
function name(element) { return element.tagName + ": " + element.textContent.trim().slice(0, 40); }
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
function behindInChart(text) {
  const box = text.getBoundingClientRect(), chart = text.ownerSVGElement;
  const middle = new DOMPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
  let color = behind(chart);
  for (const shape of chart.querySelectorAll("path")) {  // in the order in which they are painted
    if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
    const style = shape.ownerDocument.defaultView.getComputedStyle(shape);
    if (style.fill === "none" || shape.closest("defs")) continue;
    if (!shape.isPointInFill(middle.matrixTransform(shape.getScreenCTM().inverse()))) continue;
    const opacity = parseFloat(style.fillOpacity) * parseFloat(style.opacity);
    color = color.map((v, i) => v * (1 - opacity) + rgb(style.fill)[i] * opacity);
  }
  return color;
}
function contrast(element) {
  const style = element.ownerDocument.defaultView.getComputedStyle(element), inChart = element.closest("svg");
  const ink = rgb(inChart ? style.fill : style.color).slice(0, 3);
  const ground = inChart ? behindInChart(element) : behind(element);
  const [high, low] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}
function ownTexts(element) {
  return [...element.childNodes].filter(n => n.nodeType === 3 && n.textContent.trim());
}
function lines(element) {
  return ownTexts(element).flatMap(node => {
    const range = element.ownerDocument.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()];
  });
}
function lieOnEachOther(a, b) {
  const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return width > 1 && height > 0.3 * Math.min(a.height, b.height);  // lines that follow each other may touch
}
function isCutOff(element) {
  const chart = element.ownerSVGElement;
  const inside = (box, e) => {
    const seen = e.getBoundingClientRect();
    return box.left > seen.left - 1 && box.right < seen.right + 1
      && box.top > seen.top - 1 && box.bottom < seen.bottom + 1;
  };
  if (chart && !lines(element).every(box => inside(box, chart))) return true;
  for (let e = element; e && !["auto", "scroll"].includes(overflow(e)); e = e.parentElement) {
    const hides = overflow(e) !== "visible" && !e.closest("svg");
    if (hides && !lines(element).every(box => inside(box, e))) return true;
  }
  return false;
}
function measure(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, width = view.innerWidth;
  const all = [...page.querySelectorAll(".distrff, .distrff *")].filter(visible);
  const beyond = all.filter(e => {
    const root = e.closest(".distrff"), whole = root.getBoundingClientRect(), box = e.getBoundingClientRect();
    return (box.right > Math.min(whole.right, width) + 0.5 || box.left < Math.max(whole.left, 0) - 0.5)
      && !scrollsItself(e, root);
  });
  const written = all.filter(e => ownTexts(e).length && !e.closest("title, desc, style"));
  const texts = written.flatMap(e => lines(e).map(line => [e, line]));
  const overlaps = texts.flatMap(([e, line], i) => texts.slice(i + 1)
    .filter(([f, other]) => e !== f && lieOnEachOther(line, other)).map(([f]) => name(e) + " on " + name(f)));
  const sizes = written.filter(e => e.closest("svg")).map(e =>
    parseFloat(view.getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
      / e.ownerSVGElement.viewBox.baseVal.width);
  return {
    innerWidth: width,
    scrollWidth: page.documentElement.scrollWidth,
    scrollHeight: page.documentElement.scrollHeight,
    background: view.getComputedStyle(page.body).backgroundColor,
    beyond: beyond.map(name),
    overlaps,
    cutOff: written.filter(isCutOff).map(name),
    faint: written.filter(e => contrast(e) < 4.5).map(e => name(e) + " " + contrast(e).toFixed(2)),
    nTexts: written.length,
    nChartTexts: sizes.length,
    nFacts: all.filter(e => e.tagName === "DD").length,
    smallestText: Math.min(...written.filter(e => !e.closest("svg"))
      .map(e => parseFloat(view.getComputedStyle(e).fontSize))),
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
