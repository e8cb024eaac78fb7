"""The store on S3: the contract, signatures, and what goes wrong, on moto's server, which checks signatures."""

import asyncio
import ssl
import urllib.parse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from stigmergy.base.errors import ConfigError, StoreCorrupt, StoreForeign, StoreUnavailable, StoreUnknown
from stigmergy.base.system import SystemClock
from stigmergy.store.port import ObjectVersion
from stigmergy.store.s3 import S3Address, S3Request, open_store, parse_url, signed, target_of
from stigmergy.testing.proxy import LinkProxy
from stigmergy.testing.store_contract import BlobsContract, ObjectsContract, OpenStore
from stigmergy.testing.store_contract.blobs import DATA, CutObjects, blobs_on
from tests.store.s3_server import S3Server

CLOCK = SystemClock()
MOMENT = datetime(2026, 11, 16, 12, 30, 5, tzinfo=UTC)
ADDRESS = S3Address("127.0.0.1:9000", False, "maps", "", "eu-central-1", "AKID", "secret/+", "session==")


@pytest.fixture
def place(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The URL of an empty place of this test."""
    return s3.url(urllib.parse.quote(request.node.name, safe=""))


class TestS3Store(ObjectsContract, BlobsContract):
    """S3 has objects and no keys."""

    @pytest.fixture
    def open_store(self, place: str) -> OpenStore:
        return lambda: open_store(place, CLOCK)


@pytest.mark.parametrize(
    "request_",
    [
        S3Request("GET", query=(("prefix", "a b/ä=+"), ("list-type", "2"), ("continuation-token", "1/+=="))),
        S3Request(
            "PUT", "a=2Fb ~_-.ä/1", headers=(("if-none-match", "*"), ("x-amz-meta-label", "a  b ")), body=b"data"
        ),
        S3Request("DELETE", "x/00000000000000000001"),
    ],
)
def test_signatures_are_those_of_botocore(request_: S3Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: MOMENT.replace(tzinfo=None))
    ours = signed(ADDRESS, request_, int(MOMENT.timestamp() * 1e9))
    theirs = AWSRequest(
        method=request_.method,
        url=f"http://{ADDRESS.host}{target_of(ADDRESS, request_)}",
        data=request_.body,
        headers=dict(request_.headers),
    )
    credentials = Credentials(ADDRESS.key_id, ADDRESS.secret, ADDRESS.token)
    S3SigV4Auth(credentials, "s3", ADDRESS.region).add_auth(theirs)
    assert ours["authorization"] == theirs.headers["Authorization"]


async def test_another_program_reads_what_we_put(s3: S3Server, place: str) -> None:
    store = await open_store(place, CLOCK)
    objects = await store.objects("b")
    put = await objects.put("a name/ä", b"bytes", label="of ä; charset=x")
    listed = s3.client("s3").list_objects_v2(Bucket=s3.bucket, Prefix="test_another")["Contents"]
    (key,) = [one["Key"] for one in listed if one["Key"].endswith(f"a=20name=2F=C3=A4/{put.version:020d}")]
    assert s3.client("s3").get_object(Bucket=s3.bucket, Key=key)["Body"].read() == b"bytes"
    assert await objects.versions("a name/ä") == [put]
    s3.client("s3").put_object(Bucket=s3.bucket, Key=key, Body=b"others", Metadata={})
    with pytest.raises(StoreForeign, match="another program"):
        await objects.get("a name/ä")
    metadata = {"stigmergy-digest": put.digest}
    s3.client("s3").put_object(Bucket=s3.bucket, Key=key, Body=b"others", Metadata=metadata)
    with pytest.raises(StoreCorrupt):
        await objects.get("a name/ä")


async def test_a_list_of_several_pages(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.store.s3.PAGE_COUNT", 4)
    objects = await (await open_store(place, CLOCK)).objects("b")
    await asyncio.gather(*(objects.put(f"n{number:02d}", b"") for number in range(21)))
    assert await objects.names() == [f"n{number:02d}" for number in range(21)]
    assert await objects.names("n1") == [f"n{number:02d}" for number in range(10, 20)]


async def test_what_somebody_must_mend_is_one_sentence(s3: S3Server) -> None:
    for url, said in (
        (s3.url("x", secret="wrong"), "SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY"),
        (s3.url("x", bucket="none-such"), "no such bucket"),
    ):
        objects = await (await open_store(url, CLOCK)).objects("b")
        with pytest.raises(ConfigError, match=said):
            await objects.put("a", b"1")
        with pytest.raises(ConfigError, match=said):
            await objects.names()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:maps", "write s3://"),
        ("s3://a:b@maps", "region"),
        ("s3://maps?region=x", "key pair"),
        ("s3://a:b@maps?region=x&colour=red", "no option colour"),
        ("s3://a:b@maps?endpoint=ftp://x", "endpoint"),
    ],
)
def test_a_wrong_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_url(url, {})
    assert "a:b@" not in str(error.value), "no secret in what is shown"


def test_the_environment_has_the_key_pair() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "r"}
    found = parse_url("s3://maps/below/it", environment)
    assert found == S3Address("s3.r.amazonaws.com", True, "maps", "below/it", "r", "i", "s", "t")


async def test_a_cut_in_the_middle_of_a_transfer(s3: S3Server, place: str) -> None:
    proxy = LinkProxy(s3.port)
    port = await proxy.start()
    far = CutObjects(await (await open_store(place.replace(f":{s3.port}", f":{port}"), CLOCK)).objects("b"))
    blobs = blobs_on(far)
    put = far.put

    async def put_and_cut(name: str, data: bytes, **how: Any) -> ObjectVersion:
        if len(far.put_names) == 1:
            proxy.cut()
        return await put(name, data, **how)

    far.put = put_and_cut  # type: ignore[method-assign]
    with pytest.raises((StoreUnavailable, StoreUnknown)):
        await blobs.put(DATA)
    far.put = put  # type: ignore[method-assign]
    proxy.restore()
    far.put_names.clear()
    blob = await blobs.put(DATA)
    assert len(far.put_names) == 3, "two pieces and the manifest: the first piece is there"
    assert await blobs.fetch(blob) == DATA
    await proxy.close()


async def answering(status: str, body: str, tls: ssl.SSLContext | None = None) -> tuple[asyncio.Server, str]:
    """A server that says this to everything, and the URL of a store there."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if status:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    scheme = "http" if tls is None else "https"
    return listening, f"s3://i:s@b?endpoint={scheme}://127.0.0.1:{port}&region=x"


@pytest.mark.parametrize(
    ("status", "body", "reading", "writing"),
    [
        ("503 Busy", "SlowDown", StoreUnavailable, StoreUnavailable),
        ("500 Failed", "InternalError", StoreUnavailable, StoreUnknown),
        ("403 No", "RequestTimeTooSkewed", ConfigError, ConfigError),
        ("301 Moved", "PermanentRedirect", ConfigError, ConfigError),
        ("400 Bad", "InvalidRequest", StoreForeign, StoreForeign),
        ("200 OK", "", StoreForeign, None),
        ("", "", StoreUnavailable, StoreUnknown),
    ],
)
async def test_what_servers_say_in_trouble(
    status: str, body: str, reading: type[Exception], writing: type[Exception] | None
) -> None:
    listening, url = await answering(status, f"<Error><Code>{body}</Code></Error>" if body else "no list")
    store = await open_store(url, CLOCK)
    objects = await store.objects("b")
    with pytest.raises(reading):
        await objects.names()
    if writing is not None:
        with pytest.raises(writing):
            await objects.delete("a", 1)
    await store.close()
    listening.close()
    gone = await (await open_store(url, CLOCK)).objects("b")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await gone.delete("a", 1)


async def test_the_right_region_is_named() -> None:
    body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    listening, url = await answering("400 Bad Request", body)
    store = await open_store(url, CLOCK)
    objects = await store.objects("b")
    with pytest.raises(ConfigError, match=r"not in x; write \?region=eu-west-1"):
        await objects.names()
    await store.close()
    listening.close()


async def test_a_server_is_trusted_by_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    page = "<ListBucketResult><Contents><Key>b/one/00000000000000000001</Key></Contents></ListBucketResult>"
    listening, url = await answering("200 OK", page, context)
    store = await open_store(f"{url}&ca={tmp_path / 'ca.pem'}", CLOCK)
    assert await (await store.objects("b")).names() == ["one"]
    await store.close()
    with pytest.raises(ConfigError, match="not trusted"):
        await (await (await open_store(url, CLOCK)).objects("b")).names()
    with pytest.raises(ConfigError, match="certificates"):
        await open_store(f"{url}&ca={tmp_path / 'none.pem'}", CLOCK)
    listening.close()
