"""Real Chromium on the page of a real fleet. A test fails if the browser reports an error; its last picture is kept."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from rigs.browser import running_browser
from stigmergy.base.errors import ConfigError
from tests.conftest import without
from tests.serve.rig import WAIT_S_MAX, ServedProcess
from tests.web.town import make_town

PICTURES = Path(__file__).resolve().parents[2] / "build" / "pictures"
REPORTED = ("Failed to load resource", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET")


class Screen:
    """A tab that shows a fleet. Waits are polls: the page's policy allows no evaluated strings from inside."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_S_MAX * 1000)
        self.errors: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        # A refused command and an ended server are no errors of the page; the browser reports them all the same.
        if message.type == "error" and not any(one in message.text for one in REPORTED):
            self.errors.append(message.text)

    def open(self, place: str = "") -> "Screen":
        self.page.goto(f"{self.url}/{place}")
        return self

    def ask(self, expression: str) -> Any:
        """A value of the map's scene, `map`; None while there is none."""
        return self.page.evaluate(
            f"() => {{ const map = globalThis.stigmergyMap; return map ? ({expression}) : null; }}"
        )

    def wait(self, expression: str) -> Any:
        """Until a value of the map's scene is true."""
        return self.wait_for(lambda: self.ask(expression), expression)

    def wait_for(self, reached: Callable[[], Any], what: str = "it") -> Any:
        until_s = time.monotonic() + WAIT_S_MAX
        while not (found := reached()):
            assert time.monotonic() < until_s, f"{what} did not come"
            self.page.wait_for_timeout(50)
        return found

    def place_of(self, agent: str) -> tuple[float, float]:
        """Where an agent is drawn, in pixels of the tab."""
        box = self.page.locator("canvas").bounding_box()
        assert box is not None
        left, top = self.wait(f"map.screenOf('{agent}')")
        return box["x"] + left, box["y"] + top


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a module, and no longer: while Playwright runs, so does its event loop, and asynchronous
    tests of other modules in the same process would fail."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(running_browser())
        except ConfigError as error:
            without(str(error), "THE PAGE IS NOT TESTED")
        yield running


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """A node that serves the town; each test flies drones of its own."""
    running = run_town(make_town(tmp_path_factory.mktemp("town")))
    yield running
    assert running.end() == 0


def run_town(folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> ServedProcess:
    return ServedProcess(folder, "run", "town:fleet", "--serve", listen, *arguments)


@pytest.fixture
def show(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Screen]]:
    """Makes a tab for the URL of a fleet. Afterwards: no error, and a picture of each."""
    made: list[tuple[BrowserContext, Screen]] = []

    def open_tab(url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Screen:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        made.append((context, Screen(context, url)))
        return made[-1][1]

    yield open_tab
    PICTURES.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    for number, (context, screen) in enumerate(made):
        screen.page.screenshot(path=PICTURES / f"{name}{f'-{number}' if number else ''}.png")
        context.close()
    assert [error for _, screen in made for error in screen.errors] == []


def fly(served: ServedProcess, name: str, lat: float, lon: float, **fields: float) -> None:
    """A drone is observed at a place."""
    body = {"agent": f"Drone/{name}", "event": "Moved", "fields": {"lat": lat, "lon": lon, **fields}}
    answer = served.post("/v1/observations", body)
    assert answer.status == 200, answer


def fly_many(served: ServedProcess, prefix: str, places: list[tuple[float, float]]) -> None:
    """Drones, one at each place."""
    for begin in range(0, len(places), 500):
        many = enumerate(places[begin : begin + 500], begin)
        body = [
            {"agent": f"Drone/{prefix}-{number}", "event": "Moved", "fields": {"lat": lat, "lon": lon}}
            for number, (lat, lon) in many
        ]
        answer = served.post("/v1/observations", body)
        assert answer.status == 200, answer
