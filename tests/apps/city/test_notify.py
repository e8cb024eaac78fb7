"""Notifications by webhook and mail, at receivers that keep marks."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apps.city.fleet import make_fleet
from apps.city.messages import Notify
from apps.city.notify import Mail, Webhook
from apps.city.receivers import Hooks, receivers
from stigmergy import Agent, Command, DeviceRefused, Effects, Event, Events, Fleet, Order, Unreachable, decide, react
from stigmergy.testing.brokers import free_port
from stigmergy.testing.bus_rig import WAIT_S, wait_until


def notice(mark: str = "I-7:2", mail: bool = True) -> Notify:
    return Notify(mark=mark, incident="I-7", stage="opened", severity=2, text="CO_leak at 45, 9", mail=mail)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[Hooks]:
    async with receivers(tmp_path, lambda _: None, losing=0.0) as found:
        yield found


async def test_a_webhook_acts_once_for_a_mark(hooks: Hooks, tmp_path: Path) -> None:
    hook = Webhook(hooks.url)
    for mark in ("I-7:2", "I-7:2", "I-7:3"):
        await asyncio.to_thread(hook.send, notice(mark))
    assert [(one["mark"], one["first"]) for one in lines(tmp_path / "webhook.jsonl")] == [
        ("I-7:2", True),
        ("I-7:2", False),
        ("I-7:3", True),
    ]


async def test_mail_has_the_mark_and_an_id_of_its_own(hooks: Hooks, tmp_path: Path) -> None:
    mail = Mail(hooks.mail, "g1@stigmergy.city", "duty@stigmergy.city")
    await asyncio.to_thread(mail.send, notice())
    await asyncio.to_thread(mail.send, notice(mail=False))
    (one,) = lines(tmp_path / "mail.jsonl")
    assert (one["mark"], one["id"], one["subject"]) == ("I-7:2", "<I-7.2@stigmergy.city>", "CO_leak at 45, 9")


async def test_who_does_not_answer_is_tried_again() -> None:
    port = free_port()
    for notifier in (Webhook(f"http://127.0.0.1:{port}/"), Mail(f"127.0.0.1:{port}", "a@b.c", "d@e.f")):
        with pytest.raises(Unreachable, match="tried again"):
            await asyncio.to_thread(notifier.send, notice())


@pytest.mark.parametrize(("status", "kind"), [(503, Unreachable), (429, Unreachable), (404, DeviceRefused)])
async def test_the_answer_says_whether_another_try_is_worth_it(status: int, kind: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(kind, match=str(status)):
            await asyncio.to_thread(Webhook(url).send, notice())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="give http://host:port/path"):
        Webhook("ftp://here")


class Ring(Command):
    mark: str


class Rung(Event):
    mark: str


class Bell(Agent):
    """Tells somebody outside, as a desk does."""

    @decide
    def ring(self, command: Ring) -> Events:
        yield Rung(mark=command.mark)

    @react
    def tell(self, event: Rung) -> Effects:
        yield notice(event.mark)


async def test_a_lost_answer_is_told_again_and_acted_on_once(tmp_path: Path) -> None:
    """From the outbox, through the port, to a receiver that acts and then says nothing."""
    acted: list[dict[str, Any]] = []
    fleet, count = Fleet("bell", agents=[Bell]), 3
    async with receivers(tmp_path, acted.append, losing=0.3) as found:
        hook = Webhook(found.url)

        @fleet.actuator(Notify, tries=100)
        async def notify(order: Order[Notify]) -> None:
            await asyncio.to_thread(hook.send, order.effect)

        async with fleet.running(journal="memory:") as live:
            for number in range(count):
                assert await live.send("Bell/one", Ring(mark=f"I-{number}:1"))
            await wait_until(lambda: len(lines(tmp_path / "webhook.jsonl")) > count == len(acted), WAIT_S)
    told = lines(tmp_path / "webhook.jsonl")
    assert len(acted) == count < len(told)


def test_the_fleet_of_a_gateway_can_be_declared() -> None:
    assert make_fleet(lambda _: None, ()).name == "city"
