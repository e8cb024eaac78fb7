"""Draws stacks as a flame graph: one SVG file, for any browser and without a network; a click zooms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from zlib import crc32

WIDTH, ROW, TOP, CHAR = 1200.0, 17, 24, 6.7
DRAWN_MIN = 0.4
"""Narrower frames are left out."""
STYLE = "text{font:11px monospace;pointer-events:none}rect{stroke:#fff;stroke-width:.5}rect:hover{stroke:#000}"
ZOOM = """
const frames = [...document.querySelectorAll("g")].map(g => ({g, r: g.children[0], t: g.children[1],
  x: +g.dataset.x, w: +g.dataset.w, n: g.dataset.n}));
frames.forEach(to => to.g.onclick = () => frames.forEach(f => {
  const within = f.x >= to.x - .01 && f.x + f.w <= to.x + to.w + .01;
  const around = f.x <= to.x + .01 && f.x + f.w >= to.x + to.w - .01;
  f.g.style.display = within || around ? "" : "none";
  const x = within ? (f.x - to.x) * width / to.w : 0, w = within ? f.w * width / to.w : width;
  f.r.setAttribute("x", x); f.r.setAttribute("width", w); f.t.setAttribute("x", x + 3);
  f.t.textContent = w > 3 * char ? f.n.slice(0, w / char - 1) : "";
}));
"""


class _Frame:
    """A call, and what it called."""

    def __init__(self) -> None:
        self.weight = 0
        self.called: dict[str, _Frame] = {}


def draw_flames(stacks: Mapping[str, int], title: str) -> str:
    """The file. The outermost calls are at the top, of those that one makes the widest is first."""
    root = _Frame()
    for stack, weight in stacks.items():
        frame = root
        frame.weight += weight
        for name in stack.split(";"):
            frame = frame.called.setdefault(name, _Frame())
            frame.weight += weight
    drawn = list(_draw("all", root, 0.0, 0, max(1, root.weight)))
    height = TOP + ROW * (1 + max((row for row, _ in drawn), default=0))
    script = f"const width = {WIDTH}, char = {CHAR};{ZOOM}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" preserveAspectRatio="xMinYMin">',
        f'<style>{STYLE}</style><text x="3" y="15">{escape(title)}</text>',
        *(text for _, text in drawn),
        f"<script><![CDATA[{script}]]></script></svg>\n",
    ]
    return "\n".join(lines)


def _draw(name: str, frame: _Frame, x: float, row: int, total: int) -> Iterator[tuple[int, str]]:
    width = frame.weight * WIDTH / total
    if width < DRAWN_MIN:
        return
    y, shade, said = TOP + row * ROW, crc32(name.encode()), escape(name)
    fitting = escape(name[: int(width / CHAR - 1)]) if width > 3 * CHAR else ""
    colour = f"hsl({10 + shade % 45} 90% {62 + shade // 45 % 14}%)"
    yield (
        row,
        f'<g data-x="{x:.3f}" data-w="{width:.3f}" data-n="{said}">'
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 1}" fill="{colour}">'
        f"<title>{said}: {frame.weight:,}, {100 * frame.weight / total:.1f} %</title></rect>"
        f'<text x="{x + 3:.2f}" y="{y + 12}">{fitting}</text></g>',
    )
    for called in sorted(frame.called, key=lambda one: -frame.called[one].weight):
        yield from _draw(called, frame.called[called], x, row + 1, total)
        x += frame.called[called].weight * WIDTH / total
