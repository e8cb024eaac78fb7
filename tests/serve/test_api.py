"""The HTTP API of a real node: what is answered, and what is refused with which status and sentence."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.serve.rig import ServedProcess, cli, make_folder, run_served, wait_until

PROBLEM = "application/problem+json"


def test_command_is_accepted_once(served: ServedProcess) -> None:
    path = "/v1/agents/Drone/once/StartMission"
    first = served.post(path, {"mission": "M1"}, Idempotency_Key="order-1")
    again = served.post(path, {"mission": "M1"}, Idempotency_Key="order-1")
    assert first.status == 200
    assert first.json == again.json
    assert first.json["command_id"] == "order-1"
    assert re.fullmatch(f"0@[0-9a-f]{{1,8}}:{first.json['position']}", first.json["after"])
    events = served.get("/v1/agents/Drone/once/events?type=MissionStarted").json["entries"]
    assert len(events) == 1
    other = served.post(path, {"mission": "M2"}, Idempotency_Key="order-1")
    assert other.status == 409, "another command with a used id"


@pytest.mark.parametrize(("key", "status"), [("größe-1", 200), ("x" * 201, 400), ("a\tb", 400), ("", 400)])
def test_a_key_is_text_in_utf_8(served: ServedProcess, key: str, status: int) -> None:
    answer = served.post("/v1/agents/Drone/key/StartMission", {"mission": "M"}, Idempotency_Key=_as_sent(key.encode()))
    assert answer.status == status, answer
    if status == 200:
        assert answer.json["command_id"] == key
    else:
        assert "1 to 200 printable characters, in ASCII or UTF-8" in answer.json["detail"]


def test_a_key_that_is_no_utf_8(served: ServedProcess) -> None:
    key = _as_sent("größe".encode("latin-1"))
    assert served.post("/v1/agents/Drone/key/StartMission", {"mission": "M"}, Idempotency_Key=key).status == 400


def _as_sent(data: bytes) -> str:
    """The text that http.client sends as these bytes."""
    return data.decode("latin-1")


def test_fresh_id_where_none_is_given(served: ServedProcess) -> None:
    path = "/v1/agents/Drone/fresh/StartMission"
    ids = [served.post(path, {"mission": "M1"}).json["command_id"] for _ in range(2)]
    assert ids[0] != ids[1]


def test_what_is_too_large_for_a_message(served: ServedProcess) -> None:
    answer = served.post("/v1/agents/Drone/large/StartMission", {"mission": "x" * 70_000}, Idempotency_Key="l1")
    assert (answer.status, answer.json["type"]) == (413, "urn:stigmergy:too-large")
    assert "65536 at most" in answer.json["detail"]
    seen = {"agent": "Drone/large", "event": "MissionStarted", "fields": {"mission": "x" * 70_000, "priority": 1}}
    assert served.post("/v1/observations", seen).status == 413
    assert [one["problem"]["status"] for one in served.post("/v1/observations", [seen]).json["results"]] == [413]
    assert served.post("/v1/agents/Drone/large/StartMission", {"mission": "x"}, Idempotency_Key="l1").status == 200


@pytest.mark.parametrize("path", ["?limit=2&cursor=zz", "?limit=2&cursor=Drone/", "/Drone/once/events?after=zz"])
def test_what_is_no_cursor_is_refused(served: ServedProcess, path: str) -> None:
    answer = served.get(f"/v1/agents{path}")
    assert answer.status == 400
    assert "give the `next` of the page before" in answer.json["detail"]


def test_a_time_before_the_log_is_refused(served: ServedProcess) -> None:
    served.post("/v1/agents/Drone/early/StartMission", {"mission": "M1"})
    answer = served.get("/v1/agents/Drone/early?at=2020-01-01T00:00:00Z")
    assert answer.status == 404
    assert "this log begins at 20" in answer.json["detail"]
    assert served.get("/v1/agents/Drone/early?at=0").json["known"] is False


def test_refusal_has_its_reason(served: ServedProcess) -> None:
    served.post("/v1/observations", {"agent": "Drone/low", "event": "BatteryMeasured", "fields": {"percent": 12}})
    refused = served.post("/v1/agents/Drone/low/StartMission", {"mission": "M1"}, Idempotency_Key="r1")
    assert refused.status == 409
    assert refused.headers["content-type"] == PROBLEM
    assert refused.json["type"] == "urn:stigmergy:refused"
    assert refused.json["detail"] == "battery at 12 %, 20 % needed"
    assert refused.json["command_id"] == "r1"


@pytest.mark.parametrize(
    ("command", "body", "pointers"),
    [
        ("StartMission", {}, ["/mission"]),
        ("StartMission", {"mission": 3}, ["/mission"]),
        ("StartMission", {"mission": "M", "speed": 1, "priority": "x"}, ["/speed", "/priority"]),
        ("FlyTo", {"waypoints": [[1, 2], [3, "north"]]}, ["/waypoints/1/1"]),
        ("StartMission", [1], [""]),
    ],
)
def test_wrong_field_is_named(served: ServedProcess, command: str, body: Any, pointers: list[str]) -> None:
    answer = served.post(f"/v1/agents/Drone/wrong/{command}", body)
    assert answer.status == 422
    assert [one["pointer"] for one in answer.json["errors"]] == pointers
    assert served.get("/v1/agents/Drone/wrong").json["known"] is False


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v1/agents/Plane/x/StartMission", 404, "write Kind/name with a kind of Drone"),
        ("GET", "/v1/agents/Drone/v%20a", 404, "a name of letters, digits and _.:@=~-"),
        ("GET", "/v1/events?type=Zzz", 404, "agents handle MissionStarted"),
        ("GET", "/v1/events?kind=Zzz", 404, "there are Drone"),
        ("GET", "/v1/events?agent=Drone/a%20b", 404, "a name of letters, digits"),
        ("GET", "/v1/events?area=1,1,2,2", 400, "no agent here has fields that say where it is (lat and lon"),
        ("POST", "/v1/agents/Drone/x/Dive", 404, "it knows StartMission(mission: str"),
        ("GET", "/v1/nothing", 404, "/openapi.json lists"),
        ("DELETE", "/v1/agents", 405, "use GET"),
        ("GET", "/v1/agents?limt=3", 400, "no parameter 'limt'"),
        ("GET", "/v1/agents?limit=0", 400, "give 1 to 1000"),
        ("GET", "/v1/agents?where=bat<3", 400, "has a field 'bat'"),
        ("GET", "/v1/agents?kind=Plane", 404, "there are Drone"),
        ("GET", "/v1/agents/Drone/x?at=99999", 404, "the log of shard 0 goes from 0"),
        ("GET", "/v1/agents/Drone/x?at=noon", 400, "neither a position nor a time"),
        ("GET", "/v1/agents/Drone/x/events?after=7", 400, "the `next` of the page before"),
        ("POST", "/v1/letters/0.1.2/retry", 403, "no scope 'operate'"),
        ("POST", "/v1/profile", 403, "no scope 'operate'"),
    ],
)
def test_what_is_wrong_is_said(served: ServedProcess, method: str, path: str, status: int, said: str) -> None:
    answer = served.ask(method, path)
    assert answer.status == status, answer
    assert answer.headers["content-type"] == PROBLEM
    assert said in answer.json["detail"]
    assert answer.json["status"] == status


def test_number_that_no_log_can_hold_is_named(served: ServedProcess) -> None:
    answer = served.post("/v1/agents/Drone/held/StartMission", {"mission": "M", "priority": 10**30})
    assert answer.status == 422, answer
    assert answer.json["errors"] == [{"pointer": "/priority", "detail": "a whole number of more than 64 bits"}]


def test_whole_number_may_be_written_with_a_point(served: ServedProcess) -> None:
    path = "/v1/agents/Drone/whole/StartMission"
    assert served.post(path, {"mission": "M", "priority": 2.0}).status == 200
    answer = served.post(path, {"mission": "M", "priority": 2.5})
    assert answer.json["errors"] == [{"pointer": "/priority", "detail": "Expected `int`, got `float`"}]


def test_body_must_be_small_json(served: ServedProcess) -> None:
    path = "/v1/agents/Drone/body/StartMission"
    assert served.ask("POST", path, raw=b'{"mission":"M"}', headers={"Content-Type": "text/plain"}).status == 415
    assert served.ask("POST", path, raw=b"x" * 2_000_000).status == 413
    assert served.ask("POST", path, raw=b'{"mission"').status == 422
    assert served.ask("GET", "/v1/agents", headers={"X-Long": "x" * 40_000}).status == 431


def test_observations_in_a_batch(served: ServedProcess) -> None:
    good = {"agent": "Drone/batch", "event": "BatteryMeasured", "fields": {"percent": 55}}
    answer = served.post(
        "/v1/observations", [good, {**good, "fields": {"percent": "full"}}, {**good, "event": "X"}, good]
    )
    assert answer.status == 200
    results = answer.json["results"]
    assert [one["observed"] for one in results] == [True, False, False, True]
    assert results[1]["problem"]["errors"] == [{"pointer": "/fields/percent", "detail": "Expected `float`, got `str`"}]
    assert results[2]["problem"]["status"] == 404
    assert served.get("/v1/agents/Drone/batch").json["state"]["battery"] == 55.0


def test_agents_by_condition_and_page(served: ServedProcess) -> None:
    for number in range(5):
        fields = {"percent": 40 + number}
        served.post("/v1/observations", {"agent": f"Drone/page-{number}", "event": "BatteryMeasured", "fields": fields})
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        path = f"/v1/agents?kind=Drone&where=battery%3C44&where=battery%3E%3D40&limit=2&cursor={cursor}"
        page = served.get(path).json
        found += [one["agent"] for one in page["agents"]]
        assert len(page["agents"]) <= 2
        cursor = page["next"]
    assert found == [f"Drone/page-{number}" for number in range(4)]
    assert served.get("/v1/agents?where=mission%3Dnull&limit=1").json["agents"]


def test_history_page_by_page_and_the_past(served: ServedProcess) -> None:
    for number in range(5):
        served.post("/v1/agents/Drone/past/StartMission", {"mission": f"M{number}"})
    whole = served.get("/v1/agents/Drone/past/events").json
    assert whole["next"] is None
    paged: list[Any] = []
    after: str | None = "0.0"
    while after is not None:
        page = served.get(f"/v1/agents/Drone/past/events?limit=3&after={after}").json
        paged += page["entries"]
        after = page["next"]
    assert paged == whole["entries"]
    third = next(one for one in paged if one["kind"] == "event" and one["fields"]["mission"] == "M2")
    past = served.get(f"/v1/agents/Drone/past?at={third['position']}").json
    assert past["state"]["mission"] == "M2"


def test_explanation_says_what_led_here(served: ServedProcess) -> None:
    served.post("/v1/agents/Drone/why/StartMission", {"mission": "M1"}, Idempotency_Key="w1")
    served.post("/v1/observations", {"agent": "Drone/why", "event": "BatteryMeasured", "fields": {"percent": 9}})

    def landed() -> bool:
        effects = served.get("/v1/agents/Drone/why/explain").json["entries"][-1]["effects"]
        return [(one["type"], one["settled"]) for one in effects] == [("Land@1", True)]

    wait_until(landed)
    explained = served.get("/v1/agents/Drone/why/explain").json
    assert explained["state"]["battery"] == 9.0
    kinds = [(one["kind"], one["type"], one["cause"]["command_id"]) for one in explained["entries"]]
    assert kinds == [
        ("answer", "StartMission@1", "w1"),
        ("event", "MissionStarted@1", "w1"),
        ("event", "BatteryMeasured@1", ""),
    ]


def test_health_and_status(served: ServedProcess) -> None:
    assert served.get("/healthz").json == {"status": "up"}
    assert served.get("/readyz").json == {"status": "ready"}
    assert served.get("/v1/status").json["fleet"] == "delivery"


def test_server_beside_a_node(tmp_path: Path) -> None:
    """Over the control socket; the node goes away and comes back meanwhile."""
    folder = make_folder(tmp_path)
    node = run_served(folder)
    beside = ServedProcess(folder, "serve", "drone:fleet", "--listen", ":0")
    try:
        sent = beside.post("/v1/agents/Drone/a/StartMission", {"mission": "M1"}, Idempotency_Key="k")
        assert sent.status == 200
        assert beside.get("/v1/agents").json["agents"][0]["state"]["mission"] == "M1"
        assert beside.get("/v1/agents/Drone/a/events").json["entries"]
        assert node.end() == 0
        gone = beside.post("/v1/agents/Drone/a/StartMission", {"mission": "M1"}, Idempotency_Key="k")
        assert gone.status == 503
        assert "no node answers" in gone.json["detail"]
        assert gone.headers["retry-after"] == "1"
        assert beside.get("/readyz").status == 503
        assert beside.get("/healthz").status == 200
        node = run_served(folder)
        again = beside.post("/v1/agents/Drone/a/StartMission", {"mission": "M1"}, Idempotency_Key="k")
        assert again.json == sent.json
    finally:
        assert beside.end() == 0
        assert node.end() == 0


def test_agents_and_explain_on_the_command_line(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = run_served(folder)
    try:
        for name in ("a", "b"):
            node.post(f"/v1/agents/Drone/{name}/StartMission", {"mission": name})
        listed = cli(folder, "agents", "Drone", "--where", "mission=b")
        assert listed.returncode == 0, listed
        assert "Drone/b" in listed.stdout
        assert "Drone/a" not in listed.stdout
        explained = cli(folder, "explain", "Drone/a")
        assert "MissionStarted@1 mission=a priority=0  because of StartMission@1" in explained.stdout
        assert cli(folder, "agents", "--where", "nothing=1").returncode == 2
    finally:
        node.end()


ZONES = """
from stigmergy import Agent, Command, Event, Events, Fleet, Key, View, decide, evolve, project


class Enter(Command):
    zone: int


class ZoneEntered(Event):
    zone: int


class Car(Agent):
    zone: int = 0

    @decide
    def enter(self, command: Enter) -> Events:
        yield ZoneEntered(zone=command.zone)

    @evolve
    def entered(self, event: ZoneEntered) -> None:
        self.zone = event.zone


class ZoneLoad(View):
    zone: Key[int]
    active: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.active += 1


fleet = Fleet("zones", agents=[Car], views=[ZoneLoad], shards=2)
"""


def test_view_has_seen_what_its_reader_has_written(tmp_path: Path) -> None:
    (tmp_path / "zones.py").write_text(ZONES)
    node = ServedProcess(tmp_path, "run", "zones:fleet", "--serve", ":0")
    try:
        for number in range(1, 6):
            after = node.post(f"/v1/agents/Car/c{number}/Enter", {"zone": 7}).json["after"]
            rows = node.get(f"/v1/views/ZoneLoad?zone=7&after={after}&within_s=50").json["rows"]
            assert rows == [{"zone": 7, "active": number}]
        node.post("/v1/agents/Car/c1/Enter", {"zone": 8})
        after = node.post("/v1/agents/Car/c1/Enter", {"zone": 8}).json["after"]
        page = node.get(f"/v1/views/ZoneLoad?order=-active&limit=1&after={after}&within_s=50").json
        assert page["rows"] == [{"zone": 7, "active": 5}]
        again = node.get(f"/v1/views/ZoneLoad?order=-active&limit=1&cursor={page['next']}").json
        assert again["rows"] == [{"zone": 8, "active": 2}]
        assert [one["view"] for one in node.get("/v1/views").json["views"]] == ["ZoneLoad"]
        assert node.get("/v1/views/ZoneLoad?cursor=zz").status == 400
        assert node.get("/v1/views/Nothing").status == 404
        assert node.get("/v1/views/ZoneLoad?zon=7").status == 400
        assert node.get("/v1/views/ZoneLoad?zone=seven").status in (400, 422)
        document = node.get("/openapi.json").json
        names = [one["name"] for one in document["paths"]["/v1/views/ZoneLoad"]["get"]["parameters"]]
        assert {"zone", "active", "after", "where"} <= set(names)
    finally:
        assert node.end() == 0
