"""Turns the text of a drawing into an SVG: boxes on a grid, groups around them, arrows between them.

`make drawings` runs it on every *.txt beside it. A line of the text is one of

    cell WIDTH HEIGHT GAP_X GAP_Y                     sizes in pixels, first
    group COLUMN,ROW COLUMN,ROW "TITLE"               a frame from one cell to another
    box KIND NAME COLUMN,ROW "TITLE" "LINE" ...       KIND is a key of COLOURS
    arrow NAME NAME ["LABEL"]                         straight in a row or a column, otherwise leaving sideways
    fork NAME NAME                                    leaving downwards or upwards

It needs nothing but Python. The layout is by hand: a drawing with a dozen boxes is read more often than it is changed.
"""

import shlex
import sys
from html import escape
from pathlib import Path

COLOURS = {
    "pure": ("#e3f1e5", "#2f7d3b"),
    "node": ("#e8eefb", "#3a5fb0"),
    "disk": ("#fbecd9", "#b0701a"),
    "outside": ("#f2f2f2", "#666666"),
}
MARGIN = 24
FONT = 'font-family="Helvetica, Arial, sans-serif"'
ARROW_HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L10,5 L0,10 z" fill="#444444"/></marker></defs>'
)
Box = tuple[float, float, float, float]


class Drawing:
    """A drawing under construction. `add` takes its lines in order; `svg` is the result."""

    def __init__(self) -> None:
        self.cell: Box = (150, 64, 40, 36)
        self.boxes: dict[str, Box] = {}
        self.frames: list[str] = []
        self.parts: list[str] = []
        self.size = (0.0, 0.0)

    def place(self, where: str) -> Box:
        """The rectangle of a grid cell, for example "2,0.5"."""
        column, row = (float(number) for number in where.split(","))
        width, height, gap_x, gap_y = self.cell
        box = (MARGIN + column * (width + gap_x), MARGIN + row * (height + gap_y), width, height)
        self.size = (max(self.size[0], box[0] + width), max(self.size[1], box[1] + height))
        return box

    def text(self, x: float, y: float, line: str, style: str = 'font-size="12"', anchor: str = "middle") -> str:
        return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {FONT} {style}>{escape(line)}</text>'

    def add(self, words: list[str]) -> None:
        match words:
            case ["cell", *sizes] if len(sizes) == 4:
                width, height, gap_x, gap_y = (float(size) for size in sizes)
                self.cell = (width, height, gap_x, gap_y)
            case ["group", first, last, title]:
                self.add_group(self.place(first), self.place(last), title)
            case ["box", kind, name, where, *lines] if kind in COLOURS and lines:
                self.boxes[name] = self.place(where)
                self.add_box(self.boxes[name], COLOURS[kind], lines)
            case ["arrow", source, target, *label] if len(label) <= 1:
                self.add_arrow(self.boxes[source], self.boxes[target], "".join(label))
            case ["fork", source, target]:
                self.add_fork(self.boxes[source], self.boxes[target])
            case _:
                raise ValueError(f"not a line of a drawing: {shlex.join(words)}")

    def add_group(self, first: Box, last: Box, title: str) -> None:
        x, y = first[0] - 14, first[1] - 26
        width, height = last[0] + last[2] + 14 - x, last[1] + last[3] + 14 - y
        self.frames.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="#fafafa" '
            'stroke="#aaaaaa" stroke-dasharray="5 4"/>'
        )
        self.frames.append(self.text(x + 12, y + 17, title, 'font-size="12" fill="#555555"', "start"))

    def add_box(self, box: Box, colours: tuple[str, str], lines: list[str]) -> None:
        x, y, width, height = box
        fill, stroke = colours
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.4"/>'
        )
        top = y + height / 2 - 7.5 * (len(lines) - 1) + 4
        for number, line in enumerate(lines):
            style = 'font-size="11" fill="#333333"' if number else 'font-size="13" font-weight="bold"'
            self.parts.append(self.text(x + width / 2, top + 15 * number, line, style))

    def add_arrow(self, source: Box, target: Box, label: str) -> None:
        (x1, y1), (x2, y2) = ((box[0] + box[2] / 2, box[1] + box[3] / 2) for box in (source, target))
        side = 1 if x2 > x1 else -1
        if abs(x1 - x2) < 1:
            up = 1 if y2 > y1 else -1
            points = [(x1, y1 + up * source[3] / 2), (x2, y2 - up * target[3] / 2)]
            at = (x1 + 6, (points[0][1] + points[1][1]) / 2 + 4, "start")
        else:
            begin, end = x1 + side * source[2] / 2, x2 - side * target[2] / 2
            bend = end - side * self.cell[2] / 2
            points = [(begin, y1), (end, y2)] if abs(y1 - y2) < 1 else [(begin, y1), (bend, y1), (bend, y2), (end, y2)]
            at = ((begin + end) / 2, y1 - 6, "middle")
        self.add_line(points)
        if label:
            self.parts.append(self.text(at[0], at[1], label, 'font-size="11" fill="#444444"', at[2]))

    def add_fork(self, source: Box, target: Box) -> None:
        (x1, y1), (x2, y2) = ((box[0] + box[2] / 2, box[1] + box[3] / 2) for box in (source, target))
        up = 1 if y2 > y1 else -1
        begin, end = y1 + up * source[3] / 2, y2 - up * target[3] / 2
        middle = (begin + end) / 2
        self.add_line([(x1, begin), (x1, middle), (x2, middle), (x2, end)])

    def add_line(self, points: list[tuple[float, float]]) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="#444444" stroke-width="1.4" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        width, height = self.size[0] + MARGIN, self.size[1] + MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
            ARROW_HEAD,
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        )
        return "\n".join([*head, *self.frames, *self.parts, "</svg>"]) + "\n"


def draw(text: str) -> str:
    """The SVG of a drawing's text."""
    drawing = Drawing()
    for line in text.splitlines():
        if words := shlex.split(line, comments=True):
            drawing.add(words)
    return drawing.svg()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        source = Path(name)
        source.with_suffix(".svg").write_text(draw(source.read_text(encoding="utf-8")), encoding="utf-8")
        print(source.with_suffix(".svg"))
