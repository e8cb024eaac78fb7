/** The Agent panel: its state, how it came to be so, what it shares and holds, and its commands. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { agentPath, follow, get, post, Problem, token, TOKEN_COMMAND } from "./api";
import { CommandForm } from "./command";
import { at, follows, hasMap, may, page as pageValue, panel, picked, say, select, selected } from "./state";
import { AgentLink, brief, clock, number, Shown, tag } from "./show";
import { goToEvent } from "./timeline";
import type { AgentState, ClaimField, Entry, Explained, Json, Page, SharedField } from "./types";
import { useValue } from "./value";
import { RunGraph } from "./workflow";

const ENTRIES = 20, ENTRIES_MAX = 1_000;
const REFRESH_MS = 500;

export function Side() {
  const agent = useValue(selected), many = useValue(picked);
  if (agent) return <AgentPanel key={agent} agent={agent} />;
  if (many.length > 1) return <PickedPanel agents={many} />;
  return null;
}

/** An agent, loaded again after each of its events, or once for a moment of the past; its log comes later, for it is
 * searched for. */
function useAgent(agent: string, limit: number): { found: AgentState | null; explained: Explained | null; trouble: string; reload: () => void } {
  const moment = useValue(at);
  const [found, setFound] = useState<AgentState | null>(null);
  const [explained, setExplained] = useState<Explained | null>(null);
  const [trouble, setTrouble] = useState("");
  const reload = useRef(() => {});
  useEffect(() => {
    const control = new AbortController(), { signal } = control, path = agentPath(agent);
    const explain = async (position = "") => {
      const next = await get<Explained>(`${path}/explain?${position}limit=${limit}`, signal);
      if (!signal.aborted) setExplained(next);
    };
    const load = repeated(async () => {
      try {
        const next = await get<AgentState>(moment ? `${path}?at=${moment}` : path, signal);
        if (signal.aborted) return;
        setFound(next);
        setTrouble("");
        if (moment) await explain(`position=${next.position}&`);
      } catch (error) {
        if (signal.aborted) return;
        setTrouble(error instanceof Problem ? error.message : "it could not be loaded");
        if (error instanceof Problem && error.status === 404) setFound(null);
      }
    }, signal);
    const search = repeated(() => (moment ? Promise.resolve() : explain().catch(() => {})), signal); // `load` says what is wrong.
    reload.current = () => (load(), search());
    reload.current();
    const end = moment ? () => {} : follow(`/v1/events?agent=${encodeURIComponent(agent)}`, () => reload.current());
    return () => (control.abort(), end());
  }, [agent, moment, limit]);
  return { found, explained, trouble, reload: () => reload.current() };
}

/** Asks whenever something has changed, one question at a time, and rests four times as long as the answer took. */
function repeated(ask: () => Promise<void>, signal: AbortSignal): () => void {
  let isBusy = false, isStale = false;
  const go = async () => {
    isStale = true;
    if (isBusy) return;
    isBusy = true;
    while (isStale && !signal.aborted) {
      isStale = false;
      const began = performance.now();
      await ask();
      await new Promise((done) => setTimeout(done, Math.max(REFRESH_MS, 4 * (performance.now() - began))));
    }
    isBusy = false;
  };
  return () => void go();
}

function AgentPanel({ agent }: { agent: string }) {
  const page = useValue(pageValue)!, moment = useValue(at), isFollowing = useValue(follows);
  const [limit, setLimit] = useState(ENTRIES);
  const { found, explained, trouble, reload } = useAgent(agent, limit), entries = explained?.entries;
  const kind = page.kinds.find((one) => agent.startsWith(`${one.kind}/`));
  // While the past is played, the log of a moment is there later than its state.
  const isLate = moment && explained?.position !== found?.position;
  const stopped = found?.stopped, changed = isLate ? undefined : entries?.[entries.length - 1]?.time;
  return (
    <aside class="side" aria-label={`Agent ${agent}`}>
      <header>
        <div>
          <small>{kind?.kind}</small>
          <h1>{agent.slice(agent.indexOf("/") + 1)}</h1>
        </div>
        {kind?.map && hasMap(page) && (
          <button aria-pressed={isFollowing} onClick={() => (panel.set("map"), follows.set(!isFollowing))}>{isFollowing ? "Following" : "Follow"}</button>
        )}
        <button aria-label="Close the agent" title="Close (Esc)" onClick={() => select(null)}>✕</button>
      </header>
      {trouble && <p class="notice bad" role="alert">{trouble}</p>}
      {stopped && (
        <div class="notice bad">
          <b>Stopped.</b> {stopped}{" "}
          {!moment && <Operate label="Resume" path={`/v1/stopped/${agent}/resume`} onDone={reload} done={`${agent} runs again`} />}
          {!moment && <OperateHint />}
        </div>
      )}
      {!found && !trouble && <p class="faint">Loading…</p>}
      {found && (
        <>
          <p class="where">
            at position {found.position} of shard {found.shard}{changed && <>, changed <time dateTime={changed}>{clock(changed)}</time></>}
            {moment && <> · <b>as it was at {clock(moment)}</b></>}
            {!found.known && <> · it has had no input yet</>}
          </p>
          {kind?.workflow?.[String(found.state.version)] && <RunGraph state={found.state} outline={kind.workflow[String(found.state.version)]} />}
          <StateTable state={found.state} />
          <Commands page={page} agents={[agent]} kind={agent.split("/")[0]} onDone={reload} isPast={Boolean(moment)} />
          <Shared found={found} agent={agent} isPast={Boolean(moment)} />
          <section aria-label="What it decided and why">
            <h2>What it decided, and why</h2>
            {entries ? <Decisions agent={agent} entries={entries} limit={limit} setLimit={setLimit} /> : <p class="faint">Loading…</p>}
          </section>
        </>
      )}
    </aside>
  );
}

/** What is needed for the buttons that are not there. */
export function OperateHint() {
  const page = useValue(pageValue);
  if (may("operate") || page?.mode !== "live") return null;
  return (
    <p class="faint">
      Retry, Drop and Resume need a token with <code>operate</code>: <code>{TOKEN_COMMAND}</code>, beside the journal.
      {token() ? " Open this page in a new tab to give it." : " From the first token on everybody needs one; load this page again to give yours."}
    </p>
  );
}

/** A button for something that needs the scope `operate`; nothing without it. */
export function Operate({ label, path, onDone, done }: { label: string; path: string; onDone?: () => void; done: string }) {
  const [state, setState] = useState<"" | "busy" | string>("");
  if (!may("operate")) return null;
  const go = async () => {
    setState("busy");
    try {
      const reply = await post<{ failed_again?: boolean }>(path);
      setState("");
      say(reply.failed_again ? "It failed again" : done);
      if (reply.failed_again) setState("It failed again");
      onDone?.();
    } catch (error) {
      setState((error as Problem).message);
      say((error as Problem).message);
    }
  };
  return (
    <>
      <button disabled={state === "busy"} onClick={() => void go()}>{label}</button>
      {state && state !== "busy" && <small class="bad"> {state}</small>}
    </>
  );
}

function StateTable({ state }: { state: Record<string, Json> }) {
  const before = useRef<Record<string, string>>({});
  const changed = useMemo(() => {
    const next = Object.fromEntries(Object.entries(state).map(([name, value]) => [name, JSON.stringify(value)]));
    const names = Object.keys(next).filter((name) => before.current[name] !== undefined && before.current[name] !== next[name]);
    before.current = next;
    return new Set(names);
  }, [state]);
  return (
    <table class="state">
      <caption class="unseen">State</caption>
      <tbody>
        {Object.entries(state).map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td key={changed.has(name) ? JSON.stringify(value) : ""} class={changed.has(name) ? "changed" : ""}><Shown value={value} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Commands({ page, agents, kind, onDone, isPast }: { page: Page; agents: string[]; kind: string; onDone: () => void; isPast: boolean }) {
  const commands = page.kinds.find((one) => one.kind === kind)?.commands ?? [];
  const [open, setOpen] = useState<string | null>(null);
  if (!commands.length || !may(`command:${kind}`)) return null;
  if (isPast) return <p class="where">Commands are sent now, not in the past: go back to live to send one.</p>;
  const chosen = commands.find((one) => one.name === open);
  return (
    <section aria-label="Commands">
      <h2>Commands</h2>
      <div class="choices">
        {commands.map(({ name }) => (
          <button key={name} aria-expanded={name === open} onClick={() => setOpen(name === open ? null : name)}>{name}</button>
        ))}
      </div>
      {chosen && <CommandForm key={chosen.name} agents={agents} name={chosen.name} schema={chosen.schema} onDone={onDone} />}
    </section>
  );
}

/** Its shared fields with who wrote what, and its claims, at the moment shown: both are in its state. */
function Shared({ found, agent, isPast }: { found: AgentState; agent: string; isPast: boolean }) {
  const { shared = [], claims = [] } = found;
  return (
    <>
      {shared.length > 0 && (
        <section aria-label="Shared fields">
          <h2>Shared fields</h2>
          {shared.map((one) => <SharedEntry key={one.field} one={one} isPast={isPast} />)}
        </section>
      )}
      {claims.length > 0 && (
        <section aria-label="Claims">
          <h2>Claims</h2>
          {claims.map((one) => <ClaimEntry key={one.claim} one={one} agent={agent} />)}
          {isPast && <p class="faint">Who else held or waited for them is in the ledger, and not known for the past.</p>}
        </section>
      )}
    </>
  );
}

function SharedEntry({ one, isPast }: { one: SharedField; isPast: boolean }) {
  const { peers, lacking = [] } = one;
  const names = new Map(one.writers.map((writer) => [writer.replica, writer]));
  const name = (replica: string) => {
    const { agent, node } = names.get(replica) ?? {};
    return <>{agent ? <AgentLink agent={agent} /> : <code title={`The replica ${replica}; the changes that name its agent are not kept here any more`}>{replica.slice(0, 12)}</code>}{node && <span class="faint"> at {node}</span>}</>;
  };
  return (
    <div class="entry">
      <div>
        <b>{one.field}</b> <span class="faint">{one.object}</span>{" "}
        {one.diverged ? <span class="bad">diverged</span> : lacking.length ? <span class="warn">{lacking.join(", ")} of {peers?.length} lack changes</span>
          : peers?.length ? <span class="good">in step</span> : isPast && <span class="faint">who had it then is not known</span>}
      </div>
      <ul>
        {one.writers.map((writer) => <li key={writer.replica}>{name(writer.replica)} wrote {number(writer.changes)} {writer.changes === 1 ? "change" : "changes"}</li>)}
        {one.writers_count > one.writers.length && <li class="faint">and {number(one.writers_count - one.writers.length)} more</li>}
      </ul>
      {one.entries.length > 0 && (
        <details>
          <summary>Who wrote what: {number(one.entries_count)} {one.entries_count === 1 ? "entry" : "entries"}</summary>
          <table>
            <tbody>
              {one.entries.map((entry) => (
                <tr key={`${JSON.stringify(entry.at)}${entry.replica}`}>
                  <th scope="row">{entry.at.map((key) => brief(key)).join(" / ")}{entry.value !== undefined && `${entry.at.length ? ": " : ""}${brief(entry.value, 60)}`}</th>
                  <td>{name(entry.replica)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {one.entries_count > one.entries.length && <p class="faint">and {number(one.entries_count - one.entries.length)} more</p>}
        </details>
      )}
    </div>
  );
}

function ClaimEntry({ one, agent }: { one: ClaimField; agent: string }) {
  const { holder, queue = [] } = one, place = queue.indexOf(agent), others = queue.filter((other) => other && other !== agent);
  const by = holder === undefined || holder === agent ? "" : holder === "" ? "; nobody holds it" : <>; <AgentLink agent={holder} /> holds it</>;
  return (
    <div class="entry">
      <b>{one.resource || "nothing yet"}</b> <span class="faint">{one.claim}</span>{" "}
      {one.held ? <span class="good">held{one.until && ` until ${clock(one.until)}`}, token {one.token}</span>
        : one.asking ? <span class="warn">waits{place >= 0 && `, ${place + 1} of ${queue.length}`}{by}</span>
          : <span class="faint">not held{by}</span>}
      {others.length > 0 && <div>waiting: {others.map((other) => <div key={other}><AgentLink agent={other} /></div>)}</div>}
    </div>
  );
}

/** What is shown of an agent's log: everything, what was asked of it or went out, or one type. */
const ALL = "", DECIDED = "*";

function isWanted(group: Entry[], wanted: string): boolean {
  if (wanted === ALL) return true;
  if (wanted === DECIDED) return group.some((one) => one.kind !== "event" || one.effects.length > 0 || one.cause.command !== "");
  return group.some((one) => tag(one.type) === wanted);
}

/** Entries of one commit belong together: the input, what was decided, what goes out. Newest first. */
function Decisions({ agent, entries, limit, setLimit }: { agent: string; entries: Entry[]; limit: number; setLimit: (limit: number) => void }) {
  const [wanted, setWanted] = useState(ALL);
  const groups: Entry[][] = [];
  for (const entry of entries) {
    if (groups.length && groups[groups.length - 1][0].position === entry.position) groups[groups.length - 1].push(entry);
    else groups.push([entry]);
  }
  if (!groups.length) return <p class="faint">Nothing yet.</p>;
  const types = [...new Set([...entries.map((one) => tag(one.type)), ...(ALL === wanted || DECIDED === wanted ? [] : [wanted])])].sort();
  const shown = groups.filter((group) => isWanted(group, wanted)).reverse();
  const choose = (next: string) => {
    setWanted(next);
    if (next !== ALL) setLimit(Math.max(limit, 10 * ENTRIES)); // What is rare is further back.
  };
  return (
    <>
      <label>Show{" "}
        <select value={wanted} onChange={(event) => choose(event.currentTarget.value)}>
          <option value={ALL}>everything</option>
          <option value={DECIDED}>commands, refusals and effects</option>
          {types.map((one) => <option key={one} value={one}>{one}</option>)}
        </select>
      </label>
      <ol class="decisions">{shown.map((group) => <Decision key={group[0].position} agent={agent} group={group} />)}</ol>
      {!shown.length && <p class="faint">None among the last {entries.length} entries.</p>}
      {entries.length >= limit && limit < ENTRIES_MAX && <button onClick={() => setLimit(Math.min(ENTRIES_MAX, 5 * limit))}>More</button>}
    </>
  );
}

function Decision({ agent, group }: { agent: string; group: Entry[] }) {
  const [first] = group;
  return (
    <li class="entry">
      <div class="head">
        <button class="link time" title="Show everything as it was then" onClick={() => void goToEvent({ agent, position: first.position, time: first.time })}><time dateTime={first.time}>{clock(first.time)}</time></button>
        <span class="faint">#{first.position}{first.cause.source && <> from {first.cause.source}</>}</span>
      </div>
      {group.map((entry, k) => (
        <div key={k}>
          <div class={entry.kind}>
            <b>{tag(entry.type)}</b> <span>{brief(entry.fields)}</span>
            {entry.kind === "answer" && (entry.refused ? <span class="bad"> refused: {entry.refused}</span> : <span class="good"> accepted</span>)}
          </div>
          {entry.effects.map((effect) => (
            <div class="effect" key={`${effect.sink}${effect.sequence}`}>
              {effect.sink} <b>{tag(effect.type)}</b> {effect.to && <>to {effect.to.includes("/") ? <AgentLink agent={effect.to} /> : effect.to} </>}
              <span>{brief(effect.fields)}</span> {effect.settled ? <span class="good">done</span> : <span class="warn">owed</span>}
            </div>
          ))}
          {entry.kind === "answer" && entry.cause.command_id && <div class="faint id">{entry.cause.command_id}</div>}
        </div>
      ))}
    </li>
  );
}

function PickedPanel({ agents }: { agents: string[] }) {
  const page = useValue(pageValue)!, moment = useValue(at);
  const kinds = [...new Set(agents.map((one) => one.split("/")[0]))];
  return (
    <aside class="side" aria-label="Chosen agents">
      <header>
        <h1>{number(agents.length)} agents</h1>
        <button aria-label="Clear the choice" title="Close (Esc)" onClick={() => picked.set([])}>✕</button>
      </header>
      {kinds.map((kind) => {
        const of = agents.filter((one) => one.startsWith(`${kind}/`));
        return (
          <section key={kind} aria-label={kind}>
            <h2>{kind} <span class="count">{number(of.length)}</span></h2>
            <Commands page={page} agents={of} kind={kind} onDone={() => {}} isPast={Boolean(moment)} />
            <ul class="names">{of.slice(0, 200).map((one) => <li key={one}><AgentLink agent={one} /></li>)}</ul>
            {of.length > 200 && <p class="faint">and {number(of.length - 200)} more</p>}
          </section>
        );
      })}
    </aside>
  );
}
