"""Blobs over HTTP: stored, fetched, resumed, refused; in the node's process and beside it."""

import json
from pathlib import Path

import pytest
from blake3 import blake3

from stigmergy.store.blobs import PIECE_BYTES
from tests.serve.rig import ServedProcess, cli, make_folder, run_served

DATA = b"".join(b"%07d\n" % number for number in range(300_000))
DIGEST = blake3(DATA).hexdigest()
TYPE = {"Content-Type": "text/x-map"}


def test_put_and_get(served: ServedProcess) -> None:
    posted = served.ask("POST", "/v1/blobs", raw=DATA, headers=TYPE)
    assert posted.status == 200, posted
    assert posted.json["digest"] == DIGEST
    assert (posted.json["blob"]["size_bytes"], posted.json["blob"]["media_type"]) == (len(DATA), "text/x-map")
    assert served.ask("PUT", f"/v1/blobs/{DIGEST}", raw=DATA, headers=TYPE).json == posted.json
    got = served.get(f"/v1/blobs/{DIGEST}")
    assert (got.status, got.text.encode()) == (200, DATA)
    assert got.headers["content-type"] == "text/x-map"
    assert got.headers["etag"] == f'"{DIGEST}"'
    head = served.ask("HEAD", f"/v1/blobs/{DIGEST}")
    assert (head.status, head.headers["content-length"], head.text) == (200, str(len(DATA)), "")


@pytest.mark.parametrize(
    ("given", "first", "end"),
    [
        ("bytes=0-", 0, len(DATA)),
        ("bytes=5-9", 5, 10),
        (f"bytes={PIECE_BYTES - 3}-{PIECE_BYTES + 2}", PIECE_BYTES - 3, PIECE_BYTES + 3),
        (f"bytes={2 * PIECE_BYTES}-", 2 * PIECE_BYTES, len(DATA)),
        ("bytes=7-99999999999", 7, len(DATA)),
        ("lines=1-2", 0, len(DATA)),
    ],
)
def test_a_download_goes_on_where_it_was(served: ServedProcess, given: str, first: int, end: int) -> None:
    served.ask("POST", "/v1/blobs", raw=DATA, headers=TYPE)
    got = served.get(f"/v1/blobs/{DIGEST}", Range=given)
    assert got.text.encode() == DATA[first:end]
    if end - first < len(DATA):
        assert got.status == 206
        assert got.headers["content-range"] == f"bytes {first}-{end - 1}/{len(DATA)}"
    else:
        assert got.status == 200


def test_what_is_refused(served: ServedProcess) -> None:
    served.ask("POST", "/v1/blobs", raw=DATA, headers=TYPE)
    for answer, status, said in (
        (served.ask("PUT", f"/v1/blobs/{'0' * 64}", raw=b"1"), 409, "has the BLAKE3 digest"),
        (served.ask("PUT", "/v1/blobs/short", raw=b"1"), 400, "64 hexadecimal"),
        (served.get(f"/v1/blobs/{'0' * 64}"), 404, "no blob"),
        (served.get(f"/v1/blobs/{DIGEST}", Range=f"bytes={len(DATA)}-"), 416, "2400000 bytes"),
        (served.get(f"/v1/blobs/{DIGEST}?x=1"), 400, "parameter"),
        (served.ask("DELETE", f"/v1/blobs/{DIGEST}"), 405, "GET or PUT"),
    ):
        assert answer.status == status, answer
        assert said in answer.json["detail"]


def test_scopes_quota_and_a_server_beside_the_node(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "stigmergy.toml").write_text(
        '[fleet]\nmodule = "drone:fleet"\n[settings.blobs]\nbytes_max = 1048576\n', encoding="utf-8"
    )
    made = cli(folder, "token", "create", "reader", "--scope", "read", "--tokens", "delivery.db.tokens", "--json")
    reader = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    made = cli(folder, "token", "create", "camera", "--scope", "observe", "--tokens", "delivery.db.tokens", "--json")
    camera = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    node = run_served(folder)
    beside = ServedProcess(folder, "serve", "--listen", "127.0.0.1:0")
    try:
        assert node.ask("POST", "/v1/blobs", raw=b"photo").status == 401
        assert node.ask("POST", "/v1/blobs", raw=b"photo", headers=reader).status == 403
        put = node.ask("POST", "/v1/blobs", raw=b"photo", headers=camera)
        assert put.status == 200, put
        assert node.ask("GET", f"/v1/blobs/{put.json['digest']}", headers=camera).status == 403
        for one in (node, beside):
            assert one.ask("GET", f"/v1/blobs/{put.json['digest']}", headers=reader).text == "photo"
        full = beside.ask("POST", "/v1/blobs", raw=bytes(1_048_576), headers=camera)
        assert full.status == 507, full
        assert "bytes_max" in full.json["detail"]
    finally:
        assert beside.end() == 0
        assert node.end() == 0
