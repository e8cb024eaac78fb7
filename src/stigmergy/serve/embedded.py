"""Serves a fleet that runs in this program, its page and its API: what `stigmergy run --serve` does.

    running = fleet.running()
    async with running as live, ServedFleet(running, live, "127.0.0.1:8080") as served:
        print(served.url)

It needs `pip install "stigmergy[serve]"`. Leave it before the fleet.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from stigmergy.app.fleet import Running, installed_version, journal_path
from stigmergy.base.errors import NotRunning
from stigmergy.control.live import Live
from stigmergy.control.metrics import ProcessMetrics
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import read_address
from stigmergy.serve.server import ApiServer, Serving
from stigmergy.serve.tokens import tokens_path


class ServedFleet:
    """An async context manager: the server listens inside it."""

    def __init__(
        self, running: Running, live: Live, listen: str = "127.0.0.1:0", *, tokens: str | Path | None = None
    ) -> None:
        """`listen` is HOST:PORT; port 0 chooses one. `tokens` names the token file, which is beside the journal
        otherwise. Raises ConfigError where it must not listen: see docs/http.md."""
        fleet = running.fleet
        path = tokens_path(journal_path(running.url), fleet.name) if tokens is None else Path(tokens)
        service = running.service(live, installed_version(), _cannot_stop)
        serving = Serving(read_address(listen), path)
        measured = ProcessMetrics(lambda: {0: live}, installed_version(), "node").collect
        named = live.host.settings.metrics.agents
        asker, rules = NodeAsker(service), live.host.settings.raw_may_leave
        self._server = ApiServer(fleet, asker, serving, live.blobs, measured, agents=named, raw_may_leave=rules)
        self.url = ""
        """Where the page is; known inside."""

    async def __aenter__(self) -> ServedFleet:
        self.url = (await self._server.start())[0]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()


def _cannot_stop() -> None:
    raise NotRunning("this fleet is part of a program, which ends it")


__all__ = ["Running", "ServedFleet"]
