"""The codes of all messages in the log of a running process, and what to do about each. Pure.

A code is stable: scripts, alerts and filters name it. A message that means something else gets another code. The table
in docs/logging.md is made from this list.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

DEBUG, INFO, WARN, ERROR = "debug", "info", "warn", "error"
LEVELS = (DEBUG, INFO, WARN, ERROR)


class LogCode(Struct, frozen=True):
    """What all messages of a code have in common."""

    code: str
    level: str
    means: str
    do: str


class Trouble(str):
    """A sentence about what does not work at present, with its code. Where only the sentence counts it is a str."""

    __slots__ = ("agent", "code", "past", "shard")
    agent: str
    code: str
    past: str
    """What to say once it is over."""
    shard: int | None

    def __new__(cls, code: str, text: str, agent: str = "", shard: int | None = None, past: str = "") -> Trouble:
        """`agent` and `shard` say whom it concerns, where that is known."""
        self = super().__new__(cls, text)
        self.code, self.agent, self.shard, self.past = code, agent, shard, past or text
        return self


def coded(code: str, texts: Iterable[str]) -> list[Trouble]:
    """Troubles of one code; texts that are empty are none."""
    return [Trouble(code, text) for text in texts if text]


_NOTHING = "Nothing."
_PASSED_OVER = "Nothing if you have changed a class; else run `stigmergy log verify`."
_READ = "Do what the message says."
_LIST = [
    # A process begins, runs and ends.
    LogCode("process-begun", INFO, "The process has begun to write this log.", _NOTHING),
    LogCode("process-failed", ERROR, "The process ends because of an error.", "Do what the message says; start again."),
    LogCode("start-notice", WARN, "Something about this start is probably not what you want.", _READ),
    LogCode("agents-compiled", INFO, "Agents are compiled to machine code, which takes a while once.", _NOTHING),
    LogCode("option-unused", WARN, "An option is of no use to this fleet.", "Take it out, or correct it."),
    LogCode("node-recovered", INFO, "The node has its state from the journal.", _NOTHING),
    LogCode("journal-passed-over", WARN, "Snapshots are of no use; older ones or the log were read.", _PASSED_OVER),
    LogCode("agents-at-rest", WARN, "The journal has agents that this node does not run.", "Check `agents`."),
    LogCode("node-listening", INFO, "The node takes inputs, and answers on its socket.", _NOTHING),
    LogCode("metrics-listening", INFO, "The page for Prometheus is there.", _NOTHING),
    LogCode("api-listening", INFO, "The HTTP or gRPC API is there.", _NOTHING),
    LogCode("node-stopping", INFO, "The process finishes what it has taken.", "Wait, or signal once more."),
    LogCode("node-stopped", INFO, "The process has ended in order.", _NOTHING),
    # Agents, their devices and effects.
    LogCode("agent-stopped", ERROR, "Supervision has stopped an agent.", "See `stigmergy letters`; then `resume` it."),
    LogCode("input-failed", WARN, "A handler raised, or an input is of no use.", "See `stigmergy letters`; mend it."),
    LogCode("effect-failed", WARN, "An action or work was given up.", "Check its actuator; the agent was told."),
    LogCode("effect-retried", DEBUG, "A try of an action or work failed; another follows.", _NOTHING),
    LogCode("safe-action", WARN, "A safe action went out.", "Look why: its sensor is silent, or its agent stopped."),
    LogCode("device-failed", WARN, "A sensor or actuator failed.", "Check the device and the code that drives it."),
    LogCode("actuator-failed", WARN, "A batch actuator gave actions up.", "Check it; the message has the last error."),
    LogCode("raw-withheld", WARN, "Raw events did not leave their device.", "Send something else, or write the rule."),
    LogCode("fence-failed", WARN, "The file of fencing tokens cannot be written.", "Check its disk."),
    LogCode("model-fallback", WARN, "A model cannot answer; its rule does.", "Put a bundle that fits into its place."),
    LogCode("model-refused", WARN, "A bundle of a model is of no use here.", "Pack it again, or correct model_keys."),
    LogCode("model-missing", WARN, "A version that a rollout wants is not here.", "Put its bundle where models are."),
    LogCode(
        "rollout-refused",
        WARN,
        "A record of versions, or counts of a node, are not believed.",
        "Correct model_keys or peers.",
    ),
    LogCode("rollout-step", INFO, "A rollout has gone a step on, or back.", _NOTHING),
    LogCode("model-loaded", INFO, "A version of a model answers.", _NOTHING),
    LogCode("model-dropped", INFO, "A version of a model answers no more.", _NOTHING),
    LogCode("model-hung", ERROR, "A run of a model hangs; its thread was left behind.", "Correct the model."),
    LogCode("policy-missing", WARN, "There is no policy, so commands are denied.", "Put one: `stigmergy policy put`."),
    LogCode("policy-refused", WARN, "A policy is not believed, or does not compile.", "Sign it anew, or correct keys."),
    LogCode("policy-unseen", WARN, "The place of policies cannot be looked at.", "Check that folder or store."),
    LogCode("policy-failed", ERROR, "The engine of the policy failed or was late.", "Make the policy simpler."),
    LogCode("policy-in-force", INFO, "A version of the policy rules from now on.", _NOTHING),
    LogCode("models-unseen", WARN, "The place of models cannot be looked at.", "Check that folder or store."),
    LogCode("tell-failed", WARN, "A tell was given up.", "See `stigmergy letters`; retry or drop it."),
    LogCode("tells-kept", WARN, "Tells are not acknowledged.", "Start the other node, or check its permissions."),
    LogCode("tells-refused", WARN, "A receiver refuses our tells.", _READ),
    LogCode("commands-stuck", WARN, "Commands for other nodes do not get on.", "See `stigmergy commands`."),
    LogCode("run-stuck", WARN, "A run of a workflow cannot undo a step.", "Mend what keeps it; send it `RetryUndo`."),
    LogCode("ring-ended", ERROR, "A ring is not read any more.", "Correct its producer, and start the node again."),
    LogCode("unheard", WARN, "Agents publish, and nobody can hear it.", "Start all workers with --bus."),
    # The journal and what is kept.
    LogCode("snapshot-failed", WARN, "A shard has no new snapshot.", "Check the disk; starts take longer until then."),
    LogCode("retention-blocked", WARN, "Nothing of the log is dropped.", "Repair the archive or the record of holds."),
    LogCode("copies-behind", WARN, "A store of copies does not take the journal.", "Check that the store answers."),
    LogCode("blobs-unrecorded", WARN, "A blob store does not know what is in use.", "Check that the store answers."),
    LogCode("view-failed", ERROR, "A view has failed.", "Correct the view or its store; start again."),
    LogCode("view-waits", WARN, "A view waits for its store or for the log.", "Check these if it stays so."),
    LogCode("view-rebuilt", INFO, "The rows of a view are made anew from the log, or are complete.", _NOTHING),
    LogCode("view-join-full", WARN, "A join of a view has dropped its oldest events.", "Join what comes closer."),
    LogCode("spans-unsent", WARN, "A collector does not take spans of traces.", "Check it, and traces.export."),
    LogCode("capture-waits", WARN, "Capture cannot go on at present.", "Check the database and the log."),
    # The bus, other nodes, shared fields, claims.
    LogCode("bus-down", WARN, "The node has no link to its bus, and works alone.", "Check the broker and the network."),
    LogCode("bus-refused", ERROR, "The broker refuses the node.", "Correct name, password or permissions."),
    LogCode("bus-shed", WARN, "Messages from the bus were lost.", "See Fairness between sources in docs/edge.md."),
    LogCode("bus-order", WARN, "A sender's numbers have gaps or are too many.", "Check the sender."),
    LogCode("name-conflict", ERROR, "Two nodes have one name.", "Rename one, or end it."),
    LogCode("agents-conflict", ERROR, "Two nodes run the same agents.", "End one; start the right one."),
    LogCode("node-away", WARN, "A node of the fleet has left, or is not heard.", "Start it, or take its agents over."),
    LogCode("node-off", WARN, "A node stays off the bus.", _READ),
    LogCode("signature-refused", ERROR, "Messages on a bus are not who they say they are.", _READ),
    LogCode("registry-unknown", WARN, "It is not known who else runs our agents.", "Check the broker's permissions."),
    LogCode("history-missing", WARN, "History for a listener is missing.", "Start the node that has it."),
    LogCode("uplink-stuck", WARN, "Nothing goes up to the collector.", "Check the collector and the link."),
    LogCode("shared-trouble", ERROR, "A shared field does not converge by itself.", _READ),
    LogCode("claims-refused", ERROR, "The ledger is of no use to this node.", "Check the ledger and the keys."),
    LogCode(
        "entries-refused", ERROR, "A ledger of the fleet's own is of no use to this node.", "Check it and the keys."
    ),
    LogCode("store-watch-failed", ERROR, "Code that follows a store raised.", "Report it to us."),
    LogCode("store-watch-lost", DEBUG, "A store cannot be followed, and is tried again.", _NOTHING),
    # Requests.
    LogCode("request-failed", ERROR, "A request over HTTP or gRPC failed unexpectedly.", "Report it to us."),
    LogCode("answer-incomplete", WARN, "An answer lacks the part of another node.", "Ask that node, or start it."),
    # Workers, gateways, clusters.
    LogCode("worker-connected", INFO, "The worker has reached the servers.", _NOTHING),
    LogCode("worker-joined", INFO, "The worker is a member of its fleet.", _NOTHING),
    LogCode("worker-waits", WARN, "The worker waits for the servers or for a log.", "Check the servers."),
    LogCode(
        "worker-fenced", WARN, "The worker lost its lease; others may take its shards.", "Look for pauses and cuts."
    ),
    LogCode("worker-clock", WARN, "A worker's clock differs from ours.", "Set the clocks (NTP)."),
    LogCode("worker-absent", ERROR, "A worker runs and is no member.", "Read its log; check the servers."),
    LogCode("worker-starting", WARN, "A worker has not joined yet.", "Wait; if it stays so, read its log."),
    LogCode("shard-owned", INFO, "A worker has taken a shard.", _NOTHING),
    LogCode("shard-released", INFO, "A worker has handed a shard over.", _NOTHING),
    LogCode("shard-lost", WARN, "A worker has lost a shard.", "Look for pauses, cuts and full disks."),
    LogCode("shard-unfit", ERROR, "A worker cannot have a shard.", _READ),
    LogCode("site-open", INFO, "The server of a gateway takes devices.", _NOTHING),
    LogCode("site-linked", INFO, "A gateway has its link to the hub.", _NOTHING),
    LogCode("site-alone", WARN, "A gateway has no link to the hub; its site goes on.", "Check network and hub."),
    LogCode("leaf-restarted", WARN, "The server of a gateway is restarted.", "Look at its log if it happens again."),
    LogCode("hub-collects", INFO, "What sites send up is given to workers, or waits.", _NOTHING),
    LogCode("child-started", INFO, "`up` has started a process, or it is ready.", _NOTHING),
    LogCode("child-ended", WARN, "A process of `up` ended; it is started again.", "Read its log in the folder."),
    LogCode("child-given-up", ERROR, "A process of `up` ended too often.", "Read its log; correct it; start again."),
    LogCode("server-stuck", ERROR, "A server stores nothing.", "Free space on its disk."),
    LogCode("server-restarted", WARN, "A server that stored nothing is restarted.", _NOTHING),
    LogCode("server-well", INFO, "A server stores again.", _NOTHING),
    LogCode("identity-renewed", INFO, "The certificate of this node is renewed.", _NOTHING),
    LogCode("identity-not-renewed", WARN, "A certificate is not renewed.", "Renew it: `stigmergy ca renew`."),
    LogCode("members-changed", INFO, "The servers of `up --secure` have read anew who may connect.", _NOTHING),
    LogCode("members-unread", ERROR, "The list of the authority cannot be read.", "Restore `ca.json` from a copy."),
    LogCode("cluster-up", INFO, "The cluster is there, or all shards have an owner.", _NOTHING),
    # The log itself.
    LogCode("left-out", WARN, "Lines were left out: too many of a code, or nobody read.", "See `stigmergy status`."),
    LogCode("library", WARN, "A library that we use wrote this; `logger` says which.", "Report it if it repeats."),
    LogCode("thread-failed", ERROR, "A thread or a finalizer raised.", "Correct it, or report it to us."),
]
CODES = {one.code: one for one in _LIST}


def code_table() -> str:
    """The table of the manual."""
    rows = [
        f"| `{one.code}` | {one.level} | {one.means} | {one.do} |" for one in sorted(_LIST, key=lambda one: one.code)
    ]
    return "\n".join(["| code | level | meaning | what to do |", "|---|---|---|---|", *rows]) + "\n"
