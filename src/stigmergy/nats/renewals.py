"""Renewals of certificates over NATS: whoever has the authority answers, members ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stigmergy.nats.link import NatsLink
from stigmergy.pki import renewal
from stigmergy.pki.authority import DAYS, AuthorityFolder
from stigmergy.pki.certificates import Certificate
from stigmergy.pki.enrolment import read_identity

if TYPE_CHECKING:
    from nats.aio.msg import Msg

ANSWER_S_MAX = 30.0


def subject_of_renewals(fleet: str) -> str:
    """Where requests go. Devices may not send there."""
    return f"stig.ca.{fleet.replace('.', '_')}.renew"


async def answer_renewals(
    link: NatsLink, authority: AuthorityFolder, days: float = DAYS, ready: Callable[[], None] = lambda: None
) -> None:
    """Answers until it is cancelled; of several who have the authority, one answers each request. `ready` is called
    when the servers know."""

    async def taken(message: Msg) -> None:
        answer = await asyncio.to_thread(renewal.answer, authority, message.data, days)
        await link.tell(message.reply, answer)

    end = await link.subscribe(subject_of_renewals(authority.fleet), taken, queue="ca")
    try:
        await link.flush()
        ready()
        await asyncio.Event().wait()
    finally:
        await end()


async def renew_over(link: NatsLink, folder: Path, key: Path | None = None) -> Certificate:
    """Renews the identity in a folder. Raises TrustError for a refusal, NoResponders where nobody has the authority."""
    fleet = read_identity(folder).subject.fleet
    payload = await asyncio.to_thread(renewal.ask, folder, key)
    message = await link.request(subject_of_renewals(fleet), payload, within_s=ANSWER_S_MAX)
    return await asyncio.to_thread(renewal.take, folder, message.data)
