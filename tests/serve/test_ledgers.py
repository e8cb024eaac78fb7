"""Entries of a ledger over HTTP, with the client, and on the command line."""

import asyncio
from pathlib import Path

import httpx
import msgspec
import pytest

from stigmergy import connect
from stigmergy.app.fleet import control_path
from stigmergy.base.errors import ConfigError
from stigmergy.cli.main import main
from stigmergy.ledgers.shown import show_entries
from stigmergy.proto.descriptors import message_classes
from stigmergy.proto.service import FleetProto
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.embedded import ServedFleet
from tests.clients.rig import serving
from tests.ledgers.incident_desk import Report, city
from tests.ledgers.test_ledger import outcomes, wait_until


async def test_entries_are_read_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = f"sqlite:{tmp_path / 'city.db'}"
    running = city().running(journal=journal, ledger=f"sqlite:{tmp_path / 'ledger.db'}")
    async with running as live:
        for number in range(3):
            await live.send("Sensor/1", Report(incident=f"I-{number}"))
        await wait_until(lambda: len(outcomes(live)) == 3)
        async with ServedFleet(running, live) as served, httpx.AsyncClient(base_url=served.url) as http:
            found = (await http.get("/v1/ledgers/incidents", params={"after": 1, "limit": 1, "fresh": "true"})).json()
            assert found["position"] == 3
            (entry,) = found["entries"]
            assert (entry["id"], entry["position"], entry["type"]) == ("I-1", 2, "Incident@1")
            assert (entry["entry"], entry["proposer"]) == ({"incident": "I-1", "gas": "co"}, "Sensor/1")
            missing = await http.get("/v1/ledgers/other")
            assert missing.status_code == 404
            assert "there are incidents" in missing.json()["detail"]
            described = (await http.get("/openapi.json")).json()["paths"]["/v1/ledgers/incidents"]["get"]
            assert described["operationId"] == "ledger_incidents"
            async with connect(served.url) as client:
                latest = await client.ledger_entries("incidents", latest=True, limit=2)
                assert [one.id for one in latest.entries] == ["I-1", "I-2"]
        control = running.control(running.service(live, "test", lambda: None), control_path(journal, "city"))
        await control.start()
        assert await asyncio.to_thread(main, ["explain", "Sensor/1", "--journal", str(tmp_path / "city.db")]) == 0
        assert 'entry={"type":"Incident@1","incident":"I-2","gas":"co"}' in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["status", "--journal", str(tmp_path / "city.db")]) == 0
        assert "ledger incidents  3 entries, position 3\n" in capsys.readouterr().out
        told = ["ledger", "incidents", "--journal", str(tmp_path / "city.db"), "--json"]
        assert await asyncio.to_thread(main, told) == 0
        shown = msgspec.json.decode(capsys.readouterr().out)
        assert [one["id"] for one in shown["entries"]] == ["I-0", "I-1", "I-2"]
        assert await asyncio.to_thread(main, [*told[:1], "other", *told[2:]]) == 2
        await control.close()


def test_a_ledger_that_a_node_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are none"):
        asyncio.run(show_entries(None, "incidents", 0, 1, latest=False, fresh=False))


async def test_entries_over_grpc_are_typed_or_json(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    fleet = city()
    classes = message_classes(FleetProto(fleet, None).describe())[1]
    running = fleet.running(journal=f"sqlite:{tmp_path / 'city.db'}", ledger=f"sqlite:{tmp_path / 'ledger.db'}")
    async with running as live:
        for number in range(3):
            await live.send("Sensor/1", Report(incident=f"I-{number}", gas="no2"))
        await wait_until(lambda: len(outcomes(live)) == 3)
        asker = NodeAsker(running.service(live, "0", lambda: None))
        async with serving(fleet, asker, tmp_path) as urls:
            async with grpc.aio.insecure_channel(urls["grpc"].removeprefix("grpc://")) as channel:
                read = channel.unary_unary(
                    "/city.Fleet/ReadLedger",
                    request_serializer=classes["ReadLedgerRequest"].SerializeToString,
                    response_deserializer=classes["ReadLedgerReply"].FromString,
                )
                asked = classes["ReadLedgerRequest"](ledger="incidents", after=1, limit=1, fresh=True)
                found = await read(asked, timeout=240)
                (entry,) = found.entries
                assert (found.position, entry.position, entry.id, entry.type) == (3, 2, "I-1", "Incident@1")
                assert (entry.incident.incident, entry.incident.gas) == ("I-1", "no2")
                assert (entry.proposer, len(entry.writer)) == ("Sensor/1", 64)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await read(classes["ReadLedgerRequest"](ledger="other"), timeout=240)
                assert raised.value.code() == grpc.StatusCode.NOT_FOUND
                assert "there are incidents" in raised.value.details()
            for url in urls.values():
                async with connect(url, fleet="city", within_s=240) as client:
                    latest = await client.ledger_entries("incidents", latest=True, limit=2)
                    assert [one.id for one in latest.entries] == ["I-1", "I-2"]
                    assert latest.entries[0].entry == {"incident": "I-1", "gas": "no2"}
                    assert latest.position == 3
