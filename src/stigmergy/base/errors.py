"""Every error stigmergy raises, as one tree; a message says what happened and what to do.

StigmergyError
├── DefinitionError        an agent or message class is wrong: mend the class
├── ConfigError            a setting, URL or command line is wrong: mend it
│   └── ReadOnlyLog        a log that is played back takes nothing: send it to a running node
├── PeerError              somebody else's fault: refuse it, count it, go on
│   ├── Malformed          bytes that do not decode
│   ├── UnknownTag         a message this agent has no handler for
│   ├── UnknownKind        an agent kind this fleet does not have
│   ├── NotAssigned        an agent that this node does not run: send it where it runs
│   │   └── Unreachable    its node is away, or cannot be known without a link: try again later
│   ├── TooLarge           over a stated limit
│   ├── Unauthentic        a message on a bus that is not of its sender, topic or content
│   ├── SequenceGap        a source skipped numbers and the wait for them is over
│   ├── StaleEpoch         an owner that has been replaced still speaks
│   ├── StaleMapping       records made for another layout, or for agents' numbers that are not ours
│   └── PolicyDenied       a policy does not let an input through
├── Overloaded             a bounded queue is full: slow down and try again
├── NotRunning             the node is stopping or stopped: nothing was taken
├── NotOwned               another process owns the agent's shard: ask that one
├── NoAnswer               nobody answered a client in time: what was asked may have been done, or be yet
├── LinkDown               the link to a broker is down: try again when it is up
├── DeviceRefused          a device will not do this: trying again is of no use
│   ├── StaleOrder         an older decision than one that was carried out already
│   └── ClaimLapsed        the claim that the order is bound to is not held any more
├── JournalError           the disk's branch
│   ├── JournalLocked      another process owns the file
│   ├── JournalForeign     not a journal of ours, or of another fleet or a later format
│   ├── JournalCorrupt     bytes that were written are not the bytes that are there
│   │   └── JournalUnreadable  the device failed a read: nothing may be damaged, try again
│   ├── JournalFull        no room; nothing of this commit was kept
│   ├── JournalConflict    another owner wrote this position
│   ├── JournalUnknown     a sync failed: whether the commit is kept is known after a restart only
│   └── LogCut             retention has dropped what was asked for: begin at the first position that is left
├── LedgerError            the branch of ledgers, where claims are ordered
│   ├── LedgerUnavailable  it cannot be reached or has no room; nothing was written: try again
│   │   └── LedgerFailed   this connection is of no more use: start the node again
│   ├── LedgerUnknown      written or not: only reading tells
│   ├── LedgerCut          what was asked for is in a checkpoint by now: begin there
│   ├── LedgerForeign      not a ledger of ours, or another one, or of a later format
│   └── LedgerCorrupt      bytes that were written are not the bytes that are there
├── StoreError             the branch of stores: keys, leases and objects
│   ├── StoreUnavailable   it cannot be reached or has no room; nothing was written: try again
│   ├── StoreFull          a quota of ours would be passed: collect garbage, or raise it
│   ├── BlobMissing        a blob that is referred to and is not there: put it
│   ├── StoreUnknown       written or not: only reading tells
│   ├── StoreConflict      somebody else has written there: read, and decide again
│   ├── StoreForeign       not a bucket of ours, or one of another configuration
│   └── StoreCorrupt       bytes that were written are not the bytes that are there
├── ViewError              the branch of read models
│   ├── ViewBehind         the view has not come so far in time: ask again
│   ├── ViewFailed         a handler of the view or its store has failed: it stands still until somebody mends it
│   └── ViewChanged        its rows were made by other code, and it may not be made anew: say what is to be done
├── ModelError             the branch of models
│   ├── ModelRefused       a bundle that cannot be used here: damaged, unsigned, too large, of another runtime
│   └── ModelFailed        a run gave no answer
├── PolicyError            the branch of policies
│   ├── PolicyRefused      a bundle that cannot be used here: damaged, unsigned, older than what was here
│   └── PolicyFailed       the engine gave no ruling, or not in time: that denies
├── RingError              the branch of rings between processes
│   ├── RingLocked         it has a producer, or a consumer, already
│   ├── RingForeign        not a ring of ours, or one of another format, size or owner
│   └── RingDamaged        what is in it is not what was put there
├── RecoveryError          a journal that reads well but cannot be resumed
│   ├── FoldMismatch       a snapshot of another version of the agents, and no way to carry it over
│   └── DataLost           a receiver has confirmed more than we hold: restore from a copy
├── TrustError             a key or a signature
│   ├── WrongKey           not the key this journal is signed with
│   └── BadSignature       the signature does not cover these bytes
└── Bug                    our own invariant broke: stop, keep the journal, report it
"""


class StigmergyError(Exception):
    """The root: catch it to catch all of ours."""


class DefinitionError(StigmergyError):
    """An agent or message class is wrong. Raised while the class is defined; names class, member and remedy."""


class ConfigError(StigmergyError):
    """A setting, URL or command line is wrong."""


class ReadOnlyLog(ConfigError):
    """A log that is played back takes no commands, and trying again is of no use; nothing was taken."""


class PeerError(StigmergyError):
    """Somebody else's fault. Refused, counted, and we go on."""


class Malformed(PeerError):
    """Bytes that do not decode as what they should be."""


class UnknownTag(PeerError):
    """A message that the addressed agent has no handler for."""


class UnknownKind(PeerError):
    """An address whose kind no agent class of this fleet has."""


class NotAssigned(PeerError):
    """An agent that this node is not told to run; nothing was taken."""


class Unreachable(NotAssigned):
    """An agent that this node does not run, and whose node cannot be reached now. Nothing was taken: try again."""


class Unauthentic(PeerError):
    """A message without the signature that it needs, or with one that is not of its sender, topic or content."""


class TooLarge(PeerError):
    """Over a stated limit of bytes or count."""


class SequenceGap(PeerError):
    """A source skipped sequence numbers; what came early has not been consumed. Who knows which says which."""

    def __init__(self, message: str, *, source: str = "", sequence: int = 0) -> None:
        super().__init__(message)
        self.source = source
        self.sequence = sequence


class StaleEpoch(PeerError):
    """The sender has been replaced by a newer owner."""


class StaleMapping(PeerError):
    """Records of another layout or roster: taken, they would change other agents. Request both again."""


class PolicyDenied(PeerError):
    """A policy does not let an input through."""


class Overloaded(StigmergyError):
    """A bounded queue is full; nothing was taken."""


class NotRunning(StigmergyError):
    """The node is stopping or stopped; nothing was taken."""


class NotOwned(StigmergyError):
    """The agent lives in a shard that another process owns; nothing was taken."""


class NoAnswer(StigmergyError):
    """Nobody answered a client in time. Whether a command was done is not known; with its id it may be sent again."""

    def __init__(self, message: str, *, command_id: str = "") -> None:
        super().__init__(message)
        self.command_id = command_id


class LinkDown(StigmergyError):
    """The link to a broker is down, or broke under way: what was being sent may or may not have arrived."""


class DeviceRefused(StigmergyError):
    """A device will not do what it is asked. Raise it in an actuator: the action is given up without another try."""


class StaleOrder(DeviceRefused):
    """An order with a lower token than one that was carried out: a newer decision overtook it."""


class ClaimLapsed(DeviceRefused):
    """The claim that an order is bound to is not held any more: the order is dropped, and its agent told."""


class JournalError(StigmergyError):
    """The journal cannot do what was asked."""


class JournalLocked(JournalError):
    """Another process owns the journal."""


class JournalForeign(JournalError):
    """Not one of our journals, or one of another fleet, or of a later format."""


class JournalCorrupt(JournalError):
    """What is stored is not what was written."""


class JournalUnreadable(JournalCorrupt):
    """The device failed a read. What is stored may be whole: who can wait tries again, others take it for damaged."""


class JournalFull(JournalError):
    """No room left; the commit was not kept, and the journal is as it was before."""


class JournalConflict(JournalError):
    """The position is taken: another owner wrote it."""


class JournalUnknown(JournalError):
    """A write or sync failed half way: only a restart, by reading, tells whether the commit was kept."""


class LogCut(JournalError):
    """Retention has dropped the position that a reader asked for. `first_position` of this shard is still there."""

    def __init__(self, message: str, *, shard: int = 0, first_position: int = 0) -> None:
        super().__init__(message)
        self.shard = shard
        self.first_position = first_position


class LedgerError(StigmergyError):
    """The ledger cannot do what was asked."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be reached, is busy, or has no room. Nothing was written; try again later."""


class LedgerFailed(LedgerUnavailable):
    """The connection to the ledger is unusable and does not recover. Nothing was written by this call; open the ledger
    again, which a node does at its start."""


class LedgerUnknown(LedgerError):
    """Whether the entries were written is not known, and they may still come. Read, or append the same ones again."""


class LedgerCut(LedgerError):
    """Entries behind the given position were cut off. Begin with the checkpoint that covers them."""


class LedgerForeign(LedgerError):
    """Not one of our ledgers, or one of another name, or of a later format."""


class LedgerCorrupt(LedgerError):
    """What is stored is not what was written."""


class StoreError(StigmergyError):
    """The store cannot do what was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, is busy, or has no room. Nothing was written; try again later."""


class StoreFull(StoreError):
    """Our own quota of the store would be passed. Collect garbage, or raise the quota."""


class BlobMissing(StoreError):
    """Nobody has the blob that is referred to: it was never put, or was collected as garbage."""


class StoreUnknown(StoreError):
    """Whether it was written is not known, and it may still be. Read, or repeat it with compare-and-set."""


class StoreConflict(StoreError):
    """What is there is not what was expected: somebody else was faster. Nothing was written."""


class StoreForeign(StoreError):
    """Not one of our buckets, or one that is configured otherwise."""


class StoreCorrupt(StoreError):
    """What is stored is not what was written."""


class ViewError(StigmergyError):
    """A read model cannot answer, or not be made."""


class ViewBehind(ViewError):
    """The view has not yet read what the caller wants to see in it."""


class ViewFailed(ViewError):
    """A handler of the view raised, or its log is not there: it has stopped, and answers nothing until it is mended."""


class ViewChanged(ViewError):
    """The rows were made by another version of the view, and it declares on_change="refuse"."""


class ModelError(StigmergyError):
    """A model cannot do what was asked."""


class PolicyError(StigmergyError):
    """The branch of policies."""


class PolicyRefused(PolicyError):
    """A bundle of a policy, or what is to become one, cannot be used. It stays so until there is another one."""


class PolicyFailed(PolicyError):
    """The engine gave no ruling, or not in time. What was asked about is denied."""


class ModelRefused(ModelError):
    """A bundle, or what is to become one, cannot be used. It stays so until there is another bundle."""


class ModelFailed(ModelError):
    """A run of a model gave no answer for this batch."""


class RingError(StigmergyError):
    """The ring cannot do what was asked."""


class RingLocked(RingError):
    """The ring has a producer, or a consumer, already."""


class RingForeign(RingError):
    """Not a ring of ours, or one of another format, size or owner."""


class RingDamaged(RingError):
    """What is in the ring is not what was put there; nothing behind it can be trusted."""


class RecoveryError(StigmergyError):
    """The journal reads well, but this program cannot go on from it."""


class FoldMismatch(RecoveryError):
    """The snapshot was folded by another version of the agents and cannot be carried over."""


class DataLost(RecoveryError):
    """A receiver has confirmed more than this journal holds."""


class TrustError(StigmergyError):
    """A key or a signature is not what it must be."""


class WrongKey(TrustError):
    """The key is not the one that this journal's log has enrolled."""


class BadSignature(TrustError):
    """The signature does not cover these bytes."""


class Bug(StigmergyError):
    """An invariant of ours broke."""


def error_named(kind: str, text: str) -> StigmergyError:
    """The error that a node has refused with, by its name."""
    found = globals().get(kind)
    return (found if isinstance(found, type) and issubclass(found, StigmergyError) else StigmergyError)(text)
