"""`/v1/fleet`: the figures of a real node, once a second, and of one that ends and comes back."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.app.cluster_client import ClusterServer
from stigmergy.base.errors import ConfigError, LinkDown, NotRunning
from stigmergy.base.system import SystemClock
from stigmergy.control.protocol import ClaimsRequest, LettersRequest, MembersRequest, SharedRequest
from stigmergy.control.replies import LetterReply, MissingPart, ObjectReply, StatusReply
from stigmergy.serve.figures import LISTED_MAX, FigureHub, since_when
from tests.serve.rig import ServedProcess, SseClient, make_folder, run_served


def figures(served: ServedProcess) -> SseClient:
    client = SseClient(served, path="/v1/fleet")
    assert client.status == 200
    return client


def next_figures(client: SseClient, wanted: str = "fleet") -> Any:
    while True:
        kind, told = client.next()
        if kind == wanted:
            return told


def test_figures_of_a_node(served: ServedProcess) -> None:
    client = figures(served)
    first = next_figures(client)
    assert first["status"]["fleet"] == "delivery"
    assert first["rates"] == {}
    for _ in range(2):
        served.post("/v1/agents/Drone/f/Stumble")
    # Other tests may have left incidents, and figures may be from between the two commands.
    said = "Drone/f is stopped: "
    told = next_figures(client)
    while not (found := [one for one in told.get("incidents", ()) if one["text"].startswith(said)]):
        told = next_figures(client)
    (incident,) = found
    assert incident["severity"] == "critical"
    assert [letter["type"].partition("@")[0] for letter in told["letters"] if letter["agent"] == "Drone/f"] == [
        "Stumble",
        "Stumble",
    ]
    later = next_figures(client)
    assert [one["since"] for one in later["incidents"] if one["text"] == incident["text"]] == [incident["since"]]
    assert set(later["rates"]) == {"events", "commits"}
    started = later["status"]["events"]
    for number in range(20):
        assert served.post("/v1/agents/Drone/g/StartMission", {"mission": str(number)}).status == 200
    rates = [later["rates"]["events"]]
    while later["status"]["events"] < started + 20:
        later = next_figures(client)
        rates.append(later["rates"]["events"])
    assert max(rates) > 0
    client.close()
    refused = served.get("/v1/fleet?every=1")
    assert (refused.status, "no parameter 'every'" in refused.json["detail"]) == (400, True)


def test_node_that_ends_is_missing_until_it_is_back(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = run_served(folder)
    beside = ServedProcess(folder, "serve", "drone:fleet", "--listen", "127.0.0.1:0")
    try:
        client = figures(beside)
        next_figures(client)
        assert node.end() == 0
        told = next_figures(client, "missing")
        assert "delivery.db.sock" in told["error"]
        node = run_served(folder)
        assert next_figures(client)["status"]["fleet"] == "delivery"
        client.close()
    finally:
        assert node.end() == 0
        assert beside.end() == 0


def test_figures_are_json_that_openapi_describes(served: ServedProcess) -> None:
    document = served.get("/openapi.json").json
    described = document["components"]["schemas"]["FleetFigures"]["properties"]
    client = figures(served)
    told = next_figures(client)
    client.close()
    assert set(told) <= set(described)
    assert json.loads(json.dumps(told)) == told


def test_since_is_told_only_where_it_is_known() -> None:
    first = since_when(["link local-only: refused", "Drone/f is stopped: it raised"], None, "10:00")
    assert set(first.values()) == {None}, "nobody knows since when"
    texts = ["link local-only: timed out", "shard 2 has no owner that answers: for 1 s"]
    second = since_when(texts, first, "10:01")
    assert second == {texts[0]: None, texts[1]: "10:01"}
    later = ["shard 2 has no owner that answers: for 2 s", "shard 3 has no owner that answers: for 1 s"]
    third = since_when(later, second, "10:02")
    assert third == {later[0]: "10:01", later[1]: "10:02"}
    assert since_when(["7 tells wait"], {"5 tells wait": "10:02"}, "10:03") == {"7 tells wait": "10:02"}


class OneStatus:
    """A fleet that always answers the same, and not to everything."""

    waits_max = 0

    def __init__(self, status: Any, objects: list[ObjectReply], letters: list[LetterReply]) -> None:
        self._status = msgspec.convert(status, StatusReply)
        self._lists: dict[type, Any] = {SharedRequest: objects, LettersRequest: letters}
        self._lists |= {ClaimsRequest: ConfigError("no ledger"), MembersRequest: NotRunning("it took too long")}

    async def ask(self, request: Any) -> Any:
        return self._status

    async def items(self, request: Any, missing: list[MissingPart] | None = None) -> Any:
        found = self._lists[type(request)]
        if isinstance(found, Exception):
            raise found
        return found

    def parts(self, shards: int) -> Sequence[int | None]:
        return (None,)

    async def servers(self) -> list[ClusterServer]:
        raise LinkDown("no server answers")

    async def close(self) -> None:
        pass


def shared(name: str, in_step: list[str], behind_s: float | None) -> ObjectReply:
    return ObjectReply(
        object=name,
        agents=[],
        live=0,
        live_bytes=0,
        digest="",
        waiting=0,
        diverged=False,
        peers=["south"],
        in_step=in_step,
        behind_s=msgspec.UNSET if behind_s is None else behind_s,
        replicas_count=0,
        replicas=[],
    )


def test_lists_say_how_many_there_are_and_what_could_not_be_read(served: ServedProcess) -> None:
    """What is late longest comes first, also where it would not be among those that are told."""
    status = {**served.get("/v1/status").json, "dead_letters": 250}
    objects = [shared(f"Depot.known/{number:03}", ["south"], None) for number in range(200)]
    objects += [shared("Depot.known/z1", [], 2.5), shared("Depot.known/z2", [], 70.0)]
    letters = [LetterReply(f"0.{number}.0", "Drone/a", "", "Moved@1", {}, "") for number in range(250)]

    async def look() -> Any:
        hub = FigureHub(OneStatus(status, objects, letters), SystemClock())
        hub.join()
        await hub.wait(0, 30)
        await hub.leave()
        return json.loads(hub.text.partition(b"data: ")[2])

    told = asyncio.run(look())
    late = [(one["object"], one["behind_s"]) for one in told["objects"][:2]]
    assert late == [("Depot.known/z2", 70.0), ("Depot.known/z1", 2.5)]
    assert (len(told["objects"]), len(told["letters"])) == (LISTED_MAX, LISTED_MAX)
    assert told["counts"] == {"objects": 202, "letters": 250}
    assert told["unread"] == {"members": "it took too long", "servers": "no server answers"}
