"""A flush that nobody waits for any more leaves the connection as it is."""

import asyncio

import pytest

from stigmergy.nats.link import NatsLink


async def test_a_flush_that_was_given_up_does_not_make_the_connection_deaf(
    link: NatsLink, caplog: pytest.LogCaptureFixture
) -> None:
    for turns in range(12):
        flushing = asyncio.ensure_future(link.flush())
        for _ in range(turns):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
    assert (await link.api("INFO", within_s=20.0))["streams"] >= 0
    assert "encountered error" not in caplog.text
