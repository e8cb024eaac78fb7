"""Recovery: reads a journal back into shards, and refuses to continue one that is inconsistent.

It checks every digest, and the last signature of every signer's run; `log verify` checks all signatures. A snapshot is
used only if a later commit notes the digest of what is stored; otherwise an older one, otherwise the whole log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from stigmergy.agents.assignment import Assignment
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import DataLost, FoldMismatch, JournalCorrupt, JournalError, JournalForeign
from stigmergy.base.trust import Verifier
from stigmergy.journal.port import Journal, JournalIdentity, StoredCommit
from stigmergy.journal.signers import SignatureCheck
from stigmergy.shard.commit import digest_commit, genesis_of, open_commit
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import digest_of_parts, load_agents, load_tables, read_header
from stigmergy.shard.state import Limits, ShardState


class Basis(Struct, frozen=True):
    """What a shard was recovered from."""

    chain: tuple[tuple[int, int], ...] = ()
    """The snapshot and those it adds to, oldest first: position and base. None for a shard replayed from its start."""
    snapshot_bytes: int = 0
    tail_events: int = 0
    tail_bytes: int = 0
    noted: tuple[int, ...] = ()
    """Snapshots that the log has noted since: who follows a log did not begin from them, but they are finished."""


class Recovered(Struct):
    """What recovery found, for people and for the host."""

    states: list[ShardState]
    commits: int = 0
    events: int = 0
    signatures: int = 0
    last_signers: list[list[bytes]] = []
    """For each shard that has a log, the keys that vouch for its end."""
    snapshots: dict[int, int] = {}
    """Per shard the position of the snapshot it started from; shards replayed from the beginning are absent."""
    bases: list[Basis] = []
    """In the order of the states."""
    passed_over: list[str] = []
    """Snapshots that could not be used, and why."""


def sum_up_passed_over(lines: Sequence[str]) -> list[str]:
    """One line for each reason: an upgrade passes over all snapshots of all shards for the same one."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        found = _PASSED_OVER.fullmatch(line)
        reasons.setdefault(line if found is None else f"{found[2] or ''}{found[3]}", []).append(line)
    summed: list[str] = []
    for reason, alike in reasons.items():
        shards = {found[1] for line in alike if (found := _PASSED_OVER.fullmatch(line)) is not None}
        several = f"{len(alike)} snapshots of {len(shards)} {'shard' if len(shards) == 1 else 'shards'}: {reason}"
        summed.append(alike[0] if len(alike) == 1 else several)
    return summed


def new_state(
    identity: JournalIdentity, shard: int, plans: Mapping[str, AgentPlan], limits: Limits | None = None
) -> ShardState:
    """A shard of this journal before its first commit."""
    genesis = genesis_of(identity.fleet, shard)
    state = ShardState(shard, plans, limits, genesis=genesis, incarnation=identity.incarnation)
    state.assignment = Assignment(fleet=identity.fleet)
    return state


_PASSED_OVER = re.compile(r"shard (\d+), snapshot at \d+: (?:([^/: ]+)/[^: ]+(?=: ))?(.*)", re.DOTALL)
"""What `Recovered.passed_over` says, without which agent of a kind it was."""


class _NoteMissing(Exception):
    """The log behind a snapshot does not note it: it was never finished."""


class Recovery:
    """Reads one journal."""

    def __init__(
        self,
        journal: Journal,
        plans: Mapping[str, AgentPlan],
        verifier: Verifier,
        limits: Limits,
        *,
        every_signature: bool = False,
    ) -> None:
        self._journal = journal
        self._plans = plans
        self._limits = limits
        self._signatures = SignatureCheck(verifier, every_signature=every_signature)

    def recover(self) -> Recovered:
        """All shards that are kept here, each from its newest usable snapshot and the log behind it."""
        found = Recovered(states=[])
        for shard in self._journal.identity.owned:
            found.states.append(self._recover_shard(shard, found))
        self.finish(found)
        return found

    def finish(self, found: Recovered) -> None:
        """Checks that all that was read is signed by somebody who may, and that the code of today can go on with it."""
        for state in found.states:
            for agent in state.agents.values():
                check = state.plan_of[type(agent)].check
                if check is not None:
                    check(agent)
        found.signatures = self._signatures.finish(found.states)
        found.last_signers = self._signatures.last_signers

    def replay_from_start(self, shard: int, upto: int | None = None, upto_ns: int | None = None) -> ShardState:
        """A shard as it was at a position or time, from the log alone; for looking back."""
        state = new_state(self._journal.identity, shard, self._plans, self._limits)
        start = self._base_for(shard, upto, upto_ns, state)
        for stored in self._journal.read(shard, after=start):
            sealed = stored.sealed
            if (upto is not None and sealed.position > upto) or (upto_ns is not None and sealed.time_ns > upto_ns):
                break
            self.apply(state, stored)
        return state

    def _base_for(self, shard: int, upto: int | None, upto_ns: int | None, state: ShardState) -> int:
        """Where to start looking back from: the beginning, or the last snapshot before it if that was dropped."""
        if self._journal.first_position(shard) == 1:
            return 0
        for position in reversed(self._journal.snapshots(shard)):
            if upto is not None and position > upto:
                continue
            self.load(state, shard, position)
            if upto_ns is None or state.time_ns <= upto_ns:
                return position
        raise JournalCorrupt(f"shard {shard}: that far back the log has been dropped and there is no snapshot")

    def _recover_shard(self, shard: int, found: Recovered) -> ShardState:
        for position in reversed(self._journal.snapshots(shard)):
            state = new_state(self._journal.identity, shard, self._plans, self._limits)
            try:
                chain: list[tuple[int, int]] = []
                digest, size_bytes = self.load(state, shard, position, chain)
                tail = self._replay(state, found, note=(position, digest))
            except (_NoteMissing, FoldMismatch, JournalCorrupt) as error:
                self._signatures.forget(shard)
                found.passed_over.append(f"shard {shard}, snapshot at {position}: {error}")
                continue
            found.snapshots[shard] = position
            found.bases.append(Basis(tuple(chain), size_bytes, *tail))
            return state
        if self._journal.first_position(shard) != 1:
            raise FoldMismatch(
                f"shard {shard}: the log begins at position {self._journal.first_position(shard)}, and no snapshot "
                f"covers what was before ({'; '.join(found.passed_over) or 'there is none'}); "
                "restore from a copy, or run the version that took the snapshot"
            )
        state = new_state(self._journal.identity, shard, self._plans, self._limits)
        tail = self._replay(state, found, note=None)
        found.bases.append(Basis((), 0, *tail))
        return state

    def load(
        self, state: ShardState, shard: int, position: int, chain: list[tuple[int, int]] | None = None
    ) -> tuple[bytes, int]:
        """Loads a snapshot and those it adds to, base first; returns the digest and size of its stored parts."""
        parts = [part.body for part in self._journal.read_snapshot(shard, position)]
        if not parts:
            raise JournalCorrupt(f"shard {shard}: the snapshot at {position} is not there")
        header = read_header(parts[0])
        if header.genesis != state.genesis:
            raise JournalForeign(
                f"shard {shard}: the snapshot at {position} is of another fleet or shard; name the right one"
            )
        if header.base:
            if header.base >= position:
                raise JournalCorrupt(f"shard {shard}: the snapshot at {position} adds to a later one")
            base_digest, _ = self.load(state, shard, header.base, chain)
            if base_digest != header.base_digest:
                raise JournalCorrupt(f"shard {shard}: the snapshot at {header.base} is not the one it was built on")
        for part in parts[1:]:
            load_agents(state, header, part)
        load_tables(state, header.tables)
        if header.tables.position != position or header.tables.shard != shard:
            raise JournalCorrupt(f"shard {shard}: the snapshot at {position} says it is of {header.tables.position}")
        if chain is not None:
            chain.append((position, header.base))
        return digest_of_parts(parts), sum(len(part) for part in parts)

    def _replay(self, state: ShardState, found: Recovered, note: tuple[int, bytes] | None) -> tuple[int, int]:
        """Replays what comes behind the state; returns how many events and bytes that were."""
        commits = events = size_bytes = 0
        noted = note is None
        for stored in self._journal.read(state.shard, after=state.position):
            for said in self.apply(state, stored):
                if note is not None and said[0] == note[0]:
                    if said[1] != note[1]:
                        raise JournalCorrupt("its bytes are not those that the log notes")
                    noted = True
            commits += 1
            events += stored.sealed.events
            size_bytes += len(stored.sealed.body)
        if not noted:
            raise _NoteMissing("no commit notes it, it was never finished")
        found.commits += commits
        found.events += events
        return events, size_bytes

    def apply(self, state: ShardState, stored: StoredCommit) -> list[tuple[int, bytes]]:
        """Takes the next commit into a state; returns which snapshots it notes, with their digests."""
        sealed = stored.sealed
        digest = digest_commit(sealed.body)
        if digest != sealed.digest:
            raise JournalCorrupt(
                f"shard {state.shard}, position {sealed.position}: the bytes do not have the digest they were stored "
                "with; restore from a copy"
            )
        commit = open_commit(sealed.body)
        apply(state, commit, digest)
        self._signatures.take(state, stored)
        return [(said.position, said.digest) for said in commit.snapshots]


__all__ = ["JournalError", "Recovered", "Recovery"]


def check_receivers(receivers: Mapping[str, Callable[[int], int]], states: Sequence[ShardState]) -> None:
    """A receiver that has confirmed more than we hold means that our log has lost its end."""
    for sink, confirmed in receivers.items():
        for state in states:
            sent, has = state.outbox.sent().get(sink, 0), confirmed(state.shard)
            if has > sent:
                raise DataLost(
                    f"shard {state.shard}: the receiver of {sink} has confirmed {has} effects, this journal knows of "
                    f"{sent}: the end of the log is lost; restore from a newer copy"
                )
