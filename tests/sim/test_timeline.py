"""The timeline: a column for each node, the time in front, and a page that has everything in it."""

import json
import re

from stigmergy.sim.fleet import Setup
from stigmergy.sim.page import write_page
from stigmergy.sim.scenarios import garage
from stigmergy.sim.simulation import run_seed
from stigmergy.sim.timeline import Chronicle, TimelineEntry, render
from stigmergy.sim.world import World
from tests.sim.fleet.lights import Seen, Switch, fleet

MS = 1_000_000


def chronicle(nodes: int = 2) -> Chronicle:
    made = Chronicle({f"node-{number}": ["Lamp/1"] for number in range(1, nodes + 1)}, entries_max=100)
    made.add(TimelineEntry(0, "", "phase", "everything runs"))
    made.add(TimelineEntry(1_500 * MS, "node-1", "kept", "Seen(number=1)", "Lamp/1"))
    made.add(TimelineEntry(1_501 * MS, "node-2", "message", "passed", "Lamp/1", "node-1", 1_500 * MS))
    made.add(TimelineEntry(61_002 * MS, "node-2", "fault", "pause on node-2 for 300 ms"))
    return made


def test_each_node_has_its_column() -> None:
    lines = render(chronicle(), width=100).splitlines()
    assert lines[1].split() == ["seconds", "node-1", "node-2"]
    column = lines[1].index("node-2")
    assert lines[2] == "     0.000 - everything runs"
    assert lines[3] == "     1.500 = Lamp/1 Seen(number=1)"
    assert lines[4].startswith("     1.501 ")
    assert lines[4].index("<") == column
    assert lines[4].strip().endswith("< from node-1: Lamp/1 passed")
    assert lines[5].startswith("    61.002 ")
    assert lines[5].index("!") == column


def test_many_nodes_are_written_below_each_other() -> None:
    lines = render(chronicle(9)).splitlines()
    assert "     1.500 node-1 = Lamp/1 Seen(number=1)" in lines


def test_what_is_left_out_is_said_and_a_finding_is_in_sight() -> None:
    made = chronicle()
    for number in range(200):
        made.add(TimelineEntry(62_000 * MS + number, "node-1", "input", f"told {number}"))
    text = render(made, last=20)
    assert "… 184 entries before" in text
    assert "told 199" in text
    made.add(TimelineEntry(63_000 * MS, "", "finding", "two are green"))
    for number in range(60):
        made.add(TimelineEntry(63_001 * MS + number, "node-1", "input", f"later {number}"))
    text = render(made, last=20)
    assert "X two are green" in text
    assert "later 6" in text
    assert "later 7" not in text
    assert "… 53 entries after" in text
    assert len(made.entries) == 100
    assert render(Chronicle({"node-1": []})) == "nothing happened"


def test_the_agent_that_a_violation_names_is_shown_although_it_was_long_ago() -> None:
    made = Chronicle({"node-1": ["Lamp/1", "Lamp/12"], "node-2": ["Lamp/2"]})
    for number in range(30):
        made.add(TimelineEntry(number * MS, "node-1", "kept", f"Seen(number={number})", "Lamp/1"))
        made.add(TimelineEntry(number * MS, "node-2", "kept", f"Seen(number={number})", "Lamp/2"))
    made.add(TimelineEntry(40 * MS, "node-1", "life", "lost power"))
    made.add(TimelineEntry(41 * MS, "node-2", "life", "crashed"))
    for number in range(200):
        made.add(TimelineEntry(50 * MS + number, "node-2", "input", f"told {number}", "Lamp/2"))
    assert "lost power" not in render(made, last=20)
    text = render(made, last=20, about=["safe_action_in_time: Lamp/1: silent since 29 ms, not made safe by 41 ms"])
    shown = text[text.index("before that, of Lamp/1:") :].splitlines()
    assert shown[1:] == [
        *(f"     0.{number:03d} node-1 = Lamp/1 Seen(number={number})" for number in range(11, 30)),
        "     0.040 node-1 * lost power",
    ]
    assert "before that" not in render(made, last=500, about=["Lamp/1: silent"]), "all of it is shown already"
    assert "before that" not in render(made, last=20, about=["a/b: nobody"])


def test_what_is_shared_and_claimed_is_in_the_timeline() -> None:
    setup = Setup(fleet=garage.fleet, agents=3, nodes=3, for_s=12.0, faults=())
    chronicle = run_seed(setup, 1, garage.drive, chronicle=True).chronicle
    assert chronicle is not None
    kept = [entry.text for entry in chronicle.entries if entry.kind == "kept"]
    for beginning in ("SharedChanged(inside +car-", "Merged(inside +car-", "Merged(inside -", "Granted(claim='gate'"):
        assert any(text.startswith(beginning) for text in kept), beginning
    assert not any("SignerEnrolled" in text for text in kept)


def test_a_page_has_everything_in_it_and_loads_nothing() -> None:
    def work(world: World) -> None:
        world.each(1.0, lambda lamp: world.observe(lamp, Seen(number=1)))
        world.ask("Lamp/1", Switch(on=True))
        world.always(lambda: world.count("on", True) == 0, name="</script> & dark")

    outcome = run_seed(Setup(fleet=fleet, agents=3, nodes=3, for_s=12.0), 3, work, chronicle=True)
    page = write_page(outcome, title="lights", command="stigmergy sim lights --seed 3")
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org)""", page)
    assert page.count("</script>") == 2
    body = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    data = json.loads(body)
    assert data["nodes"] == ["node-1", "node-2", "node-3"]
    assert data["seed"] == 3
    assert data["trace"] == outcome.trace
    assert "</script> & dark" in data["violations"][0]
    kinds = {entry[2] for entry in data["entries"]}
    assert {"phase", "life", "input", "kept", "order", "message", "finding"} <= kinds
    messages = [entry for entry in data["entries"] if entry[2] == "message"]
    assert all(entry[6] <= entry[0] for entry in messages)
    assert any(entry[5] >= 0 for entry in messages)
    assert len(data["plan"]) == len(outcome.plan)
