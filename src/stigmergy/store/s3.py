"""Objects in a bucket of S3 or of a server that speaks its protocol. Every version is an object of its own there.

    s3://maps/fleet?region=eu-central-1                      AWS; `fleet` is put before all keys
    s3://maps?endpoint=https://minio.example:9000&ca=ca.pem  any other server

The bucket must exist. The key pair is in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or in
the URL: `s3://ID:SECRET@maps`. Requests are signed here (Signature Version 4) and sent by the standard library, in
threads: five kinds of request do not justify the 25 MB of botocore on a device. There are no keys here: S3 has no
leases and no watches. The server must know `If-None-Match: *`, by which no version ever overwrites another.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import os
import queue
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from blake3 import blake3
from msgspec import Struct

from stigmergy.base.clock import Clock
from stigmergy.base.errors import (
    Bug,
    ConfigError,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreUnavailable,
    StoreUnknown,
)
from stigmergy.store.port import (
    OBJECT_BYTES_MAX,
    OBJECTS_COUNT_MAX,
    VERSIONS_COUNT_MAX,
    KeyValue,
    Objects,
    ObjectVersion,
    check_bucket,
    check_object,
    check_object_name,
)

SCHEME = "s3:"
OPTIONS = ("region", "endpoint", "ca")
WITHIN_S = 30.0
"""So long a request may be without a word from the server."""
IDLE_MAX = 8
"""Connections that are kept for the next request."""
TRIES_MAX = 100
"""How often others may use a version number before us."""
KEY_BYTES_MAX = 1024
PAGE_COUNT = 1_000
"""Names that a list is asked for at once; no server gives more."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Of a list or an error; a page has 1,000 names."""
META = "x-amz-meta-stigmergy-"
ALGORITHM = "AWS4-HMAC-SHA256"
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
T = TypeVar("T")


class S3Address(Struct, frozen=True):
    """Where a bucket is, and who we are there."""

    host: str
    """With the port, if it is not the scheme's own."""
    secure: bool
    bucket: str
    prefix: str
    region: str
    key_id: str
    secret: str
    token: str
    ca: str = ""

    @property
    def shown(self) -> str:
        return f"s3://{self.bucket}{'/' if self.prefix else ''}{self.prefix} at {self.host}"


def parse_url(url: str, environment: Mapping[str, str]) -> S3Address:
    """Reads the URL and the environment. Raises ConfigError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    bucket, prefix = parts.hostname or "", parts.path.strip("/")
    if parts.scheme != "s3" or not bucket or parts.fragment:
        raise ConfigError("store s3:…: write s3://BUCKET/PREFIX?region=REGION, or with endpoint=https://HOST:PORT")
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ConfigError(f"store s3://{bucket}: there is no option {unknown[0]}; there are {', '.join(OPTIONS)}")
    region = options.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", "")
    endpoint = urlsplit(options.get("endpoint") or f"https://s3.{region}.amazonaws.com")
    if not region and "endpoint" not in options:
        raise ConfigError(f"store s3://{bucket}: in which region? Write ?region=eu-central-1, or set AWS_REGION")
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname or endpoint.path.strip("/"):
        raise ConfigError(f"store s3://{bucket}: endpoint={options.get('endpoint')!r}; give https://HOST:PORT")
    key_id = unquote(parts.username or "") or environment.get("AWS_ACCESS_KEY_ID", "")
    secret = unquote(parts.password or "") or environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not key_id or not secret:
        raise ConfigError(f"store s3://{bucket}: no key pair; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    token = "" if parts.username else environment.get("AWS_SESSION_TOKEN", "")
    secure = endpoint.scheme == "https"
    return S3Address(
        endpoint.netloc, secure, bucket, prefix, region or "us-east-1", key_id, secret, token, options.get("ca", "")
    )


# Signature Version 4, as AWS documents it.


class S3Request(Struct, frozen=True):
    """A request to the bucket."""

    method: str
    key: str = ""
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def target_of(address: S3Address, request: S3Request) -> str:
    """Path and query, encoded as they are signed."""
    path = quote(f"/{address.bucket}/{request.key}", safe="/-_.~")
    query = urlencode(sorted(request.query), quote_via=quote, safe="-_.~")
    return f"{path}?{query}" if query else path


def signed(address: S3Address, request: S3Request, wall_ns: int) -> dict[str, str]:
    """The headers of a request, with its signature."""
    moment = datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y%m%dT%H%M%SZ")
    payload = hashlib.sha256(request.body).hexdigest()
    headers = {"host": address.host, "x-amz-content-sha256": payload, "x-amz-date": moment, **dict(request.headers)}
    if address.token:
        headers["x-amz-security-token"] = address.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
    path, _, query = target_of(address, request).partition("?")
    canonical = f"{request.method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"
    scope = f"{moment[:8]}/{address.region}/s3/aws4_request"
    text = f"{ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{address.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = f"Credential={address.key_id}/{scope}"
    headers["authorization"] = f"{ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return headers


class S3Answer(Struct, frozen=True):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's name; empty if there is none."""
        return self.text("Code")

    def text(self, name: str) -> str:
        """What the XML of an error says under this name; empty if it says nothing."""
        try:
            return (ET.fromstring(self.body).findtext(name) or "") if self.body else ""
        except ET.ParseError:
            return ""


class S3Connection:
    """Sends requests, from threads, over a few connections that are kept."""

    def __init__(self, address: S3Address, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self.closed = False
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()
        self._tls = ssl.create_default_context(cafile=address.ca or None) if address.secure else None

    def close(self) -> None:
        self.closed = True
        while not self._idle.empty():
            self._idle.get().close()

    def __del__(self) -> None:
        # A store that was forgotten leaves no sockets behind.
        self.close()

    def send(self, request: S3Request, *accepted: int) -> S3Answer:
        """The answer, if its status is one of these; any other becomes an error. Runs in a thread."""
        is_write = request.method in ("PUT", "DELETE")
        try:
            answer = self._send(request)
        except (OSError, http.client.HTTPException) as error:
            what = f"{self.address.shown}: the connection broke ({type(error).__name__})"
            if is_write:
                raise StoreUnknown(f"{what}; whether it was written is not known: repeat it") from None
            raise StoreUnavailable(f"{what}; try again") from None
        if answer.status in accepted:
            return answer
        raise self.error_of(answer, is_write=is_write)

    def _send(self, request: S3Request) -> S3Answer:
        for is_kept in (not self._idle.empty(), False):
            line = self._idle.get() if is_kept else self._connect()
            try:
                headers = signed(self.address, request, self.clock.wall_ns())
                line.request(request.method, target_of(self.address, request), request.body or None, headers)
                response = line.getresponse()
                limit = OBJECT_BYTES_MAX if request.method == "GET" and request.key else ANSWER_BYTES_MAX
                body = response.read(limit + 1)
                if len(body) > limit:
                    line.close()
                    raise StoreForeign(f"{self.address.shown}: {request.key} is larger than we ever put; not ours")
                found = {name.lower(): value for name, value in response.getheaders()}
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                line.close()
                if is_kept:
                    continue  # the server has closed a connection that we had kept
                raise
            except BaseException:
                line.close()
                raise
            self._keep(line)
            return S3Answer(response.status, found, body)
        raise Bug("a connection that is neither kept nor new")

    def _connect(self) -> http.client.HTTPConnection:
        host = self.address.host
        line = (
            http.client.HTTPConnection(host, timeout=WITHIN_S)
            if self._tls is None
            else http.client.HTTPSConnection(host, timeout=WITHIN_S, context=self._tls)
        )
        try:
            line.connect()
        except ssl.SSLCertVerificationError as error:
            line.close()
            raise ConfigError(
                f"{self.address.shown}: its certificate is not trusted ({error}); give &ca=FILE"
            ) from None
        except OSError as error:
            line.close()
            raise StoreUnavailable(f"{self.address.shown}: cannot be reached ({error}); try again") from None
        return line

    def _keep(self, line: http.client.HTTPConnection) -> None:
        if self.closed or self._idle.qsize() >= IDLE_MAX:
            line.close()
        else:
            self._idle.put(line)

    def error_of(self, answer: S3Answer, *, is_write: bool) -> StoreError | ConfigError:
        """What a refusal means, in a sentence."""
        code, where = answer.code or str(answer.status), self.address.shown
        if answer.status >= 500 or answer.status == 429 or code in ("SlowDown", "RequestTimeout"):
            if is_write and answer.status >= 500 and code not in ("SlowDown", "ServiceUnavailable"):
                return StoreUnknown(f"{where}: the server failed ({code}); whether it was written is not known")
            return StoreUnavailable(f"{where}: the server is busy or failing ({code}); try again")
        if code == "RequestTimeTooSkewed":
            return ConfigError(f"{where}: the clock of this machine is wrong, by the server's; set it")
        if answer.status == 403 or code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"):
            return ConfigError(
                f"{where}: access denied ({code}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that this "
                "key may list, read, write and delete in the bucket"
            )
        if code == "NoSuchBucket":
            return ConfigError(f"{where}: there is no such bucket; make it, or mend the URL")
        if answer.status in (301, 307) or code in (
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
        ):
            region = answer.headers.get("x-amz-bucket-region") or answer.text("Region") or "REGION"
            return ConfigError(f"{where}: the bucket is not in {self.address.region}; write ?region={region}")
        return StoreForeign(f"{where}: refused with {answer.status} {code}; is this a server of S3?")


class S3Store:
    """The Store port, without keys."""

    def __init__(self, address: S3Address, clock: Clock) -> None:
        self._connection = S3Connection(address, clock)

    async def key_value(self, bucket: str) -> KeyValue:
        raise ConfigError(f"{self._connection.address.shown}: S3 keeps objects and no keys; give nats://hub:4222")

    async def objects(self, bucket: str) -> Objects:
        if self._connection.closed:
            raise Bug("the store is closed; open it again")
        return S3Objects(self._connection, check_bucket(bucket))

    async def find_objects(self, bucket: str) -> Objects | None:
        objects = await self.objects(bucket)
        return objects if await objects.names() else None

    async def close(self) -> None:
        self._connection.close()


class S3Objects:
    """The Objects port: an object `BUCKET/NAME/VERSION` for each version, described in its metadata."""

    def __init__(self, connection: S3Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        prefix = connection.address.prefix
        self._root = f"{prefix}{'/' if prefix else ''}{bucket}/"

    @property
    def bucket(self) -> str:
        return self._bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        check_object(name, len(data), label, versions_kept)
        return await self._run(lambda: self._put(name, data, label, versions_kept))

    async def versions(self, name: str) -> list[ObjectVersion]:
        check_object_name(name)
        return await self._run(lambda: self._versions(name))

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        check_object_name(name)
        return await self._run(lambda: self._get(name, version))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._run(lambda: self._names(prefix))

    async def delete(self, name: str, version: int | None = None) -> None:
        check_object_name(name)
        await self._run(lambda: self._delete(name, version))

    async def _run(self, work: Callable[[], T]) -> T:
        if self._connection.closed:
            raise Bug("the store is closed; open it again")
        return await asyncio.to_thread(work)

    # The rest runs in a thread.

    def _put(self, name: str, data: bytes, label: str, versions_kept: int) -> ObjectVersion:
        made_ns, numbers = self._connection.clock.wall_ns(), self._numbers(name)
        digest, version = blake3(data).hexdigest(), max([made_ns, *(number + 1 for number in numbers)])
        about = {"digest": digest, "label": quote(label, safe=" /;=+.-"), "made-ns": str(made_ns)}
        headers = (("if-none-match", "*"), *((META + key, value) for key, value in about.items() if value))
        for _ in range(TRIES_MAX):
            request = S3Request("PUT", self._key(name, version), headers=headers, body=data)
            if self._connection.send(request, 200, 409, 412).status == 200:
                break
            version += 1
        else:
            raise StoreUnavailable(f"{name}: others keep putting versions; try again")
        # The new version is stored; errors with older ones do not matter.
        for number in [*numbers, version][:-versions_kept]:
            try:
                self._connection.send(S3Request("DELETE", self._key(name, number)), 204, 200)
            except StoreError:
                break
        return ObjectVersion(name, version, len(data), digest, label, made_ns)

    def _versions(self, name: str) -> list[ObjectVersion]:
        found: list[ObjectVersion] = []
        for number in self._numbers(name):
            answer = self._connection.send(S3Request("HEAD", self._key(name, number)), 200, 404)
            if answer.status == 200:  # else it was deleted meanwhile
                found.append(self._about(name, number, answer, int(answer.headers.get("content-length", "0"))))
        return found

    def _get(self, name: str, version: int | None) -> bytes | None:
        numbers = self._numbers(name) if version is None else [version]
        if not numbers:
            return None
        answer = self._connection.send(S3Request("GET", self._key(name, numbers[-1])), 200, 404)
        if answer.status == 404:
            if answer.code == "NoSuchBucket":
                raise self._connection.error_of(answer, is_write=False)
            if version is not None:
                return None
            raise StoreConflict(f"{name}: was deleted while it was read; list the versions again")
        about = self._about(name, numbers[-1], answer, len(answer.body))
        if blake3(answer.body).hexdigest() != about.digest:
            raise StoreCorrupt(
                f"{self._bucket}: {name}, version {about.version}: its bytes do not match the digest that they were "
                "put with; take another version"
            )
        return answer.body

    def _names(self, prefix: str) -> list[str]:
        found: dict[str, None] = {}
        for key in self._keys(encode_name(prefix)):
            found[decode_name(key.rpartition("/")[0])] = None
            if len(found) > OBJECTS_COUNT_MAX:
                raise StoreForeign(f"{self._bucket}: more than {OBJECTS_COUNT_MAX} objects; this is not our bucket")
        return sorted(found)

    def _delete(self, name: str, version: int | None) -> None:
        for number in self._numbers(name) if version is None else [version]:
            self._connection.send(S3Request("DELETE", self._key(name, number)), 204, 200)

    def _numbers(self, name: str) -> list[int]:
        """The versions, oldest first."""
        found = [key.rpartition("/")[2] for key in self._keys(f"{encode_name(name)}/")]
        if len(found) > VERSIONS_COUNT_MAX:
            raise StoreForeign(f"{self._bucket}: {name} has more than {VERSIONS_COUNT_MAX} versions; not our bucket")
        return [int(text) for text in found if text.isdecimal()]

    def _keys(self, prefix: str) -> list[str]:
        """The keys below our root that begin so, without the root, in order."""
        found: list[str] = []
        more = ""
        while True:
            query = [("list-type", "2"), ("max-keys", str(PAGE_COUNT)), ("prefix", self._root + prefix)]
            query += [("continuation-token", more)] if more else []
            page = self._connection.send(S3Request("GET", query=tuple(query)), 200)
            try:
                listed = ET.fromstring(page.body)
            except ET.ParseError as error:
                raise StoreForeign(f"{self._bucket}: the list does not parse ({error}); no server of S3?") from None
            space = _NAMESPACE if listed.tag.startswith(_NAMESPACE) else ""
            keys = [one.findtext(f"{space}Key") or "" for one in listed.iter(f"{space}Contents")]
            found += [key.removeprefix(self._root) for key in keys]
            more = listed.findtext(f"{space}NextContinuationToken") or ""
            if not more or len(found) > OBJECTS_COUNT_MAX * 2:
                return found

    def _about(self, name: str, number: int, answer: S3Answer, size_bytes: int) -> ObjectVersion:
        said = answer.headers
        digest, made = said.get(f"{META}digest", ""), said.get(f"{META}made-ns", "0")
        if not digest:
            raise StoreForeign(f"{self._bucket}: {name} was put by another program; keep it elsewhere")
        label = unquote(said.get(f"{META}label", ""))
        return ObjectVersion(name, number, size_bytes, digest, label, int(made) if made.isdecimal() else 0)

    def _key(self, name: str, version: int) -> str:
        key = f"{self._root}{encode_name(name)}/{version:020d}"
        if len(key) > KEY_BYTES_MAX:
            raise ConfigError(f"object name {name!r}: its key has {len(key)} bytes, {KEY_BYTES_MAX} at most on S3")
        return key


def encode_name(name: str) -> str:
    """A name as a part of a key: what is not a letter, a digit or one of `-_.~` is written as `=XX`."""
    return quote(name, safe="").replace("%", "=")


def decode_name(text: str) -> str:
    return unquote(text.replace("=", "%"))


async def open_store(url: str, clock: Clock) -> S3Store:
    """The store at `s3://BUCKET/PREFIX`. Nothing is sent yet. Raises ConfigError."""
    address = parse_url(url, os.environ)
    try:
        return S3Store(address, clock)
    except OSError as error:
        raise ConfigError(f"store {address.shown}: ca={address.ca}: {error}; name a file with certificates") from None
