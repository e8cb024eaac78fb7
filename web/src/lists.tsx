/** The panels Agents and Events: the same fleet as the map, as lists that can be searched and read out. */

import { useEffect, useRef, useState } from "preact/hooks";
import { follow, get, otherLogs, pause, Problem } from "./api";
import { at, exact, figures, page as pageValue, select, selected, timeOf } from "./state";
import { AgentLink, brief, clock, tag } from "./show";
import { goToEvent, inOrder, keyOf, nearest } from "./timeline";
import type { FleetEvent, Json, KeptEvent, Listed } from "./types";
import { useValue } from "./value";

const PAGE = 100;
const EVENTS_KEPT = 300;
const FLUSH_MS = 250;
const RECENT = 1_000;
/** A stream does not say that it has nothing yet: after so long, it has not. */
const LOADING_MS = 2_000;

export function AgentsPanel() {
  const page = useValue(pageValue)!, chosen = useValue(selected), moment = useValue(at);
  const [kind, setKind] = useState(page.kinds[0]?.kind ?? "");
  const [where, setWhere] = useState("");
  const [cursors, setCursors] = useState<string[]>([]);
  const [found, setFound] = useState<Listed | null>(null);
  const [trouble, setTrouble] = useState("");
  const [turn, setTurn] = useState(0);
  const query = new URLSearchParams({ kind, limit: String(PAGE) });
  for (const one of where.split(",").map((text) => text.trim()).filter(Boolean)) query.append("where", one);
  if (cursors.length) query.set("cursor", cursors[cursors.length - 1]);
  if (moment) query.set("at", moment);
  const wanted = `/v1/agents?${query}`, asking = useRef({ path: "", isBusy: false });
  // One question at a time, and then the newest: while it plays, the moment moves on before an answer is there.
  useEffect(() => {
    const now = asking.current;
    now.path = wanted;
    if (now.isBusy) return;
    now.isBusy = true;
    void (async () => {
      for (let done = ""; now.path && now.path !== done; ) {
        await pause(200);
        done = now.path;
        if (!done) break;
        await get<Listed>(done).then((next) => (setFound(next), setTrouble("")), (error) => (setFound(null), setTrouble((error as Problem).message)));
      }
      now.isBusy = false;
    })();
  }, [wanted, turn]);
  useEffect(() => {
    // The past does not change; a question about it that failed is asked again.
    const timer = setInterval(() => document.visibilityState === "visible" && setTurn((n) => n + 1), moment && !trouble ? 1 << 30 : 3_000);
    return () => clearInterval(timer);
  }, [moment === null, trouble]);
  useEffect(() => () => void (asking.current.path = ""), []);
  const columns = [...new Set((found?.agents ?? []).slice(0, 20).flatMap((one) => Object.keys(one.state)))].filter((name) => name !== "id").slice(0, 8);
  return (
    <section class="list" aria-label="Agents">
      <div class="filters">
        <label>Kind <select value={kind} onChange={(event) => (setKind(event.currentTarget.value), setCursors([]))}>{page.kinds.map((one) => <option key={one.kind}>{one.kind}</option>)}</select></label>
        <label class="grow">Where <input value={where} onInput={(event) => (setWhere(event.currentTarget.value), setCursors([]))} placeholder="battery<20, mission=M1" spellcheck={false} /></label>
        <span role="group" aria-label="Pages">
          <button disabled={!cursors.length} onClick={() => setCursors(cursors.slice(0, -1))}>Back</button>
          <button disabled={!found?.next} onClick={() => found?.next && setCursors([...cursors, found.next])}>Next</button>
        </span>
        {moment && <span class="faint">as they were at {clock(moment)}</span>}
      </div>
      {trouble && <p class="notice bad" role="alert">{trouble}</p>}
      {found?.missing?.length ? <p class="notice warn">Not listed are agents of {found.missing.map((one) => one.node ?? `shard ${one.shard}`).join(", ")}: {found.missing[0].why}</p> : null}
      <div class="wide">
        <table class="agents">
          <thead><tr><th scope="col">agent</th>{columns.map((name) => <th scope="col" key={name}>{name}</th>)}</tr></thead>
          <tbody>
            {found?.agents.map((one) => (
              <tr key={one.agent} aria-selected={one.agent === chosen} onClick={() => select(one.agent)}>
                <th scope="row"><AgentLink agent={one.agent} />{one.stopped && <span class="bad"> stopped</span>}</th>
                {columns.map((name) => <td key={name} class={typeof one.state[name] === "number" ? "figure" : ""}>{brief((one.state[name] ?? null) as Json, 40)}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found && !found.agents.length && <p class="empty">No agent is like this.</p>}
    </section>
  );
}

/** The events before a moment, at it and behind it. */
async function eventsAround(moment: string, signal: AbortSignal, filter: string): Promise<KeptEvent[]> {
  const [before, behind] = await Promise.all([
    nearest({ time: moment }, -1, EVENTS_KEPT / 2, filter, signal),
    nearest({ time: justBefore(moment) }, 1, EVENTS_KEPT / 2, filter, signal),
  ]);
  return [...before, ...behind];
}

/** The microsecond before. */
function justBefore(time: string): string {
  const part = Number(time.slice(20, 26)) - 1;
  if (part >= 0) return `${time.slice(0, 20)}${String(part).padStart(6, "0")}Z`;
  return `${timeOf(Date.parse(time) - 1_000).slice(0, 20)}999999Z`;
}

/** Where the live list begins: so far back that it is not empty, and that a busy fleet does not send too much. */
function recent(from: string | null): string {
  const now = figures.get(), rate = now?.rates?.events ?? 0;
  if (from && now && now.status.events <= RECENT) return from;
  return timeOf(Date.now() - Math.max(1, Math.min(60, RECENT / Math.max(rate, 1))) * 1000);
}

export function EventsPanel() {
  const page = useValue(pageValue)!, moment = useValue(at), agent = useValue(selected), others = useValue(otherLogs);
  const [kind, setKind] = useState("");
  const [events, setEvents] = useState<(FleetEvent | KeptEvent)[]>([]);
  const [trouble, setTrouble] = useState("");
  const [isLoading, setLoading] = useState(true);
  useEffect(() => {
    setTrouble("");
    setLoading(true);
    const filter = agent ? `agent=${encodeURIComponent(agent)}` : kind ? `kind=${kind}` : "";
    if (moment) {
      const control = new AbortController();
      const timer = setTimeout(() => {
        eventsAround(moment, control.signal, filter).then(
          (found) => control.signal.aborted || (setEvents(found), setLoading(false)),
          (error) => control.signal.aborted || setTrouble((error as Problem).message),
        );
      }, 150);
      return () => (clearTimeout(timer), control.abort());
    }
    let fresh: FleetEvent[] = [];
    setEvents([]);
    const end = follow(`/v1/events?since=${recent(page.from)}${filter && `&${filter}`}`, (one) => {
      if (one.event === "dropped") return;
      fresh.push(JSON.parse(one.data));
      if (fresh.length > EVENTS_KEPT) fresh = fresh.slice(-EVENTS_KEPT);
    }, setTrouble);
    const began = Date.now();
    const timer = setInterval(() => {
      if (Date.now() - began > LOADING_MS) setLoading(false);
      if (!fresh.length) return;
      const taken = fresh;
      fresh = [];
      setTrouble("");
      setEvents((old) => inOrder([...new Map([...old, ...taken].map((one) => [keyOf(one), one])).values()]).slice(-EVENTS_KEPT));
    }, FLUSH_MS);
    return () => (end(), clearInterval(timer));
  }, [moment, kind, agent]);
  const shown = moment ? events : [...events].reverse();
  return (
    <section class="list" aria-label="Events">
      <div class="filters">
        {agent ? <span>Events of <b>{agent}</b></span> : (
          <label>Kind <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}><option value="">all</option>{page.kinds.map((one) => <option key={one.kind}>{one.kind}</option>)}</select></label>
        )}
        {page.node && others && !agent && <span class="warn">Events of node {page.node}; not those of {others}</span>}
        <span class="faint">{moment ? `around ${clock(moment)}, oldest first; later ones are pale` : "as they become durable, newest first"}</span>
      </div>
      {trouble && <p class="notice bad" role="alert">{trouble}</p>}
      <div class="wide">
        <table class="events">
          <thead><tr><th scope="col">time</th><th scope="col">agent</th><th scope="col">event</th><th scope="col">fields</th></tr></thead>
          <tbody>
            {shown.map((one) => (
              <tr key={keyOf(one)} class={moment && exact("kept" in one ? one.kept : one.time) > moment ? "later" : ""}>
                <td><button class="link time" title="Show everything as it was then" onClick={() => void goToEvent(one)}>{clock(one.time)}</button></td>
                <td><AgentLink agent={one.agent} /></td>
                <td>{tag(one.type)}</td>
                <td>{brief(one.fields)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {!shown.length && !trouble && <p class="empty">{isLoading ? "Loading…" : moment ? "No event near this moment." : "No event lately. New ones appear here."}</p>}
    </section>
  );
}
