"""A fleet with workflows over HTTP and gRPC: runs are begun, watched, cancelled and shown like any other agent."""

from pathlib import Path

import httpx
import pytest

import stigmergy as st
from stigmergy.proto.service import FleetProto
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.embedded import ServedFleet
from tests.clients.rig import SCHEMES, WAIT_S_MAX, serving
from tests.workflows.delivery import Deliver, fleet


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_run_is_begun_watched_and_cancelled(scheme: str, tmp_path: Path) -> None:
    running = fleet.running(journal="memory:")
    async with (
        running as live,
        serving(fleet, NodeAsker(running.service(live, "0", lambda: None)), tmp_path) as urls,
        st.connect(urls[scheme], fleet="delivery", within_s=WAIT_S_MAX) as client,
    ):
        assert await client.send("Delivery/J-1", Deliver(drone="D1", parcel="P1"))
        async for heard in client.watch(agent="Delivery/J-1", after="start"):
            if heard.type == "stigmergy.StepBegun@1" and heard.event["step"] == "FlyTo":
                break
        assert await client.send("Delivery/J-1", st.CancelRun(reason="rain"))
        async for heard in client.watch(agent="Delivery/J-1", after="start"):
            if heard.type == "stigmergy.RunEnded@1":
                break
        assert live.query("Delivery/J-1", st.WorkflowRun).ended
        found = await client.query("Delivery/J-1")
        assert (found["status"], found["reason"]) == ("undone", "cancelled: rain")
        assert found["steps"]["TakeOff"]["state"] == "undone"


async def test_the_document_and_the_page_have_the_commands_of_runs() -> None:
    running = fleet.running(journal="memory:")
    async with (
        running as live,
        ServedFleet(running, live) as served,
        httpx.AsyncClient(base_url=served.url, timeout=WAIT_S_MAX) as client,
    ):
        document = (await client.get("/openapi.json")).json()
        for command in ("Deliver", "CancelRun", "ApproveStep", "DenyStep", "RetryUndo"):
            assert f"/v1/agents/Delivery/{{name}}/{command}" in document["paths"]
        answer = await client.post("/v1/agents/Delivery/J-1/Deliver", json={"drone": "D1", "parcel": "P1"})
        assert answer.json()["accepted"] is True
        denied = await client.post("/v1/agents/Delivery/J-1/DenyStep", json={"step": "FlyTo"})
        assert (denied.status_code, "waits for no approval" in denied.json()["detail"]) == (409, True)
        assert (await client.get("/v1/page")).status_code == 200


def test_messages_of_the_framework_have_no_fields_in_protobuf_and_go_as_json() -> None:
    proto = FleetProto(fleet, None)
    typed = {tag for tag, _ in (*proto.commands.values(), *proto.events.values())}
    assert "Deliver@1" in typed
    assert "ParcelDropped@1" in typed
    assert not [tag for tag in typed if tag.startswith("stigmergy.")]
    assert "message DeliveryState {" in proto.text("delivery.proto.lock")
