"""A node renews its own certificate, over the servers that it is connected to, while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from stigmergy.app.config import Config
from stigmergy.base.errors import StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.cli.display.troubles import LOG
from stigmergy.pki.identity import with_identity

LOOK_S = 60.0
RETRY_S = 600.0
"""A renewal that was refused, or that nobody has answered, is asked for again after so long."""


@contextlib.asynccontextmanager
async def kept_identity(config: Config, key: Path | None, *urls: str | None) -> AsyncIterator[None]:
    """Renews the identity of the configuration over the first of these servers that is one of NATS with TLS; does
    nothing where there is none. `key` signs the log."""
    over = [url for url in urls if url is not None and url.startswith("tls://")]
    if config.fleet.identity is None or not over:
        yield
        return
    folder = Path(config.fleet.identity)
    keeping = asyncio.ensure_future(_keep(folder, key, with_identity(over[0], folder)))
    try:
        yield
    finally:
        await end_tasks(keeping)


async def _keep(folder: Path, key: Path | None, url: str) -> None:
    try:
        from stigmergy.pki.renewal import is_due
    except StigmergyError as error:
        LOG.say("identity-not-renewed", f"the certificate in {folder} is not renewed from here: {error}")
        return
    while True:
        try:
            if await asyncio.to_thread(is_due, folder, time.time()):
                await _renew(folder, key, url)
            pause_s = LOOK_S
        except StigmergyError as error:
            LOG.say("identity-not-renewed", f"the certificate in {folder} is not renewed: {error}")
            pause_s = RETRY_S
        await asyncio.sleep(pause_s)


async def _renew(folder: Path, key: Path | None, url: str) -> None:
    from stigmergy.nats.address import parse_address
    from stigmergy.nats.renewals import renew_over
    from stigmergy.nats.servers import on_cluster
    from stigmergy.pki.identity import signing_key

    named = None if signing_key(folder) is not None else key
    address = parse_address(url, tuple(_options(url)))
    made = await on_cluster(address, lambda link: renew_over(link, folder, named), name="stigmergy renewal")
    days = (made.until_s - time.time()) / 86_400
    LOG.say("identity-renewed", f"the certificate of {made.subject.shown} is renewed, for {days:.0f} days")


def _options(url: str) -> list[str]:
    """Whatever a URL says besides its servers and files is for others."""
    return [pair.partition("=")[0] for pair in url.partition("?")[2].split("&")]
