"""Row 13: consume, process and publish on JetStream while its leaders are killed; the effects come exactly once.

Three servers hold three streams: the inputs, the log of a node, and its effects. Producers number their inputs and
repeat them, some long after the server has forgotten them. A node takes them (proofs/nats_pipeline_node.py). A receiver
that keeps marks reads the effects. Meanwhile the leader of one of the streams is killed with SIGKILL, again and
again, and now and then the node as well. At the end every input has had its effect, once, and the log is sound.

    python -m proofs.nats_pipeline --kills 100 [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from proofs.nats_pipeline_node import CONSUMER, EFFECTS, FLEET, INPUTS, SOURCES, Measured, Released
from proofs.report import Proof
from stigmergy.agents.codec import pack_envelope
from stigmergy.app.fleet import inspect_journal
from stigmergy.audit.verification import Verification
from stigmergy.base.errors import LinkDown
from stigmergy.journal.port import Journal
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.nats import naming
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import ensure_stream
from stigmergy.shard.commit import open_commit
from stigmergy.testing.nats import NatsCluster

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
"""On the disk of the checkout: the folder for temporary files may be memory."""
KILLS = 100
KILLS_QUICK = 3
NODE_KILL_EVERY = 4
"""With every fourth leader the node is killed too."""
DEDUPE_S = 1.0
"""How long the server remembers what it has seen."""
ACK_WAIT_S = 2.0
"""What is not acknowledged for so long comes again: later than the server remembers."""
PUBLISH_PAUSE_S = 0.01
REPEAT_SHARE = 0.1
"""Of the inputs, so many are published once more, later than the server remembers."""
DOWN_S_MAX = 1.5
AFTER_KILL_MIN = 20
"""So many effects arrive after each kill before the next."""
WAIT_S_MAX = 60.0
FINISH_S_MAX = 180.0
READ_COUNT = 256
_effects = msgspec.json.Decoder(Released)


class Tally(Struct):
    """What happened around the node."""

    kills: int = 0
    node_kills: int = 0
    node_ends: int = 0
    """How often it ended by itself: its journal could not be written in time."""
    node_said: list[str] = []
    inputs: int = 0
    repeated: int = 0
    repeated_and_taken: int = 0
    """Repeated inputs that the server took for new ones."""
    effects: int = 0
    effects_repeated: int = 0
    longest_gap_s: float = 0.0


class Pipeline:
    """The world around the node, and the servers."""

    def __init__(self, cluster: NatsCluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._chance = random.Random(seed)
        self.tally = Tally()
        self.sent: dict[tuple[str, int], float] = {}
        """When JetStream took each input for the first time."""
        self.done: dict[int, Released] = {}
        """What the receiver has carried out, by the number of the sink."""
        self.violations: list[str] = []
        self._last_effect_s = time.monotonic()
        self._node: asyncio.subprocess.Process | None = None
        self._is_over = False

    async def run(self, kills: int) -> None:
        """Kills so often while the pipeline runs, then lets everything arrive."""
        link = await NatsLink.open(parse_address(self._cluster.url), name="world", within_s=30.0)
        await self._make_streams(link)
        producing = [asyncio.ensure_future(self._produce(link, f"s{number}")) for number in range(SOURCES)]
        others = [asyncio.ensure_future(work) for work in (self._receive(link), self._repeat(link), self._supervise())]
        try:
            await self._arrive(AFTER_KILL_MIN)
            for number in range(1, kills + 1):
                await self._kill(number)
            self._is_over = True
            await asyncio.wait_for(asyncio.gather(*producing), FINISH_S_MAX)
            await self._finish()
        finally:
            for task in (*producing, *others):
                task.cancel()
            await asyncio.gather(*producing, *others, return_exceptions=True)
            await self._end_node()
            await link.close()

    async def _make_streams(self, link: NatsLink) -> None:
        common: dict[str, Any] = {"num_replicas": 3, "storage": "file", "allow_direct": True}
        common["duplicate_window"] = int(DEDUPE_S * 1e9)
        await ensure_stream(link, INPUTS, {"subjects": ["pipeline.in.*"], **common}, within_s=30.0)
        await ensure_stream(link, EFFECTS, {"subjects": ["pipeline.out"], **common}, within_s=30.0)
        consumer = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": int(ACK_WAIT_S * 1e9)}
        asked = {"stream_name": INPUTS, "config": {**consumer, "max_ack_pending": 500, "num_replicas": 3}}
        await link.api(f"CONSUMER.DURABLE.CREATE.{INPUTS}.{CONSUMER}", asked)

    # ------------------------------------------------------------------ producers and receiver

    async def _produce(self, link: NatsLink, source: str) -> None:
        number = 0
        while not self._is_over:
            number += 1
            await self._publish(link, source, number)
            self.sent[source, number] = time.monotonic()
            self.tally.inputs += 1
            await asyncio.sleep(PUBLISH_PAUSE_S)

    async def _publish(self, link: NatsLink, source: str, number: int) -> bool:
        """Publishes an input until JetStream has it; whether it took it for a repetition."""
        body = pack_envelope(source, [(f"Meter/{source}", Measured(number=number))], sequence=number)
        while True:
            try:
                ack = await link.publish(
                    f"pipeline.in.{source}", body, {"Nats-Msg-Id": f"{source}-{number}"}, within_s=1.0
                )
            except (LinkDown, JetStreamRefused):
                await asyncio.sleep(PUBLISH_PAUSE_S)
            else:
                return ack.is_duplicate

    async def _repeat(self, link: NatsLink) -> None:
        while True:
            await asyncio.sleep(PUBLISH_PAUSE_S / REPEAT_SHARE)
            old = [which for which, at_s in self.sent.items() if time.monotonic() - at_s > 2 * DEDUPE_S]
            if old:
                self.tally.repeated += 1
                self.tally.repeated_and_taken += not await self._publish(link, *self._chance.choice(old))

    async def _receive(self, link: NatsLink) -> None:
        """Carries out what comes, and drops what it has carried out: it keeps marks."""
        sequence = 1
        while True:
            asked = msgspec.json.encode({"seq": sequence, "batch": READ_COUNT})
            try:
                found = await link.collect(f"$JS.API.DIRECT.GET.{EFFECTS}", asked, READ_COUNT, within_s=1.0)
            except LinkDown:
                found = []
            for message in found:
                sequence = int((message.headers or {})["Nats-Sequence"]) + 1
                self.take(_effects.decode(message.data))
            await asyncio.sleep(0 if found else PUBLISH_PAUSE_S)

    def take(self, released: Released) -> None:
        """One effect, as it comes."""
        known = self.done.get(released.sequence)
        if known is not None:
            self.tally.effects_repeated += 1
            if known != released:
                self.violations.append(f"effect {released.sequence} came as {known} and as {released}")
            return
        self.done[released.sequence] = released
        self.tally.effects += 1
        now_s = time.monotonic()
        self.tally.longest_gap_s = max(self.tally.longest_gap_s, now_s - self._last_effect_s)
        self._last_effect_s = now_s

    # ------------------------------------------------------------------ trouble

    async def _supervise(self) -> None:
        """Starts the node whenever it is not there."""
        while True:
            self._node = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "proofs.nats_pipeline_node", self._cluster.url, str(self._folder)),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await self._node.communicate()
            if b"ended" in said:
                self.tally.node_ends += 1
                self.tally.node_said.append(said.decode().strip()[-300:])
            elif self._node.returncode not in (-9, 0):
                self.violations.append(f"the node ended with {self._node.returncode}: {said.decode()[-500:]}")

    async def _kill(self, number: int) -> None:
        stream = (naming.log_stream(FLEET, 0, 0), INPUTS, EFFECTS)[number % 3]
        leader = await self._leader_of(stream)
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        self._cluster.kill(leader)
        self.tally.kills += 1
        if number % NODE_KILL_EVERY == 0 and self._node is not None:
            with contextlib.suppress(ProcessLookupError):
                self._node.kill()
                self.tally.node_kills += 1
        await asyncio.sleep(self._chance.uniform(0.0, DOWN_S_MAX))
        self._cluster.start_again(leader, wait=False)
        await self._healthy(leader)
        await self._arrive(AFTER_KILL_MIN)

    async def _leader_of(self, stream: str) -> int:
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            with contextlib.suppress(LinkDown, JetStreamRefused):
                leader = await self._cluster.leader_of(stream)
                if leader is not None:
                    return leader
            await asyncio.sleep(0.05)
        raise LinkDown(f"nobody leads {stream}")

    async def _healthy(self, number: int) -> None:
        """Waits until a server has what it has missed: with two away at a time there would be no majority."""
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            if await asyncio.to_thread(self._cluster.servers[number].is_healthy):
                return
            await asyncio.sleep(0.1)
        self.violations.append(f"server {number} did not come back in {WAIT_S_MAX:g} s")

    async def _arrive(self, more: int) -> None:
        """Waits until so many more effects have come."""
        wanted, until_s = self.tally.effects + more, time.monotonic() + WAIT_S_MAX
        while self.tally.effects < wanted:
            if time.monotonic() > until_s:
                self.violations.append(f"no {more} effects in {WAIT_S_MAX:g} s: the pipeline stands still")
                return
            await asyncio.sleep(0.01)

    async def _finish(self) -> None:
        until_s = time.monotonic() + FINISH_S_MAX
        while len(self.done) < len(self.sent) and time.monotonic() < until_s:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
        # What comes twice comes after that, too.
        await asyncio.sleep(2 * ACK_WAIT_S)

    async def _end_node(self) -> None:
        if self._node is not None and self._node.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._node.kill()
            await self._node.wait()

    # ------------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Every input had its effect, once; nothing else did."""
        carried_out = Counter((one.source, one.number) for one in self.done.values())
        missing = [which for which in self.sent if which not in carried_out]
        doubled = [which for which, count in carried_out.items() if count > 1]
        unasked = [which for which in carried_out if which not in self.sent]
        for what, found in (("no effect", missing), ("two effects", doubled), ("an effect and no input", unasked)):
            if found:
                self.violations.append(f"{len(found)} inputs had {what}, the first is {found[0]}")
        if sorted(self.done) != list(range(1, len(self.done) + 1)):
            self.violations.append("the effects' numbers have gaps")
        if len({one.key for one in self.done.values()}) != len(self.done):
            self.violations.append("two effects had the same key")


def check_log(journal: Journal, inputs: int) -> tuple[list[str], int, int]:
    """What is wrong with the log; how many commits and events it has."""
    verified = Verification(journal, Ed25519Verifier()).run()
    wrong = [f"position {problem.position}: {problem.what}" for problem in verified.problems[:5]]
    commits = events = 0
    for stored in journal.read(0):
        commits += 1
        events += sum(address.startswith("Meter/") for address, _ in open_commit(stored.sealed.body).events)
    if events != inputs:
        wrong.append(f"the log has {events} events for {inputs} inputs")
    return wrong, commits, events


def kill_leaders(kills: int, seed: int) -> Proof:
    """The whole proof, on three servers of its own."""
    began_s = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="pipeline-") as name, NatsCluster.start(Path(name)) as cluster:
        pipeline = Pipeline(cluster, Path(name), seed)
        asyncio.run(pipeline.run(kills))
        pipeline.compare()
        journal = inspect_journal(cluster.url)
        try:
            wrong, commits, events = check_log(journal, pipeline.tally.inputs)
        finally:
            asyncio.run(journal.close())
    tally = pipeline.tally
    return Proof(
        name="nats_pipeline",
        promise="consume-process-publish on JetStream has its effects exactly once, whoever is killed",
        cases=tally.kills,
        violations=pipeline.violations + wrong,
        figures={**msgspec.structs.asdict(tally), "commits": commits, "events_in_the_log": events},
        seconds=round(time.monotonic() - began_s, 1),
    )


def prove(*, quick: bool = False) -> Proof:
    """With a hundred leaders killed."""
    return kill_leaders(KILLS_QUICK if quick else KILLS, seed=1)


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.nats_pipeline", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    proof = kill_leaders(options.kills, options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
