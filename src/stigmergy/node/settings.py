"""The limits and times of a host. Every queue, wait and retry of the runtime has its bound here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from stigmergy.agents.messages import EXPIRES_S_MAX
from stigmergy.agents.raw import read_rules
from stigmergy.audit.copy_format import CopySettings
from stigmergy.base.errors import ConfigError
from stigmergy.membership.settings import SwimSettings
from stigmergy.models.service import ModelSettings
from stigmergy.policy.service import PolicySettings
from stigmergy.shard.state import Limits
from stigmergy.store.blobs import BlobSettings

KIB = 1024
MIB = 1024 * KIB
YEAR_S = 366 * 86_400
KEEP = "keep"
REFUSE = "refuse"
SIGN, REQUIRE, OFF = "sign", "require", "off"
"""What a node does about signatures of messages on its buses."""
LEASE_S_MIN = 2
LEASE_S_MAX = 60
BATCH_BYTES_LIMIT = 512 * KIB
"""What a batch of an uplink may be set to at most: with the largest event it still fits into a message of a bus."""


class Snapshots(Struct, frozen=True, forbid_unknown_fields=True):
    """When snapshots are taken: after so many events or seconds, but only once the log behind the last one is so many
    times larger than it was, and never for more than a share of the time; so a large state is not written again and
    again, and under load the interval grows by itself."""

    every_events: int = 10_000
    every_s: float = 300.0
    tail_ratio: float = 4.0
    share_max: float = 0.01
    incremental_max: int = 8
    """So many incremental snapshots may follow a full one."""


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """What part of the log may go. Never dropped: what no snapshot covers, and what is still owed to a sink."""

    keep_s: float | None = None
    keep_bytes: int | None = None
    reserve_bytes: int = 64 * MIB
    """With less than this free on the device, everything that may be dropped is dropped."""
    check_every_s: float = 10.0
    archive: str | None = None
    """A folder, or the URL of a store such as s3://logs: it must have the log, as flight logs, before it is dropped."""
    archive_or_drop: bool = False
    """On a device that is full, drop also what the archive does not have, rather than stop."""


class BusSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a node on a bus."""

    in_flight_max: int = 256
    """Published messages under way to the broker, of all topics."""
    in_flight_per_topic_max: int = 64
    messages_per_s: float = 1_000.0
    """What each source may send for long; what comes faster is shed and counted, so that the others do not suffer."""
    burst: int = 500
    """What each source may send at once: so much takes about a tenth of a second, and others may have to wait for it.
    Publishers of ours keep to half of it, and to `messages_per_s`, also with what they have kept while offline."""
    gap_wait_s: float = 60.0
    """How long a message waits for those before it on its topic; then the gap is declared and kept in the log."""
    retry_pause_s: float = 1.0
    """The pause before a publish is tried again that failed although the link is up."""
    presence_every_s: float = 30.0
    presence_gone_s: float = 90.0
    """A member that was not heard for so long is gone."""
    refusals_per_s: float = 1.0
    """How many refusals are published; the others are only counted."""
    binary: bool = False
    """Attributes of published events as properties instead of in the payload: for MQTT 5 only."""
    queries: bool = True
    """Whether clients on the bus may ask for states of agents; else they are refused."""
    signatures: str = OFF
    """`sign`: what this node sends is signed, what others have signed is verified, and what only a known node may send
    is refused without. `require`: everything must be signed by a known key. `off`: neither."""
    client_keys: tuple[str, ...] = ()
    """Public keys, as files, lines or hex digits, of clients whose commands are taken with `require`."""

    def __post_init__(self) -> None:
        if self.signatures not in (SIGN, REQUIRE, OFF):
            raise ConfigError(f'settings: bus.signatures = {self.signatures!r}; give "{SIGN}", "{REQUIRE}" or "{OFF}"')
        for name in ("in_flight_max", "in_flight_per_topic_max", "burst"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"settings: bus.{name} = {getattr(self, name)!r}; give a whole number from 1 upward")
        for name in ("messages_per_s", "gap_wait_s", "retry_pause_s", "presence_every_s", "refusals_per_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"settings: bus.{name} = {value!r}; give more than 0")
        if not self.presence_every_s < self.presence_gone_s < math.inf:
            raise ConfigError("settings: bus.presence_gone_s must be more than bus.presence_every_s")


class UplinkSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of an uplink."""

    batch_bytes_max: int = 64 * KIB
    """A batch with so much in it is sent; a single event may be larger."""
    batches_max: int = 8
    """Batches under way that the receiver has not confirmed; then no more is read or sent."""
    linger_s: float = 1.0
    """A new change waits this long for others."""
    pass_every_s: float = 60.0
    """How often the receiver hears that the log went on although nothing of it goes up."""
    answer_within_s: float = 15.0
    """A receiver that confirms nothing for so long is asked where it is."""
    ask_every_s: float = 300.0
    """And so is one that had nothing to confirm for so long: it may have been restored from a copy meanwhile."""
    pause_s: float = 1.0
    pause_s_max: float = 60.0
    """The pause before it is asked again; it doubles from time to time up to the larger."""

    def __post_init__(self) -> None:
        for name in ("batch_bytes_max", "batches_max"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(
                    f"settings: uplink.{name} = {getattr(self, name)!r}; give a whole number from 1 upward"
                )
        if self.batch_bytes_max > BATCH_BYTES_LIMIT:
            raise ConfigError(f"settings: uplink.batch_bytes_max = {self.batch_bytes_max}; {BATCH_BYTES_LIMIT} at most")
        for name in ("linger_s", "pass_every_s", "answer_within_s", "ask_every_s", "pause_s", "pause_s_max"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"settings: uplink.{name} = {value!r}; give more than 0 seconds")


class TellSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of tells to agents that other nodes run. What is given up is a dead letter, and its teller is told."""

    keep_s: float = 86_400.0
    """How long a tell is kept whose receiver does not confirm it, unless the tell says `within_s`."""
    kept_max: int = 1_000
    """Tells kept for one agent; one more is given up at once."""
    kept_all_max: int = 10_000
    """Tells kept for all of them together."""
    unclaimed: str = "keep"
    """A tell to an agent that no node says it runs: `keep` it like any other, or `refuse` it after 10 s."""

    def __post_init__(self) -> None:
        for name in ("kept_max", "kept_all_max"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(
                    f"settings: tells.{name} = {getattr(self, name)!r}; give a whole number from 1 upward"
                )
        keep_s: object = self.keep_s
        if not isinstance(keep_s, int | float) or not 0 < keep_s <= YEAR_S:
            raise ConfigError(f"settings: tells.keep_s = {keep_s!r}; give more than 0 seconds, at most a year")
        if self.unclaimed not in (KEEP, REFUSE):
            raise ConfigError(f"settings: tells.unclaimed = {self.unclaimed!r}; give {KEEP!r} or {REFUSE!r}")


class SharedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of shared state between nodes."""

    interval_s: float = 1.0
    """How often two nodes compare what they hold: what was lost is found within this time, mostly."""
    interval_s_by_node: Mapping[str, float] = {}
    """The same for single nodes, by name: seldom over an expensive link."""
    fan_out: int = 4
    """So many nodes hear of a change directly, and so many are compared with in an interval; they pass it on."""
    resend_s: float = 0.2
    """The pause before a change that was not acknowledged is sent again; it doubles each time, four times."""
    buffer_bytes_max: int = MIB
    """Changes kept for each object to be sent again. A node that lacks more is sent the whole object."""
    skew_s: float = 60.0
    """A change stamped further ahead of our clock waits until the clock is there."""
    retire_after_s: float = 86_400.0
    """A replica that wrote nothing for so long is no longer named in what nodes tell each other."""

    def __post_init__(self) -> None:
        for name in ("fan_out", "buffer_bytes_max"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(
                    f"settings: shared.{name} = {getattr(self, name)!r}; give a whole number from 1 upward"
                )
        times = {name: getattr(self, name) for name in ("interval_s", "resend_s", "skew_s", "retire_after_s")}
        times |= {f"interval_s_by_node.{node}": value for node, value in self.interval_s_by_node.items()}
        for name, value in times.items():
            if not isinstance(value, int | float) or not 0.001 <= value <= YEAR_S:
                raise ConfigError(f"settings: shared.{name} = {value!r}; give from 0.001 seconds to a year")


class CommandSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of commands that travel to agents on other nodes."""

    keep_s: float = EXPIRES_S_MAX
    """How long a command may be on its way if its class has no `expires_s`; then it is refused."""
    unclaimed: Literal["keep", "refuse"] = "keep"
    """What a node between two levels does with a command for an agent that no node says it runs: keeps it until one
    does or it expires, or refuses it at once."""

    def __post_init__(self) -> None:
        keep_s: object = self.keep_s
        if not isinstance(keep_s, int | float) or not 0 < keep_s <= EXPIRES_S_MAX:
            raise ConfigError(
                f"settings: commands.keep_s = {keep_s!r}; give more than 0 and at most {EXPIRES_S_MAX} seconds: ids of "
                "commands are remembered for so long"
            )
        if self.unclaimed not in ("keep", "refuse"):
            raise ConfigError(f"settings: commands.unclaimed = {self.unclaimed!r}; give 'keep' or 'refuse'")


class MetricsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node measures of itself."""

    record: bool = True
    """Whether times, types of events and busy agents are recorded: it takes less than 2 % of the time."""
    agents: bool = False
    """Whether /metrics names the busiest agents and those with the largest states: ten of each."""


class TraceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which inputs begin a trace, and where spans are sent."""

    sample: float = 0.0
    """The share of commands and observed events that begin a trace, from 0 to 1."""
    rules: Mapping[str, float] = {}
    """The same for single commands, events or agent kinds, by name; a message's name comes before its kind's."""
    parent: bool = True
    """Whether a sender that says whether it records a trace is believed; else the rules alone decide."""
    failed: bool = True
    """Whether refused and failed inputs always begin a trace, while any are sampled."""
    export: str = ""
    """The collector that spans are sent to over OTLP/HTTP, such as http://127.0.0.1:4318; none without it."""
    headers: Mapping[str, str] = {}
    """Sent with each request to the collector, such as an authorization."""
    queue_count_max: int = 10_000
    """Spans that wait for the collector; of more, the oldest are dropped and counted."""

    def __post_init__(self) -> None:
        rates: Mapping[str, object] = {"sample": self.sample} | {
            f"rules.{name}": one for name, one in self.rules.items()
        }
        for name, rate in rates.items():
            if not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ConfigError(f"settings: traces.{name} = {rate!r}; give a share from 0 to 1")
        if self.export and not self.export.startswith(("http://", "https://")):
            raise ConfigError(
                f"settings: traces.export = {self.export!r}; give the URL of a collector, such as http://127.0.0.1:4318"
            )
        count: object = self.queue_count_max
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"settings: traces.queue_count_max = {count!r}; give a whole number from 1 upward")


COUNTS = (
    "batch_events_max",
    "commands_count_max",
    "telemetry_items_max",
    "telemetry_bytes_max",
    "gap_deliveries_max",
    "effects_in_flight_max",
    "owed_count_max",
    "effect_tries",
)
TIMES = ("gap_wait_s", "effect_within_s", "effect_pause_s", "write_within_s", "drain_s")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All of a host's bounds. The defaults suit a small device and a 2-core machine alike."""

    batch_events_max: int = 1_000
    """An open commit with this many inputs waits for the disk before it takes more."""
    commands_count_max: int = 10_000
    """Commands waiting; one more is told Overloaded."""
    telemetry_items_max: int = 100_000
    telemetry_bytes_max: int = 64 * MIB
    """Observed events waiting; past it each stream's policy decides: block, drop the oldest, sample."""
    gap_wait_s: float = 5.0
    """How long inputs that came too early wait for those before them; then the gap is declared and kept in the log."""
    gap_deliveries_max: int = 1_000
    """Early deliveries waiting, of all sources; one more is refused, and its sender repeats it."""
    effects_in_flight_max: int = 256
    """Agents whose actions are under way at the same time, and as many whose work is; the rest waits in the outbox."""
    owed_count_max: int = 100_000
    """Effects owed in all; past it no observed events are taken until sinks have settled some."""
    effect_tries: int = 5
    effect_within_s: float = 30.0
    """One try of an actuator or worker takes at most this long."""
    effect_pause_s: float = 0.1
    """The pause before the second try; it doubles from try to try, up to 5 s."""
    write_within_s: float = 5.0
    """A write that takes longer counts as a failed disk: safe actions go out, and the node stops."""
    drain_s: float = 10.0
    """How long a stop waits for effects that are under way."""
    lease_s: int = 2
    """How long the lease of a worker lasts without a renewal; then its shards go to others."""
    snapshots: Snapshots = Snapshots()
    retention: Retention = Retention()
    limits: Limits = Limits()
    bus: BusSettings = BusSettings()
    uplink: UplinkSettings = UplinkSettings()
    tells: TellSettings = TellSettings()
    commands: CommandSettings = CommandSettings()
    shared: SharedSettings = SharedSettings()
    membership: SwimSettings = SwimSettings()
    copies: CopySettings = CopySettings()
    blobs: BlobSettings = BlobSettings()
    models: ModelSettings = ModelSettings()
    policy: PolicySettings = PolicySettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()
    raw_may_leave: tuple[str, ...] = ()
    """Which raw kinds of events may leave their device, and how: "Sampled to uplink"; see docs/privacy.md."""

    def __post_init__(self) -> None:
        read_rules(self.raw_may_leave)
        for name in COUNTS:
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"settings: {name} = {getattr(self, name)!r}; give a whole number from 1 upward")
        for name in TIMES:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"settings: {name} = {value!r}; give more than 0 seconds")
        lease_s: object = self.lease_s
        if not isinstance(lease_s, int) or not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise ConfigError(
                f"settings: lease_s = {lease_s!r}; give {LEASE_S_MIN} to {LEASE_S_MAX} whole seconds: with less, a "
                "short delay costs a worker its shards, with more, shards of a dead worker wait that long"
            )
        if self.snapshots.every_events < 1 or self.snapshots.every_s <= 0 or self.effect_tries < 1:
            raise ConfigError("settings: snapshots.every_events, snapshots.every_s and effect_tries must be above 0")
