"""The Map panel: agents where they are, live; zoom, circles, boxes, following, layers; both planes."""

import random
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Route

from tests.serve.rig import ServedProcess
from tests.web.conftest import Screen, fly, fly_many, run_town
from tests.web.town import ZONES, make_town

Show = Callable[..., Screen]


def test_agents_move_as_they_are_observed(town: ServedProcess, show: Show) -> None:
    fly(town, "M-1", 52.01, 4.31, heading=90)
    fly(town, "M-2", 52.03, 4.35, battery=10)
    screen = show(town.url).open()
    screen.wait("map.positions.rows.has('Drone/M-1') && map.screenOf('Drone/M-2') !== null")
    # Near, so that a small move is seen: drones of other tests may be far away.
    y_of = "map.positions.y[map.positions.rows.get('Drone/{}')]".format
    box = f"{{minX: 4.3, maxX: 4.36, minY: {y_of('M-1')} - 0.01, maxY: {y_of('M-2')} + 0.01}}"
    screen.ask(f"(map.camera.fit({box}), map.camera.isMoved = true, map.redraw())")
    before = screen.ask("map.screenOf('Drone/M-1')")
    fly(town, "M-1", 52.012, 4.32, heading=180)
    screen.wait(f"map.screenOf('Drone/M-1')[0] > {before[0] + 5}")
    assert screen.ask("map.screenOf('Drone/M-1')[1]") < before[1]  # North is up.
    row = "map.positions.rows.get('Drone/M-1')"
    assert screen.ask(f"map.positions.small[{row} * 28 + 24]") == 128  # Half a turn, clockwise from north.
    legend = screen.page.locator(".legend")
    screen.wait_for(lambda: "low" in legend.inner_text())
    # A colour that is switched off is not drawn, and not hit by a click.
    legend.get_by_label("low").uncheck()
    screen.wait("map.agentAt(...map.screenOf('Drone/M-2')) === null")


def test_layers_are_drawn_and_can_be_switched_off(town: ServedProcess, show: Show) -> None:
    fly(town, "L-1", 52.01, 4.31)
    screen = show(town.url)
    screen.page.clock.install()
    screen.open()
    screen.wait("map.shapes.length === 2 && map.shapes[0].isArea && map.shapes[0].name === 'No-fly'")
    # A layer that has changed is drawn again.
    zones = {**ZONES, "features": ZONES["features"][:1]}
    screen.page.route("**/v1/layers/zones", lambda route: route.fulfill(json=zones, headers={"ETag": '"new"'}))
    screen.page.clock.fast_forward(11_000)
    screen.wait("map.shapes.length === 1")
    screen.page.get_by_label("zones").uncheck()
    screen.wait("map.shapes.length === 0")


def test_many_agents_become_circles_until_one_zooms_in(town: ServedProcess, show: Show) -> None:
    draw = random.Random(1)
    fly_many(town, "C", [(52.3 + draw.gauss(0, 0.02), 4.6 + draw.gauss(0, 0.02)) for _ in range(600)])
    screen = show(town.url).open()
    screen.wait("map.positions.shown >= 600")
    screen.page.locator("canvas").focus()
    for _ in range(8):
        screen.page.keyboard.press("-")
    # Circles of some of them may be drawn before the last key has its effect.
    in_circles = "[...map.clusterer.result.agents.slice(0, map.clusterer.result.count)].reduce((a, b) => a + b, 0)"
    screen.wait(f"{in_circles} >= 500")
    # A click on a circle zooms in; close enough, each agent is drawn by itself.
    screen.page.keyboard.press("0")
    screen.ask("map.centre('Drone/C-1')")
    for _ in range(6):
        screen.page.keyboard.press("+")
    screen.wait("map.clusterer.result.count === 0 && map.clusterer.result.inView > 0")
    # Without clusters all are drawn, also from far away.
    screen.page.keyboard.press("0")
    screen.page.get_by_role("button", name="Clusters").click()
    screen.wait("map.clusterer.result.count === 0 && map.clusterer.result.inView >= 500")


def test_a_click_selects_and_following_keeps_the_agent_in_the_middle(town: ServedProcess, show: Show) -> None:
    fly(town, "F-1", 51.50, 4.00)
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/F-1') !== null")
    screen.page.locator("canvas").focus()

    def stands_apart() -> bool:
        """Nearer and nearer, until it is in no circle with drones of other tests."""
        screen.ask("map.centre('Drone/F-1')")
        if screen.ask("map.agentAt(...map.screenOf('Drone/F-1')) === 'Drone/F-1'"):
            return True
        screen.page.keyboard.press("+")
        return False

    screen.wait_for(stands_apart, "F-1 alone")
    screen.page.mouse.click(*screen.place_of("Drone/F-1"))
    screen.page.get_by_role("complementary", name="Agent Drone/F-1").wait_for()
    screen.page.get_by_role("button", name="Follow", exact=True).click()
    for step in range(4):
        fly(town, "F-1", 51.51 + step / 100, 4.01)
        screen.page.wait_for_timeout(600)
    place = "map.screenOf('Drone/F-1')"
    middle = f"Math.hypot({place}[0] - map.camera.width / 2, {place}[1] - map.camera.height / 2)"
    screen.wait(f"{middle} < 3")
    row = "map.positions.rows.get('Drone/F-1')"
    assert screen.ask(f"map.positions.trail({row}, performance.now(), 60000).length") >= 6  # Two points and more.
    # Moving the map by hand ends it.
    screen.page.locator("canvas").focus()
    screen.page.keyboard.press("ArrowLeft")
    screen.wait("!map.follows")


def test_a_box_chooses_agents(town: ServedProcess, show: Show) -> None:
    fly_many(town, "B", [(50.00, 3.00), (50.00, 3.01), (50.01, 3.00), (50.50, 3.50)])
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/B-3') !== null")
    y_of = "map.positions.y[map.positions.rows.get('Drone/{}')]".format
    box = f"{{minX: 2.9, maxX: 3.6, minY: {y_of('B-0')} - 0.1, maxY: {y_of('B-3')} + 0.1}}"
    screen.ask(f"(map.camera.fit({box}), map.redraw())")
    left, top = screen.place_of("Drone/B-2")
    right, bottom = screen.place_of("Drone/B-1")
    mouse = screen.page.mouse
    screen.page.keyboard.down("Shift")
    mouse.move(left - 12, top - 12)
    mouse.down()
    mouse.move(right + 12, bottom + 12, steps=4)
    mouse.up()
    screen.page.keyboard.up("Shift")
    side = screen.page.get_by_role("complementary", name="Chosen agents")
    side.wait_for()
    assert side.get_by_role("heading", level=1).inner_text() == "3 agents"
    # One command for all of them.
    side.get_by_role("button", name="StartMission").click()
    side.get_by_role("textbox", name="mission").fill("together")
    side.get_by_role("button", name="Send StartMission to 3 agents").click()
    screen.wait_for(lambda: "3 of 3 accepted" in side.inner_text())
    assert town.get("/v1/agents/Drone/B-1").json["state"]["mission"] == "together"
    # What nobody knows the outcome of is sent again under the same id, and only that.
    keys: list[str | None] = []

    def lose(route: Route) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        if len(keys) == 1:
            route.fulfill(status=504, json={"title": "No answer", "detail": "it may have been done"})
        else:
            route.continue_()

    screen.page.route("**/v1/agents/Drone/B-1/StartMission", lose)
    side.get_by_role("button", name="Send StartMission to 3 agents").click()
    screen.wait_for(lambda: "2 of 3 accepted; 1: it may have been done" in side.inner_text())
    side.get_by_role("button", name="Send to the 1 others, with the same ids").click()
    screen.wait_for(lambda: "1 of 1 accepted" in side.inner_text())
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_command_to_very_many_can_be_stopped(town: ServedProcess, show: Show) -> None:
    fly_many(town, "Z", [(40.0 + number / 1e4, 1.0) for number in range(1_200)])
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/Z-1199') !== null")
    y_of = "map.positions.y[map.positions.rows.get('Drone/{}')]".format
    box = f"{{minX: 0.9, maxX: 1.1, minY: {y_of('Z-0')} - 0.01, maxY: {y_of('Z-1199')} + 0.01}}"
    screen.ask(f"(map.camera.fit({box}), map.camera.isMoved = true, map.redraw())")
    left, bottom = screen.place_of("Drone/Z-0")
    right, top = screen.place_of("Drone/Z-1199")
    screen.page.keyboard.down("Shift")
    screen.page.mouse.move(left - 20, top - 20)
    screen.page.mouse.down()
    screen.page.mouse.move(right + 20, bottom + 20, steps=4)
    screen.page.mouse.up()
    screen.page.keyboard.up("Shift")
    side = screen.page.get_by_role("complementary", name="Chosen agents")
    side.get_by_role("heading", name="1,200 agents").wait_for()
    held: list[Route] = []

    def hold(route: Route) -> None:
        """Nobody is answered until it is stopped."""
        held.append(route)

    screen.page.route("**/v1/agents/Drone/*/StartMission", hold)
    side.get_by_role("button", name="StartMission").click()
    side.get_by_role("textbox", name="mission").fill("many")
    side.get_by_role("button", name="Send StartMission to 1,200 agents").click()
    side.get_by_role("button", name="Stop").click()
    screen.wait_for(lambda: len(held) == 8)
    for route in held:
        route.continue_()
    side.get_by_text("8 of 1,200 accepted; stopped: 1,192 were not asked").wait_for()
    side.get_by_role("button", name="Send to the 1,192 others, with the same ids").wait_for()


def test_a_past_map_says_what_it_lacks(town: ServedProcess, show: Show) -> None:
    fly(town, "G-1", 46.0, 1.0)
    then = town.get("/v1/agents/Drone/G-1").json["time"]
    screen = show(town.url).open("#/map?at=2020-01-01T00:00:00Z")
    screen.page.get_by_role("status").filter(
        has_text="agents that were there before are in an older journal"
    ).wait_for()
    past = re.compile(r"/v1/map\?at=")
    whole = town.get(f"/v1/map?at={then}").json
    lost = {**whole, "missing": [{"node": "south", "why": "it is away"}]}
    screen.page.route(past, lambda route: route.fulfill(json=lost))
    screen.page.goto(f"{town.url}/#/map?at={then}")
    screen.page.get_by_text("south is not on this map: it is away").wait_for()
    screen.page.get_by_text("1 part missing").first.wait_for()
    screen.wait("map.screenOf('Drone/G-1') !== null")
    # A moment that cannot be read shows nothing, and no other moment; it is tried again.
    screen.page.unroute(past)
    busy = {"title": "Busy", "detail": "somebody looks back"}
    screen.page.route(past, lambda route: route.fulfill(status=503, json=busy))
    screen.page.goto(f"{town.url}/#/map?at={then[:19]}.999999Z")
    screen.page.get_by_role("alert").filter(has_text="could not be read: somebody looks back").wait_for()
    screen.wait("map.positions.shown === 0")
    screen.page.unroute(past)
    screen.wait("map.screenOf('Drone/G-1') !== null")
    screen.wait_for(lambda: screen.page.get_by_role("alert").count() == 0, "the end of the alert")


def test_agents_at_one_place_are_one_circle(town: ServedProcess, show: Show) -> None:
    fly_many(town, "S", [(49.00, 2.00), (49.00, 2.00), (49.01, 2.02)])
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/S-2') !== null")
    y_of = "map.positions.y[map.positions.rows.get('Drone/{}')]".format
    box = f"{{minX: 1.99, maxX: 2.03, minY: {y_of('S-0')} - 0.01, maxY: {y_of('S-2')} + 0.01}}"
    screen.ask(f"(map.camera.fit({box}), map.camera.isMoved = true, map.redraw())")
    screen.wait("map.clusterer.result.count === 1 && map.clusterer.result.agents[0] === 2")
    screen.page.mouse.click(*screen.place_of("Drone/S-0"))
    side = screen.page.get_by_role("complementary", name="Chosen agents")
    side.get_by_role("button", name="Drone/S-1").or_(side.get_by_role("link", name="Drone/S-1")).wait_for()
    assert side.get_by_role("heading", level=1).inner_text() == "2 agents"


def test_a_look_at_the_past_leaves_no_trail(town: ServedProcess, show: Show) -> None:
    fly(town, "J-1", 48.0, 1.0)
    then = town.get("/v1/agents/Drone/J-1").json["time"]
    screen = show(town.url).open()
    screen.wait("map.screenOf('Drone/J-1') !== null")
    fly(town, "J-1", 48.5, 1.5)
    row = "map.positions.rows.get('Drone/J-1')"
    screen.wait(f"Math.abs(map.positions.x[{row}] - 1.5) < 1e-6")
    screen.page.goto(f"{town.url}/#/map?at={then}")
    screen.wait(f"Math.abs(map.positions.x[{row}] - 1.0) < 1e-6")
    assert screen.ask(f"map.positions.trail({row}, performance.now(), 60000).length") <= 3  # One point: no line.


def test_each_name_has_a_colour_of_its_own(town: ServedProcess, show: Show) -> None:
    for number in range(1, 8):
        fly(town, f"N-{number}", 47.0, number / 10, battery=number if number < 7 else 90)
    screen = show(town.url).open()
    dots = screen.page.locator(".legend .dot")
    screen.wait_for(lambda: dots.count() == 7)
    colours: list[str] = dots.evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == 7
    # `all-red` is a red.
    label = screen.page.locator(".legend label").filter(has_text="all-red")
    shown: str = label.locator(".dot").evaluate("one => getComputedStyle(one).backgroundColor")
    red, green, blue = (int(part) for part in shown.removeprefix("rgb(").removesuffix(")").split(","))
    assert red > 1.3 * max(green, blue)


def test_a_plane_of_metres_works_as_well(tmp_path: Path, show: Show) -> None:
    served = run_town(make_town(tmp_path, xy=True))
    try:
        fly(served, "XY-1", -40.0, 30.0)
        fly(served, "XY-2", 60.0, 230.0)
        screen = show(served.url).open()
        screen.wait("map.camera.plane === 'xy' && map.screenOf('Drone/XY-2') !== null")
        east, north = screen.ask(
            "(([a, b], [c, d]) => [(c - a) / map.camera.scale, (b - d) / map.camera.scale])"
            "(map.screenOf('Drone/XY-1'), map.screenOf('Drone/XY-2'))"
        )
        assert (round(east), round(north)) == (200, 100)  # A metre is a metre, in both directions.
        screen.wait_for(lambda: screen.page.locator(".scale").inner_text().endswith(" m"))
    finally:
        served.end()
