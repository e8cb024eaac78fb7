"""Maintains the path from a site to its hub: checks the hub, has the site's stream made, and wakes it up.

A gateway relies on `is_up`: the hub has just answered over the leaf link, and the site is ours. Nothing here delays the
site: requests have short limits, with pauses between them.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.nats import naming
from stigmergy.nats.address import NatsAddress
from stigmergy.nats.errors import JetStreamRefused, NoResponders, Unanswered
from stigmergy.nats.gateway.hub import (
    ASK_S,
    SiteClaim,
    drop_site,
    find_site,
    greet,
    leaf_settings,
    make_site,
    wake_site,
)
from stigmergy.nats.gateway.subjects import site_subjects
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import ensure_stream, find_stream

# When to wake a source: watches how much the hub has of a site's stream. Pure.
#
# A stream that sources another one over a leaf link often notices only after most of a minute that the link is back.
# Removing and restoring the source wakes it at once. That is cheap but must not happen all the time: a source that is
# connecting would never arrive.

STALL_S = 1.0
"""A source that is behind and has not moved for this long is woken up."""
AGAIN_S_MIN = 2.0
AGAIN_S_MAX = 30.0
"""The longest wait after waking a source; the wait doubles each time that it did not help."""


class SourceVerdict(enum.Enum):
    """What to do about a source."""

    LEAVE = "leave it alone"
    WAKE = "remove and restore it"
    RENEW = "start again: the site's stream was replaced"


class SourceWatch:
    """Watches one site's source. Call `look` whenever its position is known, `lost` when it is not."""

    def __init__(self) -> None:
        self._arrived = -1
        self._moved_s = 0.0
        self._rests_until_s = 0.0
        self._rest_s = AGAIN_S_MIN
        self.is_suspect = False
        """It is behind, and did not move since the last look: look again soon."""
        self.wakes = 0
        self.renewals = 0

    def look(self, now_s: float, sent: int, arrived: int) -> SourceVerdict:
        """`sent` is the last sequence of the site's stream, `arrived` the last one that the hub has of it."""
        self.is_suspect = arrived == self._arrived and arrived < sent
        if arrived > sent:
            # The site lost its stream and made a new one: the source would wait for sequences that are long past.
            self._arrived = -1
            self.renewals += 1
            return SourceVerdict.RENEW
        if arrived != self._arrived:
            self._arrived, self._moved_s = arrived, now_s
            self._rests_until_s, self._rest_s = 0.0, AGAIN_S_MIN
            return SourceVerdict.LEAVE
        if arrived == sent:
            self._moved_s = now_s
            return SourceVerdict.LEAVE
        if now_s - self._moved_s < STALL_S or now_s < self._rests_until_s:
            return SourceVerdict.LEAVE
        self._rests_until_s = now_s + self._rest_s
        self._rest_s = min(AGAIN_S_MAX, 2 * self._rest_s)
        self.wakes += 1
        return SourceVerdict.WAKE

    def lost(self, now_s: float) -> None:
        """The hub is unreachable: when it is back, the source has STALL_S from then on."""
        self._moved_s = now_s
        self._rests_until_s = 0.0
        self._rest_s = AGAIN_S_MIN


# Downward traffic: a bucket of the hub, keys and objects, mirrored to the leaf, so that the site can read it while cut
# off. The leaf's server synchronises it. A mirror is made once the hub has the bucket.

KINDS = ("KV", "OBJ")
"""Prefixes of the streams of key and object buckets, as everywhere on NATS."""


async def mirror_bucket(leaf: NatsLink, above: NatsLink, bucket: str) -> bool:
    """Makes missing mirrors. Returns whether all exist; False while the hub lacks one of the two.

    Raises ConfigError if the leaf has its own bucket of this name.
    """
    api = f"$JS.{above.address.domain}.API"
    complete = True
    for kind in KINDS:
        stream = f"{kind}_{bucket}"
        found = await find_stream(leaf, stream)
        if found is not None:
            origin = found.config.get("mirror") or {}
            if not origin:
                raise ConfigError(
                    f"bucket {bucket} at {leaf.address.shown} is the leaf's own, and cannot mirror the hub's; write "
                    "its keys at the hub, and delete it here"
                )
            if (origin.get("external") or {}).get("api") == api:
                continue
            # The gateway has another hub now, and mirrors that one.
            await leaf.api(f"STREAM.DELETE.{stream}")
        if await find_stream(above, stream) is None:
            complete = False
            continue
        settings = {"name": stream, "storage": "file", "allow_direct": True}
        await leaf.api(f"STREAM.CREATE.{stream}", {**settings, "mirror": {"name": stream, "external": {"api": api}}})
    return complete


LOOK_UP_S = 1.0
"""How often we ask the hub while all is well."""
LOOK_SOON_S = 0.25
"""The same while its source seems to sleep, or the hub is away: then the leaf itself answers."""
UNANSWERED_MAX = 2
"""A hub counts as away after this many unanswered requests: a busy one may miss a single one."""
EXPLAIN_EVERY_S = 2.0
"""How often we ask a hub that does not answer over the leaf for the reason, on a separate connection."""

MIRROR_EVERY_S = 5.0
"""How often we check whether the hub has the mirrored bucket, until it has."""


class CrossingPlan(Struct, frozen=True, kw_only=True):
    """The two ends: a site's leaf and its hub."""

    leaf: NatsAddress
    claim: SiteClaim
    hubs: tuple[str, ...]
    """Leaf listeners of the hub; we ask them for its domain."""
    domain: str = ""
    """The hub's domain, if known."""
    replicas: int = 1
    """How many servers of the hub hold the site's stream."""
    mirrored: str = ""
    """A bucket of the hub that is mirrored to the site."""


class Crossing:
    """The path from one site to its hub. `start`, `stop`."""

    def __init__(self, plan: CrossingPlan, link: NatsLink, heard: Callable[[bool], None]) -> None:
        """`link` is the caller's link to the leaf; `heard` is called when the hub comes and goes."""
        self._plan = plan
        self._link = link
        self._heard = heard
        self._domain = plan.domain
        self._above: NatsLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaf_is_ready = False
        self._is_mirrored = not plan.mirrored
        self._mirrors_s = 0.0
        self.watch = SourceWatch()
        self._unanswered = 0
        self._explained_s = 0.0
        self._explanation: StigmergyError | None = None
        self.is_up = False
        self.last_error: StigmergyError | None = LinkDown("the hub was not asked yet")

    @property
    def domain(self) -> str:
        """The hub's; empty before it is known."""
        return self._domain

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"crossing {self._plan.claim.site}")

    async def stop(self) -> None:
        """Stops, without calling `heard`."""
        task, self._task = self._task, None
        await end_tasks(task)
        if self._above is not None:
            await self._above.close()

    async def _live(self) -> None:
        while True:
            try:
                await self._look()
            except JetStreamRefused as refused:
                self._say(LinkDown(f"the hub refuses: {refused}"))
            except Unanswered as error:
                self._unanswered += 1
                if self._unanswered >= UNANSWERED_MAX or not self.is_up:
                    self._say(error)
            except StigmergyError as error:
                self._say(await self._explain(error))
            except Exception as error:
                # An unexpected answer must not end this task: nothing else would look again.
                self._say(LinkDown(f"{type(error).__name__}: {error}; trying again"))
            else:
                self._unanswered = 0
                self._say(None)
            await asyncio.sleep(LOOK_UP_S if self.is_up and not self.watch.is_suspect else LOOK_SOON_S)

    async def _look(self) -> None:
        site = self._plan.claim.site
        if not self._leaf_is_ready:
            await ensure_stream(self._link, naming.uplink_stream(site), leaf_settings(site_subjects(site)))
            self._leaf_is_ready = True
        above = await self._reach()
        found = await find_site(above, self._plan.claim)
        if found is None:
            await make_site(above, self._plan.claim, self._plan.replicas)
            return
        own = await self._link.api(f"STREAM.INFO.{naming.uplink_stream(site)}", within_s=ASK_S)
        sent = int(own["state"]["last_seq"])
        verdict = self.watch.look(asyncio.get_running_loop().time(), sent, found.arrived)
        if verdict is SourceVerdict.RENEW:
            await drop_site(above, site)
            await make_site(above, self._plan.claim, self._plan.replicas)
        elif verdict is SourceVerdict.WAKE or not found.is_sourced:
            await wake_site(above, site)
        await self._mirror(above)

    async def _mirror(self, above: NatsLink) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._is_mirrored and now_s >= self._mirrors_s:
            self._mirrors_s = now_s + MIRROR_EVERY_S
            self._is_mirrored = await mirror_bucket(self._link, above, self._plan.mirrored)

    async def _reach(self) -> NatsLink:
        """A link to the hub's JetStream, over the leaf."""
        if self._above is None:
            if not self._domain:
                self._domain = (await greet(self._plan.hubs)).domain
            address = structs.replace(self._plan.leaf, domain=self._domain)
            self._above = NatsLink(address, name=f"{self._link.name} to the hub")
            self._above.start()
        await self._above.wait_up(ASK_S)
        return self._above

    async def _explain(self, error: StigmergyError) -> StigmergyError:
        """Why the hub does not answer, if it can say so itself: a hub without JetStream is not just away."""
        if not isinstance(error, NoResponders) or not self._plan.hubs:
            return error
        now_s = asyncio.get_running_loop().time()
        if self.is_up:
            # It was there a moment ago. Ask for the reason at the next look, so that nobody waits for it now.
            self._explanation = None
            return error
        if self._explanation is None or now_s - self._explained_s > EXPLAIN_EVERY_S:
            self._explained_s = now_s
            try:
                await greet(self._plan.hubs)
            except StigmergyError as better:
                self._explanation = better
            else:
                self._explanation = LinkDown(
                    "the hub runs, and has not accepted the leaf yet: if this persists, check USER:PASSWORD@ before "
                    "its address, and the leaf's log; trying again every second"
                )
        return self._explanation

    def _say(self, error: StigmergyError | None) -> None:
        was, self.is_up = self.is_up, error is None
        self.last_error = error
        if error is not None:
            # The leaf may come back without its disk, and then without its stream.
            self._leaf_is_ready = False
            self.watch.lost(asyncio.get_running_loop().time())
        if was != self.is_up:
            self._heard(self.is_up)
