"""`make pictures`: the pictures of the page in docs/images, taken of a fleet that runs. None is made by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page

from rigs.browser import running_browser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
AGENTS = 1_500
DRONES = 320
"""Of four zones by two: they fill a picture that is wider than high."""
WAIT_MS = 90_000
SETTLE_MS = 8_000
"""So long agents fly before a picture is taken, so that there are trails and a chart."""
SWARM_MS = 95_000


def wait(page: Page, expression: str) -> None:
    """Until an expression is true. The page's policy forbids Playwright's own way of waiting."""
    for _ in range(WAIT_MS // 200):
        if page.evaluate(f"() => {expression}"):
            return
        page.wait_for_timeout(200)
    raise TimeoutError(f"the page did not come to: {expression}")


def take(page: Page, name: str) -> None:
    """Writes a picture."""
    path = FOLDER / f"{name}.jpg"
    page.screenshot(path=path, type="jpeg", quality=85)
    print(path.name, path.stat().st_size, "bytes")


def photograph(page: Page, url: str) -> None:
    """The four of the chapter "Watching a fleet"."""
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    wait(page, f"(globalThis.stigmergyMap?.positions.shown ?? 0) >= {AGENTS}")
    page.wait_for_timeout(SETTLE_MS)
    take(page, "watching-map")

    page.keyboard.press("/")
    page.keyboard.type("D-1042")
    page.get_by_role("option").first.click()
    page.get_by_role("button", name="SetSpeed").click()
    page.get_by_role("spinbutton", name="speed").fill("12.5")
    page.get_by_role("button", name="Send SetSpeed").click()
    page.locator(".answer.good").wait_for()
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Follow", exact=True).click()
    page.wait_for_timeout(SETTLE_MS)
    take(page, "watching-agent")

    page.keyboard.press("Escape")
    page.keyboard.press("4")
    page.wait_for_timeout(SETTLE_MS)
    take(page, "watching-fleet")

    page.keyboard.press("t")
    page.keyboard.press("1")
    page.keyboard.press("0")
    page.keyboard.press(",")
    wait(page, "location.hash.includes('at=')")
    page.keyboard.press("3")
    page.get_by_role("row").nth(20).wait_for()
    page.wait_for_timeout(3_000)
    take(page, "watching-past")


def photograph_swarm(browser: Browser) -> None:
    """The one of the README: a swarm after a minute and a half, with closed airspace and two failed drones."""
    size = ["--drones", str(DRONES), "--minutes", "2", "--share", "1.6", "--around", "180", "--drain", "1"]
    command = [sys.executable, "-u", "-m", "apps.drones", *size, "--faults", "zone,two-drones"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as swarm:
        try:
            assert swarm.stdout is not None
            line = next(line for line in swarm.stdout if "the page: " in line)
            page = browser.new_page(viewport={"width": 1280, "height": 640}, color_scheme="light")
            page.set_default_timeout(WAIT_MS)
            page.goto(line.rpartition("the page: ")[2].strip())
            wait(page, f"(globalThis.stigmergyMap?.positions.shown ?? 0) >= {DRONES}")
            page.wait_for_timeout(SWARM_MS)
            page.locator(".fresh.good").wait_for()
            take(page, "swarm")
        finally:
            swarm.send_signal(signal.SIGINT)  # so that it ends its nodes and its broker


def main() -> None:
    """Starts a fleet, takes the pictures, ends it; `swarm` as an argument takes that one only."""
    if sys.argv[1:] == ["swarm"]:
        with running_browser() as browser:
            photograph_swarm(browser)
        return
    with tempfile.TemporaryDirectory() as folder, running_browser() as browser:
        where = ["--listen", "127.0.0.1:0", "--tokens", "moving.tokens", "--journal", "sqlite:moving.db"]
        size = ["--agents", str(AGENTS), "--plain", "--rate", "0.5"]
        command = [sys.executable, "-m", "rigs.moving_fleet", *where, *size]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as fleet:
            try:
                assert fleet.stdout is not None
                page = browser.new_page(viewport={"width": 1280, "height": 760}, color_scheme="light")
                photograph(page, fleet.stdout.readline().strip())
            finally:
                fleet.terminate()
        photograph_swarm(browser)


if __name__ == "__main__":
    main()
