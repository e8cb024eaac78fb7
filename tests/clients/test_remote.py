"""The client over HTTP and gRPC: the same calls, answers and errors; real servers, tokens, TLS, a killed node."""

import asyncio
import math
import signal
import socket
from pathlib import Path

import pytest
import trustme

import stigmergy as st
from stigmergy.base.errors import ConfigError, Malformed, NotAssigned, TrustError, UnknownKind, UnknownTag, ViewBehind
from stigmergy.clients.client import RemoteViews
from stigmergy.control.view_service import WITHIN_S_MAX as VIEW_WITHIN_S_MAX
from stigmergy.serve.tokens import Tokens
from stigmergy.views.query import ViewQuery
from tests.clients.cable import Cable
from tests.clients.rig import (
    SCHEMES,
    WAIT_S_MAX,
    Board,
    Cart,
    Dock,
    Drive,
    Driven,
    Parked,
    Seen,
    client,
    warehouse_served,
)
from tests.serve.rig import ServedProcess, cli, make_folder

both = pytest.mark.parametrize("scheme", SCHEMES)


@both
async def test_commands_observations_and_states(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far:
        first = await far.send("Cart/c01", Drive(to="dock-1", by=b"\x00\xff"), command_id="id-1")
        assert isinstance(first, st.Accepted)
        assert await far.send("Cart/c01", Drive(to="dock-1", by=b"\x00\xff"), command_id="id-1") == first
        assert await far.send("Cart/c01", "Drive", {"to": "moon"}) == st.Refused("no track leads there")
        await far.observe("Cart/c01", Seen(by="gate"))
        assert await far.query("Cart/c01", Cart) == Cart(id="c01", at="dock-1", drives=1, seen=("gate",))
        assert (await far.query("Cart/c01", Cart, at=first.position)).seen == ()
        assert await far.query("Cart/c02") == {"id": "c02", "at": "", "drives": 0, "seen": []}
        assert await far.query("Board/b") == {"id": "b", "tasks": []}
        with pytest.raises(Malformed, match="ask without the class"):
            await far.query("Board/b", Board)
        await far.send("Cart/c00", Drive(to="dock-2"))
        assert await far.agents() == ["Cart/c00", "Cart/c01"]
        assert await far.agents(Cart, where=["at=dock-1"]) == ["Cart/c01"]
        assert await far.agents("Board") == []
        assert far.members() == []
        # The address as other fleets write it.
        assert await far.send("warehouse/Cart/c01", Drive(to="dock-1", by=b"\x00\xff"), command_id="id-1") == first
        await far.observe("warehouse/Cart/c01", Seen(by="gate"))
        assert (await far.query("warehouse/Cart/c01", Cart)).seen == ("gate", "gate")
        with pytest.raises((NotAssigned, UnknownKind), match=r"agent of another fleet.*`Tell` it"):
            await far.query("ground/Pilot/p1")


async def test_address_with_its_fleet_in_front_over_http_without_the_name_of_the_fleet(tmp_path: Path) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, SCHEMES[0], fleet=None) as far:
        assert isinstance(await far.send("warehouse/Cart/c01", Drive(to="dock-1")), st.Accepted)
        assert (await far.query("warehouse/Cart/c01", Cart)).drives == 1
        with pytest.raises(UnknownKind, match=r"agent of another fleet.*`Tell` it"):
            await far.query("ground/Pilot/p1")


@both
async def test_a_number_that_json_cannot_say_is_refused(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far:
        refused = await far.send("Cart/c01", Drive(to="dock-1", speed=math.nan))
        assert isinstance(refused, st.Refused)
        assert "is nan: JSON cannot say it" in refused.reason
        with pytest.raises(Malformed, match="is inf: JSON cannot say it"):
            await far.send("Cart/c01", "Drive", {"to": "dock-1", "speed": math.inf})
        assert isinstance(await far.send("Cart/c01", Drive(to="dock-1", speed=2.5)), st.Accepted)


@both
async def test_views_are_asked_as_in_the_program(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far:
        for number in range(6):
            answer = await far.send(f"Cart/c{number}", Drive(to=f"dock-{number % 3}"))
        await far.send("Cart/c0", Drive(to="dock-1"))
        answer = await far.send("Cart/c0", Drive(to="dock-1"))
        assert isinstance(answer, st.Accepted)
        assert await far.view(Dock).after(answer.after, VIEW_WITHIN_S_MAX).all()
        docks = far.view(Dock).after_command("Cart/c0", answer.position, VIEW_WITHIN_S_MAX)
        assert await docks.get("dock-1") == Dock(to="dock-1", drives=4, last="Cart/c0")
        assert [row.to for row in await docks.where(lambda row: row.drives < 3).all()] == ["dock-0", "dock-2"]
        assert await docks.where(last="Cart/c5").first() == Dock(to="dock-2", drives=2, last="Cart/c5")
        rows, cursor = await docks.order("drives", descending=True).limit(2).page()
        assert [row.to for row in rows] == ["dock-1", "dock-0"]
        rows, cursor = await docks.order("drives", descending=True).limit(2).page(cursor)
        assert ([row.to for row in rows], cursor) == (["dock-2"], "")
        remote = ViewQuery(Dock, RemoteViews(far.ask_view))
        assert await remote.get("dock-2") == Dock(to="dock-2", drives=2, last="Cart/c5")
        with pytest.raises(Malformed, match="more than 64 bits"):
            await docks.where(drives=2**63).all()
        with pytest.raises(Malformed, match="has no field 'speed'"):
            await docks.where(speed=1).all()
        with pytest.raises(ViewBehind, match="Dock"):
            await far.view(Dock).after({"0": 10**6}, within_s=0.1).all()


@both
async def test_errors_are_those_of_every_client(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far:
        for name, fields, said in (("Fly", {}, "Fly"), ("Drive", {"to": 7}, "to"), ("Drive", {}, "to")):
            refused = await far.send("Cart/c01", name, fields)
            assert isinstance(refused, st.Refused)
            assert said in refused.reason
        with pytest.raises(UnknownTag, match="Nope"):
            await far.observe("Cart/c01", "Nope", {})
        with pytest.raises(Malformed, match="by"):
            await far.observe("Cart/c01", "Seen", {"by": 7})
        with pytest.raises(UnknownKind, match="Ship"):
            await far.query("Ship/s")
        with pytest.raises(Malformed):
            await far.query("Cart")
        with pytest.raises(Malformed, match="is no Board"):
            await far.query("Cart/c01", Board)
        with pytest.raises(ConfigError):
            await far.query("Cart/c01", at="yesterday")
        with pytest.raises(ConfigError, match="within_s"):
            await far.send("Cart/c01", Drive(to="x"), within_s=0)
        with pytest.raises(Malformed, match="fields="):
            await far.send("Cart/c01", Drive(to="x"), {"to": "y"})
    with pytest.raises(st.NotRunning, match="not open"):
        await far.send("Cart/c01", Drive(to="x"))
    with pytest.raises(ConfigError, match="opened once"):
        await far.__aenter__()


@both
async def test_who_may_what_is_said_by_tokens(tmp_path: Path, scheme: str) -> None:
    tokens = Tokens(tmp_path / "tokens")
    reader = tokens.create("reader", ("read",), 3600, 1e9)
    reader = tokens.create("tower", ("read", "command:Cart"), 10**9, 1.7e9) and reader
    tower = tokens.create("tower-2", ("read", "command:Cart"), 10**9, 1.7e9)
    async with warehouse_served(tmp_path) as urls:
        async with client(urls, scheme, token=tower) as far:
            assert await far.send("Cart/c01", Drive(to="dock-1"))
            with pytest.raises(TrustError, match="tower-2 has no scope 'observe'"):
                await far.observe("Cart/c01", Seen(by="gate"))
            tokens.revoke("tower-2", 1.8e9)
            with pytest.raises(TrustError, match="give a valid token"):
                await far.query("Cart/c01")
        for token in (None, "stg_nobody_x", reader):
            with pytest.raises(TrustError, match="give a valid token"):
                async with client(urls, scheme, token=token) as far:
                    await far.query("Cart/c01")


@both
async def test_the_certificate_is_checked(tmp_path: Path, scheme: str) -> None:
    authority, ca = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    async with warehouse_served(tmp_path, authority=authority) as urls:
        assert urls[scheme].startswith(f"{scheme}s://")
        async with client(urls, scheme, ca=ca) as far:
            assert await far.send("Cart/c01", Drive(to="dock-1"))
        with pytest.raises(st.NotRunning, match=r"(?i)certificate|ssl|handshake|connect"):
            async with client(urls, scheme, within_s=3.0):
                pass
    with pytest.raises(ConfigError, match="cannot be read"):
        client(urls, scheme, ca=tmp_path / "none.pem")


@both
async def test_nobody_there_is_said_in_time(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(st.NotRunning, match=r"no answer within 0\.5 s"):
            async with st.connect(url, fleet="warehouse", within_s=0.5):
                pass


async def test_wrong_calls_are_refused_at_once() -> None:
    for url, options, said in (
        ("https://", {}, "give a URL like"),
        ("https://me:secret@fleet.example", {}, "token= beside it"),
        ("grpc://fleet.example", {"fleet": "warehouse"}, "give a URL like"),
        ("grpcs://fleet.example:9090", {}, "which fleet"),
        ("mqtt://gateway:1883", {}, "which fleet"),
        ("mqtt://gateway:1883", {"fleet": "warehouse", "token": "x"}, "leave token= and ca= out"),
        ("https://fleet.example", {"within_s": -1}, "within_s"),
    ):
        with pytest.raises(ConfigError, match=said):
            st.connect(url, **options)


@both
async def test_another_program_at_the_port_is_told_apart(scheme: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 404 Nope\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises((ConfigError, st.NotRunning)):
            async with st.connect(url, fleet="warehouse", within_s=2.0):
                pass


@both
async def test_closing_ends_calls_and_not_their_task(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls:
        far = await client(urls, scheme).__aenter__()
    call = asyncio.ensure_future(far.query("Cart/c01"))  # nobody answers any more: it is tried again and again
    await asyncio.sleep(0.05)
    await far.close()
    with pytest.raises(st.NotRunning, match="closed"):
        await call


@both
async def test_a_command_is_done_once_although_its_node_is_killed(tmp_path: Path, scheme: str) -> None:
    make_folder(tmp_path)
    assert cli(tmp_path, "proto", "drone:fleet").returncode == 0
    node = ServedProcess(tmp_path, "run", "drone:fleet", "--serve", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    urls = {"http": node.url, "grpc": node.said[-1]["grpc"]}
    places = [urls["http"].removeprefix("http://"), urls["grpc"].removeprefix("grpc://")]
    async with st.connect(urls[scheme], fleet="delivery", within_s=WAIT_S_MAX) as far:
        first = await far.send("Drone/D-1", "StartMission", {"mission": "M0"})
        assert isinstance(first, st.Accepted)
        missions = [f"M{number}" for number in range(1, 40)]
        calls = [
            asyncio.ensure_future(far.send("Drone/D-1", "StartMission", {"mission": one}, command_id=one))
            for one in missions
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert await asyncio.to_thread(node.end, signal.SIGKILL) != 0
        node = await asyncio.to_thread(
            lambda: ServedProcess(tmp_path, "run", "drone:fleet", "--serve", places[0], "--grpc", places[1])
        )
        assert all(isinstance(answer, st.Accepted) for answer in await asyncio.gather(*calls))
    log = node.get("/v1/agents/Drone/D-1/events?type=MissionStarted&limit=1000").json["entries"]
    done = sorted(entry["fields"]["mission"] for entry in log if entry["kind"] == "event")
    assert done == sorted(["M0", *missions])
    assert await asyncio.to_thread(node.end) == 0


@both
async def test_watches_from_now_from_the_start_and_behind_an_event(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far, asyncio.timeout(WAIT_S_MAX):
        await far.send("Cart/c01", Drive(to="d0"))
        watching = far.watch(kind=Cart)
        await watching.wait_ready()
        for number in range(1, 4):
            await far.send(f"Cart/c0{number}", Drive(to=f"d{number}"))
            await far.observe("Cart/c01", Seen(by=f"g{number}"))
        heard = [await anext(watching) for _ in range(6)]
        assert [(one.agent, one.type) for one in heard[:2]] == [("Cart/c01", "Driven@1"), ("Cart/c01", "Seen@1")]
        assert heard[0].event == {"to": "d1"}
        assert heard[0].time.startswith("20")
        typed = far.watch(kind=Driven, after="start")
        assert [(await anext(typed)).event for _ in range(4)] == [Driven(to=f"d{number}") for number in range(4)]
        again = far.watch(agent="Cart/c01", after=heard[1].after)
        assert [(await anext(again)).event for _ in range(2)] == [{"by": "g2"}, {"by": "g3"}]
        await again.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(again)
        late = asyncio.ensure_future(anext(typed))
        await asyncio.sleep(0)
        await typed.aclose()
        with pytest.raises(StopAsyncIteration):
            await late
        for wrong, error in (
            (far.watch(agent="Ship/s"), UnknownKind),
            (far.watch(after="here"), ConfigError),
            (far.watch(after="7:1"), ConfigError),
        ):
            with pytest.raises(error):
                await anext(wrong)
        since = far.watch(kind=Driven, since="2020-01-01T00:00:00Z")
        assert (await anext(since)).event == Driven(to="d0")
        with pytest.raises(ConfigError, match="topics are those of a bus"):
            far.watch("Cart/+/place")
        with pytest.raises(ConfigError, match="tells events, not topics"):
            far.watch(latest=True)
        with pytest.raises(ConfigError, match="a position or a time"):
            far.watch(after="start", since="2020-01-01T00:00:00Z")


@both
async def test_watches_an_area(tmp_path: Path, scheme: str) -> None:
    async with warehouse_served(tmp_path) as urls, client(urls, scheme) as far, asyncio.timeout(WAIT_S_MAX):
        watching = far.watch(area=(50, 0, 60, 10.5))
        await watching.wait_ready()
        for x, y in ((5, 4), (55, 4), (55, 11), (60, 10.5)):
            await far.observe("Cart/c01", Parked(x=x, y=y))
        assert [(await anext(watching)).event for _ in range(2)] == [{"x": 55.0, "y": 4.0}, {"x": 60.0, "y": 10.5}]
        for wrong, why in (((1, 2, 3), "area=1,2,3: give four numbers"), ((2, 1, 1, 1), "must be the least one")):
            with pytest.raises(ConfigError, match=why):
                await anext(far.watch(area=wrong))  # type: ignore[arg-type]


@both
async def test_a_watch_that_is_cut_has_no_gap_and_no_double(tmp_path: Path, scheme: str) -> None:
    count, cuts = 120, 3
    async with (
        warehouse_served(tmp_path) as urls,
        client(urls, "http") as sender,
        Cable(urls[scheme]) as cable,
        st.connect(f"{scheme}://127.0.0.1:{cable.port}", fleet="warehouse", within_s=WAIT_S_MAX) as far,
        asyncio.timeout(WAIT_S_MAX),
    ):
        watching = far.watch(kind=Driven)
        await watching.wait_ready()

        async def send() -> None:
            for number in range(count):
                await sender.send(f"Cart/c{number % 3}", Drive(to=f"{number}"))

        sending = asyncio.ensure_future(send())
        heard: list[str] = []
        while len(heard) < count:
            heard.append((await anext(watching)).event.to)
            assert heard[-1] == str(len(heard) - 1)
            if len(heard) % (count // cuts) == 0:
                cable.cut()
        await sending
        assert heard == [str(number) for number in range(count)]
        assert cable.connections >= cuts


async def test_an_observation_that_may_have_been_taken_is_not_told_twice() -> None:
    told: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /healthz"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        else:
            told.append(head)  # taken, and the connection breaks before the answer
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, st.connect(url, within_s=3.0) as far:
        with pytest.raises(st.NoAnswer, match="whether it was taken is not known"):
            await far.observe("Cart/c01", Seen(by="gate"))
        assert len(told) == 1
        with pytest.raises(st.NoAnswer, match="send it again with command_id='id-1'"):
            await far.send("Cart/c01", Drive(to="dock-1"), command_id="id-1")
        assert len(told) > 2
        assert all(b"idempotency-key: id-1\r\n" in head for head in told[1:])
