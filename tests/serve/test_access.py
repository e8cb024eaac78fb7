"""Who is let in: tokens and scopes, names of the server, origins of web pages, addresses, and how often."""

import argparse
import asyncio
import http.client
import json
import ssl
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.cli.api.serve import SERVING_OPTIONS, add_serving, serving_options
from stigmergy.serve.access import CALLERS_MAX, AccessGate, DeniedRequest, Policy, check_listening
from stigmergy.serve.listener import HttpListener, read_address
from stigmergy.serve.tokens import Tokens
from tests.policy.drones import KEYS, policy_bytes, put_policy
from tests.serve.rig import ServedProcess, cli, make_folder, run_served

HOST = {b"host": b"localhost:8080"}


def test_name_of_another_server_is_refused(served: ServedProcess) -> None:
    """A page that points its own name at this machine must not reach the fleet."""
    answer = served.get("/v1/agents", Host="evil.example")
    assert answer.status == 421
    assert served.get("/v1/agents", Host="LOCALHOST:1").status == 200


def test_page_of_another_origin_is_refused(served: ServedProcess) -> None:
    assert served.get("/v1/agents", Origin="https://evil.example").status == 403
    assert served.post("/v1/agents/Drone/x/StartMission", {"mission": "M"}, Origin="null").status == 403
    assert served.ask("OPTIONS", "/v1/agents", headers={"Origin": "https://evil.example"}).status == 403
    own = served.get("/v1/agents", Origin=served.url, Host=served.url.removeprefix("http://"))
    assert own.status == 200
    assert "access-control-allow-origin" not in own.headers


def test_origin_that_is_named_is_allowed(tmp_path: Path) -> None:
    node = run_served(make_folder(tmp_path), "--cors", "https://ops.example", "--host", "gate.example", "--rate", "5")
    try:
        page = {"Origin": "https://ops.example", "Host": "gate.example:80"}
        asked = node.ask("GET", "/v1/agents", headers=page)
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, "https://ops.example")
        before = node.ask("OPTIONS", "/v1/agents/Drone/x/StartMission", headers=page)
        assert before.status == 204
        assert "idempotency-key" in before.headers["access-control-allow-headers"]
        many = [node.get("/v1/agents") for _ in range(30)]
        shed = [one for one in many if one.status == 429]
        assert shed
        assert shed[0].headers["retry-after"] == "1"
    finally:
        node.end()


def test_tokens_let_in_for_their_scopes_until_they_are_revoked(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = run_served(folder)
    try:
        assert node.get("/v1/agents").status == 200, "without tokens, programs of this machine may ask"
        texts = {}
        for name, *scopes in (("reader", "read"), ("pilot", "read", "command:Drone"), ("chief", "operate")):
            given = [word for scope in scopes for word in ("--scope", scope)]
            made = cli(folder, "token", "create", name, *given, "--expires", "1h", "--journal", "delivery.db", "--json")
            assert made.returncode == 0, made
            texts[name] = "Bearer " + json.loads(made.stdout)["token"]
        file = folder / "delivery.db.tokens"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert all(text.removeprefix("Bearer ") not in file.read_text() for text in texts.values())

        none = node.get("/v1/agents")
        assert none.status == 401
        assert none.headers["www-authenticate"] == "Bearer"
        assert node.get("/v1/agents", Authorization="Bearer stg_reader_nearly").status == 401
        assert node.get("/v1/agents", Authorization=texts["reader"]).status == 200
        command = "/v1/agents/Drone/x/StartMission"
        assert node.post(command, {"mission": "M"}, Authorization=texts["reader"]).status == 403
        assert node.post(command, {"mission": "M"}, Authorization=texts["pilot"]).status == 200
        observed = {"agent": "Drone/x", "event": "BatteryMeasured", "fields": {"percent": 1}}
        assert node.post("/v1/observations", observed, Authorization=texts["pilot"]).status == 403
        assert node.get("/v1/agents", Authorization=texts["chief"]).status == 403
        assert node.post("/v1/letters/0.1.2/retry", Authorization=texts["chief"]).status == 404
        assert node.post("/v1/profile?seconds=1", Authorization=texts["chief"]).json["phases"]
        assert node.post("/v1/profile?seconds=99", Authorization=texts["chief"]).status == 400
        assert node.get("/healthz").status == 200

        assert cli(folder, "token", "revoke", "reader", "--journal", "delivery.db").returncode == 0
        assert node.get("/v1/agents", Authorization=texts["reader"]).status == 401
        assert node.get("/v1/agents", Authorization=texts["pilot"]).status == 200
        listed = cli(folder, "token", "list", "--journal", "delivery.db").stdout
        assert "revoked" in listed
        file.unlink()
        assert node.get("/v1/agents").status != 200, "nobody gets in because the file was taken away"
    finally:
        node.end()


def test_others_are_let_in_with_tokens_and_tls_only(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    refused = cli(folder, "run", "drone:fleet", "--serve", "0.0.0.0:0")
    assert refused.returncode == 2
    assert "no valid token" in refused.stderr
    tokens = Tokens(tmp_path / "t")
    assert check_listening("::", tokens, 0.0, tls=True, insecure=False)
    tokens.create("a", ("read",), 10, 0.0)
    assert "--cert" in check_listening("10.0.0.7", tokens, 0.0, tls=False, insecure=False)
    assert check_listening("10.0.0.7", tokens, 0.0, tls=True, insecure=False) == ""
    assert check_listening("10.0.0.7", tokens, 11.0, tls=True, insecure=False), "expired tokens do not count"
    assert check_listening("10.0.0.7", tokens, 0.0, tls=False, insecure=True) == ""
    assert check_listening("127.0.0.1", tokens, 0.0, tls=False, insecure=False) == ""


def test_token_ends_with_its_time(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t")
    text = tokens.create("a", ("read", "command:Drone"), 10, 100.0)
    assert tokens.find(text, 109.0) is not None
    assert tokens.find(text, 110.0) is None
    assert tokens.find(text[:-1], 101.0) is None
    assert tokens.find("", 101.0) is None
    with pytest.raises(ConfigError, match="already"):
        tokens.create("a", ("read",), 10, 105.0)
    again = tokens.create("a", ("read",), 10, 200.0)
    assert tokens.find(text, 201.0) is None
    assert tokens.find(again, 201.0) is not None


@pytest.mark.parametrize(
    ("name", "scopes"), [("a b", ("read",)), ("", ("read",)), ("a", ("all",)), ("a", ()), ("a", ("command:",))]
)
def test_token_that_makes_no_sense(tmp_path: Path, name: str, scopes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Tokens(tmp_path / "t").create(name, scopes, 10, 0.0)


def test_unreadable_token_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "t"
    tokens = Tokens(path)
    gate = AccessGate(tokens, Policy(), lambda: 0.0, lambda: 0.0)
    assert gate.admit(HOST, "1", "http").may("command:Drone")
    path.write_text("{}")
    with pytest.raises(TrustError):
        gate.admit(HOST, "1", "http")


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_wrong_token_is_told_how_to_make_one_here(tmp_path: Path, has_tokens: bool) -> None:
    tokens = Tokens(tmp_path / "my fleet.tokens")
    if has_tokens:
        tokens.create("a", ("read",), 10, 0.0)
    gate = AccessGate(tokens, Policy(), lambda: 0.0, lambda: 0.0)
    headers = {**HOST, b"authorization": b"Bearer stg_a_wrong"}
    with pytest.raises(DeniedRequest, match=f"stigmergy token create --tokens '{tokens.path}' --scope read NAME"):
        gate.admit(headers, "127.0.0.1", "http")
    with pytest.raises(DeniedRequest, match="stigmergy token create --tokens FILE --scope read NAME"):
        gate.admit(headers, "10.0.0.7", "http")


@pytest.mark.parametrize("option", SERVING_OPTIONS)
def test_an_option_of_serving_without_a_server_is_refused(tmp_path: Path, option: str) -> None:
    if option == "--grpc":
        return  # which serves
    value = [] if option == "--insecure" else ["7"]
    refused = cli(make_folder(tmp_path), "run", "drone:fleet", option, *value)
    assert refused.returncode == 2
    assert f"{option}: nothing is served; give --serve HOST:PORT or --grpc HOST:PORT too" in refused.stderr


def test_the_options_of_serving_reach_a_process_that_serves() -> None:
    parser = argparse.ArgumentParser()
    add_serving(parser)
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    assert set(known) == {*SERVING_OPTIONS, "--help"}
    words = ["--grpc=:9", "--tokens=t", "--cert=c", "--cert-key=k", "--cors=http://a", "--cors=http://b", "--rate=2.5"]
    given = parser.parse_args([*words, "--insecure"])
    assert serving_options(given) == [*words, "--insecure"]
    assert serving_options(parser.parse_args([])) == []


def test_each_caller_has_a_rate_of_its_own(tmp_path: Path) -> None:
    now_s = [0.0]
    gate = AccessGate(Tokens(tmp_path / "t"), Policy(rate_per_s=10.0), lambda: 0.0, lambda: now_s[0])
    for _ in range(20):
        gate.admit(HOST, "a", "http")
    with pytest.raises(DeniedRequest) as denied:
        gate.admit(HOST, "a", "http")
    assert denied.value.status == 429
    gate.admit(HOST, "b", "http")
    now_s[0] = 0.5
    for _ in range(5):
        gate.admit(HOST, "a", "http")
    with pytest.raises(DeniedRequest):
        gate.admit(HOST, "a", "http")
    for number in range(CALLERS_MAX + 10):
        gate.admit(HOST, f"c{number}", "http")


def test_tls_with_a_token(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (folder / "fleet.crt").write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    (folder / "fleet.pem").write_bytes(issued.private_key_pem.bytes())
    made = cli(folder, "token", "create", "a", "--scope", "read", "--tokens", "delivery.db.tokens", "--json")
    token = json.loads(made.stdout)["token"]
    node = run_served(folder, "--cert", "fleet.crt", "--cert-key", "fleet.pem", listen="0.0.0.0:0")
    try:
        assert node.url.startswith("https://")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        connection = http.client.HTTPSConnection("localhost", urlsplit(node.url).port, context=context, timeout=240)
        connection.request("GET", "/v1/agents", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["agents"]) == (200, [])
        connection.close()
        with pytest.raises(OSError, match=r"reset|closed|timed out|aborted|broken|Broken|Remote end"):
            ServedProcess.at(node.url.replace("https", "http")).get("/v1/agents")
    finally:
        assert node.end() == 0
    refused = cli(folder, "run", "drone:fleet", "--serve", "127.0.0.1:0", "--cert", "fleet.crt")
    assert refused.returncode == 2
    assert "belong together" in refused.stderr


async def test_a_start_that_is_given_up_leaves_nobody_listening() -> None:
    listener = HttpListener(None, read_address("127.0.0.1:0"))
    start = asyncio.ensure_future(listener.start())
    await asyncio.sleep(0)
    assert not start.done()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.address.port)


def test_a_kind_of_a_scope_is_one_of_the_fleet(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    made = ("token", "create", "a", "--tokens", "t", "--scope")
    assert "was not checked" in cli(folder, *made, "command:Drone").stderr
    refused = cli(folder, *made, "command:Dron", "--fleet", "drone:fleet")
    assert refused.returncode == 2
    assert "the fleet has no such kind; it has Drone" in refused.stderr


BY_TOKEN = """package stigmergy

import rego.v1

default allow := false

allow if {
	input.sender.how == "http"
	input.sender.token == "ann"
}

reason := sprintf("%s %s", [input.sender.how, input.sender.token])
"""


def test_a_policy_knows_whose_token_it_was(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    put_policy(folder / "policy", 1, policy_bytes(1, BY_TOKEN))
    texts: dict[str, str] = {}
    for name in ("ann", "bob"):
        given = ("--scope", "command:Drone", "--expires", "1h", "--journal", "delivery.db", "--json")
        texts[name] = f"Bearer {json.loads(cli(folder, 'token', 'create', name, *given).stdout)['token']}"
    node = run_served(folder, "--policy", f"folder:{folder}/policy", "--policy-key", KEYS[0])
    command = "/v1/agents/Drone/D-17/StartMission"
    allowed = node.post(command, {"mission": "M"}, Authorization=texts["ann"])
    denied = node.post(command, {"mission": "M"}, Authorization=texts["bob"])
    assert node.end() == 0
    assert allowed.status == 200, allowed
    assert denied.status == 409, denied
    assert "denied by policy delivery 1: http bob" in denied.json["detail"]
