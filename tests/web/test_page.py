"""The page around the map: agents, commands, the past, the fleet, tokens, keys, other screens, lost contact."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Locator

from tests.serve.rig import ServedProcess, SseClient, cli
from tests.web.conftest import Screen, fly, run_town
from tests.web.town import make_town

Show = Callable[..., Screen]


def agent_panel(screen: Screen, name: str) -> Locator:
    return screen.page.get_by_role("complementary", name=f"Agent Drone/{name}")


def test_an_agent_shows_its_state_and_why(town: ServedProcess, show: Show) -> None:
    fly(town, "A-1", 52.0, 4.3, battery=55.5)
    town.post("/v1/agents/Drone/A-1/StartMission", {"mission": "M7"})
    screen = show(town.url).open("#/map?agent=Drone/A-1")
    panel = agent_panel(screen, "A-1")
    panel.get_by_role("cell", name="55.5").wait_for()
    decisions = panel.get_by_role("region", name="What it decided and why").get_by_role("listitem")
    for word in ("StartMission", "accepted", "MissionStarted", "TakeOff"):
        decisions.get_by_text(word).first.wait_for()
    # It changes as the agent does, without being asked.
    fly(town, "A-1", 52.0, 4.3, battery=44.25)
    panel.get_by_role("cell", name="44.25").wait_for()


def test_an_agent_shows_what_it_shares_and_who_wrote_it(town: ServedProcess, show: Show) -> None:
    for name in ("east", "west"):
        body = {"agent": f"Depot/{name}", "event": "Moved", "fields": {"lat": 1.0, "lon": 2.0}}
        assert town.post("/v1/observations", body).status == 200
    screen = show(town.url).open("#/map?agent=Depot/east")
    panel = screen.page.get_by_role("complementary", name="Agent Depot/east")
    shared = panel.get_by_role("region", name="Shared fields")
    shared.get_by_text("Depot.known/town").wait_for()
    for name in ("east", "west"):
        shared.get_by_role("listitem").filter(has_text=f"Depot/{name} wrote 1 change").wait_for()
    shared.get_by_text("Who wrote what").click()
    shared.get_by_role("row", name="west Depot/west").wait_for()
    # The past has them too.
    screen.page.keyboard.press(",")
    screen.wait_for(lambda: "as it was at" in panel.inner_text())
    shared.get_by_role("listitem").filter(has_text="Depot/east wrote 1 change").wait_for()
    shared.get_by_text("who had it then is not known").wait_for()
    screen.page.keyboard.press("l")
    # Its links lead to the other one, and the address of the tab with them.
    shared.get_by_role("listitem").get_by_role("button", name="Depot/west").click()
    screen.page.get_by_role("complementary", name="Agent Depot/west").wait_for()
    assert "agent=Depot" in screen.page.url


def test_a_command_is_sent_and_answered(town: ServedProcess, show: Show) -> None:
    fly(town, "K-1", 52.0, 4.3)
    screen = show(town.url).open("#/agents?agent=Drone/K-1")
    panel = agent_panel(screen, "K-1")
    panel.get_by_role("button", name="StartMission", exact=True).click()
    form = panel.get_by_role("form", name="Send StartMission")
    # The form knows types, choices and defaults from the schema.
    assert form.get_by_label("priority").input_value() == '"normal"'
    assert form.get_by_label("height_m").get_attribute("type") == "number"
    assert form.get_by_label("return_home").is_checked()
    form.get_by_role("textbox", name="mission").fill("M1")
    form.get_by_label("legs").fill("1.5")
    form.get_by_role("button", name="Send StartMission").click()
    form.get_by_text("give a whole number").wait_for()
    form.get_by_label("legs").fill("2")
    form.get_by_label("priority").select_option(label="high")
    form.get_by_role("button", name="Send StartMission").click()
    form.get_by_text("Accepted, durable at position").wait_for()
    assert town.get("/v1/agents/Drone/K-1").json["state"]["mission"] == "M1"
    fly(town, "K-1", 52.0, 4.3, battery=12)
    form.get_by_role("button", name="Send StartMission").click()
    form.get_by_text("Refused: battery at 12 %, 20 % needed").wait_for()


def test_the_slider_puts_state_map_and_log_back(town: ServedProcess, show: Show) -> None:
    fly(town, "T-1", 52.0, 4.3, battery=90)
    then = town.get("/v1/agents/Drone/T-1").json["time"]
    screen = show(town.url).open("#/map?agent=Drone/T-1")
    panel = agent_panel(screen, "T-1")
    panel.get_by_role("cell", name="90").wait_for()
    screen.wait("map.screenOf('Drone/T-1') !== null")
    fly(town, "T-1", 52.2, 4.6, battery=30)
    panel.get_by_role("cell", name="30", exact=True).wait_for()
    # One event back from now is the last one; one more is the one before.
    screen.page.keyboard.press(",")
    screen.wait_for(lambda: "at=" in screen.page.url)
    screen.page.keyboard.press(",")
    panel.get_by_role("cell", name="90").wait_for()
    assert then[:23] in screen.page.url
    row = "map.positions.rows.get('Drone/T-1')"
    screen.wait(f"Math.abs(map.positions.x[{row}] - 4.3) < 1e-6")
    assert "as it was at" in panel.inner_text()
    assert panel.get_by_role("button", name="StartMission").count() == 0  # Nothing is sent into the past.
    screen.page.keyboard.press(".")
    panel.get_by_role("cell", name="30", exact=True).wait_for()
    # The slider itself: its left end is before the drone existed.
    slider = screen.page.get_by_role("slider", name="Moment")
    slider.focus()
    slider.press("Home")
    screen.wait("map.screenOf('Drone/T-1') === null")
    screen.page.get_by_role("button", name="Live").click()
    screen.wait("map.screenOf('Drone/T-1') !== null")
    assert "at=" not in screen.page.url


def wait_for_moment(screen: Screen, moment: str) -> None:
    screen.wait_for(lambda: moment in screen.page.url.replace("%3A", ":"), moment)


def test_keys_step_through_all_shards_and_back_without_a_skip(town: ServedProcess, show: Show) -> None:
    for number in range(12):
        fly(town, f"S-{number % 6}", 52.0, 4.0 + number / 100)
    screen = show(town.url).open("#/events")
    screen.page.get_by_role("row").filter(has_text="S-5").first.wait_for()
    last = town.get("/v1/page/events?back=1&limit=12").json["events"]
    assert len({one["shard"] for one in last}) > 1
    # Keys that come faster than their steps wait for them.
    for _ in last:
        screen.page.keyboard.press(",")
    wait_for_moment(screen, last[0]["kept"])
    for one in last[1:6]:
        screen.page.keyboard.press(".")
        wait_for_moment(screen, one["kept"])
    for _ in last[6:]:
        screen.page.keyboard.press(".")
    wait_for_moment(screen, last[-1]["kept"])
    rows = screen.page.get_by_role("table").get_by_role("row")
    screen.wait_for(lambda: rows.last.inner_text().split()[1] == f"Drone/{last[-1]['agent'].partition('/')[2]}")


def test_a_step_shows_an_event_that_was_kept_late(town: ServedProcess, show: Show) -> None:
    fly(town, "W-1", 52.0, 4.3, battery=90)
    body = {"agent": "Drone/W-1", "event": "Drained", "fields": {"battery": 33.0}}
    assert town.post("/v1/observations", body).status == 200
    screen = show(town.url).open("#/events?agent=Drone/W-1")
    # Events from before the page was opened are listed, too.
    row = screen.page.get_by_role("table").get_by_role("row").filter(has_text="Drained")
    row.wait_for()
    panel = agent_panel(screen, "W-1")
    screen.page.keyboard.press(",")
    screen.wait_for(lambda: "Drained" in screen.page.locator(".moment").inner_text())
    screen.wait_for(lambda: "as it was at" in panel.inner_text())
    panel.get_by_role("cell", name="33").wait_for()
    moment = screen.page.url.partition("at=")[2]
    assert town.get(f"/v1/agents/Drone/W-1?at={moment}").json["state"]["battery"] == 33.0
    screen.page.keyboard.press(",")
    panel.get_by_role("cell", name="90").wait_for()
    # Of many entries only those that are wanted.
    panel.get_by_label("Show").select_option(label="commands, refusals and effects")
    panel.get_by_text("None among the last").wait_for()


def token_for(folder: Path, *scopes: str) -> str:
    """A new token of the town; from the first one on everybody needs one."""
    given = [part for scope in scopes for part in ("--scope", scope)]
    made = cli(folder, "token", "create", "somebody", *given, "--journal", "town.db", "--json")
    assert made.returncode == 0, made
    return str(json.loads(made.stdout)["token"])


@pytest.fixture
def stumbling(tmp_path: Path) -> Iterator[ServedProcess]:
    """A town of its own, in which an agent was stopped after three inputs that failed."""
    served = run_town(make_town(tmp_path))
    fly(served, "R-1", 52.0, 4.3)
    for _ in range(3):
        served.post("/v1/observations", {"agent": "Drone/R-2", "event": "Stumbled", "fields": {}})
    yield served
    assert served.end() == 0


def give_token(screen: Screen, token: str) -> None:
    screen.page.get_by_role("textbox", name="Token").fill(token)
    screen.page.get_by_role("button", name="Open").click()


def test_dead_letters_and_stopped_agents_are_mended_here(stumbling: ServedProcess, tmp_path: Path, show: Show) -> None:
    token = token_for(tmp_path, "read", "operate")
    screen = show(stumbling.url).open("#/fleet")
    screen.page.get_by_role("dialog", name="This fleet wants a token").wait_for()
    give_token(screen, token)
    letters = screen.page.get_by_role("region", name="Dead letters")
    screen.wait_for(lambda: letters.get_by_role("button", name="Drop").count() == 3)
    assert "no ground under the feet" in letters.inner_text()
    letters.get_by_role("button", name="Drop").first.click()
    screen.wait_for(lambda: letters.get_by_role("button", name="Drop").count() == 2)
    stopped = screen.page.get_by_role("region", name="Stopped agents")
    stopped.get_by_role("button", name="Resume").click()
    stopped.wait_for(state="detached")
    # It goes on, and fails at the same input again: as a new letter.
    before = letters.inner_text()
    letters.get_by_role("button", name="Retry").first.click()
    screen.wait_for(lambda: letters.get_by_role("button", name="Drop").count() == 2 and letters.inner_text() != before)


def test_without_a_token_the_page_says_how_to_get_one(stumbling: ServedProcess, show: Show) -> None:
    for _ in range(3):
        stumbling.post("/v1/observations", {"agent": "Drone/R-1", "event": "Stumbled", "fields": {}})
    then = stumbling.get("/v1/agents/Drone/R-1").json
    assert then["stopped"]
    screen = show(stumbling.url).open("#/fleet")
    for name in ("Dead letters", "Stopped agents"):
        screen.page.get_by_role("region", name=name).get_by_text("--scope operate").wait_for()
    # The map marks it, and the past knows of it, too.
    screen.page.keyboard.press("1")
    screen.wait("(map.positions.small[map.positions.rows.get('Drone/R-1') * 28 + 26] & 32) !== 0")
    past = stumbling.get(f"/v1/agents/Drone/R-1?at={then['position']}").json
    assert past["stopped"] == then["stopped"]
    assert stumbling.get("/v1/agents/Drone/R-1?at=1").json["stopped"] is None


def test_without_the_scopes_there_are_no_buttons(stumbling: ServedProcess, tmp_path: Path, show: Show) -> None:
    token = token_for(tmp_path, "read")
    screen = show(stumbling.url).open("#/map?agent=Drone/R-1")
    give_token(screen, "stg_wrong_token")
    screen.page.get_by_text("does not count").wait_for()
    give_token(screen, token)
    screen.wait("map.screenOf('Drone/R-1') !== null")  # The token goes over the WebSocket too.
    panel = agent_panel(screen, "R-1")
    panel.get_by_role("cell", name="R-1", exact=True).wait_for()
    assert panel.get_by_role("button", name="StartMission").count() == 0
    screen.page.keyboard.press("4")
    screen.page.get_by_role("region", name="Stopped agents").wait_for()
    assert screen.page.get_by_role("button", name="Resume").count() == 0
    assert screen.page.get_by_role("button", name="Drop").count() == 0
    # It is kept for this tab only.
    assert screen.page.evaluate("() => sessionStorage.length") == 1
    assert screen.page.evaluate("() => localStorage.length") == 0


def test_lost_contact_is_said_and_mended(tmp_path: Path, show: Show) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    served = run_town(make_town(tmp_path), listen=listen)
    fly(served, "N-1", 52.0, 4.3)
    screen = show(served.url).open("#/map?agent=Drone/N-1")
    screen.wait("map.screenOf('Drone/N-1') !== null")
    commands = agent_panel(screen, "N-1").get_by_role("region", name="Commands")
    # The panel asks for the agent by itself, and may have it later than the map.
    screen.wait_for(lambda: commands.get_by_role("button").all_inner_texts() == ["StartMission"], "the command")
    served.end()
    screen.page.get_by_text("no contact").first.wait_for()
    source = (tmp_path / "town.py").read_text(encoding="utf-8")
    (tmp_path / "town.py").write_text(source.replace("StartMission", "BeginMission"), encoding="utf-8")
    served = run_town(tmp_path, listen=urlsplit(served.url).netloc)
    try:
        fly(served, "N-2", 52.1, 4.4)
        screen.wait("map.screenOf('Drone/N-2') !== null && map.screenOf('Drone/N-1') !== null")
        screen.page.get_by_text("no contact").first.wait_for(state="detached")
        # The fleet was upgraded meanwhile: its commands are those of now, and the map goes on.
        commands.get_by_role("button", name="BeginMission").wait_for()
        assert screen.ask("map.screenOf('Drone/N-2') !== null")
    finally:
        served.end()


def test_everything_can_be_reached_by_keys(town: ServedProcess, show: Show) -> None:
    fly(town, "Key-1", 52.0, 4.3)
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/Key-1') !== null")
    keys = screen.page.keyboard
    keys.press("/")
    keys.type("key-1")
    screen.page.get_by_role("option", name="Drone/Key-1").wait_for()
    keys.press("Enter")
    agent_panel(screen, "Key-1").wait_for()
    keys.press("f")
    screen.wait("map.follows")
    keys.press("Escape")
    agent_panel(screen, "Key-1").wait_for(state="detached")
    for key, name in (("2", "Agents"), ("3", "Events"), ("4", "Fleet"), ("1", "Map")):
        keys.press(key)
        screen.page.locator(f"nav button[aria-current]:text-is('{name}')").wait_for()
    theme = screen.page.locator("html").get_attribute("data-theme")
    keys.press("t")
    assert screen.page.locator("html").get_attribute("data-theme") != theme
    keys.press("?")
    screen.page.get_by_role("dialog", name="Keys").wait_for()
    keys.press("Escape")
    screen.page.get_by_role("dialog", name="Keys").wait_for(state="detached")
    # An agent without a place on the map is found by asking.
    town.post("/v1/observations", {"agent": "Depot/Far-1", "event": "Moved", "fields": {"lat": 0, "lon": 0}})
    keys.press("/")
    keys.type("Far")
    screen.page.get_by_role("option", name="Depot/Far-1").click()
    screen.page.get_by_role("complementary", name="Agent Depot/Far-1").wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("panel", ["map", "agents", "events", "fleet"])
def test_a_screen_reader_can_read_it(town: ServedProcess, show: Show, panel: str, dark: bool) -> None:
    fly(town, "X-1", 52.0, 4.3)
    screen = show(town.url, dark=dark).open(f"#/{panel}?agent=Drone/X-1")
    agent_panel(screen, "X-1").get_by_role("cell", name="X-1", exact=True).wait_for()
    found = Axe().run(screen.page)
    assert [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found.response["violations"]] == []


def test_times_are_shown_as_figures_and_as_charts(town: ServedProcess, show: Show) -> None:
    fly(town, "Q-1", 52.0, 4.3)
    screen = show(town.url).open("#/fleet")
    latency = screen.page.get_by_role("region", name="Latency and lag")

    def has_flown() -> bool:
        assert town.post("/v1/agents/Drone/Q-1/StartMission", {"mission": "M1"}).status == 200
        row = latency.get_by_role("row", name="event to action")
        return row.count() == 1 and " ms" in row.inner_text()

    screen.wait_for(has_flown, "the time from event to action")
    for name in ("Events per second", "Event to action"):
        screen.page.get_by_role("region", name=name, exact=True).locator("canvas").wait_for()


def figures_of(served: ServedProcess) -> dict[str, Any]:
    client = SseClient(served, path="/v1/fleet")
    told: dict[str, Any] = client.next()[1]
    client.close()
    return told


def test_what_is_missing_is_said_and_forgotten_again(town: ServedProcess, show: Show) -> None:
    fly(town, "V-1", 52.0, 4.3)
    told = figures_of(town)
    letter = {"agent": "Drone/V-1", "source": "test", "type": "Moved@1", "fields": {}, "error": "lost"}
    told["status"]["dead_letters"] = 5000
    told["letters"] = [{"letter": f"0.{number}.0", **letter} for number in range(100)]
    # What could not be read is empty; other tests of this node may have shared objects.
    lost = {**told, "missing": ["shard-1"], "objects": [], "unread": {"objects": "it took too long"}}
    answer = lost
    screen = show(town.url)
    # Each connection of the page gets one set of figures, and ends. The page connects again at once, so the test
    # says when the next figures are due: a page on a busy machine may show the first ones for a moment only.
    screen.page.route("**/v1/fleet", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"event: fleet\ndata: {json.dumps(answer)}\n\n"
    ))  # fmt: skip
    screen.open("#/fleet")
    screen.page.get_by_text("1 part missing").first.wait_for()
    screen.page.get_by_role("region", name="Shared objects").get_by_text(
        "could not be read: it took too long"
    ).wait_for()
    screen.page.get_by_role("region", name="Dead letters").get_by_text("and 4,980 more").wait_for()
    answer = told
    screen.page.get_by_text("1 part missing").first.wait_for(state="detached")


def test_a_phone_opens_an_agent_and_sends_it_a_command(town: ServedProcess, show: Show) -> None:
    fly(town, "P-2", 52.0, 4.3)
    screen = show(town.url, width=390, height=844).open()
    screen.page.get_by_role("combobox", name="Search").or_(screen.page.locator("#search")).first.fill("P-2")
    screen.page.get_by_role("option", name="Drone/P-2").click()
    panel = agent_panel(screen, "P-2")
    panel.get_by_role("button", name="StartMission", exact=True).click()
    panel.get_by_role("textbox", name="mission").fill("by phone")
    panel.get_by_role("button", name="Send StartMission").click()
    panel.get_by_text("Accepted, durable at position").wait_for()
    assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    panel.get_by_role("button", name="Close the agent").click()
    screen.wait("map.screenOf('Drone/P-2') !== null")


def test_it_fits_on_a_phone(town: ServedProcess, show: Show) -> None:
    fly(town, "P-1", 52.0, 4.3)
    screen = show(town.url, width=390, height=844).open("#/map?agent=Drone/P-1")
    agent_panel(screen, "P-1").get_by_role("cell", name="P-1", exact=True).wait_for()
    for key in "1234":
        screen.page.keyboard.press(key)
        screen.page.wait_for_timeout(300)
        assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= 390
