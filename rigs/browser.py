"""Debian's Chromium, driven by Playwright: for the tests, the pictures and the benchmark of the page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

from stigmergy.base.errors import ConfigError

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A Chromium that ends with the context. Playwright's own browsers are not used: they cannot be had everywhere."""
    found = shutil.which("chromium")
    if found is None:
        raise ConfigError("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
