"""A bus whose messages are signed and verified: wraps any Bus, so that nothing passes it unsigned or unverified.

What is published within one turn of the event loop is signed together. What arrives is verified on arrival, before it
counts for a quota, waits for a handler or moves a mark; the handler gets it without its proof. What is refused is
acknowledged to the broker, counted, and told to the operator.

Topics outside the fleets' own, such as those of devices, are neither signed nor verified: their readers expect exactly
the bytes that are published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.agents.codec import printable
from stigmergy.base.errors import Malformed, NotRunning, PeerError, StigmergyError, Unauthentic
from stigmergy.bus.port import Bus, BusMessage, Gate, Handler, LinkHeard, matches
from stigmergy.bus.signatures import LEAVES_MAX, Identity, read_signed, sign_batch, without_proof
from stigmergy.bus.topics import AGENTS, NODES, Channel
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.bus_keys import BusKeys, Rule, owned

TROUBLES_MAX = 16
"""Signers whose refused messages are told of, each by itself; of more, the newest."""
TOLD_S = 600.0
"""Refused messages are among the troubles until none was refused for so long."""
TOPICS_COUNT_MAX = 10_000
REASON_CHARS_MAX = 400


class SigningCounters(Struct):
    """What was signed and verified on a bus."""

    bus_signed: int = 0
    bus_verified: int = 0
    bus_unsigned: int = 0
    """Taken without a signature, where that is allowed."""
    bus_forged: int = 0
    """Refused: forged, changed, replayed elsewhere, in another's name, or unsigned where that is not allowed."""


class _Refused(Struct):
    count: int
    last_s: float
    text: str


class SignedBus:
    """The Bus port over another Bus. Without an identity it signs nothing, without keys it verifies nothing; it takes
    proofs off in any case."""

    def __init__(
        self,
        bus: Bus,
        link: str,
        me: Identity | None,
        keys: BusKeys | None,
        now_s: Callable[[], float],
    ) -> None:
        """`link` names the broker for people."""
        self.bus = bus
        self._link = link
        self._me = me
        self._keys = keys
        self._now_s = now_s
        self._unsigned: list[tuple[BusMessage, asyncio.Future[BusMessage]]] = []
        """What this turn of the event loop has published so far."""
        self._ours: dict[str, bool] = {}
        """By topic whether messages on it are signed."""
        self._announced: dict[str, None] = {}
        """Patterns of presence that we listen to, to know whose agents are whose."""
        self._refused: dict[str, _Refused] = {}
        self.on_refused: Callable[[BusMessage, PeerError], None] = lambda *_: None
        """Called with a refused command, input or query and the reason."""
        self.counters = SigningCounters()

    @property
    def is_up(self) -> bool:
        return self.bus.is_up

    @property
    def last_error(self) -> StigmergyError | None:
        return self.bus.last_error

    def on_link(self, heard: LinkHeard) -> None:
        self.bus.on_link(heard)

    def counted(self) -> dict[str, int]:
        """What the bus below counts."""
        counted: Callable[[], dict[str, int]] | None = getattr(self.bus, "counted", None)
        return {} if counted is None else counted()

    def troubles(self) -> list[Trouble]:
        """Whose messages were refused lately, why, and by which link they came."""
        since_s = self._now_s() - TOLD_S
        self._refused = {name: one for name, one in self._refused.items() if one.last_s > since_s}
        texts = (
            f"{one.count:,} message{'s' * (one.count > 1)} from {self._link} refused, the last one on {one.text}"
            for one in self._refused.values()
        )
        return coded("signature-refused", texts)

    async def open(self, will: BusMessage | None = None) -> None:
        await self.bus.open(None if will is None else self._signed_now(will))

    async def close(self) -> None:
        await self.bus.close()
        for _, done in self._unsigned:
            if not done.done():
                done.set_exception(NotRunning("the bus was closed"))

    # ------------------------------------------------------------------ sending

    async def publish(self, message: BusMessage) -> None:
        if self._me is None or not message.payload or not self._is_ours(message.topic):
            await self.bus.publish(message)
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BusMessage] = loop.create_future()
        self._unsigned.append((message, done))
        if len(self._unsigned) == 1:
            loop.call_soon(self._sign)
        await self.bus.publish(await done)

    def _sign(self) -> None:
        """Signs what this turn has published. Whoever waits goes on in the order of the calls."""
        waiting, self._unsigned = self._unsigned, []
        for first in range(0, len(waiting), LEAVES_MAX):
            part = [one for one in waiting[first : first + LEAVES_MAX] if not one[1].done()]
            self._sign_part(part)

    def _sign_part(self, part: Sequence[tuple[BusMessage, asyncio.Future[BusMessage]]]) -> None:
        assert self._me is not None
        if not part:
            return
        try:
            signed = sign_batch([message for message, _ in part], self._me)
        except Exception as error:
            if len(part) == 1:
                part[0][1].set_exception(error if isinstance(error, StigmergyError) else Malformed(str(error)))
                return
            for one in part:  # The others must not suffer from the one that cannot be signed.
                self._sign_part([one])
            return
        self.counters.bus_signed += len(part)
        for (_, done), message in zip(part, signed, strict=True):
            done.set_result(message)

    def _signed_now(self, message: BusMessage) -> BusMessage:
        if self._me is None or not message.payload or not self._is_ours(message.topic):
            return message
        return sign_batch([message], self._me)[0]

    def _is_ours(self, topic: str) -> bool:
        known = self._ours.get(topic)
        if known is None:
            if len(self._ours) >= TOPICS_COUNT_MAX:
                self._ours.clear()
            known = self._ours[topic] = owned(topic) is not None
        return known

    # ------------------------------------------------------------------ receiving

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        await self._listen_to_presence(pattern)
        await self.bus.subscribe(pattern, self._verifying(handler))

    async def _listen_to_presence(self, pattern: str) -> None:
        """Who takes what agents say must hear which nodes run them."""
        levels = pattern.split("/")
        if self._keys is None or len(levels) < 4 or levels[2] not in (AGENTS, NODES):
            return
        presence = "/".join((*levels[:2], NODES, "+", Channel.PRESENCE.value))
        if levels[2] == NODES and pattern == presence:
            self._announced[presence] = None
        elif levels[2] == AGENTS and not any(matches(known, presence) for known in self._announced):
            self._announced[presence] = None
            await self.bus.subscribe(presence, self._verifying(_pass_over))

    def _verifying(self, handler: Handler) -> Gate:
        inner = handler if isinstance(handler, Gate) else None
        take = handler.handle if isinstance(handler, Gate) else handler

        def admit(source: str, message: BusMessage, open_count: int, open_all_count: int) -> bool:
            if inner is not None and inner.wants is not None and not inner.wants(message.topic):
                return False  # It is for another node, which verifies it.
            try:
                bare = self._verified(message)
            except PeerError as error:
                self._refuse(message, error)
                return False
            return inner is None or inner.admit(source, bare, open_count, open_all_count)

        async def handle(message: BusMessage) -> None:
            await take(without_proof(message))

        if inner is None:
            return Gate(_topic, admit, handle)
        return Gate(inner.source_of, admit, handle, shed=inner.shed, wants=inner.wants)

    def _verified(self, message: BusMessage) -> BusMessage:
        """The message without its proof. Raises Unauthentic, and Malformed for an unreadable proof."""
        bare, proof = read_signed(message)
        if self._keys is None:
            return bare
        if why := self._keys.check(bare, proof):
            key = "" if proof is None else f" (key {proof.key.hex()[:16]}…)"
            raise Unauthentic(why + key)
        if proof is None:
            self.counters.bus_unsigned += self._is_ours(message.topic)
        else:
            self.counters.bus_verified += 1
        return bare

    def _refuse(self, message: BusMessage, error: PeerError) -> None:
        """Counts it, and lets the sender of what anybody may send know why. Whoever forges is told nothing."""
        self.counters.bus_forged += 1
        text = f"{message.topic}: {printable(error, REASON_CHARS_MAX)}"
        known = self._refused.pop(str(error), None)
        self._refused[str(error)] = _Refused(1 + (known.count if known else 0), self._now_s(), text)
        if len(self._refused) > TROUBLES_MAX:
            del self._refused[next(iter(self._refused))]
        what = owned(message.topic)
        if what is not None and what.rule is Rule.ANYBODY:
            self.on_refused(message, error)


def _topic(topic: str) -> str:
    return topic


async def _pass_over(message: BusMessage) -> None:
    del message
