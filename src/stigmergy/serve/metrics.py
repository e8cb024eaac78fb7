"""`/metrics`: what this process measures, in the formats of Prometheus; alone, or among the routes of the HTTP API.

prometheus-client writes the text; nothing is counted through it. A server beside a fleet tells of itself only: each
node, worker and gateway has its own page, and `/v1/metrics/targets` says where, as Prometheus' HTTP discovery reads it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.system import SystemClock, written_by_thread
from stigmergy.control.protocol import StatusRequest
from stigmergy.metrics.catalogue import METRICS, MetricKind
from stigmergy.metrics.histogram import Histogram
from stigmergy.metrics.profile import by_cause
from stigmergy.metrics.samples import Collect, HistogramSample, Sample, Samples, SampleSheet
from stigmergy.serve.access import AccessGate, DeniedRequest, Policy, check_listening
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import (
    HttpAnswer,
    HttpCall,
    HttpRoute,
    HttpRoutes,
    Message,
    Receive,
    Send,
    json_answer,
    problem_answer,
)
from stigmergy.serve.listener import Address, HttpListener
from stigmergy.serve.problems import problem_of
from stigmergy.serve.tokens import Tokens

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric as Family
except ModuleNotFoundError as missing:
    raise ConfigError(f'/metrics needs {missing.name}: pip install "stigmergy[serve]"') from None


class MetricsPage:
    """Writes the page. `collect` gives what each node or shard of this process measures."""

    def __init__(self, collect: Collect, *, agents: bool = False) -> None:
        """With `agents`, the busiest and the largest are named."""
        self._collect = collect
        self._agents = agents
        self.put: Callable[[SampleSheet], None] = lambda _: None
        """Adds what is of the process, not of a node."""

    def routes(self) -> list[HttpRoute]:
        """Where it is."""
        return [HttpRoute("GET", "/metrics", self._answer, "read", is_described=False)]

    async def _answer(self, call: HttpCall) -> HttpAnswer:
        body, kind = self.render(call.header(b"accept") or "")
        return HttpAnswer(body, type=kind.encode())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page in the format that is wanted, and the format's name."""
        sheet, told = SampleSheet(), self._collect()
        for one in told:
            sheet.add(one)
        if self._agents:
            for one in told:
                for share in one.busiest:
                    sheet.put("stigmergy_agent_events_share", share.share, agent=share.name)
                for large in one.largest:
                    sheet.put("stigmergy_agent_state_bytes", large.state_bytes, agent=large.agent)
        put_process(sheet)
        self.put(sheet)
        encode, kind = choose_encoder(accept)
        return encode(_Families(sheet.samples())), kind


class _Families:
    """Samples as prometheus-client reads them."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        found: dict[str, list[Sample | HistogramSample]] = {}
        told: list[Sample | HistogramSample] = [*self._samples.samples, *self._samples.histograms]
        for one in told:
            found.setdefault(one.metric, []).append(one)
        for name, samples in found.items():
            yield _family(name, samples)


def _family(name: str, samples: Sequence[Sample | HistogramSample]) -> Family:
    metric = METRICS[name]
    labels = list(metric.labels)
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, metric.about, labels=labels)
        bounds = [*(repr(bound) for bound in metric.scale.bounds), "+Inf"]
        for one in samples:
            if isinstance(one, HistogramSample):
                below, buckets = 0, []
                for bound, count in zip(bounds, one.counts, strict=False):
                    below += count
                    buckets.append((bound, float(below)))
                histogram.add_metric([one.labels[label] for label in labels], buckets, one.sum / metric.scale.per)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(name, metric.about, labels=labels)
    else:
        family = GaugeMetricFamily(name, metric.about, labels=labels)
    for one in samples:
        if isinstance(one, Sample):
            family.add_metric([one.labels[label] for label in labels], one.value)
    return family


def put_process(sheet: SampleSheet) -> None:
    """What the system says of this process, and of this machine's network. What it does not say is left out."""
    used = os.times()
    sheet.put("process_cpu_seconds_total", used.user + used.system)
    with contextlib.suppress(OSError, ValueError, IndexError):
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        sheet.put("process_resident_memory_bytes", resident * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError, IndexError):
        since_boot = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        sheet.put("process_start_time_seconds", time.time() - up_s + since_boot / os.sysconf("SC_CLK_TCK"))
    with contextlib.suppress(OSError):
        sheet.put("process_open_fds", len(os.listdir("/proc/self/fd")))
    with contextlib.suppress(OSError, ValueError):
        said = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
        sheet.put("stigmergy_disk_bytes_total", int(said.get("read_bytes", 0)), direction="in")
        sheet.put("stigmergy_disk_bytes_total", int(said.get("write_bytes", 0)), direction="out")
    for cause, size_bytes in by_cause(written_by_thread()).items():
        sheet.put("stigmergy_flash_bytes_total", size_bytes, cause=cause)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, figures = line.partition(":")
            if name.strip() != "lo":
                sheet.put("stigmergy_network_bytes_total", int(figures.split()[0]), direction="in")
                sheet.put("stigmergy_network_bytes_total", int(figures.split()[8]), direction="out")


class RequestMeasures:
    """What a server counts of its own requests."""

    def __init__(self) -> None:
        self._by_status: dict[int, int] = {}
        self._took = Histogram()
        self.now_ns = time.monotonic_ns

    def count(self, status: int, began_ns: int) -> None:
        """A request was answered."""
        self._by_status[status] = self._by_status.get(status, 0) + 1
        self._took.observe(self.now_ns() - began_ns)

    def put(self, sheet: SampleSheet) -> None:
        """Adds them."""
        for status, count in self._by_status.items():
            sheet.put("stigmergy_http_requests_total", count, status=str(status))
        sheet.observe("stigmergy_http_request_seconds", self._took)


class ScrapeTarget(Struct, frozen=True):
    """Where Prometheus finds a page, as its HTTP discovery wants it."""

    targets: list[str]
    labels: dict[str, str]


class Targets:
    """Says where the pages of the fleet's nodes and workers are."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def routes(self) -> list[HttpRoute]:
        """Where that is."""
        return [HttpRoute("GET", "/v1/metrics/targets", self._answer, "read", is_described=False)]

    async def _answer(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        status = await self._asker.ask(StatusRequest())
        hosts = [(status.metrics_url, status.host), *((one.metrics_url, one.host) for one in status.parts)]
        return json_answer(scrape_targets(status.fleet, hosts))


def scrape_targets(fleet: str, hosts: Iterable[tuple[str | None, object]]) -> list[ScrapeTarget]:
    """Each page once. One that listens at all addresses of its machine is found by the machine's name."""
    found: dict[str, ScrapeTarget] = {}
    for url, host in hosts:
        if url:
            parts = urlsplit(url)
            name = str(host) if parts.hostname in ("0.0.0.0", "::") and isinstance(host, str) else parts.hostname
            target = f"{name}:{parts.port}"
            found[target] = ScrapeTarget([target], {"fleet": fleet, "__scheme__": parts.scheme})
    return list(found.values())


class MetricsListening(Struct, frozen=True):
    """Where a process without the HTTP API tells its metrics, and to whom."""

    address: Address
    tokens: Path
    insecure: bool = False


class MetricsServer:
    """A page of metrics and nothing else, from `start` to `close`."""

    def __init__(self, page: MetricsPage, listening: MetricsListening) -> None:
        """Raises ConfigError where it must not listen."""
        clock, tokens = SystemClock(), Tokens(listening.tokens)
        address, now_s = listening.address, clock.wall_ns() / 1e9
        tls, insecure = address.cert is not None, listening.insecure
        if why := check_listening(address.host, tokens, now_s, tls=tls, insecure=insecure):
            raise ConfigError(why.replace("--cert", "--metrics-cert").replace("--insecure", "--metrics-insecure"))
        self._open = insecure and not tokens.is_there
        """Whether everybody may read it, by whatever name."""
        self._gate = AccessGate(tokens, Policy(), lambda: clock.wall_ns() / 1e9, lambda: clock.monotonic_ns() / 1e9)
        self._routes = HttpRoutes(page.routes())
        self._listener = HttpListener(self, address)

    async def start(self) -> str:
        """Listens; returns the URL of the page. Raises ConfigError if it cannot."""
        return f"{(await self._listener.start()).url}/metrics"

    async def close(self) -> None:
        """Answers nobody any more."""
        await self._listener.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        try:
            route, _ = self._routes.find(call.method, call.segments)
            if not self._open:
                self._gate.check(self._gate.admit(call.headers, call.address, call.scheme), route.scope)
            answer = await route.handler(call)
        except StigmergyError as error:
            answer = problem_answer(problem_of(error))
            if isinstance(error, DeniedRequest) and error.allow:
                call.extra_headers.append((b"allow", error.allow.encode()))
        if answer is not None:
            await call.reply(answer)
