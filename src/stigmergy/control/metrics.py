"""Collects what a running node measures, when somebody asks: for /metrics, for `status`, for `top`.

To collect takes a few milliseconds at most, however many agents there are: states are measured a few at a time, and
kinds are counted from a sample where agents are many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from stigmergy.agents.codec import canonical_bytes
from stigmergy.base.errors import StigmergyError
from stigmergy.bus.port import NO_BUS, UP
from stigmergy.claims.service import CONTACT
from stigmergy.control.live import Live, NodeStatus
from stigmergy.journal.port import sync_times
from stigmergy.metrics.catalogue import CHANGES, CLAIMS, DROPPED, EFFECTS, INPUTS, SPANS
from stigmergy.metrics.samples import BUSIEST_COUNT, LargestState, Samples, SampleSheet
from stigmergy.node.host import Host
from stigmergy.views.port import shard_name

COUNTED_MAX = 20_000
"""So many agents are counted by kind exactly; of more, a sample of this size. So many waiting inputs are looked at."""
SURVEYED_COUNT = 64
SURVEY_NS_MAX = 5_000_000
"""So many states are measured at once at most, and for so long: what is shared may be large."""
OFTEN_COUNT_MAX = 1_000
LOOK_EVERY_NS = 5_000_000_000
"""More agents than that are looked at so often at most."""
FADING_COUNT = 1_000
"""A mean is made from about so many states, so that it follows them."""


class NodeMetrics:
    """Measures one running node, or the host of one shard."""

    def __init__(self, live: Live, version: str = "", role: str = "node") -> None:
        self._live = live
        self._version = version
        self._role = role
        self._sizes: dict[str, tuple[float, float]] = {}
        """By kind, how many states were measured, and their bytes; both fade."""
        self._largest: dict[str, int] = {}
        self._by_kind: dict[str, int] = {}
        self._next_look_ns = 0
        self._phase = 0

    def collect(self, *, internal: bool = False) -> Samples:
        """All that is known now; with `internal`, all counters of `status` too, by their names there."""
        sheet, standing = SampleSheet(), self._live.standing()
        host = self._live.host
        info = {"fleet": standing.fleet, "version": self._version, "role": self._role}
        sheet.put("stigmergy_node_info", 1, **info)
        _put_work(sheet, host, standing)
        _put_journal(sheet, host, standing)
        _put_lags(sheet, self._live, standing)
        _put_company(sheet, self._live, standing)
        _put_models(sheet, self._live)
        for name, number in standing.counters.items() if internal else ():
            sheet.put("stigmergy_internal_total", number, counter=name)
        self._look_at_agents(standing.agents)
        by_kind = self._by_kind
        for kind, count in by_kind.items():
            sheet.put("stigmergy_agents", count, kind=kind)
        for kind, (measured, size_bytes) in self._sizes.items():
            sheet.put("stigmergy_state_bytes", round(size_bytes / measured * by_kind.get(kind, 0)), kind=kind)
        for kind, size in _table_bytes(host).items():
            sheet.put("stigmergy_state_bytes", size, kind=kind)
        measures = host.measures
        if measures is None:
            return sheet.samples(largest=self._found_largest())
        sheet.observe("stigmergy_event_to_action_seconds", measures.event_to_action)
        sheet.observe("stigmergy_mailbox_wait_seconds", measures.mailbox_wait)
        sheet.observe("stigmergy_step_seconds", measures.step)
        sheet.observe("stigmergy_seal_seconds", measures.seal)
        sheet.observe("stigmergy_commit_seconds", measures.commit)
        sheet.observe("stigmergy_release_seconds", measures.release)
        sheet.observe("stigmergy_group_events", measures.group_events)
        sheet.observe("stigmergy_snapshot_seconds", measures.snapshot)
        sheet.observe("stigmergy_source_lag_seconds", measures.source_lag)
        syncs = sync_times(host.journal)
        if syncs is not None:
            sheet.observe("stigmergy_sync_seconds", syncs)
        for sink, histogram in measures.effects.items():
            sheet.observe("stigmergy_effect_seconds", histogram, sink=sink)
        for model, histogram in measures.inference.items():
            sheet.observe("stigmergy_inference_seconds", histogram, model=model)
        for (model, version, outcome), count in measures.inferences.items():
            sheet.put("stigmergy_inferences_total", count, model=model, version=version, outcome=outcome)
        sheet.put("stigmergy_journal_written_bytes_total", measures.written_bytes)
        for (kind, event), events in measures.types.items():
            sheet.put("stigmergy_events_by_type_total", round(events), kind=kind, event=event)
        measures.busiest.fade(host.clock.monotonic_ns())
        return sheet.samples(measures.busiest.top(BUSIEST_COUNT), self._found_largest())

    def _look_at_agents(self, count: int) -> None:
        """Counts kinds and measures states; of many agents not each time, because a page asks every second."""
        now_ns = self._live.host.clock.monotonic_ns()
        if now_ns >= self._next_look_ns:
            self._by_kind = _agents_by_kind(self._live.host)
            self._survey()
            self._next_look_ns = now_ns + (LOOK_EVERY_NS if count > OFTEN_COUNT_MAX else 0)

    def _survey(self) -> None:
        """Measures some states, others each time."""
        host = self._live.host
        until_ns = host.clock.monotonic_ns() + SURVEY_NS_MAX
        for kind, address, agent in self._surveyed(host):
            size_bytes = len(canonical_bytes(agent))
            count, total = self._sizes.get(kind, (0.0, 0.0))
            if count >= FADING_COUNT:
                count, total = count / 2, total / 2
            self._sizes[kind] = (count + 1, total + size_bytes)
            self._largest[address] = size_bytes
            if host.clock.monotonic_ns() >= until_ns:
                break
        if len(self._largest) > 2 * SURVEYED_COUNT:
            self._largest = {one.agent: one.state_bytes for one in self._found_largest()}

    def _surveyed(self, host: Host) -> Iterator[tuple[str, str, Any]]:
        for shard in host.shards:
            agents = shard.state.agents
            stride = max(1, len(agents) * len(host.shards) // SURVEYED_COUNT)
            self._phase = (self._phase * 5 + 3) % stride
            for address in islice(agents, self._phase, None, stride):
                yield address.partition("/")[0], address, agents[address]

    def _found_largest(self) -> list[LargestState]:
        first = sorted(self._largest.items(), key=lambda one: (-one[1], one[0]))[:BUSIEST_COUNT]
        return [LargestState(agent, size_bytes) for agent, size_bytes in first]


def _agents_by_kind(host: Host) -> dict[str, int]:
    """How many agents each kind has. Where they are many, their kinds are those of a sample."""
    found = dict.fromkeys(host.declaration.plans, 0)
    for shard in host.shards:
        agents = shard.state.agents
        stride = -(-len(agents) // COUNTED_MAX)
        sample: dict[str, int] = {}
        for address in islice(agents, 0, None, max(1, stride)):
            kind = address.partition("/")[0]
            sample[kind] = sample.get(kind, 0) + 1
        looked_at = sum(sample.values())
        for kind, count in sample.items():
            found[kind] = found.get(kind, 0) + round(count * len(agents) / looked_at)
        for kind, count in shard.state.enrolled.items():
            found[kind] = found.get(kind, 0) + count
    return found


def _table_bytes(host: Host) -> Mapping[str, int]:
    """The states of compiled agents: rows of tables."""
    found: dict[str, int] = {}
    for shard in host.shards:
        for kind, table in shard.state.tables.items():
            found[kind] = found.get(kind, 0) + table.layout.row_bytes * len(table)
    return found


def _put_work(sheet: SampleSheet, host: Host, standing: NodeStatus) -> None:
    for shard in host.shards:
        number = str(shard.state.shard)
        sheet.put("stigmergy_events_total", shard.state.events_count, shard=number)
    for head in standing.heads:
        sheet.put("stigmergy_commits_total", head.position, shard=str(head.shard))
    sheet.put_all("stigmergy_inputs_total", "outcome", _added(host), INPUTS)
    sheet.put_all("stigmergy_dropped_total", "reason", standing.counters, DROPPED)
    effects = {name: getattr(host.effector.counters, name) for name in EFFECTS}
    sheet.put_all("stigmergy_effects_total", "outcome", effects, EFFECTS)
    sheet.put("stigmergy_effects_owed", standing.owed)
    if host.spans is not None:
        sheet.put_all("stigmergy_spans_total", "outcome", standing.counters, SPANS)
    sheet.put("stigmergy_dead_letters", standing.dead_letters)
    sheet.put("stigmergy_agents_stopped", len(standing.stopped))
    sheet.put("stigmergy_troubles", len(standing.troubles))
    sheet.put("stigmergy_mailbox_items", standing.waiting)
    waiting, now_ns = host.mailbox.waiting_by_shard(COUNTED_MAX), host.clock.monotonic_ns()
    for shard in host.shards:
        items, since_ns = waiting.get(shard.state.shard, (0, now_ns))
        sheet.put("stigmergy_shard_waiting_items", items, shard=str(shard.state.shard))
        sheet.put("stigmergy_shard_lag_seconds", max(0, now_ns - since_ns) / 1e9, shard=str(shard.state.shard))


def _added(host: Host) -> dict[str, int]:
    return {name: sum(getattr(shard.counters, name) for shard in host.shards) for name in INPUTS}


def _put_journal(sheet: SampleSheet, host: Host, standing: NodeStatus) -> None:
    sheet.put("stigmergy_journal_bytes", standing.journal_bytes)
    with contextlib.suppress(StigmergyError):  # it is closed, or its servers do not answer
        sheet.put("stigmergy_journal_free_bytes", host.journal.size().bytes_free)
    sheet.put("stigmergy_snapshot_written_bytes_total", host.housekeeper.counters.snapshot_bytes)
    for shard, age_s in host.housekeeper.snapshot_ages_s().items():
        sheet.put("stigmergy_snapshot_age_seconds", age_s, shard=str(shard))


def _put_lags(sheet: SampleSheet, live: Live, standing: NodeStatus) -> None:
    link = standing.link
    if link.link != NO_BUS:
        sheet.put("stigmergy_link_up", link.link == UP)
        sheet.put("stigmergy_publish_owed", link.owed)
    sheet.put("stigmergy_members", len(live.members()) if live.link is None else link.members)
    if live.link is not None:
        sheet.put("stigmergy_members_away", len(live.link.presence.left()))
    if link.uplink is not None:
        sheet.put("stigmergy_uplink_lag_commits", link.uplink.commits_behind)
        sheet.put("stigmergy_uplink_lag_seconds", link.uplink.seconds_behind)
    if live.views is not None:
        for name, projector in live.views.projectors.items():
            behind = behind_ns = 0
            for state in (shard.state for shard in live.host.shards):
                place = shard_name(live.views.fleet, state.shard)
                written = projector.written.get(place)
                commits = 0 if written is None else live.host.durable_position(state.shard) - written
                if commits > 0:
                    behind += commits
                    behind_ns = max(behind_ns, state.time_ns - projector.written_ns.get(place, state.time_ns))
            sheet.put("stigmergy_view_lag_commits", behind, view=name)
            sheet.put("stigmergy_view_lag_seconds", behind_ns / 1e9, view=name)


def _put_models(sheet: SampleSheet, live: Live) -> None:
    if live.models is not None:
        sheet.put("stigmergy_inferences_waiting", live.models.waiting)
        sheet.put("stigmergy_model_threads_hung", live.models.abandoned)


def _put_company(sheet: SampleSheet, live: Live, standing: NodeStatus) -> None:
    """Those it shares state with, and its ledger."""
    shared, claims = standing.company.shared, standing.company.claims
    if live.replication is not None:
        live.replication.measure(sheet)
    if shared is not None:
        sheet.put_all("stigmergy_changes_total", "outcome", standing.counters, CHANGES)
        sheet.put("stigmergy_shared_objects", shared.objects)
    if claims is not None:
        sheet.put_all("stigmergy_claims_total", "outcome", standing.counters, CLAIMS)
        sheet.put("stigmergy_claims_held", claims.held)
        sheet.put("stigmergy_claims_asking", claims.asking)
        sheet.put("stigmergy_ledger_queue", claims.waiting)
        sheet.put("stigmergy_ledger_up", claims.ledger == CONTACT)


class ProcessMetrics:
    """Measures all hosts of one process, which come and go: `lives` gives those that run now, by shard."""

    def __init__(self, lives: Callable[[], Mapping[int, Live]], version: str, role: str) -> None:
        self._lives = lives
        self._version = version
        self._role = role
        self._known: dict[int, tuple[Live, NodeMetrics]] = {}

    def collect(self) -> list[Samples]:
        """What each of them measures."""
        known = {}
        for shard, live in self._lives().items():
            before = self._known.get(shard)
            known[shard] = before if before is not None and before[0] is live else (live, self._made(live))
        self._known = known
        return [metrics.collect(internal=True) for _, metrics in known.values()]

    def _made(self, live: Live) -> NodeMetrics:
        return NodeMetrics(live, self._version, self._role)
