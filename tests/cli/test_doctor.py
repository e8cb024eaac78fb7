"""`stigmergy doctor`: what it says of a folder, a running node, and of what was broken on purpose."""

import json
from typing import Any

from tests.cli.conftest import Folder


def by_check(found: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["level"] for one in found["checks"]}


def doctor(folder: Folder, *arguments: str) -> dict[str, Any]:
    """What it says. The machine under the tests may have troubles of its own, such as a folder in memory."""
    done = folder.cli("doctor", "--json", *arguments)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1)
    assert found["ok"] == (found["counts"]["fail"] == 0)
    return found


def test_an_empty_folder_and_a_running_node_and_a_stopped_one(here: Folder) -> None:
    empty = doctor(here)
    assert by_check(empty)["versions.sqlite"] == by_check(empty)["disk.writable"] == "ok"
    assert set(empty["checks"][0]) == {"check", "level", "what", "remedy", "facts"}
    before = sorted(path.name for path in here.path.iterdir())
    assert before == ["drone.py"]
    node = here.start()
    here.ask(do="send", agent="Drone/D-1", command="StartMission", fields={"mission": "M1"})
    running = by_check(doctor(here))
    assert running["journal.node"] == running["keys.journal"] == "ok"
    node.end()
    stopped = doctor(here, "--journal", "delivery.db")
    assert by_check(stopped)["journal.verifies"] == by_check(stopped)["keys.journal"] == "ok"
    shown = here.cli("doctor").stdout
    assert "disk.sync" in shown
    strict = here.cli("doctor", "--strict", "--json").returncode
    assert strict == (0 if stopped["worst"] == "ok" else 1)


def test_what_is_broken_fails_and_says_what_to_do(here: Folder) -> None:
    here.start().end()
    key, file = here.path / "delivery.key", here.path / "delivery.db"
    secret = key.read_text()
    key.chmod(0o644)
    found = here.json("doctor", code=1)
    assert by_check(found)["keys.mode"] == "fail"
    key.chmod(0o600)
    here.json("keys", "new", "other.key")
    assert by_check(here.json("doctor", "--key", "other.key", code=1))["keys.journal"] == "fail"
    (here.path / "stigmergy.toml").write_text('[fleet]\nbus = "mqtt://user:hunter2@127.0.0.1:9"\n')
    done = here.cli("doctor")
    assert done.returncode == 1
    assert "bus.reachable" in done.stdout
    assert "→" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert not any(line in done.stdout + done.stderr for line in secret.splitlines() if len(line) > 20)
    (here.path / "stigmergy.toml").write_text("[fleet]\nbogus = 1\n")
    assert by_check(here.json("doctor", code=1))["config"] == "fail"
    (here.path / "stigmergy.toml").unlink()
    file.write_bytes(file.read_bytes()[:-4096])
    assert by_check(here.json("doctor", code=1))["journal.opens"] == "fail"


def test_what_the_fleet_needs_and_nobody_has_configured(here: Folder) -> None:
    (here.path / "hall.py").write_text(
        """
from stigmergy import Agent, Claim, Effects, Event, Fleet, Ordered, ORSet, Publish, Shared, ordered, react, shared


class Seen(Event):
    what: str


class Cart(Agent):
    board: Shared[ORSet[str]] = shared(by="hall")
    dock: Ordered[Claim] = ordered(of="dock-1")

    @react
    def tell(self, event: Seen) -> Effects:
        yield Publish("seen", event)


fleet = Fleet("hall", agents=[Cart])
"""
    )
    configured = here.path / "stigmergy.toml"
    configured.write_text('[fleet]\nmodule = "hall:fleet"\n')
    lacking = doctor(here)
    said = {one["check"]: (one["level"], one["what"], one["remedy"]) for one in lacking["checks"]}
    assert said["needs.ledger"][:2] == ("fail", "no ledger, and Cart.dock is claimed: the fleet does not start")
    assert 'ledger = "sqlite:ledger.db"' in said["needs.ledger"][2]
    assert said["needs.bus"][:2] == ("warn", "no bus, and Cart publishes: a node is heard by nobody")
    configured.write_text('[fleet]\nmodule = "hall:fleet"\nledger = "memory:hall"\nbus = "mqtt://127.0.0.1:9"\n')
    met = by_check(doctor(here))
    assert met["needs.ledger"] == met["needs.bus"] == "ok"
    configured.write_text('[fleet]\nmodule = "nowhere:fleet"\n')
    assert by_check(doctor(here))["needs.fleet"] == "fail"
