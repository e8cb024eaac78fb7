"""Reads the tables of the manual, so that tests can hold them against the code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_HEADING = re.compile(r"^#{2,5} (?P<title>.+)$")


def tables(name: str) -> dict[str, list[list[str]]]:
    """Under each heading of a page the rows of the first table below it, without its first two lines."""
    found: dict[str, list[list[str]]] = {}
    title, fenced = "", False
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            continue
        elif heading := _HEADING.match(line):
            title = heading["title"].strip("`")
        elif line.startswith("|"):
            found.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {title: [row for row in rows[1:] if not set(row[0]) <= set("-:")] for title, rows in found.items()}


def fields_of(title: str) -> list[str]:
    """The names of the fields of a structure, in the order of docs/formats.md."""
    rows = tables("formats.md")[title]
    assert [row[0] for row in rows] == [str(number) for number in range(len(rows))], f"{title}: number from 0"
    return [row[1] for row in rows]
