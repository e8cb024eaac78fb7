/** The Fleet panel: what the whole fleet does, where it is held up, and what needs somebody. */

import type { ComponentChildren } from "preact";
import { Operate, OperateHint } from "./agent";
import { Chart } from "./chart";
import { at, figures, page as pageValue } from "./state";
import { AgentLink, brief, bytes, Card, clock, millis, number, span, tag } from "./show";
import type { Figures } from "./types";
import { useValue, Value } from "./value";

const KEPT = 300;
const SEVERITIES = ["critical", "warning", "info"];

/** What the charts show, of the last five minutes. */
type Past = Pick<Figures, "time" | "rates" | "latencies">;
const past = new Value<Past[]>([]);
figures.watch(() => {
  const found = figures.get();
  if (!found) return;
  const { time, rates, latencies } = found;
  past.set([...past.get().slice(1 - KEPT), { time, rates, latencies }]);
});

export function FleetPanel() {
  const now = useValue(figures), before = useValue(past), moment = useValue(at), page = useValue(pageValue);
  if (!now) return <p class="empty">Waiting for the first figures…</p>;
  const { status } = now;
  return (
    <div class="fleet" aria-label="Fleet">
      {moment && <p class="notice">These figures are of now; the map, the agent and the events show the moment you chose.</p>}
      {page?.node && <h2>Node {page.node} <small class="faint">Figures and troubles are those of this node.</small></h2>}
      <Attention now={now} />
      <dl class="tiles">
        <Tile name="Agents" value={number(status.agents)} />
        <Tile name="Events" value={number(now.rates.events)} unit="/s" about={`${number(status.events)} in all`} />
        <Tile name="Event to action" value={millis(now.latencies?.event_to_action?.p99_ms)} unit="p99" about={`p50 ${millis(now.latencies?.event_to_action?.p50_ms)}`} />
        <Tile name="Mailbox" value={number(now.mailbox)} about="observed, waiting" />
        <Tile name="Owed" value={number(status.owed)} about="effects not settled" />
        <Tile name="Lag" value={lag(now)} about="the longest" />
        <Tile name="Dead letters" value={number(status.dead_letters)} tone={status.dead_letters ? "warn" : ""} />
        <Tile name="Stopped" value={number(Object.keys(status.stopped).length)} tone={Object.keys(status.stopped).length ? "bad" : ""} />
      </dl>
      <div class="cards">
        <Charts before={before} />
        <Latencies now={now} />
        <Letters now={now} />
        <Stopped now={now} />
        <Losses now={now} />
        <Links now={now} />
        <Convergence now={now} />
        <Claims now={now} />
        <Cluster now={now} />
        <Servers now={now} />
        <Card title="Machine">
          <Pairs of={{ Journal: status.journal, "On disk": bytes(status.journal_bytes), ...(status.up_s ? { "Up for": span(status.up_s) } : {}), "CPU time": span(status.cpu_s), "Memory, at most": bytes(status.memory_peak_bytes), Commits: number(status.commits) }} />
        </Card>
      </div>
    </div>
  );
}

function Tile({ name, value, unit, about, tone }: { name: string; value: string; unit?: string; about?: string; tone?: string }) {
  return (
    <div class={`tile ${tone ?? ""}`}>
      <dt>{name}</dt>
      <dd>{value}{unit && value !== "–" && <small> {unit}</small>}</dd>
      {about && <dd class="about">{about}</dd>}
    </div>
  );
}

function Pairs({ of }: { of: Record<string, ComponentChildren> }) {
  return <dl class="pairs">{Object.entries(of).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

function lag(now: Figures): string {
  const worst = Math.max(...Object.values(now.lag ?? {}), -1);
  return worst < 0 ? "–" : span(worst);
}

/** Incidents, the worst first. */
function Attention({ now }: { now: Figures }) {
  const all = [...(now.incidents ?? [])], letters = now.status.dead_letters;
  if (letters) all.push({ severity: "warning", text: `${number(letters)} ${letters === 1 ? "input" : "inputs"} failed and ${letters === 1 ? "waits" : "wait"} as dead letters` });
  all.sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
  if (!all.length) return <p class="notice good" role="status">Nothing needs attention.</p>;
  return (
    <ul class="incidents" aria-label="Incidents">
      {all.map((one) => (
        <li key={one.text} class={one.severity}>
          <b>{one.severity}</b> <span>{one.text}</span>
          {one.since && <small>for {span((Date.parse(now.time) - Date.parse(one.since)) / 1000)}</small>}
        </li>
      ))}
    </ul>
  );
}

function Charts({ before }: { before: Past[] }) {
  const times = before.map((one) => Date.parse(one.time) / 1000);
  const events = before.map((one) => one.rates.events ?? null);
  const of = (name: "p50_ms" | "p99_ms") => before.map((one) => one.latencies?.event_to_action?.[name] ?? null);
  const last = (values: (number | null)[]) => number(values[values.length - 1], 1);
  const hasLatency = of("p99_ms").some((one) => one !== null);
  return (
    <>
      <Card title="Events per second">
        <Chart data={[times, events]} series={[{ label: "events", colour: "--accent" }]} unit="" about={`Events per second over the last minutes; now ${last(events)}`} />
      </Card>
      {hasLatency && (
        <Card title="Event to action">
          <Chart data={[times, of("p50_ms"), of("p99_ms")]} unit=" ms" about={`Latency from event to action in ms; now p50 ${last(of("p50_ms"))}, p99 ${last(of("p99_ms"))}`}
            series={[{ label: "p50", colour: "--accent" }, { label: "p99", colour: "--warn" }]} />
        </Card>
      )}
    </>
  );
}

function Latencies({ now }: { now: Figures }) {
  const rows = Object.entries(now.latencies ?? {}), lags = Object.entries(now.lag ?? {});
  if (!rows.length && !lags.length) return null;
  return (
    <Card title="Latency and lag">
      <table>
        <thead><tr><th scope="col">what</th><th scope="col" class="figure">p50</th><th scope="col" class="figure">p99</th></tr></thead>
        <tbody>
          {rows.map(([name, one]) => <tr key={name}><th scope="row">{name.replaceAll("_", " ")}</th><td class="figure">{millis(one.p50_ms)}</td><td class="figure">{millis(one.p99_ms)}</td></tr>)}
          {lags.map(([name, value]) => <tr key={name}><th scope="row">lag of {name}</th><td colSpan={2} class="figure">{span(value)}</td></tr>)}
        </tbody>
      </table>
    </Card>
  );
}

/** A list of the fleet that could not be read: a card that says so, rather than none. */
function Unread({ now, name, title }: { now: Figures; name: string; title: string }) {
  const why = now.unread?.[name];
  return why ? <Card title={title} tone="bad"><p class="bad" role="alert">This could not be read: {why}</p></Card> : null;
}

function More({ count }: { count: number }) {
  return count > 0 ? <p class="faint">and {number(count)} more</p> : null;
}

function Letters({ now }: { now: Figures }) {
  const letters = now.letters ?? [], count = now.status.dead_letters;
  if (!letters.length) return <Unread now={now} name="letters" title="Dead letters" />;
  return (
    <Card title="Dead letters" count={count} tone="warn">
      {letters.slice(0, 20).map((one) => (
        <div class="entry" key={one.letter}>
          <div class="head"><AgentLink agent={one.agent} /><span class="faint">{one.letter} from {one.source}</span></div>
          <div><b>{tag(one.type)}</b> {brief(one.fields)}</div>
          <div class="bad">{one.error}</div>
          <div class="choices">
            <Operate label="Retry" path={`/v1/letters/${one.letter}/retry`} done="The input was given to its agent again" />
            <Operate label="Drop" path={`/v1/letters/${one.letter}/drop`} done="The input was dropped" />
          </div>
        </div>
      ))}
      <More count={count - Math.min(20, letters.length)} />
      <OperateHint />
    </Card>
  );
}

function Stopped({ now }: { now: Figures }) {
  const stopped = Object.entries(now.status.stopped);
  if (!stopped.length) return null;
  return (
    <Card title="Stopped agents" count={stopped.length} tone="bad">
      {stopped.slice(0, 20).map(([agent, why]) => (
        <div class="entry" key={agent}>
          <div class="head"><AgentLink agent={agent} /><Operate label="Resume" path={`/v1/stopped/${agent}/resume`} done={`${agent} runs again`} /></div>
          <div>{why}</div>
        </div>
      ))}
      <More count={stopped.length - 20} />
      <OperateHint />
    </Card>
  );
}

/** What was not taken: shed, refused, and counters that should be 0. */
function Losses({ now }: { now: Figures }) {
  const { counters } = now.status;
  const named = ["duplicates", "retries", "tells_undelivered", "lapsed", "safe"];
  const rows = [
    ...Object.entries(now.shed ?? {}).map(([why, count]) => [`not taken: ${why.replaceAll("_", " ")}`, count] as const),
    ...Object.entries(now.refused ?? {}).map(([what, count]) => [`refused: ${what}s`, count] as const),
    ...Object.entries(now.failed ?? {}).map(([what, count]) => [`failed: ${what}s`, count] as const),
    ...named.filter((name) => counters[name]).map((name) => [name.replaceAll("_", " "), counters[name]] as const),
  ];
  if (!rows.length) return null;
  return (
    <Card title="Shed, refused, failed">
      <table><tbody>{rows.slice(0, 30).map(([name, count]) => <tr key={name}><th scope="row">{name}</th><td class="figure">{number(count)}</td></tr>)}</tbody></table>
    </Card>
  );
}

function Links({ now }: { now: Figures }) {
  const { link } = now.status, members = now.members ?? [], count = now.counts?.members ?? 0;
  if (link.state === "none" && !members.length) return <Unread now={now} name="members" title="Links and members" />;
  return (
    <Card title="Links and members" count={count || link.members}>
      {link.state !== "none" && (
        <Pairs of={{ Bus: <span class={link.state === "up" ? "good" : "bad"}>{link.state}{link.why && `: ${link.why}`}</span>, "Owed to the bus": number(link.owed), "Tells not acknowledged": number(link.tells) }} />
      )}
      {members.length > 0 && (
        <table>
          <tbody>
            {members.slice(0, 50).map((one) => (
              <tr key={one.name}><th scope="row">{one.name}</th><td class={one.state === "alive" ? "good" : one.state === "unheard" ? "warn" : "bad"}>{one.state}</td>
                <td class="figure faint">{one.since && span((Date.parse(now.time) - Date.parse(one.since)) / 1000)}</td></tr>
            ))}
          </tbody>
        </table>
      )}
    </Card>
  );
}

/** Shared objects, the one that is behind for longest first. */
function Convergence({ now }: { now: Figures }) {
  const objects = now.objects ?? [], count = now.counts?.objects ?? 0;
  if (!objects.length) return <Unread now={now} name="objects" title="Shared objects" />;
  return (
    <Card title="Shared objects" count={count}>
      <table>
        <thead><tr><th scope="col">object</th><th scope="col">lack changes</th><th scope="col" class="figure">for</th><th scope="col" class="figure">bytes</th></tr></thead>
        <tbody>
          {objects.slice(0, 30).map((one) => {
            const lacking = one.peers.filter((peer) => !one.in_step.includes(peer));
            return (
              <tr key={`${one.object} ${one.shard ?? ""}`}>
                <th scope="row">{one.object}{one.diverged && <b class="bad"> diverged</b>}</th>
                <td class={lacking.length ? "warn" : "good"}>{lacking.length ? lacking.slice(0, 4).join(", ") + (lacking.length > 4 ? ` and ${lacking.length - 4} more` : "") : "nobody"}</td>
                <td class="figure">{lacking.length && one.behind_s !== undefined ? span(one.behind_s) : "–"}</td>
                <td class="figure">{bytes(one.live_bytes)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <More count={count - Math.min(30, objects.length)} />
    </Card>
  );
}

function Claims({ now }: { now: Figures }) {
  const resources = now.resources ?? [], count = now.counts?.resources ?? 0;
  if (!resources.length) return <Unread now={now} name="resources" title="Claims" />;
  return (
    <Card title="Claims" count={count}>
      <table>
        <thead><tr><th scope="col">resource</th><th scope="col">holder</th><th scope="col" class="figure">for</th><th scope="col">waiting</th></tr></thead>
        <tbody>
          {resources.slice(0, 50).map((one) => (
            <tr key={one.resource}>
              <th scope="row">{one.resource}</th>
              <td>{one.holder ? one.holder.agent ? <AgentLink agent={one.holder.agent} /> : one.holder.claimant : <span class="faint">nobody</span>}</td>
              <td class="figure">{one.for_s === null ? "–" : span(one.for_s)}</td>
              <td>{one.queue.slice(0, 3).map(({ agent, claimant }) => <div key={claimant}>{agent ? <AgentLink agent={agent} /> : claimant}</div>)}{one.queue.length > 3 && ` and ${one.queue.length - 3} more`}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <More count={count - Math.min(50, resources.length)} />
    </Card>
  );
}

function Cluster({ now }: { now: Figures }) {
  const parts = now.parts ?? [], moves = now.moves ?? [];
  if (!parts.length) return null;
  return (
    <Card title="Shards and owners" count={parts.length}>
      <div class="wide">
        <table>
          <thead><tr><th scope="col">shard</th><th scope="col">owner</th><th scope="col" class="figure">agents</th><th scope="col" class="figure">events</th><th scope="col" class="figure" title="observed events that wait">waiting</th><th scope="col" class="figure">owed</th></tr></thead>
          <tbody>
            {parts.map((one) => (
              <tr key={one.process}>
                <th scope="row">{one.first_shard === one.last_shard ? one.first_shard : `${one.first_shard}–${one.last_shard}`}</th>
                <td>{one.pid ? `${one.host ?? ""} ${one.pid}` : <span class="bad">nobody answers</span>}</td>
                <td class="figure">{number(one.agents)}</td><td class="figure">{number(one.events)}</td><td class="figure">{number(one.waiting)}</td><td class="figure">{number(one.owed)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {moves.length > 0 && <ul class="moves" aria-label="Moves">{moves.slice(0, 10).map((one) => <li key={one.time + one.text}><time>{clock(one.time)}</time> {one.text}</li>)}</ul>}
    </Card>
  );
}

/** The servers below a fleet on workers. */
function Servers({ now }: { now: Figures }) {
  const servers = now.servers ?? [];
  if (!servers.length) return <Unread now={now} name="servers" title="Servers" />;
  return (
    <Card title="Servers" count={servers.length} tone={servers.some((one) => !one.is_up || one.error) ? "bad" : undefined}>
      <table>
        <thead><tr><th scope="col">server</th><th scope="col">state</th><th scope="col">version</th><th scope="col" class="figure">stored</th></tr></thead>
        <tbody>
          {servers.map((one) => (
            <tr key={one.name}>
              <th scope="row">{one.name}{one.leads && <span class="faint"> leads</span>}</th>
              <td class={!one.is_up || one.error ? "bad" : "good"}>{one.is_up ? one.error || "up" : "does not answer"}</td>
              <td>{one.version}</td>
              <td class="figure">{bytes(one.store_bytes)}{one.store_bytes_max ? ` of ${bytes(one.store_bytes_max)}` : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}
