"""A receiver of OTLP over HTTP that is as strict as a collector: what it takes decodes as opentelemetry-proto.

OTLP/JSON is the JSON mapping of protobuf, but for ids, which are hexadecimal there; unknown fields are an error here.
"""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


class Collector:
    """Listens on a free port inside `with`. `refuses` is a status to answer with instead of taking spans."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.wrong: list[str] = []
        self.refuses = 0
        self.rejects = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = collector._take(self.path, dict(self.headers.items()), body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> Iterator[tuple[dict[str, str], Span]]:
        """All spans that came, with the attributes of their resources."""
        for request in self.requests:
            yield from spans_in(request)

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if self.refuses:
            return self.refuses, b"{}"
        given = {name.lower(): value for name, value in headers.items()}
        try:
            assert path == "/v1/traces", path
            assert given["content-type"] == "application/json", given
            self.requests.append(read_otlp(body))
            self.headers.append(given)
        except Exception as error:
            self.wrong.append(repr(error))
            return 400, b"{}"
        return 200, json.dumps(
            {"partialSuccess": {"rejectedSpans": str(self.rejects)}} if self.rejects else {}
        ).encode()


def spans_in(request: ExportTraceServiceRequest) -> Iterator[tuple[dict[str, str], Span]]:
    """All spans of a request, with the attributes of their resources."""
    for scoped in request.resource_spans:
        resource = {one.key: one.value.string_value for one in scoped.resource.attributes}
        for scope in scoped.scope_spans:
            for span in scope.spans:
                yield resource, span


def read_otlp(body: bytes) -> ExportTraceServiceRequest:
    """Reads OTLP/JSON; raises for anything that a collector would not take."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name, length in IDS.items():
                    if name in span:
                        raw = bytes.fromhex(span[name])
                        assert len(raw) == length, (name, span[name])
                        assert any(raw), f"{name} is zero"
                        span[name] = base64.b64encode(raw).decode()
                assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]), span
                assert span["name"], span
    found = ExportTraceServiceRequest()
    json_format.ParseDict(document, found)
    return found
