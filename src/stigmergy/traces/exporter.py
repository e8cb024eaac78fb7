"""Sends the spans of durable commits to a collector, on a thread of its own. It never holds up the node.

Best effort: what finds no room, or what the collector does not take in time, is dropped and counted. Nothing is lost by
that: `stigmergy trace --otlp` makes the same spans from the log.
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.shard.commit import Commit
from stigmergy.traces.otlp import rejected_of, write_otlp
from stigmergy.traces.spans import Span, spans_of, view_spans

TRACES_PATH = "/v1/traces"
BATCH_COUNT = 512
"""Spans that are sent together."""
GATHER_S = 0.5
"""So long spans are gathered before they are sent."""
POST_S_MAX = 10.0
CLOSE_S_MAX = 5.0
"""How long the end of a node waits for the collector."""
PAUSE_S = 1.0
PAUSE_S_MAX = 30.0
"""The pause before the next try when the collector does not answer; it doubles up to the larger."""
PASSING = (429, 502, 503, 504)
"""Answers after which OTLP says to send the same again."""
POST_ERRORS = (OSError, http.client.HTTPException, ValueError)
"""What `post` raises for a collector that does not answer, or not as one does."""


class ExporterCounters(Struct):
    """What became of spans."""

    spans_exported: int = 0
    spans_dropped: int = 0
    """There was no room for them while the collector was away."""
    spans_refused: int = 0
    """The collector did not take them, and would not later."""


def traces_url(export: str) -> str:
    """Where a collector takes spans: its URL with the path that OTLP names, unless it has one."""
    parts = urlsplit(export)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{shown(export)!r} is no collector; give a URL such as http://127.0.0.1:4318")
    path = parts.path if parts.path.rstrip("/").endswith(TRACES_PATH) else parts.path.rstrip("/") + TRACES_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def shown(url: str) -> str:
    """A URL for people: without a password and what follows a question mark."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """Sends a request to a collector; how many spans of it were refused. Raises POST_ERRORS."""
    asked = urllib.request.Request(url, body, {"content-type": "application/json", **headers}, method="POST")
    with urllib.request.urlopen(asked, timeout=POST_S_MAX) as answer:
        return rejected_of(answer.read(64 * 1024))


class SpanExporter:
    """`durable` on the event loop, the rest on its thread. `close` sends what is left, for a bounded time."""

    def __init__(self, export: str, headers: Mapping[str, str], fleet: str, node: str, queue_count_max: int) -> None:
        self._url, self._headers, self._whose = traces_url(export), headers, (fleet, node)
        self._queue_count_max = queue_count_max
        self._spans: deque[Span] = deque()
        self._waiting: deque[Commit | Span] = deque(maxlen=queue_count_max)
        self._woken = threading.Event()
        self._ends = threading.Event()
        self._counters = ExporterCounters()
        self._trouble = ""
        self._thread: threading.Thread | None = None

    def durable(self, commit: Commit) -> None:
        """Takes a durable commit that has notes of traces. Never waits."""
        self._take(commit)

    def _take(self, one: Commit | Span) -> None:
        if len(self._waiting) == self._queue_count_max:
            self._counters.spans_dropped += sum(1 for _ in _spans(self._waiting.popleft()))
        self._waiting.append(one)
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="stigmergy-spans", daemon=True)
            self._thread.start()
        self._woken.set()

    def viewed(self, view: str, tags: Container[str], commits: Sequence[Commit], written_ns: int) -> None:
        """Takes commits that are in the rows of a view."""
        for commit in commits:
            for span in view_spans(commit, view, tags, written_ns):
                self._take(span)

    def close(self) -> None:
        """Sends what is left, if the collector answers in time, and ends."""
        self._ends.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)
        self._counters.spans_dropped += len(self._spans)

    def counters(self) -> dict[str, int]:
        """What became of spans, by name."""
        return structs.asdict(self._counters)

    def troubles(self) -> list[Trouble]:
        """Why spans are not sent at present."""
        return coded("spans-unsent", [self._trouble])

    # ------------------------------------------------------------------ the thread

    def _live(self) -> None:
        pause_s = PAUSE_S
        while True:
            self._woken.wait()
            if not self._ends.is_set():
                self._ends.wait(GATHER_S)
            self._woken.clear()
            self._make()
            while self._spans:
                if self._send():
                    pause_s = PAUSE_S
                    self._make()
                    continue
                if self._ends.is_set():
                    return
                self._ends.wait(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                self._make()
            if self._ends.is_set() and not self._waiting:
                return

    def _make(self) -> None:
        """Makes spans of what has come; of more than there is room for, the oldest go."""
        while self._waiting:
            self._spans.extend(_spans(self._waiting.popleft()))
        while len(self._spans) > self._queue_count_max:
            self._spans.popleft()
            self._counters.spans_dropped += 1

    def _send(self) -> bool:
        """Sends a batch; False if it is to be sent again later."""
        batch = [self._spans[number] for number in range(min(BATCH_COUNT, len(self._spans)))]
        refused, why = 0, ""
        try:
            refused = post(self._url, self._headers, write_otlp(batch, *self._whose))
        except urllib.error.HTTPError as error:
            refused, why = len(batch), f"it answers with status {error.code}"
            if error.code in PASSING:
                return self._troubled(why, "they are sent again")
        except POST_ERRORS as error:
            return self._troubled(str(getattr(error, "reason", error)) or type(error).__name__, "they are sent again")
        for _ in batch:
            self._spans.popleft()
        self._counters.spans_exported += len(batch) - refused
        self._counters.spans_refused += refused
        if refused:
            self._troubled(why or f"it refused {refused} of {len(batch)}", "they are in the log, and not sent again")
        else:
            self._trouble = ""
        return True

    def _troubled(self, why: str, what: str) -> bool:
        self._trouble = f"the collector {shown(self._url)} does not take spans: {why}; {what}, see traces.export"
        return False


def _spans(one: Commit | Span) -> Iterable[Span]:
    return (one,) if isinstance(one, Span) else spans_of(one)
