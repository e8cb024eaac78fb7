"""`/openapi.json`, and `/docs`: a page to try the API with, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

import msgspec

from stigmergy.node.declaration import Declaration
from stigmergy.serve.http import HttpAnswer, HttpCall, HttpRoute
from stigmergy.serve.openapi import describe_api


class Pages:
    """The document of an API, and the page that shows it."""

    def __init__(self, fleet: Declaration, version: str) -> None:
        self._fleet = fleet
        self._version = version
        self._document = b""
        self._page = files("stigmergy.serve").joinpath("page.html").read_bytes()
        (script,) = re.findall(rb"<script>(.*)</script>", self._page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        # The page may run its own script, and may ask this server; nothing else.
        allowed = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'"
        self._headers = (
            (b"content-security-policy", f"{allowed}; frame-ancestors 'none'; base-uri 'none'".encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        )

    def routes(self) -> list[HttpRoute]:
        """Where they are."""
        return [
            HttpRoute("GET", "/openapi.json", self._openapi, "read", is_described=False),
            HttpRoute("GET", "/docs", self._docs, "", is_described=False),
        ]

    def describe(self, routes: tuple[HttpRoute, ...]) -> None:
        """Writes the document for these routes; once, before the first request."""
        self._document = msgspec.json.encode(describe_api(self._fleet, routes, self._version))

    async def _openapi(self, call: HttpCall) -> HttpAnswer:
        return HttpAnswer(self._document)

    async def _docs(self, call: HttpCall) -> HttpAnswer:
        return HttpAnswer(self._page, type=b"text/html; charset=utf-8", headers=self._headers)
