"""A log that is played back: any moment, any speed, event by event, on the map and across agents."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serve.rig import ServedProcess
from tests.web.conftest import Screen, fly, run_town
from tests.web.town import make_town

Show = Callable[..., Screen]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """The journal of a node that has ended: two drones, three moves each, over some seconds."""
    tmp_path = make_town(tmp_path_factory.mktemp("replayed"))
    served = run_town(tmp_path)
    for step in range(3):
        fly(served, "P-1", 52.0 + step / 10, 4.0, battery=90 - step)
        fly(served, "P-2", 52.0, 4.0 + step / 10, battery=50 - step)
        time.sleep(0.7)
    for name in ("east", "west"):
        body = {"agent": f"Depot/{name}", "event": "Moved", "fields": {"lat": 1.0, "lon": 2.0}}
        assert served.post("/v1/observations", body).status == 200
    assert served.end() == 0
    played = ServedProcess(tmp_path, "serve", "town:fleet", "--log", "town.db", "--listen", "127.0.0.1:0")
    yield played
    played.end()


def test_a_log_is_stepped_through_and_played(replayed: ServedProcess, show: Show) -> None:
    screen = show(replayed.url).open()
    screen.page.get_by_text("replay", exact=True).wait_for()
    assert screen.page.get_by_role("button", name="Live").count() == 0
    assert screen.page.get_by_role("button", name="Fleet").count() == 0
    slider = screen.page.get_by_role("slider", name="Moment")
    slider.focus()
    slider.press("End")
    row = "map.positions.rows.get('Drone/{}')".format
    screen.wait(f"Math.abs(map.positions.x[{row('P-2')}] - 4.2) < 1e-6")
    slider.press("Home")
    # Event by event, over both agents.
    moment = screen.page.locator(".moment")
    stepped: list[str] = []
    for _ in range(3):
        # As the page shows it: the browser reports a new address somewhat later, and then a step is read twice.
        before = moment.inner_text()
        screen.page.keyboard.press(".")
        screen.wait_for(lambda before=before: moment.inner_text() != before, "the next event")  # type: ignore[misc]
        stepped.append(moment.get_by_role("button").inner_text())
    assert {"Drone/P-1 Moved", "Drone/P-2 Moved"} == set(stepped)
    # The agent as it was then; nothing can be sent.
    moment.get_by_role("button").click()
    panel = screen.page.locator("aside.side")
    panel.get_by_role("row", name="battery").wait_for()
    assert panel.get_by_role("button", name="StartMission").count() == 0
    # Played at speed, it comes to the end by itself, and stops there.
    slider.focus()
    slider.press("Home")
    screen.page.get_by_label("Speed").select_option(label="5×")
    screen.page.get_by_role("button", name="Play").click()
    screen.wait(f"Math.abs(map.positions.x[{row('P-2')}] - 4.2) < 1e-6")
    screen.page.get_by_role("button", name="Play").wait_for()


def test_events_around_a_moment_are_listed(replayed: ServedProcess, show: Show) -> None:
    screen = show(replayed.url).open("#/events")
    rows = screen.page.get_by_role("table").get_by_role("row")
    screen.wait_for(lambda: rows.count() == 13)  # Six moves, what two depots did, and the head.
    first = rows.nth(1).get_by_role("button").first.inner_text()
    rows.nth(6).get_by_role("button").first.click()
    screen.wait_for(lambda: "at=" in screen.page.url and first not in screen.page.locator(".moment").inner_text())
    # What came later than the moment is there, but pale.
    rows.nth(1).get_by_role("button").first.click()
    screen.wait_for(lambda: screen.page.locator("tr.later").count() == 11)


def test_agents_are_listed_as_they_were(replayed: ServedProcess, show: Show) -> None:
    screen = show(replayed.url).open("#/agents")
    rows = screen.page.get_by_role("table").get_by_role("row")
    screen.page.get_by_label("Kind").select_option("Drone")
    screen.page.keyboard.press("Escape")
    screen.page.keyboard.press(".")
    screen.page.get_by_role("row", name=re.compile(r"P-1 .*\b90\b")).wait_for()
    assert rows.count() == 2  # The first event was its; and the head.
    slider = screen.page.get_by_role("slider", name="Moment")
    slider.focus()
    slider.press("End")
    screen.page.get_by_role("row", name=re.compile(r"P-1 .*\b88\b")).wait_for()
    screen.page.get_by_role("row", name=re.compile(r"P-2 .*\b48\b")).wait_for()
    # What an agent shares is in the log too, with the names of those who wrote it.
    screen.page.goto(f"{screen.page.url}&agent=Depot/east")
    shared = screen.page.get_by_role("region", name="Shared fields")
    for name in ("east", "west"):
        shared.get_by_role("listitem").filter(has_text=f"Depot/{name} wrote 1 change").wait_for()


def test_a_simulated_run_is_shown(show: Show) -> None:
    run = ["sim", "traffic", "--seed", "3", "--for", "3", "--faults", "none"]
    served = ServedProcess(ROOT, *run, "--serve", "127.0.0.1:0")
    try:
        screen = show(served.url).open()
        screen.page.get_by_text("replay", exact=True).wait_for()
        slider = screen.page.get_by_role("slider", name="Moment")
        slider.focus()
        slider.press("End")
        screen.wait("map.positions.shown >= 4 && map.camera.plane === 'xy'")
        screen.page.keyboard.press(",")
        screen.page.locator(".moment").get_by_role("button").click()
        screen.page.locator("aside.side").get_by_text("as it was at").wait_for()
    finally:
        served.end()
