"""Writes the dashboards, the alert rules and the tables of docs/metrics.md and docs/logging.md anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy import rules
from deploy.dashboards import DASHBOARDS, described
from stigmergy.diagnostics.codes import code_table
from stigmergy.metrics.catalogue import SECTIONS

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- made by make dashboards -->", "<!-- end of what is made -->"


def files() -> dict[Path, str]:
    """Everything that is made, by path."""
    made = {HERE / "grafana" / f"{one.name}.json": json.dumps(described(one), indent=1) + "\n" for one in DASHBOARDS}
    made[HERE / "prometheus" / "rules.yml"] = rules.written()
    for name, made_of in (("metrics", tables()), ("logging", f"\n{code_table()}\n")):
        page = HERE.parent / "docs" / f"{name}.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        made[page] = f"{before}{BEGIN}\n{made_of}{END}{rest.partition(END)[2]}"
    return made


def tables() -> str:
    """The list of metrics as tables."""
    lines: list[str] = []
    for section in SECTIONS:
        lines += ["", f"### {section.title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for one in section.metrics:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.about} |")
    return "\n".join(
        [*lines, "", "### Alerts", "", "| alert | severity | meaning |", "|---|---|---|", *_alerts(), "", ""]
    )


def _alerts() -> list[str]:
    return [f"| `{one.name}` | {one.severity} | {one.about} |" for one in rules.ALERTS]


def main() -> int:
    """Writes what has changed."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
