"""`--metrics`: the page for Prometheus of a process of ours, and the options that say who may read it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stigmergy.app.config import Config
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display.output import GOOD, Output
from stigmergy.metrics.samples import Collect, SampleSheet
from stigmergy.serve.tokens import tokens_path

if TYPE_CHECKING:
    from stigmergy.serve.metrics import MetricsListening, MetricsServer

METRICS_EXAMPLE = ":9100"


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """The options of everything that has a page of its own."""
    group = parser.add_argument_group("metrics")
    group.add_argument("--metrics", metavar="HOST:PORT", help="tell Prometheus there, such as :9100 on this machine")
    group.add_argument("--metrics-tokens", metavar="FILE", type=Path, help="who may read it; else that of the HTTP API")
    group.add_argument("--metrics-cert", metavar="FILE", type=Path, help="the certificate for TLS")
    group.add_argument("--metrics-cert-key", metavar="FILE", type=Path, help="its private key")
    group.add_argument("--metrics-insecure", action="store_true", help="let others read it without tokens or TLS")


def metrics_of(arguments: argparse.Namespace, config: Config, journal: Path | None, fleet: Fleet) -> MetricsReport:
    """What the command line says, else `metrics` in stigmergy.toml; without both no page. Raises ConfigError."""
    settings = (config.settings or fleet.settings).metrics
    return MetricsReport(listening_of(arguments, config.fleet.metrics, journal, fleet.name), agents=settings.agents)


def listening_of(
    arguments: argparse.Namespace, configured: str | None, journal: Path | None, fleet: str
) -> MetricsListening | None:
    """Where the page is to be, and who may read it."""
    text = arguments.metrics or configured
    if text is None:
        if arguments.metrics_tokens or arguments.metrics_cert or arguments.metrics_insecure:
            raise ConfigError(f"there are no metrics to guard; give --metrics {METRICS_EXAMPLE} too")
        return None
    from stigmergy.serve.listener import read_address
    from stigmergy.serve.metrics import MetricsListening

    address = read_address(text, arguments.metrics_cert, arguments.metrics_cert_key)
    tokens = arguments.metrics_tokens or tokens_path(journal, fleet)
    return MetricsListening(address, tokens, arguments.metrics_insecure)


class MetricsReport:
    """The page of one process: where it is, once it is there."""

    def __init__(self, listening: MetricsListening | None = None, *, agents: bool = False) -> None:
        self._listening = listening
        self._agents = agents
        self._server: MetricsServer | None = None
        self.put: Callable[[SampleSheet], None] = lambda _: None
        """Adds what is of the process, not of a node."""
        self.url = ""
        """Empty without a page."""

    async def start(self, collect: Collect, fleet: str, output: Output) -> None:
        """Listens, if that was asked for, and says where. Raises ConfigError."""
        if self._listening is None:
            return
        from stigmergy.serve.metrics import MetricsPage, MetricsServer

        page = MetricsPage(collect, agents=self._agents)
        page.put = self.put
        self._server = MetricsServer(page, self._listening)
        self.url = await self._server.start()
        document = {"event": "metrics", "fleet": fleet, "url": self.url}
        output.tell("metrics-listening", ("metrics", GOOD), f" {self.url}", document=document)

    async def close(self) -> None:
        """Answers nobody any more."""
        if self._server is not None:
            await self._server.close()
